// Do the decoders of delta and patches read any payload as a plain reader does, and nothing beside it?
#include "bytes.hpp"
#include "codecs.hpp"
#include "cut.hpp"
#include "plain_patches.hpp"

namespace sharpwave::fuzz {
namespace {

// Returns a table of shapes and literals of the input.
Row make_table(Input& input) {
    const auto entries = static_cast<std::size_t>(input.number(0, 255));
    Row offsets, content;
    for (std::size_t k = 0; k < entries; ++k) {
        add_number(offsets, 2 * entries + content.size(), 2);
        const auto shape = static_cast<uint8_t>(input.number(0, 255));
        content.push_back(shape);
        const ConstBytes literal = input.take(literal_bytes(shape));
        content.insert(content.end(), literal.begin(), literal.end());
        content.resize(content.size() + literal_bytes(shape) - literal.size());
    }
    offsets.insert(offsets.end(), content.begin(), content.end());
    return offsets;
}

// Returns a payload of pieces of the input, or what is left of the input as it is.
template <bool coded>
Row read_input(Input& input, bool pieces, std::size_t rows) {
    if (!pieces) return {input.left.begin(), input.left.end()};
    std::vector<Row> entries(coded ? 1 : 0);
    for (std::size_t row = 0; row <= rows; ++row) {
        const ConstBytes piece = input.piece();
        entries.emplace_back(piece.begin(), piece.end());
    }
    if (coded) entries.front() = make_table(input);
    Row payload, content;
    for (const Row& entry : entries) {
        add_number(payload, content.size(), 4);
        content.insert(content.end(), entry.begin(), entry.end());
    }
    add_number(payload, content.size(), 4);
    payload.insert(payload.end(), content.begin(), content.end());
    return payload;
}

bool is_row(ConstBytes found, const Row& expected) { return std::ranges::equal(found, expected); }

// Decodes a window of a sound column whose payload lies among other bytes.
void decode_window(Input& input, ConstBytes payload, bool coded, int64_t line, const Row& reference,
                   const std::vector<Row>& rows) {
    const auto count = std::ssize(rows);
    const auto size = std::ssize(reference);
    const auto begin = static_cast<std::size_t>(input.number(0, 9)),
               behind = static_cast<std::size_t>(input.number(0, 40));
    const Array memory(begin + payload.size() + behind);
    std::copy(payload.begin(), payload.end(), memory.all().begin() + static_cast<int64_t>(begin));
    const int64_t newest = input.number(0, count - 1), first = input.number(0, count - 1), length = input.number(1, 5);
    const bool zeros = input.number(0, 1);
    const Array out(static_cast<std::size_t>(length * size)), scratch(static_cast<std::size_t>(size));
    const Array dictionary{ConstBytes(reference)};
    const Window window{memory.all(),
                        static_cast<int64_t>(begin),
                        count,
                        newest,
                        std::min(first, newest),
                        length,
                        size,
                        line,
                        zeros,
                        dictionary.all(),
                        out.all(),
                        scratch.all()};
    const WindowCodec& codec = window_codecs[coded ? patches_codec : delta_codec];
    codec.prefetch(window);
    codec.decode(window);
    for (int64_t j = 0; j < length; ++j) {
        const int64_t wanted = newest - length + 1 + j;
        const auto found = out.all().subspan(static_cast<std::size_t>(j * size), static_cast<std::size_t>(size));
        if (wanted < window.first && zeros) {
            expect(is_row(found, Row(reference.size())), "padding is zeros");
        } else {
            expect(is_row(found, rows[static_cast<std::size_t>(std::max(wanted, window.first))]),
                   "a window is the rows");
        }
    }
    // Rows that are cut out are a payload of the same rows, in as much room as they take, and not in less.
    const CutSource source{memory.all(), static_cast<int64_t>(begin), count, window.first, newest};
    const CutCodec& cut = cut_codecs[coded ? patches_codec : delta_codec];
    const Array room(payload.size() + 4 * 1024 + 20 * 4096);
    const int64_t nbytes = cut.write(source, room.all());
    expect(nbytes > 0, "there is room for a window");
    const auto written = room.all().first(static_cast<std::size_t>(nbytes));
    const auto cut_rows = static_cast<std::size_t>(newest - window.first + 1);
    const Decoded decoded = decode_plainly(written, cut_rows, false, static_cast<std::size_t>(line), reference);
    expect(decoded.damaged == -1, "what was cut out is sound");
    expect(std::ranges::equal(decoded.rows, std::span(rows).subspan(static_cast<std::size_t>(window.first), cut_rows)),
           "what was cut out is the rows");
    const Array less(static_cast<std::size_t>(input.number(0, nbytes - 1)));
    expect(cut.write(source, less.all()) == too_small, "less room is too small");
}

template <bool coded>
void run(Input& input) {
    const bool pieces = input.number(0, 1), referred = input.number(0, 1);
    const auto size = static_cast<std::size_t>(input.number(1, 700)),
               rows = static_cast<std::size_t>(input.number(0, 5));
    const int64_t line = input.number(0, 64);
    Row reference(size);
    if (referred) std::ranges::copy(input.take(std::min<std::size_t>(size, 8)), reference.begin());
    Input windows{input.take(8)}, wounds{input.take(8)};
    Row content = read_input<coded>(input, pieces, rows);
    damage(content, wounds);
    const Array payload{ConstBytes(content)};
    const Decoded expected = decode_plainly(payload.all(), rows, coded, static_cast<std::size_t>(line), reference);
    const auto count = static_cast<int64_t>(rows);
    expect(check_patches<coded>(payload.all(), count, static_cast<int64_t>(size), line) == expected.damaged,
           "the check finds what the plain reader finds");
    const Array out(rows * size), dictionary{ConstBytes(reference)};
    const Grid<uint8_t> grid{out.all().data(), count, static_cast<int64_t>(size)};
    const ConstBytes given = referred ? ConstBytes(dictionary.all()) : ConstBytes();
    expect(decode_rows<coded>(payload.all(), count, given, line, 0, grid) == expected.damaged,
           "decoding finds it, too");
    for (std::size_t row = 0; row < expected.rows.size(); ++row) {
        expect(is_row(grid[static_cast<int64_t>(row)], expected.rows[row]), "rows are the plain reader's");
    }
    if (expected.damaged == -1 && rows) decode_window(windows, payload.all(), coded, line, reference, expected.rows);
}

}  // namespace
}  // namespace sharpwave::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    sharpwave::fuzz::Input input{{data, size}};
    input.number(0, 1) ? sharpwave::fuzz::run<true>(input) : sharpwave::fuzz::run<false>(input);
    return 0;
}
