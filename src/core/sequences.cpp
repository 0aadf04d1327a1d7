// Which windows are there, and what is each put together from?
//
// A window is named by the step that is trained first in it, whose number in its episode is a multiple of ``stride``:
// item k of a segment is the k-th such step in it, from 0.
#include "sequences.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "collected.hpp"
#include "known_steps.hpp"
#include "numpy_arrays.hpp"
#include "returns.hpp"
#include "rooms.hpp"
#include "unlocked.hpp"

namespace sharpwave {
namespace {

namespace nb = nanobind;

// Returns the first multiple of ``stride`` from ``number`` on, divided by it.
int64_t multiples(int64_t number, int64_t stride) { return (number + stride - 1) / stride; }

// Counts the steps in the first ``rows`` rows of a segment whose numbers in their episodes are multiples of ``stride``.
int64_t count_windows(const Log& log, int64_t slot, int64_t rows, int64_t stride) {
    const ConstBytes flags = log.flags(slot);
    int64_t number = log.episode_step[slot], begin = 0, count = 0;
    while (begin < rows) {
        const int64_t end = next_flagged(flags, begin + 1, rows, start_flag);
        if (flags[begin] & start_flag) number = 0;
        count += multiples(number + end - begin, stride) - multiples(number, stride);
        begin = end;
    }
    return count;
}

struct First {
    int64_t row, number;
};

// Returns the row of the k-th window's first trained step, and its number in its episode.
First window_row(const Log& log, int64_t slot, int64_t k, int64_t stride) {
    const ConstBytes flags = log.flags(slot);
    const int64_t rows = std::ssize(flags);
    int64_t number = log.episode_step[slot], begin = 0;
    while (true) {
        const int64_t end = next_flagged(flags, begin + 1, rows, start_flag);
        if (flags[begin] & start_flag) number = 0;
        const int64_t first = multiples(number, stride);
        const int64_t count = multiples(number + end - begin, stride) - first;
        if (k < count || end >= rows) {
            const int64_t found = (first + k) * stride;
            return {begin + found - number, found};
        }
        k -= count;
        begin = end;
    }
}

// Returns how many of a segment's first rows have no whole burn-in, as steps before the segment were evicted.
int64_t burn_in_missing(const Log& log, int64_t slot, int64_t burn_in) {
    int64_t rows = log.rows[slot], before = 0, at = slot;
    while (before < burn_in) {
        const ConstBytes flags = log.flags(at);
        if (rows > 0 && flags[0] & start_flag) return 0;  // at the beginning of a segment an episode begins
        at = log.previous[at];
        // An end that no start follows was made where segments from elsewhere were lost.
        if (at < 0 || log.gap[at] || log.flags(at).back() & ended) break;
        if (last_flagged(log.flags(at), 1, log.rows[at], start_flag) >= 0) return 0;
        before += log.rows[at];
    }
    if (before >= burn_in) return 0;
    return std::min(burn_in - before, next_flagged(log.flags(slot), 0, rows, start_flag));
}

// Finds the windows that begin with ``steps``, ascending ones of one lane; returns how many there are.
int64_t lose_ahead(const Log& log, ConstInts steps, int64_t stride, Grid<int32_t> spans, Ints lost) {
    int64_t found = 0;
    for (std::size_t i = steps.size(); i-- > 0;) {  // a segment's last first
        const int64_t step = steps[i], slot = log.slot_of(step), row = step - slot * log.stride;
        if (step_number(log.flags(slot), log.episode_step[slot], row) % stride) continue;
        const int64_t k = count_windows(log, slot, row, stride);
        if (spans[slot][0] <= k && k < spans[slot][1]) {
            lost[found++] = slot * log.stride + k;
            spans[slot][1] = static_cast<int32_t>(k);
        }
    }
    return found;
}

// Finds the windows whose burn-in reaches back into the segment in ``slot``; returns how many there are.
int64_t lose_behind(const Log& log, int64_t slot, int64_t burn_in, int64_t stride, Grid<int32_t> spans, Ints lost) {
    int64_t found = 0, left = burn_in, at = slot;
    while (left > 0 && log.next[at] >= 0 && !log.gap[at]) {
        at = log.next[at];
        const int64_t rows = log.rows[at], start = next_flagged(log.flags(at), 0, rows, start_flag);
        const int64_t end = std::min(int64_t{spans[at][1]}, count_windows(log, at, std::min(left, start), stride));
        for (int64_t k = spans[at][0]; k < end; ++k) lost[found++] = at * log.stride + k;
        spans[at][0] = std::max(spans[at][0], static_cast<int32_t>(end));
        if (start < rows) break;
        left -= rows;
    }
    return found;
}

// Arrays of a batch [B, T] that are made of flags and rewards, and [B] of where it is from.
struct Columns {
    Grid<float> step_reward, reward, discount;
    Grid<int64_t> bootstrap;
    Grid<uint8_t> mask, first, terminated, truncated;
    Grid<int64_t> n;
};

// Writes the columns of item i, whose steps, from ``step`` on, are in the columns from ``begin`` to before ``end``.
void write_columns(const Columns& out, std::size_t i, Walk step, int64_t begin, int64_t end, int64_t n_step,
                   double gamma) {
    const auto row = static_cast<int64_t>(i);
    const std::span<float> step_reward = out.step_reward[row], reward = out.reward[row], discount = out.discount[row];
    const Ints bootstrap = out.bootstrap[row], n = out.n[row];
    const Bytes mask = out.mask[row], first = out.first[row];
    const Bytes terminated = out.terminated[row], truncated = out.truncated[row];
    for (int64_t j = 0; j < out.mask.columns; ++j) {
        if (j < begin || j >= end) {
            step_reward[j] = reward[j] = discount[j] = 0.0f;
            bootstrap[j] = j, n[j] = 0;
            mask[j] = first[j] = terminated[j] = truncated[j] = 0;
            continue;
        }
        Walk behind = step;
        const Return found = n_step_return<false>(behind, n_step, gamma);
        step_reward[j] = step.reward();
        reward[j] = found.reward();
        discount[j] = found.discount();
        bootstrap[j] = j + found.used, n[j] = found.used;
        mask[j] = 1, first[j] = (step.flag() & start_flag) != 0;
        terminated[j] = (step.flag() & terminated_flag) != 0;
        truncated[j] = (step.flag() & truncated_flag) != 0;
        if (j + 1 < end) step.go_on();
    }
}

// Finds the first trained step of each of ``items``.
void first_steps(const Log& log, ConstInts items, int64_t stride, Ints steps) {
    for (std::size_t i = 0; i < items.size(); ++i) {
        const int64_t slot = log.slot_of(items[i]), begin = slot * log.stride;
        steps[i] = begin + window_row(log, slot, items[i] - begin, stride).row;
    }
}

// A window needs the steps of its burn-in, and those that its returns reach.
class KnownWindows final : public Finder {
  public:
    // steps: spans of the steps that begin whole windows, which ``known`` finds: of each, ``reach`` steps are known.
    KnownWindows(nb::object known, nb::object steps, int64_t reach, int64_t burn_in, int64_t stride)
        : held_known_(std::move(known)),
          held_steps_(std::move(steps)),
          known_(nb::cast<StepFinder&>(held_known_)),
          steps_(nb::cast<Grid<int32_t>>(held_steps_)),
          burn_in_(burn_in),
          stride_(stride),
          ahead_(reach - 1) {}

