// How are rows of small numbers packed? For codec packed, whose payload packed.hpp describes.
#include "packing.hpp"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>

#include "numpy_arrays.hpp"
#include "packed.hpp"
#include "rooms.hpp"
#include "unlocked.hpp"

namespace sharpwave {
namespace {

constexpr int64_t max_numbers = 65535;
constexpr std::size_t max_entries = 256, buckets = 1024;  // of a table, and of the hash table that finds its values
constexpr int64_t enough = 4;  // a payload this many times smaller than the rows is taken without another try
constexpr int64_t max_slope = std::numeric_limits<int32_t>::max();

template <class T>
constexpr T sign_bit = std::rotr(T{1}, 1);

// Returns a number of 8 * sizeof(T) bits, taken as a signed one.
template <class T>
int64_t with_sign(T value) {
    constexpr int unused = 64 - 8 * static_cast<int>(sizeof(T));
    const uint64_t wide = value;
    return static_cast<int64_t>(wide << unused) >> unused;
}

// Widens the ranges of ``count`` interleaved numbers by ``rows``, in their order and in that of signed numbers.
template <class T>
void widen(const uint8_t* rows, int64_t row_count, std::size_t count, T* low, T* high, T* lowest, T* highest) {
    for (int64_t i = 0; i < row_count; ++i, rows += count * sizeof(T)) {
        for (std::size_t j = 0; j < count; ++j) {
            const T value = load<T>(rows + j * sizeof(T)), turned = static_cast<T>(value ^ sign_bit<T>);
            low[j] = std::min(low[j], value);
            high[j] = std::max(high[j], value);
            lowest[j] = std::min(lowest[j], turned);
            highest[j] = std::max(highest[j], turned);
        }
    }
}

// Writes bits one behind the other, the lowest first.
class BitWriter {
  public:
    explicit BitWriter(uint8_t* out) : out_(out) {}
    // Adds a value below 2^bits.
    void add(uint64_t value, int bits) {
        held_ |= value << filled_;
        filled_ += bits;
        if (filled_ < 64) return;
        store(out_, held_);
        out_ += 8;
        filled_ -= 64;
        held_ = filled_ ? value >> (bits - filled_) : 0;
    }
    // Writes what is held, in 8 bytes.
    void finish() { store(out_, held_); }

  private:
    uint8_t* out_;
    uint64_t held_ = 0;
    int filled_ = 0;  // below 64
};

}  // namespace

// Plans each number by the range of its values.
template <class T>
void PackedEncoder::fit_ranges(Grid<const uint8_t> rows) {
    const auto numbers = static_cast<std::size_t>(rows.columns) / sizeof(T);
    // Of a single number sixteen rows at a time, which compilers make vectors of.
    const std::size_t together = numbers == 1 ? 16 : 1, count = numbers * together;
    const int64_t steps = rows.rows / static_cast<int64_t>(together);
    const std::size_t words = (count * sizeof(T) + 7) / 8;
    std::array<T*, 4> ranges{};
    std::size_t k = 0;
    for (std::vector<uint64_t>* memory : {&low_, &high_, &lowest_, &highest_}) {
        if (memory->size() < words) memory->resize(words);
        ranges[k] = reinterpret_cast<T*>(memory->data());
        std::fill_n(ranges[k], count, k % 2 ? T{0} : std::numeric_limits<T>::max());
        ++k;
    }
    const auto [low, high, lowest, highest] = ranges;
    widen(rows.data, steps, count, low, high, lowest, highest);
    const int64_t done = steps * static_cast<int64_t>(together);
    widen(rows.data + done * rows.columns, rows.rows - done, numbers, low, high, lowest, highest);
    for (std::size_t j = 1; j < together; ++j) {
        low[0] = std::min(low[0], low[j]), high[0] = std::max(high[0], high[j]);
        lowest[0] = std::min(lowest[0], lowest[j]), highest[0] = std::max(highest[0], highest[j]);
    }
    plans_.assign(numbers, {});
    for (std::size_t j = 0; j < numbers; ++j) {
        const T plain = static_cast<T>(high[j] - low[j]), with_sign = static_cast<T>(highest[j] - lowest[j]);
        plans_[j].base = plain <= with_sign ? low[j] : static_cast<T>(lowest[j] ^ sign_bit<T>);
        plans_[j].bits = static_cast<int>(std::bit_width(std::min(plain, with_sign)));
    }
}

// Plans number j as a line and differences from it, where they take fewer bits.
template <class T>
void PackedEncoder::fit_slope(Grid<const uint8_t> rows, std::size_t j) {
    const uint8_t* const values = rows.data + j * sizeof(T);
    const uint64_t begin = load<T>(values);
    const int64_t slope = with_sign<T>(load<T>(values + rows.columns) - load<T>(values));
    if (slope == 0 || slope > max_slope || slope < -max_slope) return;
    int64_t low = 0, high = 0;
    int bits = 0;
    for (int64_t i = 0; i < rows.rows; ++i) {
        const uint64_t line = begin + static_cast<uint64_t>(slope) * static_cast<uint64_t>(i);
        const auto off = with_sign<T>(load<T>(values + i * rows.columns) - line);
        low = std::min(low, off), high = std::max(high, off);
        bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(high) - static_cast<uint64_t>(low)));
        if (bits >= plans_[j].bits) return;
    }
    plans_[j].base = begin + static_cast<uint64_t>(low);
    plans_[j].slope = slope;
    plans_[j].bits = bits;
}

