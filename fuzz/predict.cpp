// Are filtered rows of codec predict restored as predict.hpp describes them, whatever they say?
#include "predict.hpp"

#include <optional>
#include <vector>

#include "bytes.hpp"

namespace sharpwave::fuzz {
namespace {

using Row = std::vector<uint8_t>;

// Returns the row, byte by byte, or nothing where it is no filtered row.
std::optional<Row> restored(ConstBytes filtered, ConstBytes reference, std::size_t line) {
    const std::size_t size = reference.size(), lines = size / line;
    const std::size_t distance = filtered[0] & 63;
    const bool colours = filtered[0] & 128;
    if (distance == 0 || filtered[0] & 64 || (colours && (size % 3 || line % 3))) return std::nullopt;
    Row image(size);
    for (std::size_t y = 0; y < lines; ++y) {
        for (std::size_t x = 0; x < line; ++x) {
            const std::size_t at = y * line + x;
            const int left = x >= distance ? image[at - distance] : 0, up = y ? image[at - line] : 0;
            const int corner = x >= distance && y ? image[at - line - distance] : 0;
            const int lowest = std::min(left, up), highest = std::max(left, up);
            int guess = 0;
            switch (filtered[1 + y]) {
                case 0:
                    break;
                case 1:
                    guess = left;
                    break;
                case 2:
                    guess = up;
                    break;
                case 3:
                    guess = (left + up) / 2;
                    break;
                case 4:
                    guess = corner >= highest ? lowest : corner <= lowest ? highest : left + up - corner;
                    break;
                case 5:
                    guess = reference[at] - (colours && x % 3 != 1 ? reference[at - x % 3 + 1] : 0);
                    break;
                default:
                    return std::nullopt;
            }
            image[at] = static_cast<uint8_t>(filtered[1 + lines + at] + guess);
        }
    }
    for (std::size_t at = 0; colours && at < size; at += 3) {
        image[at] = static_cast<uint8_t>(image[at] + image[at + 1]);
        image[at + 2] = static_cast<uint8_t>(image[at + 2] + image[at + 1]);
    }
    return image;
}

}  // namespace
}  // namespace sharpwave::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace sharpwave::fuzz;
    Input input{{data, size}};
    const auto line = static_cast<std::size_t>(input.number(1, 70)),
               lines = static_cast<std::size_t>(input.number(1, 6));
    const Array filtered = input.array(1 + lines + lines * line), reference = input.array(lines * line);
    const Array out(lines * line);
    const bool sound =
        sharpwave::restore_row(filtered.all(), reference.all(), static_cast<std::int64_t>(line), out.all());
    const auto expected = restored(filtered.all(), reference.all(), line);
    expect(sound == expected.has_value(), "what is no filtered row is refused");
    if (sound) expect(std::ranges::equal(out.all(), *expected), "the row is the plain reader's");
    return 0;
}
