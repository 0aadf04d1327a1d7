// Do the words in which flags are read say what the flags say, one by one?
#include "flags.hpp"

#include "bytes.hpp"
#include "sparse_rows.hpp"

namespace sharpwave::fuzz {
namespace {

void run(Input& input) {
    const int64_t row_wanted = input.number(0, 63), begin = input.number(0, 63), context = input.number(0, 8);
    const int64_t given = input.number(0, 300), every = input.number(1, 20);
    const auto wanted = static_cast<uint8_t>(input.number(0, 255));
    const Array held{input.left.first(std::min<std::size_t>(input.left.size(), 64))};
    const ConstBytes flags = held.all();
    const int64_t steps = std::ssize(flags);
    if (!steps) return;
    const int64_t number = flags[0] & start_flag ? 0 : given;  // format/segment.py refuses others
    const int64_t row = row_wanted % steps, first = begin % steps;
    int64_t last_found = -1, next_found = steps, start = -1, frame = context, episode = 0, sparse = -1;
    if (number % every) sparse = 0;  // the row of a value kept before the segment
    for (int64_t r = 0, in_episode = number; r <= row; ++r, ++in_episode) {
        const uint8_t flag = flags[static_cast<std::size_t>(r)];
        if (flag & start_flag) {
            start = r;
            episode = frame;
            in_episode = 0;
        }
        if (in_episode % every == 0) ++sparse;
        if (r < row) frame += flag & ended ? 2 : 1;
    }
    for (int64_t r = first; r < steps; ++r) {
        if (!(flags[static_cast<std::size_t>(r)] & wanted)) continue;
        next_found = std::min(next_found, r);
        last_found = r;
    }
    expect(next_flagged(flags, first, steps, wanted) == next_found, "the first flagged row is found");
    expect(last_flagged(flags, first, steps, wanted) == last_found, "the last flagged row is found");
    expect(step_number(flags, number, row) == (start < 0 ? number + row : row - start), "a step's number is counted");
    const FrameOf found = frame_of(flags, context, row);
    expect(found.frame == frame && found.first == episode, "a step's frame and its episode's first are counted");
    expect(sparse_row(flags, number, row, every) == std::max<int64_t>(sparse, 0), "a sparse row is counted");
}

}  // namespace
}  // namespace sharpwave::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    sharpwave::fuzz::Input input{{data, size}};
    sharpwave::fuzz::run(input);
    return 0;
}
