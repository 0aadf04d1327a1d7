// How are windows of encoded rows decoded? By functions in a table, by the number of their codec.
//
// Header-only, without library calls, allocation or exceptions.
#pragma once

#include <array>
#include <cstring>

#include "arrays.hpp"
#include "packed.hpp"
#include "patches.hpp"

namespace sharpwave {

inline constexpr int codec_numbers = 256;
inline constexpr uint8_t raw_codec = 0, zstd_codec = 1, delta_codec = 2, predict_codec = 3, patches_codec = 4,
                         packed_codec = 5;

// Rows ``newest - length + 1`` to ``newest`` of one column, which passed its codec's check, and memory for them.
struct Window {
    ConstBytes memory;        // bytes that hold the payload
    int64_t begin = 0;        // offset of the payload in ``memory``
    int64_t rows = 0;         // rows in the column
    int64_t newest = 0;       // the window's last row
    int64_t first = 0;        // first row of the episode: rows before it are padded
    int64_t length = 1;       // rows in the window
    int64_t size = 0;         // bytes of a row
    int64_t line = 0;         // bytes from a pixel to the one below, 0 for none
    bool zeros = false;       // whether rows before ``first`` are zeros; else they repeat row ``first``
    ConstBytes dictionary{};  // [size]; zeros where the column has none. Not read by a prefetch.
    Bytes out{};              // [length * size]. Not written by a prefetch.
    Bytes scratch{};          // [size], working memory; empty where ``length`` is 1. Not used by a prefetch.
};

// Functions of one codec; none: rows of the codec are decoded by its Python class.
struct WindowCodec {
    // Decodes the window's rows.
    void (*decode)(const Window&) = nullptr;
    // Prefetches the memory that ``decode`` will read, some items ahead; the payload's beginning is in cache.
    void (*prefetch)(const Window&) = nullptr;
};

// A payload of delta or patches: uint32 offsets of its entries (``behind``: the table's first, then the background's,
// then each row's), counted from their end, then the entries.
template <bool coded>
struct PatchColumn {
    static constexpr int64_t behind = coded ? 1 : 0;
    const uint8_t* offsets;
    int64_t packed;  // where the entries begin in memory

