// How are rows written as patches? Each row against a background that most of the column's rows share.
#include "patch_encoding.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "numpy_arrays.hpp"
#include "patches.hpp"
#include "rooms.hpp"
#include "unlocked.hpp"

namespace sharpwave {
namespace {

// Run of equal bytes that a patch includes rather than ends at (2: 49.7 bytes a frame of Pong, 3: 50.5).
constexpr int64_t gap = 2;
constexpr int64_t buckets = 1 << 12;  // of the hash table in which patches are counted
constexpr int64_t max_unique = 3 * buckets / 4;
constexpr int32_t not_in_table = 255;
constexpr int32_t max_gain = 1024;  // entries that save more bytes than this count alike

// Returns an upper bound of a row's encoded bytes: each patch covers a byte or more and costs up to 2 + 1 + width.
constexpr int64_t largest_patch_bytes(int64_t size) { return 4 * size + 2 * (size / max_skip) + 16; }

// Returns an upper bound of what ``tabulate`` writes of ``nbytes``: each patch has three or more, and gains one.
constexpr int64_t coded_bytes(int64_t nbytes) { return nbytes + nbytes / 3 + inline_code * (3 + max_width) + 16; }

// Returns a shape's bytes, with its literal.
int64_t shape_bytes(int64_t shape) { return shape & 128 ? 2 : (shape & 15) + 2; }

void store_offset(uint8_t* offsets, int64_t entry, int64_t value) {
    store(offsets + 4 * entry, static_cast<uint32_t>(value));
}

// Votes for each byte, in numbers of one type, without branches: compilers make vectors of it.
template <class Number>
inline void vote(Grid<const uint8_t> rows, Number* __restrict votes, Number* __restrict candidates) {
    const auto size = static_cast<std::size_t>(rows.columns);
    for (int64_t row = 0; row < rows.rows; ++row) {
        const uint8_t* const values = rows[row].data();
        for (std::size_t p = 0; p < size; ++p) {
            const Number value = values[p], held = candidates[p], before = votes[p];
            const Number vacant = before == 0 ? 1 : 0, agrees = value == held ? 1 : 0;
            candidates[p] = before == 0 ? value : held;
            votes[p] = static_cast<Number>(before - 1 + 2 * (agrees | vacant));
        }
    }
}

// Counts up to 255 rows.
SHARPWAVE_WIDE void vote_few(Grid<const uint8_t> rows, uint8_t* votes, uint8_t* candidates) {
    vote(rows, votes, candidates);
}

SHARPWAVE_WIDE void vote_many(Grid<const uint8_t> rows, std::uint16_t* votes, std::uint16_t* candidates) {
    vote(rows, votes, candidates);
}

// Returns the first position from ``position`` on where two rows differ; ``size`` if there is none.
int64_t first_difference(const uint8_t* row, const uint8_t* canvas, int64_t position, int64_t size) {
    for (; position + 64 <= size; position += 64) {
        uint64_t different = 0;
        for (int64_t k = position; k < position + 64; k += 8) {
            different |= load<uint64_t>(row + k) ^ load<uint64_t>(canvas + k);
        }
        if (different) break;
    }
    for (; position + 8 <= size; position += 8) {
        const uint64_t different = load<uint64_t>(row + position) ^ load<uint64_t>(canvas + position);
        if (different) return position + std::countr_zero(different) / 8;
    }
    while (position < size && row[position] == canvas[position]) ++position;
    return position;
}

// Writes the patches that turn ``canvas`` into ``row``, both [size], to ``out``; paints ``canvas``. Returns their
// bytes.
int64_t encode_row(const uint8_t* row, uint8_t* canvas, int64_t size, int64_t line, uint8_t* out) {
    int64_t position = 0, cursor = 0, written = 0;
    while ((position = first_difference(row, canvas, position, size)) < size) {
        int64_t end = position + 1;
        for (int64_t probe = end; probe < size && probe < position + max_width && probe - end < gap; ++probe) {
            if (row[probe] != canvas[probe]) end = probe + 1;
        }
        const int64_t width = end - position;
        const auto count = static_cast<std::size_t>(width);
        bool fill = width > 1;
        for (int64_t k = 1; k < width && fill; ++k) fill = row[position + k] == row[position];
        int64_t height = 1;
        for (int64_t below = position + line; line >= width && height < max_height && below + width <= size;
             below += line, ++height) {
            if (std::memcmp(row + below, row + position, count) != 0) break;
            if (std::memcmp(row + below, canvas + below, count) == 0) break;  // nothing to paint
        }
        int64_t skip = position - cursor;
        for (; skip >= max_skip; skip -= max_skip) {
            out[written++] = 255;
            out[written++] = 255;
        }
        if (skip >= 128) out[written++] = static_cast<uint8_t>(128 | (skip >> 8));
        out[written++] = static_cast<uint8_t>(skip);
        out[written++] = static_cast<uint8_t>((width - 1) | ((height - 1) << 4) | (fill ? 128 : 0));
        const std::size_t literals = fill ? 1 : count;
        std::memcpy(out + written, row + position, literals);
        written += static_cast<int64_t>(literals);
        for (int64_t k = 0; k < height; ++k) std::memcpy(canvas + position + k * line, row + position, count);
        position = cursor = end;
    }
    return written;
}

// Returns where the shape of the patch at ``cursor`` lies, behind bare advances too; ``stop`` if none follows.
int64_t skipped(const uint8_t* data, int64_t cursor, int64_t stop) {
    while (cursor < stop) {
        if (data[cursor] < 128) return cursor + 1;
        const int64_t skip = (data[cursor] & 127) << 8 | data[cursor + 1];
        cursor += 2;
        if (skip != max_skip) return cursor;
    }
    return stop;
}

// Table of the shapes, with literals, that occur in a column, by hash.
struct Counted {
    std::array<int32_t, buckets> first{};  // 1 + where in the data the first of its kind lies, 0 for none
    std::array<int32_t, buckets> times{};  // how often it occurs; after ``choose`` its code, or not_in_table
    int64_t unique = 0;

