// Where does a column that keeps the values of steps 0, k, 2k, ... of each episode have a step's value?
//
// The row follows from the segment's flags and from its first step's number in its episode.
#pragma once

#include "flags.hpp"

namespace sharpwave {

// Rounds down, as Python does.
inline int64_t floor_divide(int64_t value, int64_t by) { return value / by - (value % by < 0); }

// Returns the row of the step in ``row``: of its own value, or else of the last one kept before it.
// ``first``: the number of the segment's first step in its episode.
inline int64_t sparse_row(ConstBytes flags, int64_t first, int64_t row, int64_t every) {
    int64_t before = 0, begin = 0, number = first;  // rows of earlier episodes; the last episode's first row and number
    for (int64_t r = next_flagged(flags, 1, row + 1, start_flag); r <= row;
         r = next_flagged(flags, r + 1, row + 1, start_flag)) {
        before += floor_divide(number + r - begin - 1, every) - floor_divide(number, every) + 1;
        begin = r;
        number = 0;
    }
    return before + floor_divide(number + row - begin, every) - floor_divide(number, every);
}

}  // namespace sharpwave
