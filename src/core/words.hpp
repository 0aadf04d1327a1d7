// How are words read at any alignment, and memory prefetched?
#pragma once

#include <bit>
#include <cstring>

#include "arrays.hpp"

namespace sharpwave {

// Returns eight bytes as one word, the first of them its lowest on every host.
inline uint64_t load_word(const uint8_t* at) {
    uint64_t word = 0;
    if constexpr (std::endian::native == std::endian::little) {
        std::memcpy(&word, at, sizeof word);
    } else {
        for (int k = 7; k >= 0; --k) word = word << 8 | at[k];
    }
    return word;
}

// Prefetches the cache line of an address without waiting. Any address will do: nothing is read.
inline void prefetch([[maybe_unused]] const void* at) {
#if defined(__GNUC__)
    __builtin_prefetch(at);
#endif
}

}  // namespace sharpwave
