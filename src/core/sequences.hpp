// What is a window put together from?
#pragma once

#include "log.hpp"

namespace sharpwave {

inline constexpr int64_t run_rows = 5;  // of runs: item, slot, first row, number of steps, and the column of the first

// Turns runs of steps that became known into runs of windows that begin with them; returns how many there are.
int64_t windows_of_steps(const Log& log, Grid<const int64_t> steps, int64_t count, int64_t stride, int64_t burn_in,
                         Grid<int32_t> spans, Grid<int64_t> runs, bool keep);

// Computes all of a batch that is made of flags and rewards, and where the rest lies; returns the number of runs.
int64_t locate_windows(const Log& log, ConstInts items, int64_t stride, int64_t burn_in, int64_t n_step, double gamma,
                       Grid<float> step_reward, Grid<float> reward, Grid<float> discount, Grid<int64_t> bootstrap,
                       Grid<uint8_t> mask, Grid<uint8_t> first, Grid<uint8_t> terminated, Grid<uint8_t> truncated,
                       Grid<int64_t> n, Ints lane, Ints step, Grid<int64_t> places, Grid<int64_t> runs);

// Finds which steps are trained in each of ``items``.
void trained_steps(const Log& log, ConstInts items, int64_t stride, int64_t length, Ints begins, Ints counts);

// Says which frames the observations of the first runs need, as many as there are ``pieces``, and where they go.
void frame_pieces(const Log& log, Grid<const int64_t> runs, Grid<const int64_t> places, int64_t stack, int64_t rows,
                  int64_t begin, Grid<int64_t> pieces);

// Says which rows of a field that has one a step the columns of a batch need; returns how many pieces there are.
int64_t step_pieces(Grid<const int64_t> runs, int64_t count, int64_t columns, Grid<int64_t> pieces);

// Zeroes the columns of ``out`` before each window's first step, and from ``behind`` columns after its last step's on.
void clear_padding(Cube<uint8_t> out, Grid<const int64_t> places, int64_t behind);

// Makes stacks of the frames that are at the end of each window's part of ``out``.
//
// Column c's stack is frames c ... c + stack - 1 of ``columns + stack - 1``. It is written before those that later
// columns need; columns without an observation are left as they are.
void spread_stacks(Cube<uint8_t> out, Grid<const int64_t> places, int64_t stack);

}  // namespace sharpwave
