// What do payloads of delta and patches say, read byte by byte as codecs.hpp and patches.hpp describe them?
#pragma once

#include <optional>
#include <vector>

#include "bytes.hpp"

namespace sharpwave::fuzz {

using Row = std::vector<uint8_t>;

// Shapes with their literals.
using Table = std::vector<Row>;

// A payload's parts, or what is damaged: -2 for offsets, -3 for the table.
struct Entries {
    int64_t damaged = -1;
    Table table;
    std::vector<ConstBytes> entries;  // the background's, and each row's
};

inline std::size_t little(ConstBytes bytes) {
    std::size_t value = 0;
    for (std::size_t k = bytes.size(); k > 0; --k) value = value << 8 | bytes[k - 1];
    return value;
}

inline std::size_t literal_bytes(uint8_t shape) { return shape & 128 ? 1 : (shape & 15) + 1; }

inline std::optional<Table> read_table(ConstBytes bytes) {
    Table table;
    if (bytes.empty()) return table;
    if (bytes.size() < 2) return std::nullopt;
    const std::size_t first = little(bytes.first(2));
    if (first % 2 || first < 2 || first > 480 || first > bytes.size()) return std::nullopt;
    for (std::size_t k = 0; k < first / 2; ++k) {
        const std::size_t at = little(bytes.subspan(2 * k, 2));
        if (at < first || at >= bytes.size()) return std::nullopt;
        const std::size_t count = 1 + literal_bytes(bytes[at]);
        if (at + count > bytes.size()) return std::nullopt;
        const ConstBytes found = bytes.subspan(at, count);
        table.emplace_back(found.begin(), found.end());
    }
    return table;
}

inline Entries read_payload(ConstBytes payload, std::size_t rows, bool coded) {
    Entries found;
    const std::size_t count = rows + 1 + (coded ? 1 : 0), head = 4 * (count + 1);
    std::vector<std::size_t> offsets;
    if (payload.size() < head) return {-2, {}, {}};
    for (std::size_t k = 0; k <= count; ++k) offsets.push_back(little(payload.subspan(4 * k, 4)));
    if (offsets.front() != 0 || offsets.back() != payload.size() - head) return {-2, {}, {}};
    if (!std::is_sorted(offsets.begin(), offsets.end())) return {-2, {}, {}};
    for (std::size_t k = 0; k < count; ++k) {
        found.entries.push_back(payload.subspan(head + offsets[k], offsets[k + 1] - offsets[k]));
    }
    if (coded) {
        const auto table = read_table(found.entries.front());
        if (!table) return {-3, {}, {}};
        found.table = *table;
        found.entries.erase(found.entries.begin());
    }
    return found;
}

// Returns the canvas with patches painted over it, or nothing where they do not fit.
inline std::optional<Row> painted(ConstBytes patches, bool coded, const Table& table, std::size_t line, Row canvas) {
    std::size_t position = 0;
    const auto take = [&](std::size_t count) -> std::optional<ConstBytes> {
        if (patches.size() < count) return std::nullopt;
        const ConstBytes taken = patches.first(count);
        patches = patches.subspan(count);
        return taken;
    };
    while (!patches.empty()) {
        std::size_t skip = (*take(1))[0];
        if (skip & 128) {
            const auto low = take(1);
            if (!low) return std::nullopt;
            skip = (skip & 127) << 8 | (*low)[0];
        }
        position += skip;
        if (skip == 32767) continue;
        Row shape;
        std::size_t expected = 0;  // bytes of the shape and its literal, where a code says them
        if (coded) {
            const auto code = take(1);
            if (!code) return std::nullopt;
            if ((*code)[0] < table.size()) {
                shape = table[(*code)[0]];
            } else if ((*code)[0] < 240) {
                return std::nullopt;
            } else {
                expected = (*code)[0] - 240u + 2;
            }
        }
        if (shape.empty()) {
            if (patches.empty()) return std::nullopt;
            const auto bytes = take(1 + literal_bytes(patches[0]));
            if (!bytes || (coded && bytes->size() != expected)) return std::nullopt;
            shape.assign(bytes->begin(), bytes->end());
        }
        const std::size_t width = (shape[0] & 15) + 1, height = ((shape[0] >> 4) & 7) + 1;
        if (position + (height - 1) * line + width > canvas.size()) return std::nullopt;
        for (std::size_t y = 0; y < height; ++y) {
            for (std::size_t x = 0; x < width; ++x) canvas[position + y * line + x] = shape[shape[0] & 128 ? 1 : 1 + x];
        }
        position += width;
    }
    return canvas;
}

// Rows of a payload over a reference, up to the first entry that is damaged; -1: none is.
struct Decoded {
    int64_t damaged = -1;
    std::vector<Row> rows;
};

inline Decoded decode_plainly(ConstBytes payload, std::size_t rows, bool coded, std::size_t line,
                              const Row& reference) {
    const Entries parts = read_payload(payload, rows, coded);
    if (parts.damaged != -1) return {parts.damaged, {}};
    Decoded decoded;
    std::optional<Row> background;
    for (std::size_t entry = 0; entry <= rows; ++entry) {
        const auto row = painted(parts.entries[entry], coded, parts.table, line, entry ? *background : reference);
        if (!row) return {static_cast<int64_t>(entry), std::move(decoded.rows)};
        if (entry == 0)
            background = row;
        else
            decoded.rows.push_back(*row);
    }
    return decoded;
}

}  // namespace sharpwave::fuzz
