// When do other threads run Python meanwhile? While a call works on much; a short one keeps the interpreter's lock.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <optional>

namespace sharpwave {

// Items from which a call takes longer than another thread's wait for the lock would cost this one.
inline constexpr std::size_t many_items = 4096;

// Releases the interpreter's lock for a scope, if ``items`` are many.
class Unlocked {
  public:
    explicit Unlocked(std::size_t items) {
        if (items >= many_items) released_.emplace();
    }

  private:
    std::optional<nanobind::gil_scoped_release> released_;
};

}  // namespace sharpwave
