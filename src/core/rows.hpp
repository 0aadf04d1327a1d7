// Where do the rows of open segments lie, and how is a step written there?
#pragma once

#include <cstring>

#include "segments.hpp"
#include "sparse_rows.hpp"

namespace sharpwave {

// Memory of the rows of open segments.
struct Place {
    Bytes memory;
    const IndexArrays& index;

    // Returns where a row of a column lies.
    uint8_t* row(std::size_t column, int64_t slot, int64_t row, int64_t row_bytes) const {
        const int64_t begin = index.offset[static_cast<int64_t>(column)][slot] + row * row_bytes;
        require(begin >= 0 && begin + row_bytes <= std::ssize(memory), "a row lies in memory");
        return memory.data() + begin;
    }

    // Returns the flags of a slot's steps so far.
    ConstBytes flags(int64_t slot) const {
        return memory.subspan(static_cast<std::size_t>(index.offset[flags_at][slot]),
                              static_cast<std::size_t>(index.rows[slot]));
    }

    bool has_ended(int64_t slot) const {
        const int64_t count = index.rows[slot];
        return count > 0 ? flags(slot)[static_cast<std::size_t>(count - 1)] & ended : index.begins[slot] != 0;
    }

    // Returns the number in its episode of the coming step.
    int64_t coming_number(int64_t slot) const {
        const int64_t count = index.rows[slot];
        if (has_ended(slot)) return 0;
        return count ? step_number(flags(slot), index.episode_step[slot], count - 1) + 1 : index.episode_step[slot];
    }

    // Writes the flags and rewards of a slot's coming steps, of one episode, and counts them.
    void commit(int64_t slot, const uint8_t* flags, const uint8_t* reward, int64_t count) const {
        const bool starts = has_ended(slot);
        const int64_t begin = index.rows[slot];
        uint8_t* at = row(flags_at, slot, begin, 1);
        std::memcpy(at, flags, static_cast<std::size_t>(count));
        if (starts) *at |= start_flag;
        std::memcpy(row(reward_at, slot, begin, 4), reward, static_cast<std::size_t>(4 * count));
        index.rows[slot] += static_cast<int32_t>(count);
        index.frames[slot] += static_cast<int32_t>(count);
    }

    void count_sparse(const Columns& columns, int64_t slot) const {
        for (const FieldColumn& column : columns.fields) {
            if (!column.every) continue;
            const int64_t count = index.rows[slot], first = index.episode_step[slot];
            const int64_t rows = count ? sparse_row(flags(slot), first, count - 1, column.every) + 1
                                       : floor_divide(first, column.every) * column.every != first;
            index.sparse[column.sparse_number][slot] = static_cast<int32_t>(rows);
        }
    }
};

// Where the rows of the steps of one call lie, by field: their own; and of fields with a row a frame those after steps
// that end their episodes, and after others (empty: none are given).
struct StepRows {
    Pointers own, at_end, after;
};

// Writes step ``i`` of a call to a lane, and counts it. ``final_given``: the frame after an end is an observation.
inline void write_step(const Place& place, const Columns& columns, const LaneArrays& lanes, int64_t lane, int64_t i,
                       uint8_t flag, const uint8_t* reward, const StepRows& rows, bool final_given) {
    const IndexArrays& index = place.index;
    const int64_t slot = lanes.slots[lane], row = index.rows[slot], frame = index.frames[slot];
    const int64_t number = index.sparse.rows ? place.coming_number(slot) : 0;
    const Pointers following = flag & ended ? rows.at_end : rows.after;
    for (std::size_t k = 0; k < columns.fields.size(); ++k) {
        const FieldColumn& column = columns.fields[k];
        const std::size_t c = first_field_at + k;
        const int64_t size = column.row_bytes;
        const auto nbytes = static_cast<std::size_t>(size);
        if (column.framed) {
            if (!lanes.successor_known[lane])
                std::memcpy(place.row(c, slot, frame, size), rows.own[k] + i * size, nbytes);
            if (!following.empty()) std::memcpy(place.row(c, slot, frame + 1, size), following[k] + i * size, nbytes);
        } else if (!column.every) {
            std::memcpy(place.row(c, slot, row, size), rows.own[k] + i * size, nbytes);
        } else if (floor_divide(number, column.every) * column.every == number) {
            const int64_t at = index.sparse[column.sparse_number][slot];
            std::memcpy(place.row(c, slot, at, size), rows.own[k] + i * size, nbytes);
        }
    }
    place.commit(slot, &flag, reward, 1);
    lanes.steps[lane] += 1;
    if (flag & ended) index.frames[slot] += 1;
    if (index.sparse.rows) place.count_sparse(columns, slot);
    lanes.watch[lane] = (lanes.watch[lane] & (left_alone | met)) | (final_given && flag & ended ? just_ended : 0);
    lanes.successor_known[lane] = !rows.after.empty() && !(flag & ended);
}

// Returns whether a lane's segment must be sealed before another step.
inline bool is_full(const IndexArrays& index, const LaneArrays& lanes, int64_t lane, int64_t max_rows,
                    int64_t max_frames) {
    const int64_t slot = lanes.slots[lane];
    return index.rows[slot] * whole >= max_rows * lanes.shares[lane] || index.frames[slot] > max_frames;
}

}  // namespace sharpwave
