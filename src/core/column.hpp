// Where are the rows of one field? Its column in every segment, as the rooms that read it see it.
#pragma once

#include "codecs.hpp"

namespace sharpwave {

// Arrays of one field's column by slot, and what its codecs need. They must outlive it.
struct Column {
    ConstBytes memory;  // the arena, or rows that were cut elsewhere
    ConstInts offset;
    ConstBytes codec;
    std::span<const int32_t> dictionary, counts;  // counts: the column's rows
    Grid<const uint8_t> references;               // [places, size], dictionaries as long as a row
    ConstBytes decoded;                           // [codec_numbers], whether the core decodes the codec's rows
    int64_t line;                                 // bytes from a pixel to the one below, 0 for none
    bool zeros;  // whether rows before an episode's first are zeros; else they are the first again

    int64_t size() const { return references.columns; }
};

}  // namespace sharpwave