// Plans number j as entries of a table, where they take fewer bits with it.
template <class T>
void PackedEncoder::fit_table(Grid<const uint8_t> rows, std::size_t j) {
    const uint8_t* const values = rows.data + j * sizeof(T);
    std::array<std::uint16_t, buckets> places{};  // 1 + the number of a value, 0 for none
    std::array<T, max_entries> found;
    std::size_t entries = 0;
    for (int64_t i = 0; i < rows.rows; ++i) {
        const T value = load<T>(values + i * rows.columns);
        auto bucket = static_cast<std::size_t>(static_cast<uint64_t>(value) * 0x9E3779B97F4A7C15u >> 54);
        while (places[bucket] && found[places[bucket] - 1u] != value) bucket = (bucket + 1) % buckets;
        if (places[bucket]) continue;
        if (entries == max_entries) return;
        found[entries++] = value;
        places[bucket] = static_cast<std::uint16_t>(entries);
        const auto bits = static_cast<int64_t>(std::bit_width(entries - 1));
        if (static_cast<int64_t>(8 * sizeof(T) * entries) + rows.rows * bits >= rows.rows * plans_[j].bits) return;
    }
    std::sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(entries));
    plans_[j] = {0, 0, static_cast<int>(std::bit_width(entries - 1)), tables_.size(), entries};
    tables_.insert(tables_.end(), found.begin(), found.begin() + static_cast<std::ptrdiff_t>(entries));
}

// Plans every number; returns the bytes of the payload.
template <class T>
int64_t PackedEncoder::fit(Grid<const uint8_t> rows) {
    fit_ranges<T>(rows);
    tables_.clear();
    row_bits_ = 0;
    for (std::size_t j = 0; j < plans_.size(); ++j) {
        if (plans_[j].bits > 1 && rows.rows > 2) fit_slope<T>(rows, j);
        if (plans_[j].bits > 1) fit_table<T>(rows, j);
        row_bits_ += plans_[j].bits;
    }
    return heads() + row_bytes(rows) + static_cast<int64_t>(sizeof(T)) * std::ssize(tables_);
}

int64_t PackedEncoder::heads() const { return PackedColumn::head_bytes + PackedNumber::nbytes * std::ssize(plans_); }

int64_t PackedEncoder::row_bytes(Grid<const uint8_t> rows) const { return (rows.rows * row_bits_ + 7) / 8; }

// Packs rows as planned.
template <class T>
ConstBytes PackedEncoder::pack(Grid<const uint8_t> rows) {
    const int64_t total = heads() + row_bytes(rows) + static_cast<int64_t>(sizeof(T)) * std::ssize(tables_);
    const auto room = static_cast<std::size_t>(total + 8);  // the last bits are written in 8 bytes
    if (payload_.size() < room) payload_.resize(room);
    uint8_t* const begin = payload_.data();
    store(begin, static_cast<uint32_t>(sizeof(T) | plans_.size() << 16));
    store(begin + 4, static_cast<uint32_t>(row_bits_));

    BitWriter bits(begin + heads());
    for (int64_t i = 0; i < rows.rows; ++i) {
        const uint8_t* value = rows.data + i * rows.columns;
        for (const Plan& plan : plans_) {
            const T number = load<T>(value);
            value += sizeof(T);
            uint64_t packed;
            if (plan.entries) {
                const auto table = tables_.begin() + static_cast<std::ptrdiff_t>(plan.table);
                packed = static_cast<uint64_t>(
                    std::lower_bound(table, table + static_cast<std::ptrdiff_t>(plan.entries), uint64_t{number}) -
                    table);
            } else {
                const uint64_t line = plan.base + static_cast<uint64_t>(plan.slope) * static_cast<uint64_t>(i);
                packed = static_cast<T>(number - static_cast<T>(line));
            }
            bits.add(packed, plan.bits);
        }
    }
    bits.finish();

    uint8_t* at = begin + PackedColumn::head_bytes;
    int64_t table = heads() + row_bytes(rows);
    for (const Plan& plan : plans_) {
        store(at, plan.base);
        store(at + 8, plan.entries ? static_cast<uint32_t>(table) : static_cast<uint32_t>(plan.slope));
        store(at + 12, static_cast<uint32_t>(plan.entries | static_cast<std::size_t>(plan.bits) << 16));
        at += PackedNumber::nbytes;
        for (std::size_t k = 0; k < plan.entries; ++k, table += sizeof(T)) {
            store(begin + table, static_cast<T>(tables_[plan.table + k]));
        }
    }
    return {begin, static_cast<std::size_t>(total)};
}