    // Counts the shape of ``nbytes`` at ``data[at]``; returns its bucket, or -1 where the table is full.
    int64_t count(const uint8_t* data, int64_t at, int64_t nbytes) {
        uint64_t mixed = data[at];
        for (int64_t k = 1; k < nbytes; ++k) mixed = (mixed ^ data[at + k]) * 0x9E3779B97F4A7C15u;
        auto bucket = static_cast<std::size_t>(mixed >> 52);
        for (; first[bucket]; bucket = (bucket + 1) & (buckets - 1)) {
            if (std::memcmp(data + first[bucket] - 1, data + at, static_cast<std::size_t>(nbytes)) == 0) break;
        }
        if (!first[bucket]) {
            if (unique == max_unique) return -1;
            first[bucket] = static_cast<int32_t>(at + 1);
            ++unique;
        }
        ++times[bucket];
        return static_cast<int64_t>(bucket);
    }

    // Gives codes to those that save most.
    void choose(const uint8_t* data) {
        std::array<int32_t, buckets> gains{};
        std::array<int32_t, max_gain + 1> histogram{};
        for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
            if (times[bucket] < 2) continue;
            const int64_t literals = shape_bytes(data[first[bucket] - 1]) - 1;
            const int64_t gain = times[bucket] * (1 + literals) - (3 + literals);
            gains[bucket] = static_cast<int32_t>(std::min<int64_t>(gain, max_gain));
            if (gain > 0) ++histogram[static_cast<std::size_t>(gains[bucket])];
        }
        int32_t least = max_gain + 1, taken = 0;
        while (least > 1 && taken + histogram[static_cast<std::size_t>(least - 1)] <= inline_code) {
            taken += histogram[static_cast<std::size_t>(--least)];
        }
        int64_t spare = inline_code - taken;  // for some of those that save one byte less
        int32_t entries = 0;
        for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
            const int32_t gain = gains[bucket];
            times[bucket] = not_in_table;
            if (gain >= least || (gain == least - 1 && gain > 0 && spare > 0)) {
                spare -= gain < least;
                times[bucket] = entries++;
            }
        }
    }

