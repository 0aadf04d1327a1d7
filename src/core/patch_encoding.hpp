// How are rows written as patches? For codecs delta and patches, whose payloads codecs.hpp and patches.hpp describe.
#pragma once

#include <memory>

#include "row_encoder.hpp"

namespace sharpwave {

// Encoder of columns of at most ``max_rows`` rows of ``size`` bytes.
class PatchEncoder final : public RowEncoder {
  public:
    // ``coded``: whether patches that return are written once, in a table.
    PatchEncoder(int64_t max_rows, int64_t size, bool coded);

    int64_t nbytes() const override { return plain_bytes_ + 6 * size_ + table_bytes_; }

    // ``reference`` [size], or empty for zeros.
    ConstBytes encode(Grid<const uint8_t> rows, ConstBytes reference, int64_t line) override;

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
