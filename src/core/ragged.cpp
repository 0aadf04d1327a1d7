// How are rows of any length read? Of codec ragged, whose payload ``sharpwave.codecs.ragged_rows`` describes, and of
// open segments, whose rows are references to values beside the arena.
#include <algorithm>
#include <bit>
#include <cstring>

#include "numpy_arrays.hpp"
#include "packed.hpp"
#include "rooms.hpp"
#include "unlocked.hpp"
#include "words.hpp"

namespace sharpwave {
namespace {

constexpr uint8_t ragged_codec = 6;
constexpr uint8_t packed_values = 1, frames = 2;   // how values are stored; 0: as they are
constexpr uint8_t no_table = 0, packed_table = 2;  // how tables are stored; 1: uint32
constexpr int64_t head_bytes = 24, reference_bytes = 8;

// Table of uint32 in a payload.
struct Table {
    ConstBytes memory;
    int64_t begin;
    uint8_t how;

    int64_t operator[](int64_t i) const {
        if (how != packed_table) return load<uint32_t>(memory.data() + begin + 4 * i);
        uint32_t number = 0;
        read_packed_row({memory, begin}, i, reinterpret_cast<uint8_t*>(&number));
        return number;
    }
};

// A payload that passed the codec's check.
struct Payload {
    ConstBytes memory;
    int64_t begin;

    uint8_t byte(int64_t i) const { return memory[static_cast<std::size_t>(begin + i)]; }
    int64_t word(int64_t i) const { return load<uint32_t>(memory.data() + begin + i); }
    uint8_t how() const { return byte(0); }
    int64_t unit() const { return word(20); }
    Table offsets() const { return {memory, begin + head_bytes + word(8), byte(2)}; }
    Table places() const { return {memory, begin + head_bytes + word(8) + word(12), byte(3)}; }
    int64_t values() const { return begin + head_bytes + word(8) + word(12) + word(16); }
    // Returns which distinct row a row is.
    int64_t distinct(int64_t row) const {
        return byte(1) == no_table ? row : Table{memory, begin + head_bytes, byte(1)}[row];
    }
};

// Reads ``count`` packed numbers of one column from number ``first`` on.
template <class T>
void read_run(const PackedColumn& column, int64_t first, int64_t count, uint8_t* out) {
    constexpr auto width = static_cast<int64_t>(sizeof(T));
    const PackedNumber number = column.number(0);
    const int64_t bits = column.row_bits(), rows_begin = column.begin + column.rows_begin();
    const uint8_t* const rows = column.memory.data() + rows_begin;
    int64_t i = 0;
    if (!number.entries && number.word == 0 && bits > 0 && bits <= 56) {
        const auto base = static_cast<T>(number.base);
        if (bits == 16) {
            for (; i < count; ++i) {
                store(out + width * i, static_cast<T>(base + load<std::uint16_t>(rows + 2 * (first + i))));
            }
        }
        // As many as can be read by eight bytes that lie in memory.
        const int64_t last = static_cast<int64_t>(column.memory.size()) - 8 - rows_begin;
        const int64_t safe = std::min(count, last < 0 ? 0 : 8 * last / bits - first);
        const uint64_t mask = (uint64_t{1} << bits) - 1;
        for (int64_t bit = (first + i) * bits; i < safe; ++i, bit += bits) {
            const uint64_t read = load<uint64_t>(rows + (bit >> 3)) >> (bit & 7) & mask;
            store(out + width * i, static_cast<T>(base + read));
        }
    }
    for (; i < count; ++i) {
        const int64_t at = first + i;
        store(out + width * i, packed_details::read_number<T>(column, number, at, at * bits));
    }
}

void read_numbers(const PackedColumn& column, int64_t unit, int64_t first, int64_t count, uint8_t* out) {
    if (column.numbers() == 1) {
        switch (column.width()) {
            case 1:
                return read_run<uint8_t>(column, first, count, out);
            case 2:
                return read_run<std::uint16_t>(column, first, count, out);
            case 4:
                return read_run<uint32_t>(column, first, count, out);
            default:
                return read_run<uint64_t>(column, first, count, out);
        }
    }
    for (int64_t i = 0; i < count; ++i) read_packed_row(column, first + i, out + unit * i);
}

// Finds each row: its length, and where it begins, in items, or of frames which distinct row it is.
void locate_ragged(ConstBytes memory, ConstInts offset, ConstBytes codec, ConstInts slots, ConstInts rows, Ints begins,
                   Ints lengths) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
        const int64_t slot = slots[i], at = offset[static_cast<std::size_t>(slot)];
        if (codec[static_cast<std::size_t>(slot)] != ragged_codec) {
            const uint8_t* const reference = memory.data() + at + reference_bytes * rows[i];
            begins[i] = load<uint32_t>(reference);
            lengths[i] = load<uint32_t>(reference + 4);
            continue;
        }
        const Payload payload{memory, at};
        const int64_t row = payload.distinct(rows[i]);
        const Table offsets = payload.offsets();
        const int64_t begin = offsets[row];
        lengths[i] = offsets[row + 1] - begin;
        begins[i] = payload.how() == frames ? row : begin;
    }
}