    // Writes the table to ``out``; returns how many bytes.
    int64_t write(const uint8_t* data, uint8_t* out) const {
        int64_t written = 0;
        for (const int32_t code : times) written += code != not_in_table ? 2 : 0;
        for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
            const int64_t code = times[bucket];
            if (code == not_in_table) continue;
            store(out + 2 * code, static_cast<std::uint16_t>(written));
            const uint8_t* const shape = data + first[bucket] - 1;
            const int64_t nbytes = shape_bytes(*shape);
            std::memcpy(out + written, shape, static_cast<std::size_t>(nbytes));
            written += nbytes;
        }
        return written;
    }
};

// Writes delta's entries again with a table: offsets of it and of every entry to ``coded``, both to ``out``.
//
// ``offsets``: uint32 [entries + 1], of entries in ``data``. Returns the bytes written to ``out``.
int64_t tabulate(const uint8_t* data, const uint8_t* offsets, int64_t entries, uint8_t* coded, uint8_t* out) {
    const int64_t nbytes = load<uint32_t>(offsets + 4 * entries);
    const auto counted = std::make_unique<Counted>();
    const auto places = std::make_unique_for_overwrite<std::int16_t[]>(static_cast<std::size_t>(nbytes / 3 + 1));
    std::size_t patches = 0;
    for (int64_t entry = 0; entry < entries; ++entry) {
        const int64_t stop = load<uint32_t>(offsets + 4 * (entry + 1));
        for (int64_t cursor = load<uint32_t>(offsets + 4 * entry);;) {
            const int64_t at = skipped(data, cursor, stop);
            if (at >= stop) break;
            const int64_t length = shape_bytes(data[at]);
            places[patches++] = static_cast<std::int16_t>(counted->count(data, at, length));
            cursor = at + length;
        }
    }
    counted->choose(data);
    int64_t written = counted->write(data, out);
    store_offset(coded, 0, 0);
    patches = 0;
    for (int64_t entry = 0; entry < entries; ++entry) {
        store_offset(coded, entry + 1, written);
        const int64_t stop = load<uint32_t>(offsets + 4 * (entry + 1));
        for (int64_t cursor = load<uint32_t>(offsets + 4 * entry); cursor < stop;) {
            const int64_t at = skipped(data, cursor, stop);
            while (cursor < at) out[written++] = data[cursor++];
            if (at >= stop) break;
            const int64_t length = shape_bytes(data[at]);
            const std::int16_t place = places[patches++];
            const int32_t code = place < 0 ? not_in_table : counted->times[static_cast<std::size_t>(place)];
            if (code == not_in_table) {
                out[written++] = static_cast<uint8_t>(inline_code + length - 2);
                std::memcpy(out + written, data + at, static_cast<std::size_t>(length));
                written += length;
            } else {
                out[written++] = static_cast<uint8_t>(code);
            }
            cursor = at + length;
        }
    }
    store_offset(coded, entries + 1, written);
    return written;
}

}  // namespace

void majority(Grid<const uint8_t> rows, Bytes memory, Bytes out) {
    const auto size = static_cast<std::size_t>(rows.columns);
    require(rows.rows > 0 && out.size() == size && memory.size() >= 4 * size, "there is memory for votes and values");
    if (rows.rows < 256) {
        std::memset(memory.data(), 0, size);
        std::memcpy(out.data(), rows.data, size);
        vote_few(rows, memory.data(), out.data());
        return;
    }
    auto *const votes = reinterpret_cast<std::uint16_t*>(memory.data()), *const candidates = votes + size;
    std::memset(votes, 0, 2 * size);
    for (std::size_t p = 0; p < size; ++p) candidates[p] = rows.data[p];
    vote_many(rows, votes, candidates);
    for (std::size_t p = 0; p < size; ++p) out[p] = static_cast<uint8_t>(candidates[p]);
}

