// What encodes the rows of a column? An encoder of the core's own, one for each codec that has one.
#pragma once

#include "arrays.hpp"

namespace sharpwave {

// Encoder of columns of one field, with memory that is used again. One thread at a time may use it.
class RowEncoder {
  public:
    RowEncoder() = default;
    RowEncoder(const RowEncoder&) = delete;
    RowEncoder& operator=(const RowEncoder&) = delete;
    virtual ~RowEncoder() = default;

    // Returns the bytes of memory that are kept between columns.
    virtual int64_t nbytes() const = 0;

    // Returns the payload of ``rows`` [n, size], which is valid until the next call; empty where it would not be
    // smaller than the rows.
    //
    // ``reference``: the dictionary, or empty. ``line``: bytes from a pixel to the one below, 0 for none.
    virtual ConstBytes encode(Grid<const uint8_t> rows, ConstBytes reference, int64_t line) = 0;
};

}  // namespace sharpwave
