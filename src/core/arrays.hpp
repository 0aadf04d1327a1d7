// How does the core see an array? As a span, or rows of spans: C-contiguous, of one type, checked in checked builds.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>

namespace sharpwave {

using std::int32_t;
using std::int64_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

#ifdef SHARPWAVE_CHECKED
inline constexpr bool checked = true;
#else
inline constexpr bool checked = false;
#endif

// Compiles a function for processors with AVX2 as well, where measurements show a gain; chosen when the core is loaded.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__)
#define SHARPWAVE_WIDE [[gnu::target_clones("avx2", "default")]]
#else
#define SHARPWAVE_WIDE
#endif

// Ends the process in a checked build where a contract between the core's own parts is broken.
inline void require(bool holds, const char* contract) {
    if constexpr (checked) {
        if (!holds) {
            std::fprintf(stderr, "sharpwave core: broken contract: %s\n", contract);
            std::abort();
        }
    }
}

using Bytes = std::span<uint8_t>;
using ConstBytes = std::span<const uint8_t>;
using Ints = std::span<int64_t>;
using ConstInts = std::span<const int64_t>;

// Rows of one length: row i is a span.
template <class T>
struct Grid {
    T* data = nullptr;
    int64_t rows = 0, columns = 0;

    std::span<T> operator[](int64_t row) const {
        require(row >= 0 && row < rows, "a grid's row is within it");
        return {data + row * columns, static_cast<std::size_t>(columns)};
    }
    std::span<T> flat() const { return {data, static_cast<std::size_t>(rows * columns)}; }
    operator Grid<const T>() const
        requires(!std::is_const_v<T>)
    {
        return {data, rows, columns};
    }
};

// Blocks of rows: block i is a grid.
template <class T>
struct Cube {
    T* data = nullptr;
    int64_t blocks = 0, rows = 0, columns = 0;

    Grid<T> operator[](int64_t block) const {
        require(block >= 0 && block < blocks, "a cube's block is within it");
        return {data + block * rows * columns, rows, columns};
    }
    std::span<T> flat() const { return {data, static_cast<std::size_t>(blocks * rows * columns)}; }
};

}  // namespace sharpwave
