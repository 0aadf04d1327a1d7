// Where are the log's steps? The arena and the arrays of the index, as the rooms that read them see them.
#pragma once

#include "flags.hpp"

namespace sharpwave {

inline constexpr int64_t flags_column = 0, reward_column = 1;

// Arrays of a log, which must outlive it: the arena's memory, and those of sharpwave.memory.segment_index of the same
// names.
struct Log {
    ConstBytes memory;
    Grid<const int64_t> offset;
    std::span<const int32_t> rows, next, previous;
    ConstBytes gap, sealed;
    std::span<const int32_t> context;
    ConstInts episode_step;
    std::span<const int32_t> lane;
    ConstInts first_step;
    std::span<const int32_t> frames;
    int64_t stride;

    const int64_t* flags_offset() const { return offset[flags_column].data(); }
    const int64_t* reward_offset() const { return offset[reward_column].data(); }

    // Returns the flags of a segment's steps.
    ConstBytes flags(int64_t slot) const {
        const auto begin = static_cast<std::size_t>(offset[flags_column][static_cast<std::size_t>(slot)]);
        return memory.subspan(begin, static_cast<std::size_t>(rows[static_cast<std::size_t>(slot)]));
    }

    FrameOf frame(int64_t slot, int64_t row) const { return frame_of(flags(slot), context[slot], row); }

    // Whether no episode ends within a segment, but for its last step: a frame that follows another one's end is there
    // beside the steps' own, and in a sealed segment one that follows its last step.
    bool is_unbroken(int64_t slot) const { return frames[slot] - context[slot] - rows[slot] <= sealed[slot]; }

    // Returns the slot in which an item lies. Items are less than 2^32, whose division is the faster.
    int64_t slot_of(int64_t item) const {
        require(item >= 0 && item >> 32 == 0, "an item has 32 bits");
        return static_cast<uint32_t>(item) / static_cast<uint32_t>(stride);
    }
};

}  // namespace sharpwave
