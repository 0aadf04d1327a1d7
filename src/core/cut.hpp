// How are encoded rows cut out of their segments, for a process that decodes them, and read there?
//
// Cut rows are windows one after another, each at a multiple of 8 bytes: a word uint32, the bytes of its payload; a
// word with the codec's number (bits 0 to 7), the dictionary's place (8 to 15) and how many rows the window lacks
// before its episode's first (16 to 31); the payload; and zeros up to the next. All numbers are little-endian.
//
// Header-only, without library calls, allocation or exceptions.
#pragma once

#include <array>
#include <cstring>

#include "arrays.hpp"
#include "codecs.hpp"

namespace sharpwave {

inline constexpr int64_t cut_head_bytes = 8, too_small = -1;

// Rows ``first`` to ``last`` of the column of ``rows`` rows whose payload begins at ``begin`` of ``memory``, and which
// passed its codec's check.
struct CutSource {
    ConstBytes memory;
    int64_t begin = 0, rows = 0, first = 0, last = 0;
};

// Functions of one codec; none: its rows are sent decoded.
struct CutCodec {
    // Writes rows as a payload with the same dictionary; returns its bytes, or ``too_small`` if ``out`` is.
    int64_t (*write)(const CutSource&, Bytes out) = nullptr;
    // Returns whether a stranger's payload holds so many rows, as the codec's check has it; none: no payloads of this
    // codec are sent, as they become another's.
    bool (*check)(ConstBytes payload, int64_t rows, int64_t size, int64_t line) = nullptr;
    uint8_t becomes = 0;  // codec of what is written
};

namespace cut_details {

// Writes some entries of a payload of offsets and entries. ``common``: entries before the first row's, written too.
template <int64_t common>
int64_t write_entries(const CutSource& source, Bytes out) {
    const int64_t count = source.last - source.first + 1, head = 4 * (count + common + 1);
    const uint8_t* const offsets = source.memory.data() + source.begin;
    const uint8_t* const packed = offsets + 4 * (source.rows + common + 1);
    const uint8_t* const rows = offsets + 4 * (common + source.first);
    const int64_t shared = load<uint32_t>(offsets + 4 * common), begin = load<uint32_t>(rows);
    const int64_t nbytes = load<uint32_t>(rows + 4 * count) - begin;
    if (head + shared + nbytes > static_cast<int64_t>(out.size())) return too_small;
    std::memcpy(out.data(), offsets, 4 * common);
    for (int64_t k = 0; k <= count; ++k) {
        store(out.data() + 4 * (common + k), static_cast<uint32_t>(shared + load<uint32_t>(rows + 4 * k) - begin));
    }
    std::memcpy(out.data() + head, packed, static_cast<std::size_t>(shared));
    std::memcpy(out.data() + head + shared, packed + begin, static_cast<std::size_t>(nbytes));
    return head + shared + nbytes;
}

// Writes packed rows as raw ones: each has fewer bytes than the head and the numbers of a payload.
inline int64_t write_unpacked(const CutSource& source, Bytes out) {
    const PackedColumn column{source.memory, source.begin};
    const int64_t size = column.numbers() * column.width(), nbytes = (source.last - source.first + 1) * size;
    if (nbytes > static_cast<int64_t>(out.size())) return too_small;
    uint8_t* at = out.data();
    for (int64_t row = source.first; row <= source.last; ++row, at += size) read_packed_row(column, row, at);
    return nbytes;
}

// Writes rows of patches as a payload of delta: few rows use little of the table.
inline int64_t write_without_table(const CutSource& source, Bytes out) {
    const PatchColumn<true> column(source.memory, source.begin, source.rows);
    Patches patches{source.memory, 0, 0, column.packed, column.codes(source.memory)};
    const int64_t head = 4 * (source.last - source.first + 3);
    if (head > static_cast<int64_t>(out.size())) return too_small;
    int64_t written = head;
    store(out.data(), uint32_t{0});
    for (int64_t k = 0; k < source.last - source.first + 2; ++k) {
        const int64_t entry = k == 0 ? 0 : source.first + k;
        patches.begin = column.begin(entry);
        patches.end = column.begin(entry + 1);
        written = write_plain(patches, out, written);
        if (written < 0) return too_small;
        store(out.data() + 4 * (k + 1), static_cast<uint32_t>(written - head));
    }
    return written;
}

inline bool check_frames(ConstBytes payload, int64_t rows, int64_t, int64_t) { return offsets_rise(payload, rows); }

inline bool check_delta(ConstBytes payload, int64_t rows, int64_t size, int64_t line) {
    return check_patches<false>(payload, rows, size, line) == sound;
}

}  // namespace cut_details

// By codec number. Of payloads with an offset and a frame of zstd for each row, decoding checks the frames.
inline constexpr std::array<CutCodec, codec_numbers> cut_codecs = [] {
    std::array<CutCodec, codec_numbers> codecs{};
    codecs[zstd_codec] = {cut_details::write_entries<0>, cut_details::check_frames, zstd_codec};
    codecs[delta_codec] = {cut_details::write_entries<1>, cut_details::check_delta, delta_codec};
    codecs[predict_codec] = {cut_details::write_entries<0>, cut_details::check_frames, predict_codec};
    codecs[patches_codec] = {cut_details::write_without_table, nullptr, delta_codec};
    codecs[packed_codec] = {cut_details::write_unpacked, nullptr, raw_codec};
    return codecs;
}();

// Windows of cut rows as columns, by number.
struct CutColumns {
    Ints offset, end;                       // where each payload lies
    Bytes codec;                            // its codec
    std::span<int32_t> dictionary, counts;  // the place of its dictionary; its rows
};

// Checks windows of ``length`` [n] rows in a stranger's ``memory``, and indexes them as columns.
//
// ``known``: by place, whether there is a dictionary. Returns n; or the number of the first window that is none; -1
// where more bytes follow the last.
inline int64_t index_cut_rows(ConstBytes memory, ConstInts length, int64_t size, int64_t line, ConstBytes known,
                              const CutColumns& columns) {
    require(known.size() == 256, "every place is known, or not");
    const auto nbytes_in_memory = static_cast<int64_t>(memory.size());
    int64_t at = 0;
    for (std::size_t i = 0; i < length.size(); ++i) {
        const auto window = static_cast<int64_t>(i);
        if (at + cut_head_bytes > nbytes_in_memory) return window;
        const int64_t nbytes = load<uint32_t>(memory.data() + at), what = load<uint32_t>(memory.data() + at + 4);
        const auto codec = static_cast<uint8_t>(what), place = static_cast<uint8_t>(what >> 8);
        const int64_t begin = at + cut_head_bytes, end = begin + nbytes, rows = length[i] - (what >> 16);
        columns.offset[i] = begin;
        columns.end[i] = end;
        columns.codec[i] = codec;
        columns.dictionary[i] = place;
        if (rows < 1 || end > nbytes_in_memory || !known[place]) return window;
        columns.counts[i] = static_cast<int32_t>(rows);
        if (codec == raw_codec) {
            if (nbytes != rows * size) return window;
        } else {
            const auto payload = memory.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(nbytes));
            const auto check = cut_codecs[codec].check;
            if (!check || !check(payload, rows, size, line)) return window;
        }
        at = (end + 7) & -8;
    }
    return at == nbytes_in_memory ? static_cast<int64_t>(length.size()) : -1;
}

}  // namespace sharpwave
