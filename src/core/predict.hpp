// How is a row of codec predict restored? Line by line, from differences to what its surroundings predict.
//
// The filters are those of PNG, the predictor of LOCO-I (Weinberger, Seroussi, Sapiro 2000), and a reference row. All
// arithmetic is modulo 256. A filtered row is
//
//   head      1 byte: bits 0-5 the distance in bytes from a value to the one at its left; bit 7: of three channels, the
//             first and the last have the middle one subtracted
//   filters   1 byte a line
//   residuals size bytes
//
// Header-only, without library calls, allocation or exceptions.
#pragma once

#include <cstring>

#include "arrays.hpp"

namespace sharpwave {

enum class Filter : uint8_t { none, left, up, average, median_edge, reference };

inline constexpr int filters = 6;
inline constexpr int distance_bits = 63, colours_bit = 128;  // of the head

// Returns the LOCO-I prediction: ``left``, ``up``, or at neither's edge their plane ``left + up - corner``.
inline int median_edge(int left, int up, int corner) {
    const int low = left < up ? left : up, high = left < up ? up : left, plane = left + up - corner;
    const int below = plane < high ? plane : high;
    return low > below ? low : below;
}

namespace predict_details {

inline uint8_t plus(int value, int guess) { return static_cast<uint8_t>(value + guess); }

// Restores a line; ``above`` is null for a row's first. Returns false for an unknown filter.
inline bool restore_line(Filter filter, const uint8_t* residuals, const uint8_t* above, const uint8_t* reference,
                         bool colours, int64_t distance, int64_t nbytes, uint8_t* line) {
    const int64_t first = distance < nbytes ? distance : nbytes;
    const auto copied = static_cast<std::size_t>(nbytes);
    if (!above) {  // nothing is above: zeros
        if (filter == Filter::up) filter = Filter::none;
        if (filter == Filter::median_edge) filter = Filter::left;
    }
    switch (filter) {
        case Filter::none:
            std::memcpy(line, residuals, copied);
            return true;
        case Filter::left:
            std::memcpy(line, residuals, static_cast<std::size_t>(first));
            for (int64_t x = first; x < nbytes; ++x) line[x] = plus(residuals[x], line[x - distance]);
            return true;
        case Filter::up:
            for (int64_t x = 0; x < nbytes; ++x) line[x] = plus(residuals[x], above[x]);
            return true;
        case Filter::average:
            for (int64_t x = 0; x < first; ++x) line[x] = plus(residuals[x], above ? above[x] >> 1 : 0);
            for (int64_t x = first; x < nbytes; ++x) {
                line[x] = plus(residuals[x], (line[x - distance] + (above ? above[x] : 0)) >> 1);
            }
            return true;
        case Filter::median_edge:
            for (int64_t x = 0; x < first; ++x) line[x] = plus(residuals[x], above[x]);  // median_edge(0, up, 0)
            for (int64_t x = first; x < nbytes; ++x) {
                line[x] = plus(residuals[x], median_edge(line[x - distance], above[x], above[x - distance]));
            }
            return true;
        case Filter::reference:
            for (int64_t x = 0; x < nbytes; ++x) line[x] = plus(residuals[x], reference[x]);
            if (!colours) return true;
            for (int64_t x = 0; x < nbytes; x += 3) {
                line[x] = plus(line[x], -reference[x + 1]);
                line[x + 2] = plus(line[x + 2], -reference[x + 1]);
            }
            return true;
    }
    return false;
}

}  // namespace predict_details

// Writes to ``out`` [size] the row that was ``filtered`` [1 + lines + size]; returns false if it is no filtered row.
//
// ``reference`` [size]. ``line_bytes`` divides the size.
inline bool restore_row(ConstBytes filtered, ConstBytes reference, int64_t line_bytes, Bytes out) {
    const auto size = static_cast<int64_t>(out.size());
    require(line_bytes > 0 && size > 0 && size % line_bytes == 0, "a row has whole lines");
    const int64_t lines = size / line_bytes;
    require(static_cast<int64_t>(filtered.size()) == 1 + lines + size, "a filtered row has a byte for each line");
    require(static_cast<int64_t>(reference.size()) == size, "a reference is as long as a row");
    const int head = filtered[0];
    const int64_t distance = head & distance_bits;
    const bool colours = head & colours_bit;
    if (distance == 0 || (head & 64) || (colours && (size % 3 || line_bytes % 3))) return false;
    const uint8_t *const kinds = filtered.data() + 1, *const residuals = kinds + lines;
    for (int64_t y = 0; y < lines; ++y) {
        const int64_t begin = y * line_bytes;
        uint8_t* const line = out.data() + begin;
        if (!predict_details::restore_line(static_cast<Filter>(kinds[y]), residuals + begin,
                                           y ? line - line_bytes : nullptr, reference.data() + begin, colours, distance,
                                           line_bytes, line)) {
            return false;
        }
    }
    if (colours) {
        for (int64_t x = 0; x < size; x += 3) {
            const int middle = out[static_cast<std::size_t>(x + 1)];
            uint8_t* const pixel = out.data() + x;
            pixel[0] = predict_details::plus(pixel[0], middle);
            pixel[2] = predict_details::plus(pixel[2], middle);
        }
    }
    return true;
}

}  // namespace sharpwave
