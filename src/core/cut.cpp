// How are the rows that a batch needs cut out of memory? Window by window, encoded where their codec can.
#include "cut.hpp"

#include "column.hpp"
#include "numpy_arrays.hpp"
#include "rooms.hpp"
#include "unlocked.hpp"

namespace sharpwave {
namespace {

constexpr std::size_t ahead = 4;  // windows between a prefetch and its use, on each of three levels

// Windows of rows: their slots, their last rows, the first rows of their episodes, and their lengths.
struct Windows {
    ConstInts slot, newest, first, length;
};

// Prefetches memory at random addresses: the index, then the offsets, then the entries.
void prefetch_windows(const Column& columns, const Windows& windows, std::size_t i) {
    const uint8_t* const memory = columns.memory.data();
    const std::size_t count = windows.slot.size();
    if (i + 3 * ahead < count) {
        const int64_t slot = windows.slot[i + 3 * ahead];
        prefetch(columns.offset.data() + slot);
        prefetch(columns.codec.data() + slot);
        prefetch(columns.counts.data() + slot);
        prefetch(columns.dictionary.data() + slot);
    }
    if (i + 2 * ahead < count) {
        const uint8_t* const payload = memory + columns.offset[static_cast<std::size_t>(windows.slot[i + 2 * ahead])];
        prefetch(payload);
        prefetch(payload + 4 * windows.newest[i + 2 * ahead]);
    }
    if (i + ahead < count) {
        const auto slot = static_cast<std::size_t>(windows.slot[i + ahead]);
        const int64_t begin = columns.offset[slot], entry = begin + 4 * windows.newest[i + ahead];
        if (columns.codec[slot] != raw_codec && entry + 4 <= static_cast<int64_t>(columns.memory.size())) {
            const int64_t at = begin + int64_t{4} * columns.counts[slot] + load<uint32_t>(memory + entry);
            for (int64_t line = -256; line < 128; line += 64) prefetch(memory + at + line);
        }
    }
}

// Writes windows to ``out``; returns the bytes, or ``too_small``.
int64_t cut_windows(const Column& columns, const Windows& windows, Bytes out, Bytes used, Ints left) {
    const int64_t size = columns.size();
    const auto room = static_cast<int64_t>(out.size());
    int64_t written = 0;
    for (std::size_t i = 0; i < windows.slot.size(); ++i) {
        prefetch_windows(columns, windows, i);
        const auto slot = static_cast<std::size_t>(windows.slot[i]);
        const int64_t newest = windows.newest[i], oldest = newest - windows.length[i] + 1;
        const int64_t lowest = oldest > windows.first[i] ? oldest : windows.first[i];
        const int64_t begin = written + cut_head_bytes;
        left[i] = 0;
        if (begin > room) return too_small;
        const Bytes target = out.subspan(static_cast<std::size_t>(begin));
        const CutCodec& codec = cut_codecs[columns.codec[slot]];
        int64_t nbytes = (newest - lowest + 1) * size, place = 0;
        uint8_t becomes = raw_codec;
        if (codec.write) {
            place = columns.dictionary[slot];
            becomes = codec.becomes;
            used[static_cast<std::size_t>(place)] = 1;
            nbytes = codec.write({columns.memory, columns.offset[slot], columns.counts[slot], lowest, newest}, target);
        } else if (begin + nbytes > room) {
            return too_small;
        } else if (columns.codec[slot] == raw_codec) {
            std::memcpy(target.data(), columns.memory.data() + columns.offset[slot] + lowest * size,
                        static_cast<std::size_t>(nbytes));
        } else {
            left[i] = begin;
        }
        const int64_t end = (begin + nbytes + 7) & -8;
        if (nbytes < 0 || end > room) return too_small;
        std::memset(target.data() + nbytes, 0, static_cast<std::size_t>(end - begin - nbytes));
        store(out.data() + written, static_cast<uint32_t>(nbytes));
        store(out.data() + written + 4, static_cast<uint32_t>(becomes | place << 8 | (lowest - oldest) << 16));
        written = end;
    }
    return written;
}

}  // namespace

void define_cut(nanobind::module_& module) {
    using namespace nanobind::literals;
    using Release = nanobind::call_guard<Released>;
    module.def(
        "cut_windows",
        [](const Column& column, ConstInts slot, ConstInts newest, ConstInts first, ConstInts length, Bytes out,
           Bytes used, Ints left) { return cut_windows(column, {slot, newest, first, length}, out, used, left); },
        "column"_a, "slot"_a, "newest"_a, "first"_a, "length"_a, "out"_a, "used"_a, "left"_a, Release(),
        "Write the rows ``newest - length + 1`` to ``newest`` of n columns, from ``first`` on, to ``out``.\n\n"
        "Args:\n"
        "    used: uint8 [places], set where a dictionary is referred to.\n"
        "    left: int64 [n], receives where in ``out`` rows go that only their codec's class decodes, which get room "
        "for raw ones; 0 for others.\n\n"
        "Returns the bytes written, or -1 where ``out`` is too small.");
    module.def(
        "index_cut_rows",
        [](ConstBytes memory, ConstInts length, int64_t size, int64_t line, ConstBytes known, Ints offset, Ints end,
           Bytes codec, std::span<int32_t> dictionary, std::span<int32_t> counts) {
            return index_cut_rows(memory, length, size, line, known, {offset, end, codec, dictionary, counts});
        },
        "memory"_a, "length"_a, "size"_a, "line"_a, "known"_a, "offset"_a, "end"_a, "codec"_a, "dictionary"_a,
        "counts"_a, Release(),
        "Check n windows of ``length`` [n] rows in ``memory``, a stranger's bytes, and index them as columns.\n\n"
        "Args:\n"
        "    size, line: bytes of a row, and from a pixel to the one below.\n"
        "    known: uint8 [places], whether there is a dictionary.\n"
        "    offset, end, codec, dictionary, counts: [n], receive where each payload lies, its codec, its "
        "dictionary's place, and its rows.\n\n"
        "Returns n; or the number of the first window that is none; -1 where more bytes follow the last.");
}

}  // namespace sharpwave
