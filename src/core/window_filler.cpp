// What does a batch of windows take, from their items to their last row? Columns by number, then each field's rows.
#include <array>
#include <cmath>

#include "filling.hpp"
#include "known_steps.hpp"
#include "rooms.hpp"
#include "sequences.hpp"

namespace sharpwave {
namespace {

namespace nb = nanobind;

// Adds as numpy does: in pairs from eight on, in halves beyond 128.
double sum_in_pairs(ConstFloats values) {
    const std::size_t count = values.size();
    if (count > 128) {
        const std::size_t half = count / 2 - count / 2 % 8;
        return sum_in_pairs(values.first(half)) + sum_in_pairs(values.subspan(half));
    }
    double total = 0.0;
    std::size_t i = 0;
    if (count >= 8) {
        std::array<double, 8> sums;
        std::copy_n(values.begin(), 8, sums.begin());
        for (i = 8; i + 8 <= count; i += 8) {
            for (std::size_t k = 0; k < 8; ++k) sums[k] += values[i + k];
        }
        total = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    }
    for (; i < count; ++i) total += values[i];
    return total;
}

struct WindowSettings {
    int64_t length, burn_in, stride, n_step;
    double gamma, eta;
    Threads threads;
};

// Fills batches of windows: the columns of ``locate_windows`` in order, then the rows of each field.
class WindowFiller : public Filler {
  public:
    // ``stacks``: of each field the frames of an observation, 0 for one that has a row a step.
    WindowFiller(const Log& log, const nb::typed<nb::sequence, nb::object>& columns, ConstInts stacks,
                 StepFinder& known, Grid<int32_t> steps, Grid<int64_t> found, Grid<int32_t> spans, Grid<int64_t> runs,
                 const WindowSettings& settings)
        : Filler(spans, runs),
          log_(log),
          stacks_(stacks.begin(), stacks.end()),
          known_(known),
          steps_(steps),
          found_(found),
          settings_(settings) {
        for (nb::handle one : columns) {
            held_.push_back(nb::borrow(one));
            columns_.push_back(&nb::cast<const Column&>(one));
        }
    }

    int64_t find() override {
        const int64_t found = known_.find(log_, {}, steps_, found_);
        return windows_of_steps(log_, found_, found, settings_.stride, settings_.burn_in, spans, runs,
                                found == found_.columns);
    }

    int64_t fill(const Filling& filling, const Residents& residents) override {
        const int64_t count = locate(filling);
        const Grid<int64_t> lying = grid(lying_, run_rows, std::ssize(lying_) / run_rows);
        if (!residents.are(lying[1].first(static_cast<std::size_t>(count)))) return -1;
        pieces_.resize(static_cast<std::size_t>(piece_rows * count));
        const Grid<int64_t> pieces = grid(pieces_, piece_rows, count);
        const Grid<const int64_t> places = filling.scratch;
        for (std::size_t i = 0; i < columns_.size(); ++i) {
            const Places<3> window = filling.window(fields_at + i);
            const Cube<uint8_t> out{window.data, window.windows, window.rows, window.size};
            const int64_t stack = stacks_[i];
            int64_t some = count;
            if (stack) {
                const int64_t begin = window.rows - window.rows / stack - stack + 1;
                frame_pieces(log_, lying, places, stack, window.rows, begin, pieces);
            } else {
                some = step_pieces(lying, count, steps(), pieces);
            }
            const Places<2> rows{window.data, window.windows * window.rows, 1, window.size, window.size, window.size};
            if (gather_pieces(*columns_[i], pieces, some, rows, settings_.threads)) return -1;
            if (stack > 1) spread_stacks(out, places, stack);
            const int64_t each = std::max<int64_t>(stack, 1);
            clear_padding({window.data, window.windows, window.rows / each, window.size * each}, places, stack > 0);
        }
        return most_of_one(lying[0].first(static_cast<std::size_t>(count)));
    }

