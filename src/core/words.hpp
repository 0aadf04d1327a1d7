// How are words read and written at any alignment, and memory prefetched?
#pragma once

#include <bit>
#include <cstring>

#include "arrays.hpp"

namespace sharpwave {

static_assert(std::endian::native == std::endian::little, "segments, payloads and patches are little-endian words");

template <class T>
T load(const uint8_t* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

template <class T>
void store(uint8_t* at, T value) {
    std::memcpy(at, &value, sizeof value);
}

// Prefetches the cache line of an address without waiting. Any address will do: nothing is read.
inline void prefetch([[maybe_unused]] const void* at) {
#if defined(__GNUC__)
    __builtin_prefetch(at);
#endif
}

// Prefetches the cache line of an address that will be written, which reading it first would fetch twice.
inline void prefetch_to_write([[maybe_unused]] uint8_t* at) {
#if defined(__GNUC__) && defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(*at));  // of the builtin a compiler for any processor makes a prefetch to read
#elif defined(__GNUC__)
    __builtin_prefetch(at, 1);
#endif
}

}  // namespace sharpwave
