// What is the n-step return of a step? A walk along its episode sums it.
#pragma once

#include <algorithm>

#include "log.hpp"

namespace sharpwave {

// A step that moves along its lane.
struct Walk {
    const Log& log;
    int64_t slot, row;
    ConstBytes flags;        // of the segment's steps
    const uint8_t* rewards;  // theirs

    Walk(const Log& log, int64_t slot, int64_t row) : log(log), row(row) { enter(slot); }

    uint8_t flag() const { return flags[static_cast<std::size_t>(row)]; }
    float reward() const {
        require(row >= 0 && row < std::ssize(flags), "the row is the segment's");
        return load<float>(rewards + 4 * row);
    }
    void go_on() {
        if (++row == std::ssize(flags)) {
            enter(log.next[slot]);
            row = 0;
        }
    }

  private:
    void enter(int64_t to) {
        slot = to;
        flags = log.flags(to);
        rewards = log.memory.data() + log.reward_offset()[to];
    }
};

// ``sum``: of the rewards of ``used`` steps, discounted; ``factor``: gamma to their number; ``flag``: of the last one.
struct Return {
    double sum, factor;
    int64_t used;
    uint8_t flag;

    float reward() const {
        return static_cast<float>(std::min(std::max(sum, -double{max_reward}), double{max_reward}));
    }
    float discount() const { return flag & terminated_flag ? 0.0f : static_cast<float>(factor); }
};

// Sums up to ``n_step`` rewards from ``step`` on, which moves to the last one's; ``one``: n_step is 1.
template <bool one>
inline Return n_step_return(Walk& step, int64_t n_step, double gamma) {
    double sum = 0.0, factor = 1.0;
    for (int64_t used = 1;; ++used) {
        sum += factor * step.reward();
        factor *= gamma;
        const uint8_t flag = step.flag();
        if (one || flag & ended || used == n_step) return {sum, factor, used, flag};
        step.go_on();
    }
}

}  // namespace sharpwave
