// Which steps are known? Those whose episode ended, ends soon enough, or which enough observations follow.
#include "known_steps.hpp"

#include <algorithm>

#include "numpy_arrays.hpp"
#include "rooms.hpp"

namespace sharpwave {
namespace {

namespace nb = nanobind;

// Finds each step's newest frame, and the frame below which its stack is padded.
void frames_of(const Log& log, ConstInts slots, ConstInts rows, Ints newest, Ints first) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
        const FrameOf found = log.frame(slots[i], rows[i]);
        newest[i] = found.frame, first[i] = found.first;
    }
}

struct Known {
    int64_t rows;  // the first ones of a segment, which are known
    bool cut;      // whether steps that follow too soon were evicted
};

// Returns which steps of a segment are known, of which the first ``found`` are. ``foreseen``: whether the frame after
// the lane's last one is known.
Known known_rows(const Log& log, int64_t slot, int64_t found, int64_t n_step, bool foreseen) {
    const int64_t count = log.rows[slot];
    int64_t last_end = last_flagged(log.flags(slot), found, count, ended);
    int64_t total = count, at = slot;
    while (last_end < count && log.next[at] >= 0 && !log.gap[at] && total < count + n_step) {
        at = log.next[at];
        const int64_t reach = count + n_step - total, length = log.rows[at];
        const int64_t end = last_flagged(log.flags(at), 0, std::min(length, reach), ended);
        if (end >= 0) last_end = total + end;
        total += length;
    }
    const bool cut = log.gap[at] && total < count + n_step;
    total += cut || (log.next[at] < 0 && foreseen);
    return {std::min(std::max(total - n_step, last_end + 1), count), cut};
}

int64_t most_reaching(const Log& log, int64_t slot, int64_t n_step) {
    return log.previous[slot] < 0 || log.gap[log.previous[slot]] ? 0 : n_step - 1;
}

// Narrows the spans of segments before ``slot`` by the steps whose returns reach into it; returns how many these are.
int64_t lose_reaching(const Log& log, int64_t slot, int64_t n_step, Grid<int32_t> spans, Ints lost) {
    // The walk finds the last of them first.
    const std::size_t most = std::min(lost.size(), static_cast<std::size_t>(n_step - 1));
    std::size_t found = 0, walked = 0;
    const auto walk = [&](int64_t at) {
        const ConstBytes flags = log.flags(at);
        for (int64_t row = log.rows[at] - 1; row >= 0; --row) {
            if (walked == most || flags[row] & ended) return false;
            ++walked;
            if (row < spans[at][1]) {
                spans[at][1] = static_cast<int32_t>(row);
                lost[found++] = at * log.stride + row;
            }
        }
        return true;
    };
    for (int64_t at = log.previous[slot]; at >= 0 && !log.gap[at] && walk(at); at = log.previous[at]) {
    }
    std::ranges::sort(lost.first(found));
    return static_cast<int64_t>(found);
}

}  // namespace

void StepFinder::follow(std::span<const int32_t> oldest) {
    const auto some = oldest.subspan(std::min(cursor_.size(), oldest.size()));
    cursor_.insert(cursor_.end(), some.begin(), some.end());
}

bool StepFinder::leave(const Log& log, int64_t slot) {
    const auto lane = static_cast<std::size_t>(log.lane[slot]);
    if (lane >= cursor_.size() || cursor_[lane] != slot) return false;
    cursor_[lane] = log.next[slot];
    return true;
}

int64_t KnownSteps::find(const Log& log, ConstBytes successor_known, Grid<int32_t> spans, Grid<int64_t> runs) {
    const Ints slots = runs[0], begins = runs[1], ends = runs[2];
    int64_t found = 0;
    for (std::size_t lane = 0; lane < cursor_.size(); ++lane) {
        int64_t slot = cursor_[lane];
        while (slot >= 0 && found < runs.columns) {
            int32_t& known = spans[slot][1];
            const bool foreseen = !successor_known.empty() && successor_known[lane];
            const auto [prefix, cut] = known_rows(log, slot, known, n_step_, foreseen);
            if (prefix > known) {
                slots[found] = slot, begins[found] = known, ends[found] = prefix;
                ++found;
                known = static_cast<int32_t>(prefix);
            }
            if ((prefix < log.rows[slot] && !cut) || !log.sealed[slot] || log.next[slot] < 0) break;
            slot = log.next[slot];
        }
        cursor_[lane] = static_cast<int32_t>(slot);
    }
    return found;
}

int64_t KnownSteps::most_lost(const Log& log, int64_t slot) const { return most_reaching(log, slot, n_step_); }

int64_t KnownSteps::lose(const Log& log, int64_t slot, Grid<int32_t> spans, Ints lost) {
    leave(log, slot);
    return lose_reaching(log, slot, n_step_, spans, lost);
}