    int64_t most_lost(const Log& log, int64_t slot) const override {
        return 2 * known_.most_lost(log, slot) + burn_in_;  // the steps among them
    }

    int64_t lose(const Log& log, int64_t slot, Grid<int32_t> spans, Ints lost) override {
        const Ints ahead = lost.last(std::min(lost.size(), static_cast<std::size_t>(ahead_)));
        steps_[slot][0] = steps_[slot][1] = 0;
        const auto steps = static_cast<std::size_t>(known_.lose(log, slot, steps_, ahead));
        auto found = static_cast<std::size_t>(lose_ahead(log, ahead.first(steps), stride_, spans, lost));
        found += static_cast<std::size_t>(lose_behind(log, slot, burn_in_, stride_, spans, lost.subspan(found)));
        std::ranges::sort(lost.first(found));
        return static_cast<int64_t>(found);
    }

    template <class Call>
    void each_held(Call&& call) const {
        call(held_known_), call(held_steps_);
    }

  private:
    nb::object held_known_, held_steps_;
    StepFinder& known_;
    Grid<int32_t> steps_;
    int64_t burn_in_, stride_, ahead_;
};

}  // namespace

// Turns runs of steps that became known into runs of windows that begin with them; returns how many there are.
int64_t windows_of_steps(const Log& log, Grid<const int64_t> steps, int64_t count, int64_t stride, int64_t burn_in,
                         Grid<int32_t> spans, Grid<int64_t> runs, bool keep) {
    int64_t found = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t slot = steps[0][i], begin = steps[1][i], end = steps[2][i];
        const int64_t first = count_windows(log, slot, begin, stride), last = count_windows(log, slot, end, stride);
        if (begin < burn_in && last > first) {
            if (const int64_t missing = burn_in_missing(log, slot, burn_in)) {
                const int64_t lost = std::min(last, count_windows(log, slot, missing, stride));
                spans[slot][0] = std::max(spans[slot][0], static_cast<int32_t>(lost));
            }
        }
        spans[slot][1] = static_cast<int32_t>(last);
        if (last > first || keep) {
            runs[0][found] = slot, runs[1][found] = first, runs[2][found] = last;
            ++found;
        }
    }
    return found;
}