    void mix_errors(ConstInts items, Grid<const double> errors, Floats mixed) const override {
        require(errors.columns == settings_.length, "an item has an error a step");
        std::vector<int64_t> begins(items.size()), counts(items.size());
        trained_steps(log_, items, settings_.stride, settings_.length, begins, counts);
        std::vector<double> sizes(static_cast<std::size_t>(settings_.length));
        for (std::size_t i = 0; i < items.size(); ++i) {
            const ConstFloats given = errors[static_cast<int64_t>(i)];
            double largest = 0.0;
            for (std::size_t k = 0; k < sizes.size(); ++k) {
                sizes[k] = static_cast<int64_t>(k) < counts[i] ? std::abs(given[k]) : 0.0;
                largest = std::max(largest, sizes[k]);
            }
            mixed[i] =
                settings_.eta * largest + (1.0 - settings_.eta) * sum_in_pairs(sizes) / static_cast<double>(counts[i]);
        }
    }

  private:
    static constexpr std::size_t fields_at = own_at + 11;
    static constexpr int64_t piece_rows = 5;

    static Grid<int64_t> grid(std::vector<int64_t>& values, int64_t rows, int64_t columns) {
        return {values.data(), rows, columns};
    }
    int64_t steps() const { return settings_.burn_in + settings_.length; }

    // Fills what is made of flags and rewards; returns the number of runs.
    int64_t locate(const Filling& filling) {
        const auto floats = [&](std::size_t number) { return filling.grid<float>(own_at + number, steps()); };
        const auto bytes = [&](std::size_t number) { return filling.grid<uint8_t>(own_at + number, steps()); };
        const auto ints = [&](std::size_t number) { return filling.grid<int64_t>(own_at + number, steps()); };
        while (true) {
            const int64_t room = std::ssize(lying_) / run_rows;
            const int64_t count =
                locate_windows(log_, filling.items, settings_.stride, settings_.burn_in, settings_.n_step,
                               settings_.gamma, floats(0), floats(1), floats(2), ints(3), bytes(4), bytes(5), bytes(6),
                               bytes(7), ints(8), filling.column<int64_t>(own_at + 9),
                               filling.column<int64_t>(own_at + 10), filling.scratch, grid(lying_, run_rows, room));
            if (count <= room) return count;
            lying_.resize(static_cast<std::size_t>(2 * run_rows * count));
        }
    }

    // Returns how many runs an item has at most; those of one lie together.
    static int64_t most_of_one(ConstInts items) {
        int64_t most = 1, same = 0;
        for (std::size_t i = 0; i < items.size(); ++i) {
            same = i && items[i] == items[i - 1] ? same + 1 : 1;
            most = std::max(most, same);
        }
        return most;
    }

    const Log& log_;
    std::vector<nb::object> held_;
    std::vector<const Column*> columns_;
    std::vector<int64_t> stacks_;
    StepFinder& known_;
    Grid<int32_t> steps_;
    Grid<int64_t> found_;
    WindowSettings settings_;
    std::vector<int64_t> lying_, pieces_;  // working memory: runs of steps, and pieces of a field
};

}  // namespace

void define_window_filler(nb::module_& module) {
    using namespace nb::literals;
    using Objects = nb::typed<nb::sequence, nb::object>;
    nb::class_<WindowFiller, Filler>(module, "WindowFiller", "Finder of windows, which fills batches of them.")
        .def(
            "__init__",
            [](WindowFiller* self, const Log& log, const Objects& columns, ConstInts stacks, StepFinder& known,
               Grid<int32_t> steps, Grid<int64_t> found, Grid<int32_t> spans, Grid<int64_t> runs, int64_t length,
               int64_t burn_in, int64_t stride, int64_t n_step, double gamma, double eta, int64_t threads,
               int64_t thread_bytes, int64_t chunk_bytes) {
                new (self)
                    WindowFiller(log, columns, stacks, known, steps, found, spans, runs,
                                 {length, burn_in, stride, n_step, gamma, eta, {threads, thread_bytes, chunk_bytes}});
            },
            nb::keep_alive<1, 2>(), "log"_a, "columns"_a, "stacks"_a, "known"_a, "steps"_a, "found"_a, "spans"_a,
            "runs"_a, "length"_a, "burn_in"_a, "stride"_a, "n_step"_a, "gamma"_a, "eta"_a, "threads"_a,
            "thread_bytes"_a, "chunk_bytes"_a,
            R"(Args:
    columns: list of ``Column``, of each field; ``stacks``: frames of its observations, 0 for one with a row a step.
    known: finds the steps of ``steps``, by runs ``found``.
    spans, runs: as of ``windows_of_steps``; both ``runs`` have as many columns.)");
}

}  // namespace sharpwave
