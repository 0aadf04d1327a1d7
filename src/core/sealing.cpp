// How are open segments sealed whose columns all stay raw? By a copy and a checksum, of many lanes in one call.
//
// The bytes are those that sharpwave.format.segment.pack makes, without annotations.
#include <algorithm>
#include <cstring>
#include <optional>

#include "checksum.hpp"
#include "flags.hpp"
#include "numpy_arrays.hpp"
#include "rooms.hpp"
#include "segments.hpp"
#include "unlocked.hpp"
#include "values.hpp"
#include "words.hpp"

namespace sharpwave {
namespace {

namespace nb = nanobind;

// As sharpwave.format.segment says.
constexpr int64_t header_bytes = 72, column_bytes = 32, checksum_bytes = 4, alignment = 8;
constexpr uint64_t magic = 0x47535753, version = 2;  // "SWSG", the first letter lowest
constexpr uint64_t raw = 0;                          // number of the codec

void store_words(uint8_t* at, std::initializer_list<uint64_t> words) {
    for (const uint64_t word : words) {
        store(at, word);
        at += 8;
    }
}

// Calls ``each(column, bytes of a row, rows)`` for flags, rewards and the fields of a segment.
template <class Each>
void for_columns(const Columns& columns, int64_t steps, int64_t frames, Each each) {
    each(flags_at, int64_t{1}, steps);
    each(reward_at, int64_t{4}, steps);
    for (std::size_t k = 0; k < columns.fields.size(); ++k) {
        const FieldColumn& column = columns.fields[k];
        require(!column.every, "raw sealing knows no sparse fields");
        each(first_field_at + static_cast<int64_t>(k), column.row_bytes, column.framed ? frames : steps);
    }
}

void measure_raw(const Columns& columns, const IndexArrays& index, ConstBytes memory, std::span<const int32_t> slots,
                 Bytes going_on, Ints nbytes) {
    const int64_t head = header_bytes + column_bytes * (first_field_at + std::ssize(columns.fields));
    for (std::size_t i = 0; i < slots.size(); ++i) {
        const int32_t slot = slots[i];
        const int64_t steps = index.rows[slot];
        const bool goes_on = !(memory[index.offset[flags_at][slot] + steps - 1] & ended);
        int64_t total = head;
        for_columns(columns, steps, index.frames[slot] + goes_on, [&](int64_t, int64_t row_bytes, int64_t rows) {
            total = (total + alignment - 1) / alignment * alignment + row_bytes * rows;
        });
        going_on[i] = goes_on;
        nbytes[i] = total + checksum_bytes;
    }
}

// What a header says, beside the counts in the index.
struct About {
    uint64_t schema, lane, features;
};

// Writes a segment at ``base``, from its columns, whose offsets become those of the sealed ones.
void pack(const Columns& columns, const IndexArrays& index, Bytes memory, int32_t slot, int64_t base, int64_t nbytes,
          const About& about) {
    require(base >= 0 && base + nbytes <= std::ssize(memory), "a sealed segment lies in memory");
    const auto steps = static_cast<uint64_t>(index.rows[slot]), frames = static_cast<uint64_t>(index.frames[slot]);
    const uint64_t count = first_field_at + columns.fields.size();
    uint8_t* begin = memory.data() + base;
    store_words(begin, {magic | version << 32 | count << 48, about.schema, about.lane,
                        static_cast<uint64_t>(index.first_step[slot]), steps | frames << 32,
                        static_cast<uint64_t>(index.context[slot]), static_cast<uint64_t>(nbytes), about.features,
                        static_cast<uint64_t>(index.episode_step[slot])});
    int64_t at = header_bytes + column_bytes * static_cast<int64_t>(count);
    for_columns(columns, index.rows[slot], index.frames[slot], [&](int64_t c, int64_t row_bytes, int64_t rows) {
        for (; at % alignment; ++at) begin[at] = 0;
        const int64_t size = row_bytes * rows;
        store_words(
            begin + header_bytes + column_bytes * c,
            {raw | static_cast<uint64_t>(rows) << 32, static_cast<uint64_t>(at), static_cast<uint64_t>(size), 0});
        int64_t& offset = index.offset[c][slot];
        require(offset >= 0 && offset + size <= std::ssize(memory), "a column lies in memory");
        std::memcpy(begin + at, memory.data() + offset, static_cast<std::size_t>(size));
        offset = base + at;
        at += size;
    });
    require(at + checksum_bytes == nbytes, "a segment has the bytes that were measured");
    store(begin + at, crc32({begin, static_cast<std::size_t>(at)}));
}

void seal_raw(const Columns& columns, const IndexArrays& index, const LaneArrays& lanes, Bytes memory, ConstInts which,
              ConstInts following, ConstInts bases, ConstInts nbytes, ConstBytes going_on, nb::handle rows,
              ConstInts positions, int64_t row_count, int64_t max_context, int64_t first_lane, uint64_t schema,
              uint64_t features) {
    const Values coming(columns, rows, row_count, Which::framed);
    int64_t total = 0;
    for (std::size_t i = 0; i < which.size(); ++i) total += nbytes[i];
    const std::optional<Released> alone = unlocked_for(total);
    for (std::size_t i = 0; i < which.size(); ++i) {
        const int64_t lane = which[i];
        const int32_t slot = lanes.slots[lane];
        const auto next = static_cast<int32_t>(following[i]);
        const int64_t count = index.rows[slot], held = index.frames[slot];
        const bool goes_on = going_on[i];
        const ConstBytes flags =
            memory.subspan(static_cast<std::size_t>(index.offset[flags_at][slot]), static_cast<std::size_t>(count));
        const int64_t start = last_flagged(flags, 0, count, start_flag);  // with which the episode under way began
        int64_t first = 0;                                                // its first frame
        if (start >= 0) {
            first = index.context[slot] + start;
            for (int64_t r = 0; r < start; ++r) first += (flags[r] & ended) != 0;
        }
        const int64_t keep = goes_on ? std::min(max_context, held - first) : 0;
        const int64_t column_count = first_field_at + std::ssize(columns.fields);
        for (int64_t c = 0; c < column_count; ++c) {
            const int64_t begin = index.offset[c][slot];
            index.offset[c][next] = begin;
            index.codec[c][next] = index.codec[c][slot] = raw;
            index.dictionary[c][next] = index.dictionary[c][slot] = 0;
            if (c < first_field_at || !goes_on || !columns.fields[c - first_field_at].framed) continue;
            const int64_t size = columns.fields[c - first_field_at].row_bytes;
            require(begin + (held + 1) * size <= std::ssize(memory), "a column lies in memory");
            std::memcpy(memory.data() + begin + held * size, coming.rows()[c - first_field_at] + positions[i] * size,
                        static_cast<std::size_t>(size));
        }
        const int64_t next_number = start >= 0 ? count - start : index.episode_step[slot] + count;
        index.frames[slot] += goes_on;
        pack(columns, index, memory, slot, bases[i], nbytes[i],
             {schema, static_cast<uint64_t>(first_lane + lane), features});
        index.base[slot] = bases[i];
        index.nbytes[slot] = nbytes[i];
        index.region[slot] = -1;
        index.region_offset[slot] = 0;
        index.sealed[slot] = 1;
        if (goes_on && held > keep) {  // the newest frames, and the next step's, go to the beginning
            for (int64_t c = first_field_at; c < column_count; ++c) {
                const FieldColumn& column = columns.fields[c - first_field_at];
                if (!column.framed) continue;
                uint8_t* begin = memory.data() + index.offset[c][next];
                std::memmove(begin, begin + (held - keep) * column.row_bytes,
                             static_cast<std::size_t>((keep + 1) * column.row_bytes));
            }
        }
        index.lane[next] = static_cast<int32_t>(lane);
        index.first_step[next] = lanes.steps[lane];
        index.resident[next] = 1;
        index.begins[next] = !goes_on;
        index.episode_step[next] = goes_on ? next_number : 0;
        index.context[next] = index.frames[next] = static_cast<int32_t>(keep);
        index.next[slot] = next;
        index.previous[next] = slot;
        lanes.successor_known[lane] = goes_on;
        lanes.watch[lane] &= static_cast<uint8_t>(~just_ended);
        lanes.slots[lane] = next;
        lanes.shares[lane] = static_cast<int32_t>(whole);
    }
}

}  // namespace

void define_sealing(nb::module_& module) {
    using namespace nb::literals;
    module.def(
        "measure_raw", &measure_raw, "columns"_a, "index"_a, "memory"_a, "slots"_a, "going_on"_a, "nbytes"_a,
        "Find of each of ``slots`` [n] whether its episode goes on, and the bytes of its sealed segment, with the "
        "frame of the\nnext step if it does.");
    module.def(
        "seal_raw", &seal_raw, "columns"_a, "index"_a, "lanes"_a, "memory"_a, "which"_a, "following"_a, "bases"_a,
        "nbytes"_a, "going_on"_a, "rows"_a, "positions"_a, "row_count"_a, "max_context"_a, "first_lane"_a, "schema"_a,
        "features"_a,
        "Seal the open segments of the lanes ``which`` [n] at ``bases``, and open their next ones in the slots "
        "``following``.\n\n"
        "Args:\n    rows: observations by field [row_count, *shape], at ``positions`` [n] those of the next steps:"
        " the frame behind\n        the last of episodes that go on, which is not counted yet.\n\n"
        "Cost: 1 us a segment of 12 KB.  Raises: MemoryError: nothing changed.");
}

}  // namespace sharpwave