int64_t EndedSteps::find(const Log& log, ConstBytes, Grid<int32_t> spans, Grid<int64_t> runs) {
    const Ints slots = runs[0], begins = runs[1], ends = runs[2];
    const int64_t limit = runs.columns;
    int64_t found = 0;
    tail_.insert(tail_.end(), cursor_.begin() + std::ssize(tail_), cursor_.end());  // of lanes followed since
    for (std::size_t lane = 0; lane < cursor_.size(); ++lane) {
        if (cursor_[lane] < 0) continue;
        int64_t at = tail_[lane], end_slot = -1, end_row = 0;
        while (true) {
            const int64_t rows = log.rows[at];
            if (log.gap[at]) {
                end_slot = at, end_row = rows;
            } else {
                const int64_t row = last_flagged(log.flags(at), spans[at][1], rows, ended);
                if (row >= 0) end_slot = at, end_row = row + 1;
            }
            const int64_t following = log.next[at];
            if (following < 0 || log.rows[following] == 0) break;
            at = following;
        }
        // Its last step may yet be broken off, so it is looked at again: where it has but one, the segment before.
        const bool alone = log.rows[at] == 1 && at != end_slot && at != cursor_[lane];
        tail_[lane] = static_cast<int32_t>(alone ? log.previous[at] : at);
        if (end_slot < 0) continue;
        int64_t slot = cursor_[lane];
        bool last = false;
        while (found < limit) {
            int32_t& known = spans[slot][1];
            last = slot == end_slot;
            int64_t end = last ? end_row : log.rows[slot];
            if (n_step_ > 1) end = std::min(end, known_rows(log, slot, known, n_step_, false).rows);
            if (end > known) {
                slots[found] = slot, begins[found] = known, ends[found] = end;
                ++found;
                known = static_cast<int32_t>(end);
            }
            if (last) break;
            slot = log.next[slot];
        }
        const int64_t following = log.next[slot];
        const bool whole = last && end_row >= log.rows[slot] && log.sealed[slot] && following >= 0;
        if (whole && tail_[lane] == slot) tail_[lane] = static_cast<int32_t>(following);
        cursor_[lane] = static_cast<int32_t>(whole ? following : slot);
        if (found == limit) {
            tail_[lane] = cursor_[lane];
            break;
        }
    }
    return found;
}

int64_t EndedSteps::most_lost(const Log& log, int64_t slot) const { return most_reaching(log, slot, n_step_); }

int64_t EndedSteps::lose(const Log& log, int64_t slot, Grid<int32_t> spans, Ints lost) {
    leave(log, slot);
    const auto lane = static_cast<std::size_t>(log.lane[slot]);
    if (lane < tail_.size()) tail_[lane] = cursor_[lane];  // the episode of the steps before it ends there
    return lose_reaching(log, slot, n_step_, spans, lost);
}

void define_known_steps(nb::module_& module) {
    using namespace nb::literals;
    using Numbers = std::span<const int32_t>;
    nb::class_<Log>(module, "Log",
                    "Arrays of a log, which must outlive it: the arena's memory, and those of a ``SegmentIndex``.")
        .def(
            "__init__",
            [](Log* self, ConstBytes memory, Grid<const int64_t> offset, Numbers rows, Numbers next, Numbers previous,
               ConstBytes gap, ConstBytes sealed, Numbers context, ConstInts episode_step, Numbers lane,
               ConstInts first_step, Numbers frames, int64_t stride) {
                new (self) Log{memory,  offset,       rows, next,       previous, gap,   sealed,
                               context, episode_step, lane, first_step, frames,   stride};
            },
            "memory"_a, "offset"_a, "rows"_a, "next"_a, "previous"_a, "gap"_a, "sealed"_a, "context"_a,
            "episode_step"_a, "lane"_a, "first_step"_a, "frames"_a, "stride"_a);
    nb::class_<Finder>(module, "Finder", "Finder of a view's items, as far as evictions go.")
        .def("most_lost", &Finder::most_lost, "log"_a, "slot"_a, "Return a bound of the items that ``lose`` finds.")
        .def("lose", &Finder::lose, "log"_a, "slot"_a, "spans"_a, "lost"_a,
             R"(Narrow the ``spans`` of other segments, as the one in ``slot`` is about to be evicted.

Args:
    lost: int64 [most_lost], receives their items that need it, ``slot * log.stride + k``, ascending.

Returns how many there are.)");
    nb::class_<StepFinder, Finder>(module, "StepFinder", "Finder of the steps that can be items.")
        .def_prop_ro("lanes", &StepFinder::lanes, "Number of lanes that are followed.")
        .def("follow", &StepFinder::follow, "oldest"_a,
             "Follow further lanes, each from its ``oldest`` segment on: int32 [lanes].")
        .def("find", &StepFinder::find, "log"_a, "successor_known"_a, "spans"_a, "runs"_a,
             R"(Find the steps that became known since the last call.

Args:
    successor_known: uint8 [lanes], whether the frame after the last one of each lane is known to be the next
        observation; [0]: of no lane.
    spans: int32 [slots, 2]; the second is the number of a slot's rows found so far; raised.
    runs: int64 [3, n], receives the new runs: slot, begin and end of rows ``begin <= r < end``.

Returns the number of runs, at most as many as fit: call again while it equals their size.)");
    nb::class_<KnownSteps, StepFinder>(
        module, "KnownSteps",
        "Finder of steps whose n-step successor is known.\n\nCost: proportional to the lanes, and to the next "
        "``n_step`` steps of each.")
        .def(nb::init<int64_t>(), "n_step"_a);
    nb::class_<EndedSteps, StepFinder>(
        module, "EndedSteps",
        "Finder of steps whose episode has ended, and whose n-step successor is known.\n\n"
        "Cost: proportional to the lanes, and to the segments with new steps.")
        .def(nb::init<int64_t>(), "n_step"_a = 1);
    module.def("frames_of", &frames_of, "log"_a, "slots"_a, "rows"_a, "newest"_a, "first"_a,
               "Find each step's newest frame, and the frame below which its stack is padded: all int64 [n].");
}

}  // namespace sharpwave