    PatchColumn(ConstBytes memory, int64_t begin, int64_t rows)
        : offsets(memory.data() + begin), packed(begin + 4 * (rows + 2 + behind)) {
        require(begin >= 0 && rows >= 0 && packed <= static_cast<int64_t>(memory.size()), "a payload has its offsets");
    }
    // Returns where entry 0, the background's, or 1 + a row's begins in memory; the next one's begin is its end.
    int64_t begin(int64_t entry) const { return packed + load<uint32_t>(offsets + 4 * (entry + behind)); }
    // Returns the number of the table's entries.
    int64_t codes(ConstBytes memory) const {
        if (!coded || load<uint32_t>(offsets + 4) == 0) return 0;
        return load<std::uint16_t>(memory.data() + packed) >> 1;
    }
};

// Returns whether a payload begins with uint32 offsets of so many entries, which rise from 0 to its end.
inline bool offsets_rise(ConstBytes payload, int64_t entries) {
    const int64_t nbytes = static_cast<int64_t>(payload.size()) - 4 * (entries + 1);
    if (nbytes < 0) return false;
    const uint8_t* const offsets = payload.data();
    uint32_t before = load<uint32_t>(offsets);
    bool rise = before == 0;
    for (int64_t entry = 1; entry <= entries; ++entry) {
        const auto next = load<uint32_t>(offsets + 4 * entry);
        rise &= before <= next;
        before = next;
    }
    return rise && before == nbytes;
}

// Results of checks beside the number of an entry that is damaged.
inline constexpr int64_t sound = -1, damaged_offsets = -2, damaged_table = -3;

// Returns ``damaged_offsets``, ``damaged_table``, or ``sound``: then ``codes`` of a column may be read.
template <bool coded>
int64_t check_layout(ConstBytes payload, int64_t rows) {
    constexpr int64_t behind = PatchColumn<coded>::behind;
    if (!offsets_rise(payload, rows + 1 + behind)) return damaged_offsets;
    if constexpr (coded) {
        const auto head = static_cast<std::size_t>(4 * (rows + 3));
        if (table_entries(payload.subspan(head, load<uint32_t>(payload.data() + 4))) < 0) return damaged_table;
    }
    return sound;
}

// Returns ``sound`` if ``decode`` may trust a payload of rows of ``size`` bytes; else what is damaged: offsets, table,
// or an entry, 0 for the background's, 1 + a row's.
template <bool coded>
int64_t check_patches(ConstBytes payload, int64_t rows, int64_t size, int64_t line) {
    const int64_t layout = check_layout<coded>(payload, rows);
    if (layout != sound) return layout;
    const PatchColumn<coded> column(payload, 0, rows);
    Patches patches{payload, 0, 0, column.packed, column.codes(payload)};
    for (int64_t entry = 0; entry <= rows; ++entry) {
        patches.begin = column.begin(entry);
        patches.end = column.begin(entry + 1);
        if (!patches_fit<coded>(patches, line, size)) return entry;
    }
    return sound;
}

// Decodes rows of any payload from ``first`` on, as many as ``out`` has. Returns as check_patches.
template <bool coded>
int64_t decode_rows(ConstBytes payload, int64_t rows, ConstBytes dictionary, int64_t line, int64_t first,
                    Grid<uint8_t> out) {
    if (out.rows == 0) return check_patches<coded>(payload, rows, out.columns, line);
    const int64_t layout = check_layout<coded>(payload, rows);
    if (layout != sound) return layout;
    const PatchColumn<coded> column(payload, 0, rows);
    Patches patches{payload, 0, 0, column.packed, column.codes(payload)};
    const auto paint_entry = [&](int64_t entry, Bytes canvas) {
        patches.begin = column.begin(entry);
        patches.end = column.begin(entry + 1);
        return paint<coded>(patches, line, canvas);
    };
    // The background is painted where the last row goes, which is painted over it.
    const Bytes background = out[out.rows - 1];
    if (dictionary.empty()) {
        std::memset(background.data(), 0, background.size());
    } else {
        require(dictionary.size() == background.size(), "a reference is as long as a row");
        std::memcpy(background.data(), dictionary.data(), background.size());
    }
    if (!paint_entry(0, background)) return 0;
    for (int64_t row = 0; row < out.rows; ++row) {
        if (row + 1 < out.rows) std::memcpy(out[row].data(), background.data(), background.size());
        if (!paint_entry(1 + first + row, out[row])) return 1 + first + row;
    }
    return sound;
}

// Decodes rows in ascending order: with the background in the batch's memory and rows in descending order, sequences
// take almost twice as long.
template <bool coded>
void decode_patches(const Window& window) {
    const PatchColumn<coded> column(window.memory, window.begin, window.rows);
    const auto size = static_cast<std::size_t>(window.size);
    require(window.out.size() == static_cast<std::size_t>(window.length) * size, "a window has room for its rows");
    require(window.dictionary.size() == size, "a window has a dictionary");
    require(window.length <= 1 || window.scratch.size() == size, "a long window has scratch");
    require(window.newest >= 0 && window.newest < window.rows && window.first < window.rows,
            "a window ends and begins in its column");
    // The only row of a window is painted over its own background, which spares a copy.
    const Bytes background = window.length > 1 ? window.scratch : window.out;
    std::memcpy(background.data(), window.dictionary.data(), size);
    Patches patches{window.memory, column.begin(0), column.begin(1), column.packed, column.codes(window.memory)};
    paint<coded>(patches, window.line, background);
    for (int64_t j = 0; j < window.length; ++j) {
        const int64_t wanted = window.newest - window.length + 1 + j;
        const Bytes target{window.out.data() + j * window.size, size};
        if (wanted < window.first && window.zeros) {
            std::memset(target.data(), 0, size);
            continue;
        }
        if (window.length > 1) std::memcpy(target.data(), background.data(), size);
        const int64_t entry = 1 + (wanted > window.first ? wanted : window.first);
        patches.begin = column.begin(entry);
        patches.end = column.begin(entry + 1);
        paint<coded>(patches, window.line, target);
    }
}

// Prefetches a window's patches. Its offsets must be in cache already, or this call waits for them.
template <bool coded>
void prefetch_patches(const Window& window) {
    const PatchColumn<coded> column(window.memory, window.begin, window.rows);
    const uint8_t* const memory = window.memory.data();
    for (int64_t at = column.packed; at < column.begin(1); at += 64) prefetch(memory + at);
    const int64_t oldest = window.newest - window.length + 1;
    const int64_t lowest = oldest > window.first ? oldest : window.first, end = column.begin(window.newest + 2);
    for (int64_t at = column.begin(1 + lowest); at < end; at += 64) prefetch(memory + at);
}

// Decodes packed rows.
inline void decode_packed(const Window& window) {
    require(static_cast<int64_t>(window.out.size()) == window.length * window.size, "a window has room for its rows");
    require(window.newest >= 0 && window.newest < window.rows && window.first < window.rows,
            "a window ends and begins in its column");
    read_packed_window({window.memory, window.begin}, window.newest, window.first, window.length, window.size,
                       window.zeros, window.out.data(), window.size);
}

// Prefetches the end of a window's packed rows. Its head must be in cache already, or this call waits for it.
inline void prefetch_packed(const Window& window) {
    const PackedColumn column{window.memory, window.begin};
    prefetch(column.row_address(window.newest));
}

// By codec number.
inline constexpr std::array<WindowCodec, codec_numbers> window_codecs = [] {
    std::array<WindowCodec, codec_numbers> codecs{};
    codecs[delta_codec] = {decode_patches<false>, prefetch_patches<false>};
    codecs[patches_codec] = {decode_patches<true>, prefetch_patches<true>};
    codecs[packed_codec] = {decode_packed, prefetch_packed};
    return codecs;
}();

}  // namespace sharpwave
