// Which arrays describe segments and lanes, and which columns has a segment? As the rooms that write them see them.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "arrays.hpp"

namespace sharpwave {

// Places in the counts of sharpwave.log.inventory.
inline constexpr std::size_t held_steps = 0, total_steps = 1, changes = 2, evicted_steps = 3, evicted_segments = 4,
                             sealed_bytes = 5;

inline constexpr int64_t flags_at = 0, reward_at = 1, first_field_at = 2;  // numbers of columns

// Where values lie, by field.
using Pointers = std::span<const uint8_t* const>;

// Arrays of sharpwave.memory.segment_index.SegmentIndex of the same names, which must outlive it.
struct IndexArrays {
    std::span<int32_t> rows;
    Ints generation;
    std::span<int32_t> lane, next, previous;
    Bytes gap;
    std::span<int32_t> context, frames;
    Bytes sealed, begins;
    Grid<int64_t> offset;
    Grid<uint8_t> codec;
    Grid<int32_t> dictionary;
    Ints base, nbytes;
    Bytes resident;
    std::span<int32_t> region;
    Ints region_offset, first_step, episode_step;
    Grid<int32_t> sparse;
};

// Arrays of sharpwave.log.open_segments.Lanes of the same names, which must outlive it.
struct LaneArrays {
    std::span<int32_t> slots;
    Ints steps;
    std::span<int32_t> shares;
    Bytes successor_known, watch;
    Ints staging, fresh;
};

// A field's column: of rows of ``row_bytes``, one a frame, one a step, or one for every ``every``-th step of an
// episode.
struct FieldColumn {
    nanobind::object name;
    int type;  // numpy's number
    int64_t row_bytes;
    bool framed;
    int64_t every;          // 0: all steps
    int64_t sparse_number;  // among the columns of sparse fields
};

// The columns of a spec's fields.
struct Columns {
    std::vector<FieldColumn> fields;
    int64_t step_bytes = 0;

    explicit Columns(const nanobind::list& described);  // name, type, bytes of a row, whether it has one a frame, every
};

}  // namespace sharpwave