// Reads the rows found, one behind the other. Returns how many are frames, which are left to the caller: where each
// begins in memory, and its bytes, are in ``left``.
int64_t read_ragged(ConstBytes memory, ConstInts offset, ConstBytes codec, ConstInts addresses, ConstInts slots,
                    ConstInts begins, ConstInts lengths, int64_t item_bytes, Bytes out, Grid<int64_t> left) {
    int64_t found = 0;
    uint8_t* to = out.data();
    for (std::size_t i = 0; i < slots.size(); ++i) {
        const auto slot = static_cast<std::size_t>(slots[i]);
        const int64_t nbytes = lengths[i] * item_bytes;
        left[0][i] = -1;
        if (codec[slot] != ragged_codec) {
            if (nbytes) {
                const auto* const values = std::bit_cast<const uint8_t*>(addresses[slot]);
                std::memcpy(to, values + begins[i] * item_bytes, static_cast<std::size_t>(nbytes));
            }
        } else {
            const Payload payload{memory, offset[slot]};
            const int64_t values = payload.values();
            if (payload.how() == packed_values) {
                const int64_t unit = payload.unit(), each = item_bytes / unit;
                read_numbers({memory, values}, unit, begins[i] * each, lengths[i] * each, to);
            } else if (payload.how() == frames) {
                const Table places = payload.places();
                const int64_t begin = places[begins[i]], size = places[begins[i] + 1] - begin;
                if (size == nbytes) {
                    std::memcpy(to, memory.data() + values + begin, static_cast<std::size_t>(nbytes));
                } else {
                    left[0][i] = values + begin;
                    left[1][i] = size;
                    ++found;
                }
            } else {
                std::memcpy(to, memory.data() + values + begins[i] * item_bytes, static_cast<std::size_t>(nbytes));
            }
        }
        to += nbytes;
    }
    return found;
}

// Copies the rows of ``lengths`` items from ``begins`` of ``source`` on to ``places`` of ``out``.
void copy_rows(ConstBytes source, int64_t item_bytes, ConstInts begins, ConstInts lengths, Bytes out,
               ConstInts places) {
    for (std::size_t i = 0; i < begins.size(); ++i) {
        if (lengths[i] == 0) continue;
        std::memcpy(out.data() + places[i] * item_bytes, source.data() + begins[i] * item_bytes,
                    static_cast<std::size_t>(lengths[i] * item_bytes));
    }
}

}  // namespace

void define_ragged(nanobind::module_& module) {
    using namespace nanobind::literals;
    module.def("locate_ragged", &locate_ragged, "memory"_a, "offset"_a, "codec"_a, "slots"_a, "rows"_a, "begins"_a,
               "lengths"_a, nanobind::call_guard<Released>(),
               "Find the ``rows`` of ``slots`` [n] of a ragged field: write their places and lengths.");
    module.def("read_ragged", &read_ragged, "memory"_a, "offset"_a, "codec"_a, "addresses"_a, "slots"_a, "begins"_a,
               "lengths"_a, "item_bytes"_a, "out"_a, "left"_a, nanobind::call_guard<Released>(),
               "Read rows that ``locate_ragged`` found into ``out``, one behind the other.\n\n"
               "Args:\n    addresses: int64 [slots], of the values of open segments.\n"
               "    left: int64 [2, n], where zstd frames lie, which are left out, and their bytes; -1 for other "
               "rows.\n\nReturns the number of frames.");
    module.def("copy_rows", &copy_rows, "source"_a, "item_bytes"_a, "begins"_a, "lengths"_a, "out"_a, "places"_a,
               nanobind::call_guard<Released>(),
               "Copy rows of ``lengths`` [n] items from ``begins`` [n] of ``source`` on to ``places`` [n] of ``out``.");
}

}  // namespace sharpwave
