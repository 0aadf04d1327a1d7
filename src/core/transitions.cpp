// What is an n-step transition made of? Its return, its discount, and the rows of its frames.
#include "transitions.hpp"

#include <algorithm>
#include <bit>

#include "returns.hpp"
#include "rooms.hpp"

namespace sharpwave {
namespace {

namespace nb = nanobind;

constexpr std::size_t index_ahead = 48, arena_ahead = 24;  // items between a prefetch and its use

// Adds the ends before steps to their frames, each of which has one of its own, where ``frame`` counts none.
void add_ends(const Log& log, ConstInts slot, ConstInts row, Ints frame, Ints broken) {
    std::size_t found = 0;  // steps in whose segments episodes end: they are gathered first, as a branch is random
    for (std::size_t i = 0; i < slot.size(); ++i) {
        broken[found] = static_cast<int64_t>(i);
        found += !log.is_unbroken(slot[i]);
    }
    for (const int64_t i : broken.first(found)) frame[i] += count_ends(log.flags(slot[i]), row[i]);
}

// Finds the segments of steps, and their rows there.
void find_rows(const Log& log, ConstInts steps, Ints slot, Ints row) {
    const int64_t stride = log.stride;
    if (std::has_single_bit(static_cast<uint64_t>(stride))) {
        const int bits = std::countr_zero(static_cast<uint64_t>(stride));
        for (std::size_t i = 0; i < steps.size(); ++i) slot[i] = steps[i] >> bits, row[i] = steps[i] & (stride - 1);
    } else {
        for (std::size_t i = 0; i < steps.size(); ++i) {
            slot[i] = log.slot_of(steps[i]);
            row[i] = steps[i] - slot[i] * stride;
        }
    }
}

// ``one``: returns of one step, which are most, are those of their own row.
template <bool one, bool stacks>
void locate(const Log& arrays, ConstInts steps, int64_t n_step, double gamma, const Numbers& columns,
            Grid<int64_t> located) {
    const Log log = arrays;  // of this call's own: no store can be one to them
    const Numbers out = columns;
    const Ints slot = located[slot_at], row = located[row_at], frame = located[frame_at], first = located[first_at];
    const Ints next_slot = located[next_slot_at], next_frame = located[next_frame_at];
    const Ints next_first = located[next_first_at];
    const int64_t *flags_offset = log.flags_offset(), *reward_offset = log.reward_offset();
    const std::size_t count = steps.size();
    find_rows(log, steps, slot, row);
    for (std::size_t i = 0; i < count; ++i) {
        // Memory at random addresses is prefetched: first the index, then the arena.
        if (i + index_ahead < count) {
            const int64_t s = slot[i + index_ahead];
            prefetch(flags_offset + s);
            prefetch(reward_offset + s);
            prefetch(&log.rows[s]);
            prefetch(&log.context[s]);
            prefetch(&log.lane[s]);
            prefetch(&log.first_step[s]);
            if (!stacks) prefetch(&log.frames[s]), prefetch(&log.sealed[s]);
        }
        if (i + arena_ahead < count) {
            const int64_t s = slot[i + arena_ahead], r = row[i + arena_ahead];
            prefetch(log.memory.data() + flags_offset[s]);
            prefetch(log.memory.data() + flags_offset[s] + r);
            prefetch(log.memory.data() + reward_offset[s] + 4 * r);
        }
        const int64_t s = slot[i], r = row[i];
        Walk step(log, s, r);
        const FrameOf here = stacks ? frame_of(step.flags, log.context[s], r) : FrameOf{log.context[s] + r, 0};
        frame[i] = here.frame;
        out.lane[i] = log.lane[s];
        out.step[i] = log.first_step[s] + r;
        const Return found = n_step_return<one>(step, n_step, gamma);
        out.reward[i] = found.reward();
        out.discount[i] = found.discount();
        out.terminated[i] = (found.flag & terminated_flag) != 0;
        out.truncated[i] = (found.flag & truncated_flag) != 0;
        if (!one) out.n[i] = found.used, next_slot[i] = step.slot;
        if (stacks) {
            const FrameOf last = one || found.used == 1 ? here : frame_of(step.flags, log.context[step.slot], step.row);
            first[i] = here.first, next_frame[i] = last.frame + 1, next_first[i] = last.first;
        } else if (!one) {
            next_frame[i] = log.context[step.slot] + step.row + count_ends(step.flags, step.row) + 1;
        }
    }
    if (!stacks) add_ends(log, slot, row, frame, first);
    if (one) {
        std::ranges::fill(out.n, 1);
        std::ranges::copy(slot, next_slot.begin());
        if (!stacks) std::ranges::transform(frame, next_frame.begin(), [](int64_t before) { return before + 1; });
    }
    if (!stacks) {
        std::ranges::fill(first, 0);
        std::ranges::fill(next_first, 0);
    }
}

}  // namespace

void locate_transitions(const Log& log, ConstInts steps, int64_t n_step, double gamma, bool stacks, const Numbers& out,
                        Grid<int64_t> located) {
    require(located.rows == located_rows && located.columns == std::ssize(steps), "located has seven rows");
    const auto chosen = n_step == 1 ? (stacks ? locate<true, true> : locate<true, false>)
                                    : (stacks ? locate<false, true> : locate<false, false>);
    chosen(log, steps, n_step, gamma, out, located);
}

Ends ends_of(Ending ending, Grid<const int64_t> located) {
    if (ending == of_steps) return {located[slot_at], located[row_at], located[row_at]};
    if (ending == of_frames) return {located[slot_at], located[frame_at], located[first_at]};
    return {located[next_slot_at], located[next_frame_at], located[next_first_at]};
}

TransitionFiller::TransitionFiller(const Log& log, const nb::typed<nb::sequence, nb::object>& columns,
                                   ConstBytes endings, StepFinder& finder, Grid<int32_t> spans, Grid<int64_t> runs,
                                   const TransitionSettings& settings)
    : Filler(spans, runs), log_(log), endings_(endings), finder_(finder), settings_(settings) {
    for (nb::handle one : columns) {
        held_.push_back(nb::borrow(one));
        columns_.push_back(&nb::cast<const Column&>(one));
    }
}

int64_t TransitionFiller::find() { return finder_.find(log_, {}, spans, runs); }

int64_t TransitionFiller::fill(const Filling& filling, const Residents& residents) {
    const Numbers out{filling.column<float>(own_at),       filling.column<float>(own_at + 1),
                      filling.column<uint8_t>(own_at + 2), filling.column<uint8_t>(own_at + 3),
                      filling.column<int64_t>(own_at + 4), filling.column<int64_t>(own_at + 5),
                      filling.column<int64_t>(own_at + 6)};
    const Grid<int64_t> located = filling.scratch;
    locate_transitions(log_, filling.items, settings_.n_step, settings_.gamma, settings_.stacks, out, located);
    if (!residents.are(located[slot_at]) || !residents.are(located[next_slot_at])) return -1;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
        const Ends ends = ends_of(static_cast<Ending>(endings_[i]), located);
        const Places<3> window = filling.window(windows_at + i);
        if (gather_windows(*columns_[i], ends.slot, ends.newest, ends.first, window, settings_.threads)) return -1;
    }
    return settings_.n_step == 1 ? 1 : 2;
}

