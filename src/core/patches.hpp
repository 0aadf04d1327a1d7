// How are patches read? Painted over a canvas, checked, or rewritten without their table: codecs delta and patches.
//
// Game frames differ from a still background by a few sprites, and a sprite's rows repeat one another. So a frame is
// written as patches, in reading order:
//
//   skip    1 byte < 128, or 2 bytes big-endian with the top bit set (15 bits): bytes from the end of the last patch's
//           first line to this one. 0xFFFF is a bare advance by 32,767 with no patch behind it.
//   shape   1 byte: bits 0-3 width - 1, bits 4-6 height - 1, bit 7: one literal fills the width
//   literal ``width`` bytes, or one
//
// A patch paints its literal on ``height`` consecutive lines. Codec patches writes shapes that return, with their
// literals, once, in a table; and instead of a shape
//
//   code    1 byte: the number of an entry of the table; or 239 + the bytes of a literal: shape and literal follow
//
// The table holds, for each entry, a uint16 (little-endian): where in the table its shape lies, followed by its
// literal.
//
// Header-only, without library calls, allocation or exceptions.
#pragma once

#include "words.hpp"

namespace sharpwave {

inline constexpr int64_t max_width = 16, max_height = 8, max_skip = 32767;
// First of the codes of patches whose shape and literal follow: this one where the literal has a byte, 255 where it has
// 16. So where the next patch begins is known before the shape is read, and processors read several at once.
inline constexpr int64_t inline_code = 240;
inline constexpr int64_t max_patch_bytes = 2 + 1 + max_width;
// Bytes of a row's patches from which on many of them may be a camera's noise; few where decoders are tried on
// anything.
#if defined(SHARPWAVE_CHECKED)
inline constexpr int64_t noisy_bytes = 24;
#else
inline constexpr int64_t noisy_bytes = 512;
#endif

// Patches of one entry: ``data[begin:end]``.
//
// ``table``, ``codes``: offset in ``data`` of the column's table, before the patches, and number of its entries, which
// ``table_entries`` accepted. Bytes behind ``end`` may be read, up to the end of ``data``.
struct Patches {
    ConstBytes data;
    int64_t begin = 0, end = 0, table = 0, codes = 0;
};

namespace patch_details {

// A skip: a patch lies behind it, or none, as it is a bare advance; or it is cut off.
enum class Skip : uint8_t { to_patch, bare, damaged };

// Reads the skip at ``cursor``, which moves behind it, and adds it to ``position``.
inline Skip read_skip(const uint8_t* data, int64_t stop, int64_t& cursor, int64_t& position) {
    int64_t skip = data[cursor++];
    if (skip >= 128) {
        if (cursor >= stop) return Skip::damaged;
        skip = (skip & 127) << 8 | data[cursor++];
    }
    position += skip;
    if (skip == max_skip) return Skip::bare;
    return cursor < stop ? Skip::to_patch : Skip::damaged;
}

// Sixteen bytes in one register.
#if defined(__GNUC__) && !defined(__CUDACC__)
using Sixteen = uint64_t __attribute__((vector_size(16)));

inline Sixteen both(uint64_t word) { return Sixteen{word, word}; }
// Returns the first byte 16 times.
inline Sixteen repeat_first(Sixteen bytes) {
    using Single = uint8_t __attribute__((vector_size(16)));
    const auto single = reinterpret_cast<Single>(bytes);
    return reinterpret_cast<Sixteen>(
        __builtin_shufflevector(single, single, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
}
#else
struct Sixteen {
    uint64_t low, high;
};

inline Sixteen operator&(Sixteen a, Sixteen b) { return {a.low & b.low, a.high & b.high}; }
inline Sixteen operator|(Sixteen a, Sixteen b) { return {a.low | b.low, a.high | b.high}; }
inline Sixteen operator^(Sixteen a, Sixteen b) { return {a.low ^ b.low, a.high ^ b.high}; }
inline Sixteen operator~(Sixteen a) { return {~a.low, ~a.high}; }
inline Sixteen both(uint64_t word) { return {word, word}; }
inline Sixteen repeat_first(Sixteen bytes) { return both((bytes.low & 0xFF) * 0x0101010101010101u); }
#endif

// Its bytes from 16 - width on are a mask of ``width`` bytes.
inline constexpr uint8_t edge[32] = {255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};

// Writes ``bytes`` over those that are 0 in ``kept``; they are 0 where it is 255.
inline void overlay(uint8_t* at, Sixteen bytes, Sixteen kept) {
    const Sixteen merged = (load<Sixteen>(at) & kept) | bytes;
    std::memcpy(at, &merged, sizeof merged);
}

inline constexpr int64_t least_run = 4, most_credit = 64;  // of single bytes

// Where painting stands: the next patch lies at ``cursor``, and skips from ``position``.
struct Progress {
    int64_t cursor, position;
};

// Paints up to a patch that is damaged or less than 16 bytes from the end of an array.
//
// A mispredicted branch costs more than a patch's stores. So values are selected by arithmetic, a line of any width is
// 16 bytes of which some are masked, and two lines are written even where there is one.
//
// ``noisy``: where most of the patches are single bytes from the table, close to one another, branches are predicted,
// and a patch need not wait until the place of the next one is computed. It ends where they are not.
template <bool coded, bool noisy>
Progress paint_words(const Patches& patches, int64_t line, Bytes out, Progress from) {
    const auto size = static_cast<int64_t>(out.size()), nbytes = static_cast<int64_t>(patches.data.size());
    const uint8_t* const data = patches.data.data();
    uint8_t* const canvas = out.data();
    const int64_t stop = patches.end, table = patches.table, codes = patches.codes;
    const int64_t last = stop < nbytes - 23 ? stop : nbytes - 23, farthest = nbytes - 17, lowest = size - 16;
    const uint8_t* const entries = data + table;
    int64_t cursor = from.cursor, position = from.position;
    [[maybe_unused]] int64_t credit = most_credit / 2;  // single bytes beyond ``least_run`` between other patches
    while (cursor < last) {
        if constexpr (noisy) {
            const int64_t before = cursor;
            while (cursor < last - 1) {
                const int64_t skip = data[cursor], code = data[cursor + 1], begin = position + skip;
                if ((skip >= 128) | (code >= codes)) break;
                const uint8_t* const entry = entries + load<std::uint16_t>(entries + 2 * code);
                const int64_t second = begin + line * (*entry >> 4);  // one or two lines
                if ((*entry & ~16) | (second >= size)) break;
                canvas[begin] = canvas[second] = entry[1];
                position = begin + 1;
                cursor += 2;
            }
            credit += (cursor - before) / 2 - least_run;
            if (cursor >= last || credit < 0) break;
            credit = credit < most_credit ? credit : most_credit;
        }
        const int64_t head = load<uint32_t>(data + cursor);
        const int64_t extended = (head >> 7) & 1, low = head & 127;
        const int64_t skip = extended ? low << 8 | ((head >> 8) & 255) : low;
        const int64_t at = cursor + 1 + extended;  // behind the skip
        if (skip == max_skip) {
            if (at > stop) break;
            position += skip;
            cursor = at;
            continue;
        }
        int64_t shape_at = at, next = at + 1, follows = -1;
        if constexpr (coded) {
            const int64_t code = (head >> (8 + 8 * extended)) & 255;
            follows = (codes - 1 - code) >> 63;  // -1: shape and literal follow; 0: they are in the table
            const int64_t entry = load<std::uint16_t>(entries + (2 * code & ~follows)) + table;
            shape_at = follows ? at + 1 : entry;
            next += (code - inline_code + 2) & follows;
        }
        const int64_t shape = coded ? data[shape_at] : (head >> (8 + 8 * extended)) & 255;
        const int64_t width = (shape & 15) + 1, lower = (shape >> 4) & 7;  // lower: lines below the first
        const int64_t literals = shape & 128 ? 1 : width;
        bool ends = false;
        if constexpr (coded) {
            ends = ((follows & (next ^ (at + 2 + literals))) != 0) | (shape_at > farthest);
        } else {
            next += literals;
        }
        const int64_t begin = position + skip;
        if (ends || next > stop || begin + lower * line > lowest) break;
        const auto loaded = load<Sixteen>(data + shape_at + 1);
        const auto mask = load<Sixteen>(edge + 16 - width);
        const Sixteen fill = both(shape & 128 ? ~uint64_t{0} : 0), kept = ~mask;
        const Sixteen literal = (((repeat_first(loaded) ^ loaded) & fill) ^ loaded) & mask;
        overlay(canvas + begin, literal, kept);
        int64_t start = begin + (line & (-lower >> 63));
        overlay(canvas + start, literal, kept);
        for (int64_t left = lower; left > 1; --left) {
            start += line;
            overlay(canvas + start, literal, kept);
        }
        position = begin + width;
        cursor = next;
    }
    return {cursor, position};
}

}  // namespace patch_details

// Paints patches over ``out``; returns false where they do not fit, which leaves some painted.
//
// ``coded``: whether they have codes. ``line``: bytes from a pixel to the one below, 0 for none.
template <bool coded>
bool paint(const Patches& patches, int64_t line, Bytes out) {
    const auto size = static_cast<int64_t>(out.size()), nbytes = static_cast<int64_t>(patches.data.size());
    const uint8_t* const data = patches.data.data();
    const int64_t stop = patches.end;
    require(stop <= nbytes, "patches end within their data");
    patch_details::Progress from{patches.begin, 0};
    if (coded && stop - patches.begin >= noisy_bytes) {
        from = patch_details::paint_words<coded, coded>(patches, line, out, from);
    }
    auto [cursor, position] = patch_details::paint_words<coded, false>(patches, line, out, from);
    while (cursor < stop) {
        const patch_details::Skip skip = patch_details::read_skip(data, stop, cursor, position);
        if (skip == patch_details::Skip::damaged) return false;
        if (skip == patch_details::Skip::bare) continue;
        int64_t literal = cursor, end = stop;  // where the shape and its literal lie
        bool follows = true;
        if constexpr (coded) {
            const int64_t code = data[cursor++];
            follows = code >= patches.codes;
            if (follows) {
                if (code < inline_code) return false;
                literal = cursor;
                cursor += code - inline_code + 2;
            } else {
                literal = patches.table + load<std::uint16_t>(data + patches.table + 2 * code);
                end = nbytes;
            }
            if (cursor > stop) return false;
        }
        const int64_t shape = data[literal++];
        const int64_t width = (shape & 15) + 1, height = ((shape >> 4) & 7) + 1;
        const bool fill = shape & 128;
        const int64_t literals = fill ? 1 : width;
        if (literal + literals > end || position + (height - 1) * line + width > size) return false;
        if constexpr (coded) {
            if (follows && cursor != literal + literals) return false;
        } else {
            cursor = literal + literals;
        }
        for (int64_t row = 0; row < height; ++row) {
            uint8_t* const target = out.data() + position + row * line;
            for (int64_t k = 0; k < width; ++k) target[k] = data[fill ? literal : literal + k];
        }
        position += width;
    }
    return true;
}

// Returns whether patches fit ``size`` bytes, as ``paint`` does.
template <bool coded>
bool patches_fit(const Patches& patches, int64_t line, int64_t size) {
    const uint8_t* const data = patches.data.data();
    const int64_t stop = patches.end;
    require(stop <= static_cast<int64_t>(patches.data.size()), "patches end within their data");
    int64_t cursor = patches.begin, position = 0;
    while (cursor < stop) {
        const patch_details::Skip skip = patch_details::read_skip(data, stop, cursor, position);
        if (skip == patch_details::Skip::damaged) return false;
        if (skip == patch_details::Skip::bare) continue;
        int64_t at = cursor, code = inline_code;
        bool follows = true;
        if constexpr (coded) {
            code = data[cursor++];
            follows = code >= patches.codes;
            if (follows && (code < inline_code || cursor >= stop)) return false;
            at = follows ? cursor : patches.table + load<std::uint16_t>(data + patches.table + 2 * code);
        }
        const int64_t shape = data[at];
        const int64_t width = (shape & 15) + 1, height = ((shape >> 4) & 7) + 1;
        if (follows) {
            const int64_t literals = shape & 128 ? 1 : width;
            cursor += 1 + literals;
            if (coded && literals != code - inline_code + 1) return false;
        }
        if (cursor > stop || position + (height - 1) * line + width > size) return false;
        position += width;
    }
    return true;
}

// Returns the number of a table's entries; -1 if it is none: each must lie in it, behind all uint16s.
inline int64_t table_entries(ConstBytes table) {
    const auto nbytes = static_cast<int64_t>(table.size());
    if (nbytes == 0) return 0;
    if (nbytes < 2) return -1;
    const int64_t first = load<std::uint16_t>(table.data()), entries = first >> 1;
    if ((first & 1) || entries < 1 || entries > inline_code || first > nbytes) return -1;
    for (int64_t entry = 0; entry < entries; ++entry) {
        const int64_t start = load<std::uint16_t>(table.data() + 2 * entry);
        if (start < first || start >= nbytes) return -1;
        const int64_t shape = table[static_cast<std::size_t>(start)];
        if (start + 1 + (shape & 128 ? 1 : (shape & 15) + 1) > nbytes) return -1;
    }
    return entries;
}

// Writes coded patches that fit again as delta's, without a table, to ``out`` from ``written`` on.
//
// Returns where they end in ``out``; -1 if it may be too small.
inline int64_t write_plain(const Patches& patches, Bytes out, int64_t written) {
    const auto room = static_cast<int64_t>(out.size()), nbytes = static_cast<int64_t>(patches.data.size());
    const uint8_t* const data = patches.data.data();
    uint8_t* const target = out.data();
    int64_t cursor = patches.begin;
    while (cursor < patches.end) {
        if (written + max_patch_bytes > room) return -1;
        const int64_t skip = data[cursor++];
        target[written++] = static_cast<uint8_t>(skip);
        if (skip >= 128) {
            const int64_t low = data[cursor++];
            target[written++] = static_cast<uint8_t>(low);
            if (((skip & 127) << 8 | low) == max_skip) continue;
        }
        const int64_t code = data[cursor++];
        int64_t at = cursor, length = code - inline_code + 2;
        if (code < patches.codes) {
            at = patches.table + load<std::uint16_t>(data + patches.table + 2 * code);
            const int64_t shape = data[at];
            length = shape & 128 ? 2 : (shape & 15) + 2;
        } else {
            cursor += length;
        }
        if (at + 17 <= nbytes) {  // all at once: a loop over few bytes costs several times their stores
            std::memcpy(target + written, data + at, 17);
        } else {
            for (int64_t k = 0; k < length; ++k) target[written + k] = data[at + k];
        }
        written += length;
    }
    return written;
}

}  // namespace sharpwave
