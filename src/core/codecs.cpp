// How does Python read payloads of delta and patches? Checked, and decoded row by row; and which codecs decode windows.
#include "codecs.hpp"

#include "numpy_arrays.hpp"
#include "rooms.hpp"
#include "unlocked.hpp"

namespace sharpwave {
namespace {

// Decodes rows from ``first`` on, as many as ``out`` has. Returns as check_patches.
template <bool coded>
int64_t decode_payload(ConstBytes payload, int64_t count, ConstBytes dictionary, int64_t line, int64_t first,
                       Grid<uint8_t> out) {
    if (out.rows == 0) return check_patches<coded>(payload, count, out.columns, line);
    const int64_t layout = check_layout<coded>(payload, count);
    if (layout != sound) return layout;
    const PatchColumn<coded> column(payload, 0, count);
    Patches patches{payload, 0, 0, column.packed, column.codes(payload)};
    const auto paint_entry = [&](int64_t entry, Bytes canvas) {
        patches.begin = column.begin(entry);
        patches.end = column.begin(entry + 1);
        return paint<coded>(patches, line, canvas);
    };
    // The background is painted where the last row goes, which is painted over it.
    const Bytes background = out[out.rows - 1];
    if (dictionary.empty()) {
        std::memset(background.data(), 0, background.size());
    } else {
        require(dictionary.size() == background.size(), "a reference is as long as a row");
        std::memcpy(background.data(), dictionary.data(), background.size());
    }
    if (!paint_entry(0, background)) return 0;
    for (int64_t row = 0; row < out.rows; ++row) {
        if (row + 1 < out.rows) std::memcpy(out[row].data(), background.data(), background.size());
        if (!paint_entry(1 + first + row, out[row])) return 1 + first + row;
    }
    return sound;
}

}  // namespace

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
            return (coded ? decode_payload<true> : decode_payload<false>)(payload, count, dictionary, line, first, out);
        },
        "payload"_a, "count"_a, "dictionary"_a, "line"_a, "coded"_a, "first"_a, "out"_a, Release(),
        "Decode the rows of any payload from row ``first`` on, as many as ``out`` uint8 [n, size] has. Return as "
        "``check_patches``.");
}

}  // namespace sharpwave