int64_t PackedEncoder::nbytes() const {
    const std::size_t words = tables_.capacity() + low_.capacity() + high_.capacity() + lowest_.capacity() +
                              highest_.capacity() + plans_.capacity() * sizeof(Plan) / 8;
    return static_cast<int64_t>(8 * words + payload_.capacity());
}

ConstBytes PackedEncoder::encode(Grid<const uint8_t> rows, ConstBytes, int64_t) {
    if (rows.rows == 0 || rows.columns == 0) return {};
    int64_t best = 0, cost = std::ssize(rows.flat()), last = 0;
    const auto fit_width = [&](int64_t width) {
        last = width;
        switch (width) {
            case 1:
                return fit<uint8_t>(rows);
            case 2:
                return fit<std::uint16_t>(rows);
            case 4:
                return fit<uint32_t>(rows);
            default:
                return fit<uint64_t>(rows);
        }
    };
    // Narrow numbers take longer to read: they must save a tenth more.
    for (int64_t width = 8; width >= 1; width /= 2) {
        const int64_t numbers = rows.columns / width;
        if (rows.columns % width || numbers > max_numbers) continue;
        const int64_t its = fit_width(width);
        if (best ? 10 * its < 9 * cost : its < cost) best = width, cost = its;
        if (enough * cost <= std::ssize(rows.flat())) break;
    }
    if (!best) return {};
    if (best != last) fit_width(best);
    switch (best) {
        case 1:
            return pack<uint8_t>(rows);
        case 2:
            return pack<std::uint16_t>(rows);
        case 4:
            return pack<uint32_t>(rows);
        default:
            return pack<uint64_t>(rows);
    }
}

void define_packing(nanobind::module_& module) {
    using namespace nanobind::literals;
    nanobind::class_<RowEncoder>(module, "RowEncoder",
                                 "Encoder of columns of one field, with memory that is used again. One thread at a "
                                 "time may use it.")
        .def_prop_ro("nbytes", &RowEncoder::nbytes, "Bytes of memory that are kept.")
        .def(
            "encode",
            [](RowEncoder& encoder, Grid<const uint8_t> rows, ConstBytes reference,
               int64_t line) -> std::optional<nanobind::bytes> {
                ConstBytes payload;
                {
                    const std::optional<Released> alone = unlocked_for(std::ssize(rows.flat()));
                    payload = encoder.encode(rows, reference, line);
                }
                if (payload.empty()) return std::nullopt;
                return nanobind::bytes(payload.data(), payload.size());
            },
            "rows"_a, "reference"_a, "line"_a,
            "Return the payload of ``rows`` uint8 [n, size]; ``None`` where it would not be smaller.\n\n"
            "Args:\n    reference: uint8 [size], or empty for zeros. ``line``: bytes from a pixel to the one below.");
    nanobind::class_<PackedEncoder, RowEncoder>(module, "PackedEncoder", "Encoder of codec packed.")
        .def(nanobind::init<>());
    module.def(
        "check_packed",
        [](ConstBytes payload, int64_t count, int64_t size) { return check_packed(payload, count, size); }, "payload"_a,
        "count"_a, "size"_a, nanobind::call_guard<Released>(),
        "Return whether a payload of codec packed holds ``count`` rows of ``size`` bytes.");
    module.def(
        "decode_packed",
        [](ConstBytes payload, int64_t first, Grid<uint8_t> out) {
            for (int64_t row = 0; row < out.rows; ++row) {
                read_packed_row({payload, 0}, first + row, out[row].data());
            }
        },
        "payload"_a, "first"_a, "out"_a, nanobind::call_guard<Released>(),
        "Decode the rows of a payload that passed ``check_packed``, from row ``first`` on, into ``out`` uint8 [n, "
        "size].");
}

}  // namespace sharpwave
