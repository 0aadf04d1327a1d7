// What is in an id? The generation of its segment's slot, above the item's number, so that ids are never reused.
#pragma once

#include "arrays.hpp"

namespace sharpwave {

inline constexpr int leaf_bits = 32;
inline constexpr int64_t leaf_mask = (int64_t{1} << leaf_bits) - 1;

inline int64_t id_of(int64_t generation, int64_t item) {
    return static_cast<int64_t>(static_cast<uint64_t>(generation) << leaf_bits | static_cast<uint64_t>(item));
}

// Writes the ids of items.
void write_ids(ConstInts items, ConstInts generation, int64_t stride, Ints ids);

// Finds the items of ids, 0 for those that are not there: their slot holds another segment, or no span has them.
void resolve(ConstInts ids, ConstInts generation, Grid<const int32_t> spans, int64_t stride, Ints items, Bytes there);

}  // namespace sharpwave
