// Which steps' returns became known since the last call?
#pragma once

#include "log.hpp"

namespace sharpwave {

// Finds the steps whose n-step successor has become known since the last call, by lanes; returns the number of runs.
//
// A step can be sampled when an episode's end lies within the n steps that begin with it, or when the observation n
// steps later is known: that step has been appended, or the one before it came with its ``next_obs``. Such steps are a
// prefix of their segment, because steps arrive in order. Where steps in between were evicted, a return may reach up to
// the last step before them, whose successor frame its segment holds.
int64_t find_known(const Log& log, ConstBytes successor_known, std::span<int32_t> cursor, Grid<int32_t> spans,
                   int64_t n_step, Grid<int64_t> runs);

}  // namespace sharpwave
