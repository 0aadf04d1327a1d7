// How are rows of small numbers packed? For codec packed, whose payload packed.hpp describes.
#pragma once

#include <vector>

#include "row_encoder.hpp"

namespace sharpwave {

// Encoder of codec packed.
class PackedEncoder final : public RowEncoder {
  public:
    int64_t nbytes() const override;

    ConstBytes encode(Grid<const uint8_t> rows, ConstBytes reference, int64_t line) override;

  private:
    // How a number of a row is packed.
    struct Plan {
        uint64_t base = 0;
        int64_t slope = 0;
        int bits = 0;
        std::size_t table = 0, entries = 0;  // where its values begin in ``tables_``, and how many there are
    };

    template <class T>
    int64_t fit(Grid<const uint8_t> rows);
    template <class T>
    void fit_ranges(Grid<const uint8_t> rows);
    template <class T>
    void fit_slope(Grid<const uint8_t> rows, std::size_t j);
    template <class T>
    void fit_table(Grid<const uint8_t> rows, std::size_t j);
    template <class T>
    ConstBytes pack(Grid<const uint8_t> rows);

    int64_t heads() const;                              // bytes before the rows
    int64_t row_bytes(Grid<const uint8_t> rows) const;  // bytes of the rows, packed

    std::vector<Plan> plans_;  // by number of a row
    int64_t row_bits_ = 0;
    std::vector<uint64_t> tables_, low_, high_, lowest_, highest_;
    std::vector<uint8_t> payload_;
};

}  // namespace sharpwave
