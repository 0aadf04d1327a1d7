// Which records of shared values follow one another in a region's file? A run of intact ones, and where it ends.
//
// A file may have a million of them, a few hundred bytes each. Their reader in Python judges all other records, and
// every one that is not intact.
#include <algorithm>

#include "checksum.hpp"
#include "file_ranges.hpp"
#include "numpy_arrays.hpp"
#include "rooms.hpp"
#include "unlocked.hpp"
#include "words.hpp"

namespace sharpwave {
namespace {

constexpr uint32_t magic = 0x43525753;  // "SWRC"
constexpr uint32_t shared_kind = 6;     // of records
constexpr int64_t head_bytes = 40;      // of a record, before its payload
constexpr int64_t key_bytes = 16;       // the payload's first ones
constexpr int64_t least_payload = 20;   // a key and a checksum
constexpr int64_t near = 4096;          // records up to this size are read many at a time
constexpr std::size_t columns = 7;      // of a record that was found

// Part of a file in memory: a view on it that moves forward.
class Part {
  public:
    Part(int64_t descriptor, int64_t end) : descriptor_(descriptor), end_(end) {}

    // Returns the bytes of a range, which fits into a window, and reads ``ahead``; nullptr: unreadable.
    const uint8_t* at(int64_t offset, int64_t nbytes, bool ahead) {
        if (offset < first_ || offset + nbytes > last_) {
            const int64_t count = ahead ? std::min(std::max(nbytes, ahead_), end_ - offset) : nbytes;
            if (ahead) ahead_ = std::min(2 * ahead_, window_bytes);  // the run may be short
            first_ = last_ = 0;
            if (!read_range(descriptor_, -1, offset, {window_.data(), static_cast<std::size_t>(count)}, window_)) {
                return nullptr;
            }
            first_ = offset;
            last_ = offset + count;
        }
        return window_.data() + (offset - first_);
    }

  private:
    int64_t descriptor_, end_, first_ = 0, last_ = 0, ahead_ = near;
    const ReadWindow& window_ = own_window();
};

// Returns whether a record matches its payload's checksum, and zeros follow up to the next one.
bool is_whole(const uint8_t* record, int64_t nbytes, int64_t space) {
    const uint8_t *payload = record + head_bytes, *end = payload + nbytes;
    const auto body = static_cast<std::size_t>(nbytes - 4);
    return load<uint32_t>(end - 4) == crc32({payload, body}) &&
           std::all_of(end, record + space, [](uint8_t byte) { return byte == 0; });
}

int64_t find_values(int64_t descriptor, int64_t begin, int64_t end, bool verified, Grid<uint64_t> out) {
    require(out.columns == static_cast<int64_t>(columns), "a record that was found has 7 columns");
    Part part(descriptor, end);
    int64_t at = begin, count = 0;
    bool ahead = verified;
    while (count < out.rows && end - at >= head_bytes + least_payload) {
        const uint8_t* record = part.at(at, head_bytes + key_bytes, ahead);
        if (!record || load<uint32_t>(record) != magic || load<uint32_t>(record + 4) != shared_kind ||
            load<uint32_t>(record + 36) != crc32({record, 36})) {
            break;
        }
        const auto nbytes = load<uint64_t>(record + 8);
        if (nbytes < least_payload || nbytes > static_cast<uint64_t>(end - at - head_bytes)) break;
        const int64_t space = (head_bytes + static_cast<int64_t>(nbytes) + 7) / 8 * 8;
        if (space > end - at) break;
        if (verified) {
            record = space <= window_bytes ? part.at(at, space, true) : nullptr;
            if (!record || !is_whole(record, static_cast<int64_t>(nbytes), space)) break;
        }
        const uint64_t found[columns] = {static_cast<uint64_t>(at + head_bytes),
                                         nbytes,
                                         load<uint64_t>(record + 16),
                                         load<uint64_t>(record + 24),
                                         load<uint32_t>(record + 32),
                                         load<uint64_t>(record + 40),
                                         load<uint64_t>(record + 48)};
        std::ranges::copy(found, out[count++].begin());
        ahead = verified || space <= near;
        at += space;
    }
    return count;
}

}  // namespace

void define_value_records(nanobind::module_& module) {
    using namespace nanobind::literals;
    module.def("find_values", &find_values, "descriptor"_a, "begin"_a, "end"_a, "verified"_a, "out"_a,
               nanobind::call_guard<Released>(),
               "Find intact records of shared values, one after another, from ``begin`` of a region's file on.\n\n"
               "Args:\n    end: no record reaches beyond it. ``verified``: whether payloads are read as well.\n"
               "    out: uint64 [n, 7], filled with the payload's offset and bytes, id, sequence, column, and both "
               "halves of the key.\n\nReturns how many were found: the next record is another's, damaged or large.");
}

}  // namespace sharpwave