void define_transitions(nb::module_& module) {
    using namespace nb::literals;
    using Objects = nb::typed<nb::sequence, nb::object>;
    nb::class_<TransitionFiller, Filler>(module, "TransitionFiller", "Finder of steps, which fills transitions.")
        .def(
            "__init__",
            [](TransitionFiller* self, const Log& log, const Objects& columns, ConstBytes endings, StepFinder& finder,
               Grid<int32_t> spans, Grid<int64_t> runs, int64_t n_step, double gamma, bool stacks, int64_t threads,
               int64_t thread_bytes, int64_t chunk_bytes) {
                new (self) TransitionFiller(log, columns, endings, finder, spans, runs,
                                            {n_step, gamma, stacks, {threads, thread_bytes, chunk_bytes}});
            },
            nb::keep_alive<1, 2>(), "log"_a, "columns"_a, "endings"_a, "finder"_a, "spans"_a, "runs"_a, "n_step"_a,
            "gamma"_a, "stacks"_a, "threads"_a, "thread_bytes"_a, "chunk_bytes"_a,
            R"(Args:
    columns: list of ``Column``, of each window; ``endings``: uint8, OF_STEPS, OF_FRAMES or OF_FRAMES_AFTER: it has the
        steps' own rows, those of the frames of their stacks, or those of the frames after their last.
    finder: finds the steps, as of ``spans`` and ``runs``.

A batch's columns are the numbers of ``locate_transitions``, then the windows.)");
    module.def(
        "locate_transitions",
        [](const Log& log, ConstInts steps, int64_t n_step, double gamma, bool stacks, std::span<float> reward,
           std::span<float> discount, Bytes terminated, Bytes truncated, Ints n, Ints lane, Ints step,
           Grid<int64_t> located) {
            locate_transitions(log, steps, n_step, gamma, stacks,
                               {reward, discount, terminated, truncated, n, lane, step}, located);
        },
        "log"_a, "steps"_a, "n_step"_a, "gamma"_a, "stacks"_a, "reward"_a, "discount"_a, "terminated"_a, "truncated"_a,
        "n"_a, "lane"_a, "step"_a, "located"_a,
        R"(Compute n-step returns, the rows of frames, and where in the log each of ``steps`` [B] is.

``reward`` and ``discount`` receive ``sum_i gamma^i r_i`` over the n_used steps up to the episode's end, and
``gamma^n_used * (1 - terminated)`` (Sutton & Barto 2018, eq. 7.1); ``terminated`` and ``truncated``, how the last
of those ended the episode; ``n``, their number; ``lane`` and ``step``, the lane and the step's number in it.

Args:
    located: int64 [7, B], receives slot, row, frame, first, next_slot, next_frame, next_first: ``frame`` and
        ``next_frame`` are the newest frames of the stacks, in the columns of ``slot`` and ``next_slot``; ``first`` and
        ``next_first`` the frames below which the stacks are padded; those are any before without ``stacks``.)");
    module.attr("OF_STEPS") = static_cast<int64_t>(of_steps);
    module.attr("OF_FRAMES") = static_cast<int64_t>(of_frames);
    module.attr("OF_FRAMES_AFTER") = static_cast<int64_t>(of_frames_after);
}

}  // namespace sharpwave