PatchEncoder::PatchEncoder(int64_t max_rows, int64_t size, bool coded)
    : max_rows_(max_rows),
      size_(size),
      plain_bytes_(4 * (max_rows + 2) + max_rows * size + largest_patch_bytes(size)),
      coded_(coded),
      plain_(std::make_unique_for_overwrite<uint8_t[]>(static_cast<std::size_t>(plain_bytes_))),
      lines_(std::make_unique_for_overwrite<uint8_t[]>(static_cast<std::size_t>(6 * size))) {}

ConstBytes PatchEncoder::encode(Grid<const uint8_t> rows, ConstBytes reference, int64_t line) {
    const int64_t count = rows.rows, head = 4 * (count + 2), raw_bytes = count * size_;
    const auto size = static_cast<std::size_t>(size_);
    require(rows.columns == size_ && count <= max_rows_, "an encoder has memory for its rows");
    require(reference.empty() || reference.size() == size, "a reference is as long as a row");
    if (count == 0) return {};
    uint8_t *const votes = lines_.get(), *const canvas = votes + 4 * size, *const background = canvas + size;
    uint8_t *const offsets = plain_.get(), *const out = offsets + head;
    majority(rows, {votes, 4 * size}, {background, size});
    if (reference.empty()) {
        std::memset(canvas, 0, size);
    } else {
        std::memcpy(canvas, reference.data(), size);
    }
    int64_t written = encode_row(background, canvas, size_, line, out);
    store_offset(offsets, 0, 0);
    store_offset(offsets, 1, written);
    for (int64_t row = 0; row < count; ++row) {
        if (head + written >= raw_bytes) return {};
        std::memcpy(canvas, background, size);
        written += encode_row(rows.data + row * size_, canvas, size_, line, out + written);
        store_offset(offsets, row + 2, written);
    }
    if (head + written >= raw_bytes) return {};
    ConstBytes payload{offsets, static_cast<std::size_t>(head + written)};
    if (coded_) {
        const int64_t coded_head = 4 * (count + 3);
        table_bytes_ = coded_head + coded_bytes(written);
        table_ = std::make_unique_for_overwrite<uint8_t[]>(static_cast<std::size_t>(table_bytes_));
        const int64_t nbytes = tabulate(out, offsets, count + 1, table_.get(), table_.get() + coded_head);
        payload = {table_.get(), static_cast<std::size_t>(coded_head + nbytes)};
    }
    return static_cast<int64_t>(payload.size()) < raw_bytes ? payload : ConstBytes{};
}

namespace {

nanobind::bytes majority_in_python(Grid<const uint8_t> rows) {
    const auto size = static_cast<std::size_t>(rows.columns);
    const auto memory = std::make_unique_for_overwrite<uint8_t[]>(5 * size);
    {
        const Released released;
        majority(rows, {memory.get(), 4 * size}, {memory.get() + 4 * size, size});
    }
    return nanobind::bytes(memory.get() + 4 * size, size);
}

}  // namespace

void define_patch_encoding(nanobind::module_& module) {
    using namespace nanobind::literals;
    nanobind::class_<PatchEncoder, RowEncoder>(module, "PatchEncoder",
                                               "Encoder of columns of codec delta, or with codes of patches.")
        .def(nanobind::init<int64_t, int64_t, bool>(), "max_rows"_a, "size"_a, "coded"_a);
    module.def("majority", &majority_in_python, "rows"_a,
               "Return, byte by byte, the value that most of ``rows`` uint8 [n, size] hold.");
}

}  // namespace sharpwave
