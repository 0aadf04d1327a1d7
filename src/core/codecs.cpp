// How does Python read payloads of delta and patches? Checked, and decoded row by row; and which codecs decode windows.
#include "codecs.hpp"

#include "numpy_arrays.hpp"
#include "rooms.hpp"
#include "unlocked.hpp"

namespace sharpwave {

void define_codecs(nanobind::module_& module) {
    using namespace nanobind::literals;
    using Release = nanobind::call_guard<Released>;
    module.attr("SOUND") = sound;
    module.attr("DAMAGED_OFFSETS") = damaged_offsets;
    module.attr("DAMAGED_TABLE") = damaged_table;
    module.def(
        "check_patches",
        [](ConstBytes payload, int64_t count, int64_t size, int64_t line, bool coded) {
            return (coded ? check_patches<true> : check_patches<false>)(payload, count, size, line);
        },
        "payload"_a, "count"_a, "size"_a, "line"_a, "coded"_a, Release(),
        "Return SOUND if a payload of delta, or with codes of patches, holds ``count`` rows of ``size`` bytes; else "
        "DAMAGED_OFFSETS, DAMAGED_TABLE, or the number of an entry: 0 is the background, 1 the first row.");
    module.def(
        "decode_patches",
        [](ConstBytes payload, int64_t count, ConstBytes dictionary, int64_t line, bool coded, int64_t first,
           Grid<uint8_t> out) {
            return (coded ? decode_rows<true> : decode_rows<false>)(payload, count, dictionary, line, first, out);
        },
        "payload"_a, "count"_a, "dictionary"_a, "line"_a, "coded"_a, "first"_a, "out"_a, Release(),
        "Decode the rows of any payload from row ``first`` on, as many as ``out`` uint8 [n, size] has. Return as "
        "``check_patches``.");
}

}  // namespace sharpwave
