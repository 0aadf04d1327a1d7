// What do the flags of a segment's steps say? Where episodes begin and end, and which frame and number a step has.
//
// Flags are read eight steps at a time, each in a byte of a word: most steps neither begin nor end an episode.
#pragma once

#include <algorithm>
#include <array>
#include <bit>

#include "steps.hpp"
#include "words.hpp"

namespace sharpwave {

inline constexpr uint64_t each = 0x0101010101010101;  // a flag's factor, for that of each of eight steps

// Returns the last row of ``begin <= r < end`` with any of the ``wanted`` flags; -1 if there is none.
inline int64_t last_flagged(ConstBytes flags, int64_t begin, int64_t end, uint8_t wanted) {
    require(begin >= 0 && end <= std::ssize(flags), "rows are the segment's");
    int64_t row = end - 1;
    while (row >= begin) {
        if (row - begin >= 7) {
            const uint64_t found = load<uint64_t>(&flags[row - 7]) & wanted * each;
            if (found) return row - std::countl_zero(found) / 8;
            row -= 8;
        } else if (flags[row] & wanted) {
            return row;
        } else {
            --row;
        }
    }
    return -1;
}

// Returns the first row of ``begin <= r < end`` with any of the ``wanted`` flags; ``end`` if there is none.
inline int64_t next_flagged(ConstBytes flags, int64_t begin, int64_t end, uint8_t wanted) {
    require(begin >= 0 && end <= std::ssize(flags), "rows are the segment's");
    int64_t row = begin;
    while (row < end) {
        if (end - row >= 8) {
            const uint64_t found = load<uint64_t>(&flags[row]) & wanted * each;
            if (found) return row + std::countr_zero(found) / 8;
            row += 8;
        } else if (flags[row] & wanted) {
            return row;
        } else {
            ++row;
        }
    }
    return end;
}

// Returns the number in its episode of the step in ``row``; ``first``: that of the segment's first step.
inline int64_t step_number(ConstBytes flags, int64_t first, int64_t row) {
    const int64_t start = last_flagged(flags, 0, row + 1, start_flag);
    return start < 0 ? first + row : row - start;
}

// Flags that are read together, and as many that count before as many that do not: a part of these is a mask.
inline constexpr int64_t flags_together = 64;
inline constexpr auto counted_flags = [] {
    std::array<uint8_t, 2 * flags_together> counted{};
    std::fill_n(counted.begin(), flags_together, uint8_t{1});
    return counted;
}();

// Returns how many of the first ``rows`` steps end an episode. Branches that depend on the row are random: few are
// left.
inline int64_t count_ends(ConstBytes flags, int64_t rows) {
    require(rows >= 0 && rows <= std::ssize(flags), "the rows are the segment's");
    int64_t found = 0, r = 0;
    for (; r < rows && r + flags_together <= std::ssize(flags); r += flags_together) {
        const uint8_t* const counted = &counted_flags[flags_together - std::min(rows - r, flags_together)];
        uint64_t ends = 0;
        for (int64_t k = 0; k < flags_together; k += 8) {
            const auto word = load<uint64_t>(&flags[r + k]);
            ends += (word | word >> 1) & load<uint64_t>(counted + k);
        }
        found += static_cast<int64_t>(ends * each >> 56);
    }
    for (; r < rows; ++r) found += (flags[r] & ended) != 0;
    return found;
}

// A step's frame, and its episode's first: rows of the observation's columns.
struct FrameOf {
    int64_t frame, first;  // first: 0 where it lies before the segment
};

// Returns the frame of the step in ``row``; ``context``: frames before the segment's first step's.
inline FrameOf frame_of(ConstBytes flags, int64_t context, int64_t row) {
    require(row >= 0 && row < std::ssize(flags), "the row is the segment's");
    int64_t finals = 0, first = 0, r = 0;  // each end has a frame of its own, behind the step's
    const auto add = [&](uint64_t word) {
        const uint64_t ends = (word | word >> 1) & each;
        const uint64_t starts = word & start_flag * each;
        if (starts) {
            const int last = 7 - std::countl_zero(starts) / 8;
            const uint64_t before = last ? ends << (64 - 8 * last) : 0;
            first = context + r + last + finals + static_cast<int64_t>(before * each >> 56);
        }
        finals += static_cast<int64_t>(ends * each >> 56);
    };
    static_assert(terminated_flag == 1 && truncated_flag == 2, "an end is one of the two lowest bits");
    for (; r + 8 <= row; r += 8) add(load<uint64_t>(&flags[r]));
    // The last one to eight steps, whose word may reach beyond the segment.
    uint64_t word = 0;
    if (row >= 7) {
        word = load<uint64_t>(&flags[row - 7]) >> 8 * (7 - (row - r));
    } else {
        for (int64_t k = row; k >= 0; --k) word = word << 8 | flags[k];
    }
    add(word);
    return {context + row + finals - static_cast<int64_t>((flags[row] & ended) != 0), first};
}

}  // namespace sharpwave
