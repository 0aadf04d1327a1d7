// How are rows filtered for codec predict? Each line by the filter that leaves the smallest differences.
#include "predict.hpp"

#include <algorithm>
#include <memory>

#include "numpy_arrays.hpp"
#include "rooms.hpp"
#include "unlocked.hpp"

namespace sharpwave {
namespace {

constexpr int64_t tried_lines = 16;  // lines of a row that the distance and the colours are chosen by
constexpr int64_t block = 1 << 16;   // bytes whose differences are summed in 32 bits

// A line of an image, the one above, and the reference's, which predict it.
struct Line {
    const uint8_t *values, *above, *reference;
    int64_t nbytes, distance;
};

// Writes the differences of values ``begin`` to ``end`` from ``guess`` of them; returns the sum of their absolute
// values.
template <class Guess>
inline int64_t write_differences(const uint8_t* __restrict values, int64_t begin, int64_t end, uint8_t* __restrict out,
                                 Guess guess) {
    int64_t total = 0;
    for (; begin < end; begin += block) {
        const int64_t stop = std::min(end, begin + block);
        uint32_t sum = 0;
        for (int64_t x = begin; x < stop; ++x) {
            const auto difference = static_cast<uint8_t>(values[x] - guess(x));
            out[x] = difference;
            sum += difference < 128 ? difference : static_cast<uint8_t>(-difference);
        }
        total += sum;
    }
    return total;
}

// Writes a line's differences from its prediction to ``out``; returns the sum of their absolute values.
template <Filter filter>
inline int64_t filter_by(const Line& line, uint8_t* out) {
    const uint8_t *const values = line.values, *const above = line.above, *const reference = line.reference;
    const int64_t distance = line.distance, first = std::min(distance, line.nbytes), nbytes = line.nbytes;
    const uint8_t *const left = values - distance, *const corner = above - distance;  // read from ``first`` on
    if constexpr (filter == Filter::none) {
        return write_differences(values, 0, nbytes, out, [](int64_t) { return 0; });
    } else if constexpr (filter == Filter::left) {
        return write_differences(values, 0, first, out, [](int64_t) { return 0; }) +
               write_differences(values, first, nbytes, out, [=](int64_t x) { return left[x]; });
    } else if constexpr (filter == Filter::up) {
        return write_differences(values, 0, nbytes, out, [=](int64_t x) { return above[x]; });
    } else if constexpr (filter == Filter::average) {
        return write_differences(values, 0, first, out, [=](int64_t x) { return above[x] >> 1; }) +
               write_differences(values, first, nbytes, out, [=](int64_t x) { return (left[x] + above[x]) >> 1; });
    } else if constexpr (filter == Filter::median_edge) {
        return write_differences(values, 0, first, out, [=](int64_t x) { return above[x]; }) +
               write_differences(values, first, nbytes, out,
                                 [=](int64_t x) { return median_edge(left[x], above[x], corner[x]); });
    } else {
        return write_differences(values, 0, nbytes, out, [=](int64_t x) { return reference[x]; });
    }
}

// Returns the filter of the least sum, and writes the line's differences to ``out``. ``tried`` [line] is working
// memory.
SHARPWAVE_WIDE uint8_t filter_line(const Line& line, uint8_t* tried, uint8_t* out) {
    int64_t least = filter_by<Filter::none>(line, out);
    auto best = Filter::none;
    const auto keep_better = [&](int64_t total, Filter filter) {
        if (total >= least) return;
        least = total;
        best = filter;
        std::memcpy(out, tried, static_cast<std::size_t>(line.nbytes));
    };
    keep_better(filter_by<Filter::left>(line, tried), Filter::left);
    keep_better(filter_by<Filter::up>(line, tried), Filter::up);
    keep_better(filter_by<Filter::average>(line, tried), Filter::average);
    keep_better(filter_by<Filter::median_edge>(line, tried), Filter::median_edge);
    keep_better(filter_by<Filter::reference>(line, tried), Filter::reference);
    return static_cast<uint8_t>(best);
}

SHARPWAVE_WIDE int64_t try_median_edge(const Line& line, uint8_t* out) {
    return filter_by<Filter::median_edge>(line, out);
}

// Writes a row of three interleaved channels to ``out``, the middle one subtracted from both others.
void subtract_middle(ConstBytes row, uint8_t* out) {
    for (std::size_t x = 0; x < row.size(); x += 3) {
        const uint8_t middle = row[x + 1];
        out[x] = static_cast<uint8_t>(row[x] - middle);
        out[x + 1] = middle;
        out[x + 2] = static_cast<uint8_t>(row[x + 2] - middle);
    }
}

// Working memory: an image, a background, lines of zeros and of differences.
struct Work {
    explicit Work(std::size_t size, std::size_t line)
        : memory(std::make_unique_for_overwrite<uint8_t[]>(2 * size + 2 * line)),
          image(memory.get(), size),
          background(image.data() + size, size),
          nothing(background.data() + size, line),
          tried(nothing.data() + line, line) {
        std::fill(nothing.begin(), nothing.end(), uint8_t{0});
    }
    std::unique_ptr<uint8_t[]> memory;
    Bytes image, background, nothing, tried;
};

// Returns how far the median edge predictor is from a row's middle lines under a head.
int64_t distance_from_prediction(ConstBytes lines, int64_t line_bytes, int head, Work& work) {
    const uint8_t* image = lines.data();
    if (head & colours_bit) {
        subtract_middle(lines, work.image.data());
        image = work.image.data();
    }
    int64_t total = 0;
    const uint8_t* above = work.nothing.data();
    for (int64_t begin = 0; begin < static_cast<int64_t>(lines.size()); begin += line_bytes) {
        const Line line{image + begin, above, above, line_bytes, head & distance_bits};
        total += try_median_edge(line, work.tried.data());
        above = image + begin;
    }
    return total;
}

// Returns the head, of those that fit, with which the median edge predictor comes closest to a row's middle lines.
int choose_head(ConstBytes row, int64_t line_bytes, Work& work) {
    const int64_t lines = static_cast<int64_t>(row.size()) / line_bytes;
    const int64_t begin = std::max<int64_t>(0, (lines - tried_lines) / 2) * line_bytes;
    const ConstBytes middle = row.subspan(static_cast<std::size_t>(begin),
                                          static_cast<std::size_t>(std::min(lines, tried_lines) * line_bytes));
    int best = 0;
    int64_t least = 0;
    const auto consider = [&](int head) {
        const int64_t total = distance_from_prediction(middle, line_bytes, head, work);
        if (best != 0 && total >= least) return;
        best = head;
        least = total;
    };
    for (int distance = 1; distance <= 8; ++distance) {
        if (line_bytes % distance == 0 && distance < line_bytes) consider(distance);
    }
    if (best == 0) consider(1);
    if (line_bytes % 3 == 0 && line_bytes > 3) consider(3 | colours_bit);
    return best;
}

// Writes rows, filtered, to ``out`` [n, 1 + lines + size].
void filter_rows(Grid<const uint8_t> rows, ConstBytes reference, int64_t line_bytes, int head, Grid<uint8_t> out) {
    const int64_t size = rows.columns;
    require(line_bytes > 0 && size % line_bytes == 0, "a row has whole lines");
    const int64_t lines = size / line_bytes;
    require(out.rows == rows.rows && out.columns == 1 + lines + size, "filtered rows have a byte for each line");
    require(static_cast<int64_t>(reference.size()) == size, "a reference is as long as a row");
    if (rows.rows == 0) return;
    Work work(static_cast<std::size_t>(size), static_cast<std::size_t>(line_bytes));
    if (head == 0) head = choose_head(rows[rows.rows / 2], line_bytes, work);
    const bool colours = head & colours_bit;
    const uint8_t* background = reference.data();
    if (colours) {
        subtract_middle(reference, work.background.data());
        background = work.background.data();
    }
    for (int64_t i = 0; i < rows.rows; ++i) {
        const uint8_t* image = rows[i].data();
        if (colours) {
            subtract_middle(rows[i], work.image.data());
            image = work.image.data();
        }
        uint8_t* const kinds = out[i].data() + 1;
        kinds[-1] = static_cast<uint8_t>(head);
        for (int64_t y = 0; y < lines; ++y) {
            const int64_t begin = y * line_bytes;
            const uint8_t* const above = y ? image + begin - line_bytes : work.nothing.data();
            const Line line{image + begin, above, background + begin, line_bytes, head & distance_bits};
            kinds[y] = filter_line(line, work.tried.data(), kinds + lines + begin);
        }
    }
}

}  // namespace

void define_predict(nanobind::module_& module) {
    using namespace nanobind::literals;
    using Release = nanobind::call_guard<Released>;
    module.def("filter_rows", &filter_rows, "rows"_a, "reference"_a, "line_bytes"_a, "head"_a, "out"_a, Release(),
               "Write ``rows`` uint8 [n, size], filtered, to ``out`` uint8 [n, 1 + lines + size]: each line by the "
               "filter of the least sum.\n\n"
               "Args:\n"
               "    reference: uint8 [size]. ``line_bytes``: divides the size.\n"
               "    head: as in a filtered row; 0 to choose it by the middle row.");
    module.def("restore_row", &restore_row, "filtered"_a, "reference"_a, "line_bytes"_a, "out"_a, Release(),
               "Write to ``out`` uint8 [size] the row that was ``filtered``; return False if it is no filtered row.");
}

}  // namespace sharpwave
