// How is a number of a packed row read? From as many bits as its column needs.
//
//   head     8 bytes: uint8 width of a number in bytes (1, 2, 4 or 8), uint8 0, uint16 numbers of a row, uint32 bits of
//            a row
//   numbers  16 bytes for each number of a row: uint64 base; int32 slope, or where there is a table its uint32 offset
//            from the payload's begin; uint16 entries of the table, 0 for none; uint8 bits; uint8 0
//   rows     row i begins at bit i * (bits of a row), the lowest bit of a byte first; then zeros to a whole byte
//   tables   each number's values, one behind the other
//
// A number of row i is ``table[its bits]``, or ``base + slope * i + its bits`` modulo 2^(8 * width).
//
// Header-only, without library calls, allocation or exceptions.
#pragma once

#include <cstring>

#include "arrays.hpp"
#include "words.hpp"

namespace sharpwave {

// One number of a packed row, as its payload describes it.
struct PackedNumber {
    static constexpr int64_t nbytes = 16;
    uint64_t base;
    uint32_t word;  // the slope, or the table's offset
    std::uint16_t entries;
    uint8_t bits, reserved;

    explicit PackedNumber(const uint8_t* at)
        : base(load<uint64_t>(at)),
          word(load<uint32_t>(at + 8)),
          entries(load<std::uint16_t>(at + 12)),
          bits(at[14]),
          reserved(at[15]) {}
    uint64_t slope() const { return static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(word))); }
};

// A packed column whose payload begins at ``begin`` of ``memory``.
struct PackedColumn {
    static constexpr int64_t head_bytes = 8;
    ConstBytes memory;
    int64_t begin;

    const uint8_t* at(int64_t offset) const { return memory.data() + begin + offset; }
    int64_t width() const { return *at(0); }
    int64_t numbers() const { return load<std::uint16_t>(at(2)); }
    int64_t row_bits() const { return load<uint32_t>(at(4)); }
    PackedNumber number(int64_t j) const { return PackedNumber(at(head_bytes + PackedNumber::nbytes * j)); }
    int64_t rows_begin() const { return head_bytes + PackedNumber::nbytes * numbers(); }

    // Returns where a row begins.
    const uint8_t* row_address(int64_t row) const { return at(rows_begin() + row * row_bits() / 8); }

    // Returns ``bits`` bits from bit ``first`` of the rows on. Memory holds 8 bytes or more.
    uint64_t read(int64_t first, int bits) const {
        if (bits == 0) return 0;
        // Bytes behind the payload may be read, but none behind memory.
        int64_t byte = begin + rows_begin() + (first >> 3);
        int64_t shift = first & 7;
        const int64_t last = static_cast<int64_t>(memory.size()) - 8;
        if (byte > last) {
            shift += 8 * (byte - last);
            byte = last;
        }
        uint64_t value = load<uint64_t>(memory.data() + byte) >> shift;
        if (shift + bits > 64)
            value |= static_cast<uint64_t>(memory[static_cast<std::size_t>(byte + 8)]) << (64 - shift);
        return bits == 64 ? value : value & ((uint64_t{1} << bits) - 1);
    }
};

namespace packed_details {

template <class T>
T read_number(const PackedColumn& column, const PackedNumber& number, int64_t row, int64_t first) {
    const uint64_t bits = column.read(first, number.bits);
    if (number.entries) {
        return load<T>(column.at(number.word + static_cast<int64_t>(sizeof(T)) * static_cast<int64_t>(bits)));
    }
    return static_cast<T>(number.base + number.slope() * static_cast<uint64_t>(row) + bits);
}

template <class T>
void read_row(const PackedColumn& column, int64_t row, uint8_t* out) {
    int64_t first = row * column.row_bits();
    const int64_t numbers = column.numbers();
    if (numbers == 1) return store(out, read_number<T>(column, column.number(0), row, first));
    for (int64_t j = 0; j < numbers; ++j) {
        const PackedNumber number = column.number(j);
        store(out + static_cast<int64_t>(sizeof(T)) * j, read_number<T>(column, number, row, first));
        first += number.bits;
    }
}

}  // namespace packed_details

// Reads a row of a column that passed ``check_packed``.
inline void read_packed_row(const PackedColumn& column, int64_t row, uint8_t* out) {
    switch (column.width()) {
        case 1:
            return packed_details::read_row<uint8_t>(column, row, out);
        case 2:
            return packed_details::read_row<std::uint16_t>(column, row, out);
        case 4:
            return packed_details::read_row<uint32_t>(column, row, out);
        default:
            return packed_details::read_row<uint64_t>(column, row, out);
    }
}

// Reads the rows ``newest - length + 1`` to ``newest``, ``row_stride`` apart; those before ``first`` are zeros or
// repeat it.
inline void read_packed_window(const PackedColumn& column, int64_t newest, int64_t first, int64_t length, int64_t size,
                               bool zeros, uint8_t* out, int64_t row_stride) {
    for (int64_t wanted = newest - length + 1; wanted <= newest; ++wanted, out += row_stride) {
        if (wanted < first && zeros) {
            std::memset(out, 0, static_cast<std::size_t>(size));
        } else {
            read_packed_row(column, wanted > first ? wanted : first, out);
        }
    }
}

// Returns whether a payload holds so many rows of ``size`` bytes. Cost: that of reading the numbers with a table.
inline bool check_packed(ConstBytes payload, int64_t rows, int64_t size) {
    const auto nbytes = static_cast<int64_t>(payload.size());
    const PackedColumn column{payload, 0};
    if (nbytes < PackedColumn::head_bytes || payload[1] != 0) return false;
    const int64_t width = column.width(), numbers = column.numbers(), row_bits = column.row_bits();
    if ((width != 1 && width != 2 && width != 4 && width != 8) || numbers < 1 || numbers * width != size) return false;
    if (column.rows_begin() > nbytes) return false;
    int64_t bits = 0, end = column.rows_begin() + (rows * row_bits + 7) / 8;
    for (int64_t j = 0; j < numbers; ++j) {
        const PackedNumber number = column.number(j);
        if (number.bits > 8 * width || number.reserved) return false;
        bits += number.bits;
        if (number.entries) {
            if (number.word != end || number.base) return false;
            end += number.entries * width;
        }
    }
    if (bits != row_bits || end != nbytes) return false;
    int64_t behind = 0;  // bits of a row before the number
    for (int64_t j = 0; j < numbers; ++j) {
        const PackedNumber number = column.number(j);
        for (int64_t i = 0; number.entries && i < rows; ++i) {
            if (column.read(i * row_bits + behind, number.bits) >= number.entries) return false;
        }
        behind += number.bits;
    }
    return true;
}

}  // namespace sharpwave
