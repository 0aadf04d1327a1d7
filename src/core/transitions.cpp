// What is an n-step transition made of? Its return, its discount, and the rows of its frames.
#include "gather.hpp"
#include "log.hpp"
#include "rooms.hpp"

namespace sharpwave {
namespace {

namespace nb = nanobind;

constexpr std::size_t index_ahead = 24, arena_ahead = 12;  // items between a prefetch and its use

// Arrays of a batch [B] that are made of flags and rewards.
struct Numbers {
    std::span<float> reward, discount;
    Bytes terminated, truncated;
    Ints n, lane, step;
};

// ``one``: returns of one step, which are most, are those of their own row.
template <bool one>
void locate(const Log& log, ConstInts steps, int64_t n_step, double gamma, const Numbers& out, Grid<int64_t> located) {
    const Ints slot = located[0], row = located[1], frame = located[2], first = located[3];
    const Ints next_slot = located[4], next_frame = located[5], next_first = located[6];
    const int64_t *flags_offset = log.flags_offset(), *reward_offset = log.reward_offset();
    const std::size_t count = steps.size();
    for (std::size_t i = 0; i < count; ++i) {
        slot[i] = log.slot_of(steps[i]);
        row[i] = steps[i] - slot[i] * log.stride;
    }
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
        }
        if (i + arena_ahead < count) {
            const int64_t s = slot[i + arena_ahead], r = row[i + arena_ahead];
            prefetch(log.memory.data() + flags_offset[s]);
            prefetch(log.memory.data() + flags_offset[s] + r);
            prefetch(log.memory.data() + reward_offset[s] + 4 * r);
        }
        int64_t s = slot[i], r = row[i];
        ConstBytes flags = log.flags(s);
        const FrameOf here = frame_of(flags, log.context[s], r);
        frame[i] = here.frame, first[i] = here.first;
        out.lane[i] = log.lane[s];
        out.step[i] = log.first_step[s] + r;
        double total = 0.0, factor = 1.0;
        int64_t used = 1;
        uint8_t flag;
        while (true) {
            total += factor * log.reward(s, r);
            factor *= gamma;
            flag = flags[r];
            if (one || flag & ended || used == n_step) break;
            ++used;
            if (++r == std::ssize(flags)) {
                s = log.next[s], r = 0;
                flags = log.flags(s);
            }
        }
        out.reward[i] = static_cast<float>(std::min(std::max(total, -double{max_reward}), double{max_reward}));
        out.discount[i] = flag & terminated_flag ? 0.0f : static_cast<float>(factor);
        out.terminated[i] = (flag & terminated_flag) != 0;
        out.truncated[i] = (flag & truncated_flag) != 0;
        out.n[i] = used;
        next_slot[i] = s;
        const FrameOf last = used == 1 ? here : frame_of(flags, log.context[s], r);
        next_frame[i] = last.frame + 1, next_first[i] = last.first;
    }
}

void locate_transitions(const Log& log, ConstInts steps, int64_t n_step, double gamma, std::span<float> reward,
                        std::span<float> discount, Bytes terminated, Bytes truncated, Ints n, Ints lane, Ints step,
                        Grid<int64_t> located) {
    const Numbers out{reward, discount, terminated, truncated, n, lane, step};
    require(located.rows == 7 && located.columns == std::ssize(steps), "located has seven rows");
    (n_step == 1 ? locate<true> : locate<false>)(log, steps, n_step, gamma, out, located);
}

// Rows that a window of a batch ends with: the steps' own, the frames of their stacks, or the frames after the last.
enum Ending : uint8_t { of_steps, of_frames, of_frames_after };

// Computes what is made of flags and rewards, and decodes windows of fields; returns those with rows left out.
nb::typed<nb::list, int> fill_transitions(const Log& log, ConstInts steps, int64_t n_step, double gamma,
                                          std::span<float> reward, std::span<float> discount, Bytes terminated,
                                          Bytes truncated, Ints n, Ints lane, Ints step, Grid<int64_t> located,
                                          const nb::typed<nb::sequence, nb::object>& columns, ConstBytes windows,
                                          const nb::typed<nb::sequence, nb::object>& places, int64_t threads,
                                          int64_t thread_bytes, int64_t chunk_bytes) {
    locate_transitions(log, steps, n_step, gamma, reward, discount, terminated, truncated, n, lane, step, located);
    nb::typed<nb::list, int> left_out;
    for (std::size_t i = 0; i < windows.size(); ++i) {
        const bool after = windows[i] == of_frames_after, steps_own = windows[i] == of_steps;
        const ConstInts newest = located[after ? 5 : steps_own ? 1 : 2];
        const ConstInts first = located[after ? 6 : steps_own ? 1 : 3];
        const auto& column = nb::cast<const Column&>(columns[i]);
        const auto place = nb::cast<Places<3>>(places[i]);
        if (gather_windows(column, located[after ? 4 : 0], newest, first, place,
                           {threads, thread_bytes, chunk_bytes})) {
            left_out.append(i);
        }
    }
    return left_out;
}

}  // namespace

void define_transitions(nb::module_& module) {
    using namespace nb::literals;
    module.def("locate_transitions", &locate_transitions, "log"_a, "steps"_a, "n_step"_a, "gamma"_a, "reward"_a,
               "discount"_a, "terminated"_a, "truncated"_a, "n"_a, "lane"_a, "step"_a, "located"_a,
               R"(Compute n-step returns, the rows of frames, and where in the log each of ``steps`` [B] is.

``reward`` and ``discount`` receive ``sum_i gamma^i r_i`` over the n_used steps up to the episode's end, and
``gamma^n_used * (1 - terminated)`` (Sutton & Barto 2018, eq. 7.1); ``terminated`` and ``truncated``, how the last
of those ended the episode; ``n``, their number; ``lane`` and ``step``, the lane and the step's number in it.

Args:
    located: int64 [7, B], receives slot, row, frame, first, next_slot, next_frame, next_first: ``frame`` and
        ``next_frame`` are the newest frames of the stacks, in the columns of ``slot`` and ``next_slot``; ``first`` and
        ``next_first`` the frames below which the stacks are padded.

Cost: 20 ns an item.)");
    module.attr("OF_STEPS") = static_cast<int64_t>(of_steps);
    module.attr("OF_FRAMES") = static_cast<int64_t>(of_frames);
    module.attr("OF_FRAMES_AFTER") = static_cast<int64_t>(of_frames_after);
    module.def("fill_transitions", &fill_transitions, "log"_a, "steps"_a, "n_step"_a, "gamma"_a, "reward"_a,
               "discount"_a, "terminated"_a, "truncated"_a, "n"_a, "lane"_a, "step"_a, "located"_a, "columns"_a,
               "windows"_a, "places"_a, "threads"_a, "thread_bytes"_a, "chunk_bytes"_a,
               R"(Fill a batch: ``locate_transitions``, then ``gather_windows`` for each of ``windows``.

Args:
    columns: list of ``Column``, and ``places``, list of uint8 [B, W, size]: of each window.
    windows: uint8, OF_STEPS, OF_FRAMES or OF_FRAMES_AFTER: the steps' own rows, those of the frames of their stacks, or
        those of the frames after their last.

Returns the windows, by number, with items that are left out.)");
}

}  // namespace sharpwave
