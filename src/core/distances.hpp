// How far is a row from another? The sum of the magnitudes of their differences, in the order in which numpy adds.
#pragma once

#include <cmath>

#include "numpy_arrays.hpp"
#include "words.hpp"

namespace sharpwave {

// Converts a float of 16 bits.
inline double widened_half(std::uint16_t bits) {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const double magnitude = exponent == 31  ? (mantissa ? std::nan("") : HUGE_VAL)
                             : exponent == 0 ? std::ldexp(mantissa, -24)
                                             : std::ldexp(1024 + mantissa, exponent - 25);
    return bits >> 15 ? -magnitude : magnitude;
}

// Adds the magnitudes of ``count`` differences, those that are no numbers as 0. ``at``: returns a value of a row.
template <class At>
double sum_of_differences(const At& at, const uint8_t* one, const uint8_t* other, int64_t begin, int64_t count) {
    constexpr int64_t strands = 8, longest = 128;  // numpy's: sums of eight strands, halves of longer rows
    const auto difference = [&](int64_t k) {
        const double found = std::abs(at(one, begin + k) - at(other, begin + k));
        return std::isnan(found) ? 0.0 : found;
    };
    if (count > longest) {
        const int64_t half = count / 2 - count / 2 % strands;
        return sum_of_differences(at, one, other, begin, half) +
               sum_of_differences(at, one, other, begin + half, count - half);
    }
    double sum = 0;
    int64_t k = 0;
    if (count >= strands) {
        double sums[strands] = {};
        for (; k + strands <= count; k += strands) {
            for (int64_t strand = 0; strand < strands; ++strand) sums[strand] += difference(k + strand);
        }
        sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    }
    for (; k < count; ++k) sum += difference(k);
    return sum;
}

template <class T>
double distance_as(const uint8_t* one, const uint8_t* other, int64_t nbytes) {
    const auto at = [](const uint8_t* row, int64_t k) {
        return static_cast<double>(load<T>(row + k * static_cast<int64_t>(sizeof(T))));
    };
    return sum_of_differences(at, one, other, 0, nbytes / static_cast<int64_t>(sizeof(T)));
}

// Returns the distance of two rows of numpy's type ``type``.
inline double distance(int type, const uint8_t* one, const uint8_t* other, int64_t nbytes) {
    switch (type) {
        case NPY_BOOL:
        case NPY_UBYTE:
            return distance_as<uint8_t>(one, other, nbytes);
        case NPY_BYTE:
            return distance_as<std::int8_t>(one, other, nbytes);
        case NPY_SHORT:
            return distance_as<std::int16_t>(one, other, nbytes);
        case NPY_USHORT:
            return distance_as<std::uint16_t>(one, other, nbytes);
        case NPY_INT:
            return distance_as<int>(one, other, nbytes);
        case NPY_UINT:
            return distance_as<unsigned>(one, other, nbytes);
        case NPY_LONG:
            return distance_as<long>(one, other, nbytes);
        case NPY_ULONG:
            return distance_as<unsigned long>(one, other, nbytes);
        case NPY_LONGLONG:
            return distance_as<long long>(one, other, nbytes);
        case NPY_ULONGLONG:
            return distance_as<unsigned long long>(one, other, nbytes);
        case NPY_FLOAT:
            return distance_as<float>(one, other, nbytes);
        case NPY_DOUBLE:
            return distance_as<double>(one, other, nbytes);
        case NPY_LONGDOUBLE:
            return distance_as<long double>(one, other, nbytes);
        default:
            require(type == NPY_HALF, "a field has booleans, integers or floats");
            return sum_of_differences(
                [](const uint8_t* row, int64_t k) { return widened_half(load<std::uint16_t>(row + 2 * k)); }, one,
                other, 0, nbytes / 2);
    }
}

}  // namespace sharpwave