// Computes all of a batch that is made of flags and rewards, and where the rest lies; returns the number of runs.
int64_t locate_windows(const Log& log, ConstInts items, int64_t stride, int64_t burn_in, int64_t n_step, double gamma,
                       Grid<float> step_reward, Grid<float> reward, Grid<float> discount, Grid<int64_t> bootstrap,
                       Grid<uint8_t> mask, Grid<uint8_t> first, Grid<uint8_t> terminated, Grid<uint8_t> truncated,
                       Grid<int64_t> n, Ints lane, Ints step, Grid<int64_t> places, Grid<int64_t> runs) {
    const Columns out{step_reward, reward, discount, bootstrap, mask, first, terminated, truncated, n};
    const int64_t reach = mask.columns + n_step - 1;
    int64_t found = 0;
    for (std::size_t i = 0; i < items.size(); ++i) {
        int64_t slot = log.slot_of(items[i]);
        auto [row, number] = window_row(log, slot, items[i] - slot * log.stride, stride);
        lane[i] = log.lane[slot], step[i] = log.first_step[slot] + row;
        int64_t left = std::min(burn_in, number);
        const int64_t begin = burn_in - left;
        while (row < left) {
            left -= row;
            slot = log.previous[slot];
            row = log.rows[slot];
        }
        row -= left;
        const Walk step(log, slot, row);
        int64_t end = begin;
        bool over = false;
        while (end < reach && !over) {
            const ConstBytes flags = log.flags(slot);
            const int64_t rows = std::min<int64_t>(std::ssize(flags), row + reach - end);
            const int64_t last = next_flagged(flags, row, rows, ended);
            over = last < rows;
            const int64_t count = std::min(last + 1, rows) - row;
            if (found < runs.columns) {
                runs[0][found] = static_cast<int64_t>(i), runs[1][found] = slot, runs[2][found] = row;
                runs[3][found] = count, runs[4][found] = end;
            }
            ++found;
            end += count;
            if (end < reach && !over) slot = log.next[slot], row = 0;
        }
        places[0][i] = begin, places[1][i] = end;
        write_columns(out, i, step, begin, end, n_step, gamma);
    }
    return found;
}

