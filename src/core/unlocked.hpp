// When do other threads run Python meanwhile? While a call works on much; a short one keeps the interpreter's lock.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <thread>
#include <utility>

#include "arrays.hpp"

namespace sharpwave {

// Stops the calling thread for good.
//
// Where the process ends, Python ends a thread that asks for the interpreter's lock by unwinding its stack
// (before 3.14, which stops it as this does). Neither destructors nor nanobind's functions, which take it for an
// exception, let that through: they would end the process with an error.
[[noreturn]] inline void stop_thread() {
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

// Releases the interpreter's lock for a scope.
class Released {
  public:
    Released() : state_(PyEval_SaveThread()) {}
    Released(const Released&) = delete;
    Released& operator=(const Released&) = delete;
    ~Released() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            stop_thread();
        }
    }

  private:
    PyThreadState* state_;
};

// Items from which a call takes longer than another thread's wait for the lock would cost this one.
inline constexpr std::size_t many_items = 4096;

// Releases the interpreter's lock for a scope, if ``items`` are many.
class Unlocked {
  public:
    explicit Unlocked(std::size_t items) {
        if (items >= many_items) released_.emplace();
    }

  private:
    std::optional<Released> released_;
};

// Bytes whose copying or decoding takes longer, likewise.
inline constexpr int64_t many_bytes = 1 << 17;

// Releases the interpreter's lock while it lives, if so many bytes are many.
inline std::optional<Released> unlocked_for(int64_t nbytes) {
    return nbytes >= many_bytes ? std::optional<Released>(std::in_place) : std::nullopt;
}

}  // namespace sharpwave
