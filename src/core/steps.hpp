// Which marks has a step, and which a lane? As in sharpwave.spec and sharpwave.log.open_segments.
#pragma once

#include <limits>

#include "arrays.hpp"

namespace sharpwave {

inline constexpr uint8_t terminated_flag = 1, truncated_flag = 2, start_flag = 4;
inline constexpr uint8_t ended = terminated_flag | truncated_flag;
inline constexpr float max_reward = std::numeric_limits<float>::max();
inline constexpr int64_t whole = 1 << 16;  // share of a segment's steps after which it is sealed: all of them
// Bits of a lane's watch: an observation after its last episode's end was given; it is no longer watched; its first
// observation is known.
inline constexpr uint8_t just_ended = 1, left_alone = 2, met = 4;

}  // namespace sharpwave