// Finds which steps are trained in each of ``items``.
void trained_steps(const Log& log, ConstInts items, int64_t stride, int64_t length, Ints begins, Ints counts) {
    for (std::size_t i = 0; i < items.size(); ++i) {
        const int64_t slot = log.slot_of(items[i]);
        begins[i] = window_row(log, slot, items[i] - slot * log.stride, stride).row;
        Walk step(log, slot, begins[i]);
        int64_t count = 1;
        for (; count < length && !(step.flag() & ended); ++count) step.go_on();
        counts[i] = count;
    }
}

// Says which frames the observations of the first runs need, as many as there are ``pieces``, and where they go.
void frame_pieces(const Log& log, Grid<const int64_t> runs, Grid<const int64_t> places, int64_t stack, int64_t rows,
                  int64_t begin, Grid<int64_t> pieces) {
    for (int64_t i = 0; i < pieces.columns; ++i) {
        const int64_t item = runs[0][i], slot = runs[1][i], column = runs[4][i];
        const FrameOf found = log.frame(slot, runs[2][i]);
        const int64_t count = runs[3][i] + (column + runs[3][i] == places[1][item]);
        const int64_t more = column == places[0][item] ? stack - 1 : 0;
        pieces[0][i] = slot, pieces[1][i] = found.frame + count - 1;
        pieces[2][i] = more ? found.first : 0, pieces[3][i] = count + more;
        pieces[4][i] = item * rows + begin + column + stack - 1 - more;
    }
}

// Says which rows of a field that has one a step the columns of a batch need; returns how many pieces there are.
int64_t step_pieces(Grid<const int64_t> runs, int64_t count, int64_t columns, Grid<int64_t> pieces) {
    int64_t found = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t item = runs[0][i], column = runs[4][i], steps = std::min(runs[3][i], columns - column);
        if (steps <= 0) continue;
        pieces[0][found] = runs[1][i], pieces[1][found] = runs[2][i] + steps - 1;
        pieces[2][found] = 0, pieces[3][found] = steps, pieces[4][found] = item * columns + column;
        ++found;
    }
    return found;
}

// Zeroes the columns of ``out`` before each window's first step, and from ``behind`` columns after its last step's on.
void clear_padding(Cube<uint8_t> out, Grid<const int64_t> places, int64_t behind) {
    for (int64_t i = 0; i < out.blocks; ++i) {
        const Grid<uint8_t> window = out[i];
        const Bytes all = window.flat();
        const int64_t begin = std::min(places[0][i], window.rows), end = std::min(places[1][i] + behind, window.rows);
        std::ranges::fill(all.first(begin * window.columns), uint8_t{0});
        std::ranges::fill(all.subspan(end * window.columns), uint8_t{0});
    }
}

// Makes stacks of the frames that are at the end of each window's part of ``out``.
//
// Column c's stack is frames c ... c + stack - 1 of ``columns + stack - 1``. It is written before those that later
// columns need; columns without an observation are left as they are.
void spread_stacks(Cube<uint8_t> out, Grid<const int64_t> places, int64_t stack) {
    const std::optional<Released> alone = unlocked_for(std::ssize(out.flat()));
    const int64_t columns = out.rows / stack, begin = out.rows - columns - stack + 1;
    for (int64_t i = 0; i < out.blocks; ++i) {
        const Grid<uint8_t> window = out[i];
        const int64_t end = std::min(columns, places[1][i] + 1);
        for (int64_t c = places[0][i]; c < end; ++c) {
            for (int64_t j = 0; j < stack; ++j) {
                if (c * stack + j == begin + c + j) continue;
                std::ranges::copy(window[begin + c + j], window[c * stack + j].begin());
            }
        }
    }
}

