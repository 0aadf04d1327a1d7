// Which step is a transition's new goal from?
#include <limits>
#include <optional>

#include "rooms.hpp"
#include "transitions.hpp"
#include "unlocked.hpp"

namespace sharpwave {
namespace {

namespace nb = nanobind;

enum Strategy : int64_t { future = 0, final_step = 1, episode = 2 };
constexpr std::size_t alone_items = 64;  // items from which walking is worth giving up the interpreter's lock

struct Place {
    int64_t slot, row;
};

// Returns the first step that is held of a step's episode, before any evicted step.
Place episode_begin(const Log& log, Place step) {
    while (true) {
        const ConstBytes flags = log.flags(step.slot);
        step.row = std::max<int64_t>(last_flagged(flags, 1, step.row + 1, start_flag), 0);
        const int64_t before = log.previous[step.slot];
        if (flags[step.row] & start_flag || before < 0 || log.gap[before]) return step;
        // An end that no start follows was made where segments from elsewhere were lost.
        if (log.flags(before).back() & ended) return step;
        step = {before, log.rows[before] - 1};
    }
}

struct Walked {
    Place step;
    int64_t counted;
};

// Follows an episode from a step on, past steps that cannot be read.
//
// Returns step ``number``, counted from 0, and how many steps were counted: ``number`` + 1, or all up to the episode's
// end, of which the last one is returned.
Walked walk(const Log& log, Grid<const int32_t> spans, Place step, int64_t number) {
    int64_t counted = 0;
    Place last = step;
    while (true) {
        const int64_t rows = log.rows[step.slot];
        const int64_t end = next_flagged(log.flags(step.slot), step.row, rows, ended);
        // None of a segment that was found damaged.
        const int64_t known = std::min({end + 1, rows, int64_t{spans[step.slot][1]}});
        if (known > step.row) {
            if (counted + known - step.row > number) return {{step.slot, step.row + number - counted}, number + 1};
            counted += known - step.row;
            last = {step.slot, known - 1};
        }
        const int64_t following = log.next[step.slot];
        if (end < rows || log.gap[step.slot] || following < 0 || log.rows[following] == 0) return {last, counted};
        step = {following, 0};
    }
}

// Chooses the steps whose achieved goals are the new goals of ``items``.
void choose_goals(const Log& log, ConstInts items, std::span<const double> uniforms, double share, int64_t strategy,
                  Grid<const int32_t> spans, Ints slot, Ints frame) {
    std::optional<Released> alone;
    if (items.size() >= alone_items) alone.emplace();
    constexpr int64_t all = std::numeric_limits<int64_t>::max() - 1;
    for (std::size_t i = 0; i < items.size(); ++i) {
        slot[i] = -1, frame[i] = 0;
        if (uniforms[i] >= share) continue;
        Place step{log.slot_of(items[i]), 0};
        step.row = items[i] - step.slot * log.stride;
        if (strategy == episode) step = episode_begin(log, step);
        Walked goal = walk(log, spans, step, all);
        if (strategy != final_step) {
            const double chosen = uniforms[i] / share * static_cast<double>(goal.counted);
            goal = walk(log, spans, step, std::min(static_cast<int64_t>(chosen), goal.counted - 1));
        }
        slot[i] = goal.step.slot;
        frame[i] = log.frame(goal.step.slot, goal.step.row).frame + 1;
    }
}

struct Goals {
    const Column& achieved;
    std::size_t desired;  // number of its window
    double share;
    int64_t strategy;
};

// Fills batches of transitions, some with a new goal; then comes the column that says which.
class HindsightFiller : public TransitionFiller {
  public:
    HindsightFiller(const Log& log, const nb::typed<nb::sequence, nb::object>& columns, ConstBytes endings,
                    StepFinder& finder, Grid<int32_t> spans, Grid<int64_t> runs, const Goals& goals,
                    const TransitionSettings& settings)
        : TransitionFiller(log, columns, endings, finder, spans, runs, settings), goals_(goals) {}

    int64_t numbers() const override { return 3; }

