// Is a stranger's packed column checked as packed.hpp describes it, and is one that passes read as a plain reader does?
#include "packed.hpp"

#include <optional>
#include <vector>

#include "bytes.hpp"

namespace sharpwave::fuzz {
namespace {

using Row = std::vector<uint8_t>;

uint64_t little(ConstBytes bytes) {
    uint64_t value = 0;
    for (std::size_t k = bytes.size(); k > 0; --k) value = value << 8 | bytes[k - 1];
    return value;
}

// Returns all rows, bit by bit, or nothing where the payload does not hold them.
std::optional<Row> read_plainly(ConstBytes payload, std::size_t rows, std::size_t size) {
    if (payload.size() < 8 || payload[1]) return std::nullopt;
    const std::size_t width = payload[0], numbers = little(payload.subspan(2, 2)),
                      row_bits = little(payload.subspan(4, 4));
    if ((width != 1 && width != 2 && width != 4 && width != 8) || numbers == 0 || numbers * width != size)
        return std::nullopt;
    const std::size_t begin = 8 + 16 * numbers;
    if (payload.size() < begin) return std::nullopt;
    std::size_t bits = 0, end = begin + (rows * row_bits + 7) / 8;
    for (std::size_t j = 0; j < numbers; ++j) {
        const ConstBytes number = payload.subspan(8 + 16 * j, 16);
        const std::size_t entries = little(number.subspan(12, 2));
        if (number[14] > 8 * width || number[15]) return std::nullopt;
        bits += number[14];
        if (entries && (little(number.subspan(8, 4)) != end || little(number.first(8)))) return std::nullopt;
        end += entries * width;
    }
    if (bits != row_bits || end != payload.size()) return std::nullopt;
    Row out;
    std::size_t at = 8 * begin;
    for (std::size_t i = 0; i < rows; ++i) {
        for (std::size_t j = 0; j < numbers; ++j) {
            const ConstBytes number = payload.subspan(8 + 16 * j, 16);
            uint64_t value = 0;
            for (std::size_t k = 0; k < number[14]; ++k, ++at) {
                value |= static_cast<uint64_t>(payload[at / 8] >> at % 8 & 1) << k;
            }
            const std::size_t entries = little(number.subspan(12, 2));
            if (entries && value >= entries) return std::nullopt;
            if (entries) {
                value = little(payload.subspan(little(number.subspan(8, 4)) + value * width, width));
            } else {
                const auto slope = static_cast<int32_t>(little(number.subspan(8, 4)));
                value += little(number.first(8)) + static_cast<uint64_t>(int64_t{slope}) * i;
            }
            add_number(out, value, static_cast<int>(width));
        }
    }
    return out;
}

// Returns a payload whose head and numbers fit the size, of what the input says; or the input as it is.
Row make_payload(Input& input, bool formed, std::size_t rows, std::size_t size) {
    if (!formed) return {input.left.begin(), input.left.end()};
    std::size_t width = std::size_t{1} << input.number(0, 3);
    while (size % width) width /= 2;
    const std::size_t numbers = size / width;
    std::vector<std::size_t> bits(numbers), entries(numbers);
    std::size_t row_bits = 0;
    for (std::size_t j = 0; j < numbers; ++j) {
        bits[j] = static_cast<std::size_t>(input.number(0, static_cast<int64_t>(8 * width)));
        if (bits[j] <= 4 && input.number(0, 1)) entries[j] = std::size_t{1} << bits[j];
        row_bits += bits[j];
    }
    Row out{static_cast<uint8_t>(width), 0};
    add_number(out, numbers, 2);
    add_number(out, row_bits, 4);
    const std::size_t nbytes = (rows * row_bits + 7) / 8;
    std::size_t table = 8 + 16 * numbers + nbytes;
    for (std::size_t j = 0; j < numbers; ++j) {
        const ConstBytes some = input.take(8);
        Row base(some.begin(), some.end());
        base.resize(8);
        if (entries[j]) base.assign(8, 0);
        out.insert(out.end(), base.begin(), base.end());
        add_number(out, entries[j] ? table : static_cast<std::size_t>(input.number(0, 65535)), 4);
        add_number(out, entries[j], 2);
        out.push_back(static_cast<uint8_t>(bits[j]));
        out.push_back(0);
        table += entries[j] * width;
    }
    const ConstBytes rest = input.take(table - out.size());
    out.insert(out.end(), rest.begin(), rest.end());
    out.resize(table);
    return out;
}

}  // namespace
}  // namespace sharpwave::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace sharpwave::fuzz;
    Input input{{data, size}};
    const bool formed = input.number(0, 1);
    const auto row = static_cast<std::size_t>(input.number(1, 40)),
               rows = static_cast<std::size_t>(input.number(0, 20));
    Input wounds{input.take(8)};
    Row content = make_payload(input, formed, rows, row);
    damage(content, wounds);
    const Array payload{sharpwave::ConstBytes(content)};
    const auto expected = read_plainly(payload.all(), rows, row);
    const bool sound =
        sharpwave::check_packed(payload.all(), static_cast<std::int64_t>(rows), static_cast<std::int64_t>(row));
    expect(sound == expected.has_value(), "what is no packed column is refused");
    for (std::size_t i = 0; sound && i < rows; ++i) {
        const Array out(row);
        sharpwave::read_packed_row({payload.all(), 0}, static_cast<std::int64_t>(i), out.all().data());
        expect(std::memcmp(out.all().data(), expected->data() + i * row, row) == 0, "a row is the plain reader's");
    }
    return 0;
}