void define_sequences(nb::module_& module) {
    using namespace nb::literals;
    module.attr("RUN_ROWS") = run_rows;
    module.def("windows_of_steps", &windows_of_steps, "log"_a, "steps"_a, "count"_a, "stride"_a, "burn_in"_a, "spans"_a,
               "runs"_a, "keep"_a,
               R"(Turn runs of steps that became known into runs of windows that begin with them.

Args:
    steps, runs: int64 [3, n], slot, begin and end; of ``steps`` the first ``count`` runs.
    spans: int32 [slots, 2], which windows there are; ends are raised, and begins where a burn-in was evicted.
    keep: also runs without any window.

Returns how many runs there are. Cost: counting the windows of each run's segment two or three times.)");
    nb::class_<KnownWindows, Finder>(module, "KnownWindows", "Finder of windows, as far as evictions go.",
                                     nb::type_slots(Collected<KnownWindows>::slots))
        .def(nb::init<nb::object, nb::object, int64_t, int64_t, int64_t>(), "known"_a, "steps"_a, "reach"_a,
             "burn_in"_a, "stride"_a,
             "Args:\n    known, steps: ``StepFinder`` of ``reach``, and their spans int32 [slots, 2]: the steps that "
             "begin "
             "whole windows.");
    module.def("locate_windows", &locate_windows, "log"_a, "items"_a, "stride"_a, "burn_in"_a, "n_step"_a, "gamma"_a,
               "step_reward"_a, "reward"_a, "discount"_a, "bootstrap"_a, "mask"_a, "first"_a, "terminated"_a,
               "truncated"_a, "n"_a, "lane"_a, "step"_a, "places"_a, "runs"_a,
               R"(Compute all of a batch that is made of flags and rewards, and where the rest lies, for ``items`` [B].

Column j of ``step_reward`` ... ``n`` [B, T] is a step, column ``burn_in`` the one that names the window; ``lane``
and ``step`` [B] say where that is in the log. For each step ``reward`` receives ``sum_i gamma^i r_i`` over the
n_used <= n_step steps up to its episode's end, and ``discount`` ``gamma^n_used * (1 - terminated)`` (Sutton & Barto
2018, eq. 7.1), ``bootstrap`` the column of the observation behind them; columns without a step get zeros, and their
own number.

Args:
    places: int64 [2, B], receives each window's first column that is a step, and the one behind its last, counted
        up to ``T + n_step - 1``; there is an observation in that one too.
    runs: int64 [RUN_ROWS, n], receives steps that lie one behind the other in a segment: item, slot, first row, number
        of steps, and the column of the first. Each window has as many as it touches segments.

Returns the number of runs; where that is more than n, only so many were written. Cost: proportional to the
columns, and to the steps of each one's return.)");
    module.def("first_steps", &first_steps, "log"_a, "items"_a, "stride"_a, "steps"_a,
               "Find the number of the first trained step of each of ``items`` [n], ``slot * log.stride + row``.");
    module.def("trained_steps", &trained_steps, "log"_a, "items"_a, "stride"_a, "length"_a, "begins"_a, "counts"_a,
               "Find which steps are trained in each of ``items`` [n]: the first's row, and ``length`` steps or fewer, "
               "where the episode ends.");
    module.def("frame_pieces", &frame_pieces, "log"_a, "runs"_a, "places"_a, "stack"_a, "rows"_a, "begin"_a, "pieces"_a,
               R"(Say which frames the observations of the first n ``runs`` need, and where they go.

A window has ``rows`` rows; the frame of column c goes to row ``begin + c + stack - 1``, and ``stack - 1`` frames
before that of the first step. The last one is the observation behind the last step.

Args:
    runs, places: of ``locate_windows``.
    pieces: int64 [5, n], as of ``gather_pieces``.)");
    module.def("step_pieces", &step_pieces, "runs"_a, "count"_a, "columns"_a, "pieces"_a,
               "Say which rows of a field that has one a step the columns of a batch [B, columns] need, of ``count`` "
               "runs; return how many pieces there are.");
    module.def("clear_padding", &clear_padding, "out"_a, "places"_a, "behind"_a,
               "Zero the columns of ``out`` uint8 [B, columns, size] before each window's first step, and from "
               "``behind`` columns after its last step's on.");
    module.def("spread_stacks", &spread_stacks, "out"_a, "places"_a, "stack"_a,
               "Make stacks of the frames that are at the end of each window's part of ``out`` uint8 [B, columns * "
               "stack, size]: column c's of frames c to c + stack - 1.");
}

}  // namespace sharpwave