    int64_t fill(const Filling& filling, const Residents& residents) override {
        const std::size_t count = filling.items.size();
        chosen_.resize(2 * count), pieces_.resize(5 * count);
        const Ints slot{chosen_.data(), count}, frame{chosen_.data() + count, count};
        choose_goals(log_, filling.items, filling.uniforms, goals_.share, goals_.strategy, spans, slot, frame);
        const Grid<int64_t> pieces{pieces_.data(), 5, static_cast<int64_t>(count)};
        const Bytes relabelled = filling.column<uint8_t>(windows_at + columns_.size());
        std::size_t found = 0;
        for (std::size_t i = 0; i < count; ++i) {
            relabelled[i] = slot[i] >= 0;
            pieces[0][found] = slot[i], pieces[1][found] = pieces[2][found] = frame[i];
            pieces[3][found] = 1, pieces[4][found] = static_cast<int64_t>(i);
            found += relabelled[i];
        }
        if (!residents.are(pieces[0].first(found)) || TransitionFiller::fill(filling, residents) < 0) return -1;
        const Places<3> window = filling.window(windows_at + goals_.desired);  // one goal before and after the step
        const Places<2> before{window.data, window.windows, 1, window.size, window.window_stride, window.window_stride};
        if (gather_pieces(goals_.achieved, pieces, static_cast<int64_t>(found), before, settings_.threads)) return -1;
        for (const int64_t i : pieces[4].first(found)) {
            uint8_t* const goal = window.data + i * window.window_stride;
            std::copy_n(goal, window.size, goal + window.row_stride);
        }
        return 2;
    }

  private:
    Goals goals_;
    std::vector<int64_t> chosen_, pieces_;  // working memory
};

}  // namespace

void define_hindsight(nb::module_& module) {
    using namespace nb::literals;
    using Objects = nb::typed<nb::sequence, nb::object>;
    nb::class_<HindsightFiller, TransitionFiller>(module, "HindsightFiller", "Finder of steps of ended episodes.")
        .def(
            "__init__",
            [](HindsightFiller* self, const Log& log, const Objects& columns, ConstBytes endings, StepFinder& finder,
               Grid<int32_t> spans, Grid<int64_t> runs, std::size_t achieved, std::size_t desired, double share,
               int64_t strategy, double gamma, bool stacks, int64_t threads, int64_t thread_bytes,
               int64_t chunk_bytes) {
                const Goals goals{nb::cast<const Column&>(columns[achieved]), desired, share, strategy};
                new (self) HindsightFiller(log, columns, endings, finder, spans, runs, goals,
                                           {1, gamma, stacks, {threads, thread_bytes, chunk_bytes}});
            },
            nb::keep_alive<1, 2>(), "log"_a, "columns"_a, "endings"_a, "finder"_a, "spans"_a, "runs"_a, "achieved"_a,
            "desired"_a, "share"_a, "strategy"_a, "gamma"_a, "stacks"_a, "threads"_a, "thread_bytes"_a, "chunk_bytes"_a,
            R"(Args:
    share, strategy, spans: as of ``choose_goals``.
    achieved, desired: numbers of the goals' windows; the others as of ``TransitionFiller``.)");
    module.attr("FUTURE") = static_cast<int64_t>(future);
    module.attr("FINAL") = static_cast<int64_t>(final_step);
    module.attr("EPISODE") = static_cast<int64_t>(episode);
    module.def(
        "choose_goals", &choose_goals, "log"_a, "items"_a, "uniforms"_a, "share"_a, "strategy"_a, "spans"_a, "slot"_a,
        "frame"_a,
        R"(Choose the steps whose achieved goals are the new goals of ``items`` [B], steps whose episodes have ended.

An item is relabelled where its random number, uniform over 0 to 1, is below ``share``; the number divided by
``share``, which is uniform again, chooses the step.

Args:
    strategy: FUTURE, FINAL or EPISODE.
    spans: int32 [slots, 2]; the second is the number of a slot's rows that may be read.
    slot, frame: int64 [B], receive the segment, and the row of its observations' columns, with the observation
        after the chosen step; the slot is -1 where an item is not relabelled.

Cost: proportional to the segments up to the episode's end, which are walked twice; EPISODE walks the earlier ones as
well.)");
}

}  // namespace sharpwave
