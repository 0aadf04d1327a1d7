// How do threads share a word that numpy owns? By atomic access; what was written before a store is seen after a load.
#pragma once

#include <atomic>

#include "arrays.hpp"

namespace sharpwave {

inline int64_t load_shared(const int64_t& word) {
#if defined(__GNUC__)
    return __atomic_load_n(&word, __ATOMIC_ACQUIRE);  // standard libraries of some compilers lack atomic_ref
#else
    return std::atomic_ref<int64_t>(const_cast<int64_t&>(word)).load(std::memory_order_acquire);
#endif
}

inline void store_shared(int64_t& word, int64_t value) {
#if defined(__GNUC__)
    __atomic_store_n(&word, value, __ATOMIC_RELEASE);
#else
    std::atomic_ref<int64_t>(word).store(value, std::memory_order_release);
#endif
}

// Sets a word that is ``expected`` to ``desired``; returns whether it was.
inline bool exchange_shared(int64_t& word, int64_t expected, int64_t desired) {
#if defined(__GNUC__)
    return __atomic_compare_exchange_n(&word, &expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
#else
    return std::atomic_ref<int64_t>(word).compare_exchange_strong(expected, desired);
#endif
}

}  // namespace sharpwave
