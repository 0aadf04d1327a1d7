// How are rows written as patches? For codecs delta and patches, whose payloads codecs.hpp and patches.hpp describe.
#pragma once

#include <memory>

#include "arrays.hpp"

namespace sharpwave {

// Encoder of columns of at most ``max_rows`` rows of ``size`` bytes, with memory that is used again. One thread at a
// time may use it.
class PatchEncoder {
  public:
    // ``coded``: whether patches that return are written once, in a table.
    PatchEncoder(int64_t max_rows, int64_t size, bool coded);

    // Bytes of memory that are kept.
    int64_t nbytes() const { return plain_bytes_ + 6 * size_ + table_bytes_; }

    // Returns a payload, which is valid until the next call; empty where it would not be smaller than the rows.
    //
    // ``rows`` [n, size]; ``reference`` [size], or empty for zeros; ``line``: bytes from a pixel to the one below, 0
    // for none. Cost: 0.6 to 1.7 us a row of 7 KB of a game.
    ConstBytes encode(Grid<const uint8_t> rows, ConstBytes reference, int64_t line);

  private:
    int64_t max_rows_, size_, plain_bytes_, table_bytes_ = 0;
    bool coded_;
    std::unique_ptr<uint8_t[]> plain_, lines_,
        table_;  // delta's payload; canvas, background and votes; patches' payload
};

// Writes, byte by byte, the value that most rows hold to ``out`` [size] (Boyer-Moore vote): exact where a value has a
// majority. ``memory`` [4 * size], at an even address, is working memory. Cost: one pass.
void majority(Grid<const uint8_t> rows, Bytes memory, Bytes out);

}  // namespace sharpwave
