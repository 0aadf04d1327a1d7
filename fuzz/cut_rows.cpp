// Are a stranger's cut rows let in as cut.hpp describes them, and is what was let in decoded as a plain reader does?
#include "bytes.hpp"
#include "codecs.hpp"
#include "cut.hpp"
#include "plain_patches.hpp"

namespace sharpwave::fuzz {
namespace {

// Returns windows of pieces of the input; or what is left of the input as it is.
Row read_input(Input& input, bool pieces, std::size_t windows) {
    if (!pieces) return {input.left.begin(), input.left.end()};
    Row out;
    for (std::size_t k = 0; k < windows; ++k) {
        const auto codec = static_cast<std::size_t>(input.number(0, 7)),
                   place = static_cast<std::size_t>(input.number(0, 3));
        const auto lacks = static_cast<std::size_t>(input.number(0, 3)),
                   entries = static_cast<std::size_t>(input.number(0, 5));
        Row payload, content;
        for (std::size_t entry = 0; entry < entries; ++entry) {
            add_number(payload, content.size(), 4);
            const ConstBytes piece = input.piece();
            content.insert(content.end(), piece.begin(), piece.end());
        }
        if (entries) add_number(payload, content.size(), 4);
        payload.insert(payload.end(), content.begin(), content.end());
        add_number(out, payload.size(), 4);
        add_number(out, codec | place << 8 | lacks << 16, 4);
        out.insert(out.end(), payload.begin(), payload.end());
        out.resize((out.size() + 7) / 8 * 8);
    }
    const ConstBytes rest = input.take(static_cast<std::size_t>(input.number(0, 3)));
    out.insert(out.end(), rest.begin(), rest.end());
    return out;
}

// A window as a plain reader finds it.
struct Found {
    std::size_t codec = 0, place = 0;
    int64_t rows = 0;
    ConstBytes payload;
};

// Takes a window from memory; none where it is not one.
std::optional<Found> take_window(ConstBytes& left, int64_t length, std::size_t size, std::size_t line,
                                 ConstBytes known) {
    if (left.size() < 8) return std::nullopt;
    const std::size_t nbytes = little(left.first(4));
    const Found found{left[4], left[5], length - static_cast<int64_t>(little(left.subspan(6, 2))),
                      nbytes <= left.size() - 8 ? left.subspan(8, nbytes) : ConstBytes()};
    if (nbytes > left.size() - 8 || found.rows < 1 || !known[found.place]) return std::nullopt;
    const auto rows = static_cast<std::size_t>(found.rows);
    if (found.codec == 0) {
        if (nbytes != rows * size) return std::nullopt;
    } else if (found.codec == 2) {
        if (decode_plainly(found.payload, rows, false, line, Row(size)).damaged != -1) return std::nullopt;
    } else if (found.codec == 1 || found.codec == 3) {  // zstd, predict: an offset and a frame a row
        if (rows < 1 || read_payload(found.payload, rows - 1, false).damaged != -1) return std::nullopt;
    } else {
        return std::nullopt;
    }
    left = left.subspan(std::min(left.size(), 8 + (nbytes + 7) / 8 * 8));
    return found;
}

void run(Input& input) {
    const bool pieces = input.number(0, 1);
    const auto size = static_cast<std::size_t>(input.number(1, 300)),
               windows = static_cast<std::size_t>(input.number(0, 4));
    const int64_t line = input.number(0, 40);
    std::vector<int64_t> lengths;
    for (std::size_t k = 0; k < windows; ++k) lengths.push_back(input.number(1, 4));
    Input wounds{input.take(8)};
    Row content = read_input(input, pieces, windows);
    damage(content, wounds);
    const Array known(256), references(2 * size), memory{ConstBytes(content)};
    for (std::size_t k = 0; k < 256; ++k) known.all()[k] = k < 2;
    std::vector<int64_t> offset(windows), end(windows);
    std::vector<int32_t> dictionary(windows), counts(windows);
    const Array codec(windows);
    const int64_t indexed = index_cut_rows(memory.all(), lengths, static_cast<int64_t>(size), line, known.all(),
                                           {offset, end, codec.all(), dictionary, counts});
    ConstBytes left = memory.all();
    std::vector<Found> expected;
    const std::size_t whole = left.size() % 8;  // the last window is followed by zeros up to a multiple of 8
    for (std::size_t k = 0; k < windows; ++k) {
        const auto found = take_window(left, lengths[k], size, static_cast<std::size_t>(line), known.all());
        if (!found) {
            expect(indexed == static_cast<int64_t>(k), "the first damaged window is found");
            return;
        }
        expected.push_back(*found);
    }
    expect(indexed == (left.empty() && !whole ? static_cast<int64_t>(windows) : -1), "windows end with their memory");
    if (indexed < 0) return;
    for (std::size_t k = 0; k < windows; ++k) {
        const Found& found = expected[k];
        expect(codec.all()[k] == found.codec && counts[k] == found.rows, "a window's codec and rows are found");
        expect(dictionary[k] == static_cast<int32_t>(found.place), "a window's dictionary is found");
        const auto at =
            memory.all().subspan(static_cast<std::size_t>(offset[k]), static_cast<std::size_t>(end[k] - offset[k]));
        expect(at.data() == found.payload.data() && at.size() == found.payload.size(), "a window's payload is found");
        if (found.codec != delta_codec) continue;
        const ConstBytes place = references.all().subspan(found.place * size, size);
        const Array out(static_cast<std::size_t>(found.rows) * size), scratch(size);
        window_codecs[delta_codec].decode({memory.all(), offset[k], found.rows, found.rows - 1, 0, found.rows,
                                           static_cast<int64_t>(size), line, false, place, out.all(), scratch.all()});
        const Decoded rows = decode_plainly(found.payload, static_cast<std::size_t>(found.rows), false,
                                            static_cast<std::size_t>(line), Row(place.begin(), place.end()));
        for (std::size_t row = 0; row < rows.rows.size(); ++row) {
            expect(std::ranges::equal(out.all().subspan(row * size, size), rows.rows[row]),
                   "rows are the plain reader's");
        }
    }
}

}  // namespace
}  // namespace sharpwave::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    sharpwave::fuzz::Input input{{data, size}};
    sharpwave::fuzz::run(input);
    return 0;
}
