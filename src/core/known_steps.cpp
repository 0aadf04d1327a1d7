// Which steps' returns are known? Those whose episode ends soon enough, or which enough observations follow.
#include "known_steps.hpp"

#include "numpy_arrays.hpp"
#include "rooms.hpp"

namespace sharpwave {
namespace {

namespace nb = nanobind;

// Finds the steps before the segment in ``slot`` whose returns reach into it, the last first; returns their number.
int64_t lose_reaching(const Log& log, int64_t slot, Grid<int32_t> spans, Ints steps) {
    int64_t found = 0;
    std::size_t walked = 0;
    for (int64_t at = log.previous[slot]; at >= 0 && !log.gap[at]; at = log.previous[at]) {
        const ConstBytes flags = log.flags(at);
        for (int64_t row = log.rows[at] - 1; row >= 0; --row) {
            if (walked == steps.size() || flags[row] & ended) return found;
            ++walked;
            if (row < spans[at][1]) {
                spans[at][1] = static_cast<int32_t>(row);
                steps[found++] = at * log.stride + row;
            }
        }
    }
    return found;
}

// Finds each step's newest frame, and the frame below which its stack is padded.
void frames_of(const Log& log, ConstInts slots, ConstInts rows, Ints newest, Ints first) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
        const FrameOf found = log.frame(slots[i], rows[i]);
        newest[i] = found.frame, first[i] = found.first;
    }
}

}  // namespace

int64_t find_known(const Log& log, ConstBytes successor_known, std::span<int32_t> cursor, Grid<int32_t> spans,
                   int64_t n_step, Grid<int64_t> runs) {
    const Ints slots = runs[0], begins = runs[1], ends = runs[2];
    int64_t found = 0;
    for (std::size_t lane = 0; lane < cursor.size(); ++lane) {
        int64_t slot = cursor[lane];
        while (slot >= 0 && found < runs.columns) {
            const int64_t count = log.rows[slot];
            int32_t& known = spans[slot][1];
            int64_t last_end = last_flagged(log.flags(slot), known, count, ended);
            int64_t total = count, at = slot;
            while (last_end < count && log.next[at] >= 0 && !log.gap[at] && total < count + n_step) {
                at = log.next[at];
                const int64_t reach = count + n_step - total, length = log.rows[at];
                const int64_t end = last_flagged(log.flags(at), 0, std::min(length, reach), ended);
                if (end >= 0) last_end = total + end;
                total += length;
            }
            const bool cut = log.gap[at] && total < count + n_step;
            const bool foreseen = log.next[at] < 0 && successor_known[lane];
            total += cut || foreseen;
            const int64_t prefix = std::min(std::max(total - n_step, last_end + 1), count);
            if (prefix > known) {
                slots[found] = slot, begins[found] = known, ends[found] = prefix;
                ++found;
                known = static_cast<int32_t>(prefix);
            }
            if ((prefix < count && !cut) || !log.sealed[slot] || log.next[slot] < 0) break;
            slot = log.next[slot];
        }
        cursor[lane] = static_cast<int32_t>(slot);
    }
    return found;
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
    module.def("find_known", &find_known, "log"_a, "successor_known"_a, "cursor"_a, "spans"_a, "n_step"_a, "runs"_a,
               R"(Find the steps whose n-step successor has become known since the last call.

Args:
    successor_known: uint8 [lanes], whether the frame after the last one of each lane is known to be the next
        observation.
    cursor: int32 [lanes], the slot up to which each lane has been followed; advanced.
    spans: int32 [slots, 2]; the second is the number of a slot's rows found so far; raised.
    runs: int64 [3, n], receives the new runs: slot, begin and end of rows ``begin <= r < end``.

Returns the number of runs, at most as many as fit: call again while it equals their size. Cost: 10 ns a lane, and
0.2 for each of the next ``n_step`` steps.)");
    module.def(
        "lose_reaching", &lose_reaching, "log"_a, "slot"_a, "spans"_a, "steps"_a,
        R"(Find the steps before the segment in ``slot`` whose returns reach into it: they cannot be sampled without it.

Args:
    spans: int32 [slots, 2]; the second is the number of a slot's rows that can be sampled; lowered.
    steps: int64 [n_step - 1], receives those that could be sampled, ``slot * stride + row``, the last first.

Returns their number.)");
    module.def("frames_of", &frames_of, "log"_a, "slots"_a, "rows"_a, "newest"_a, "first"_a,
               "Find each step's newest frame, and the frame below which its stack is padded: all int64 [n].");
}

}  // namespace sharpwave
