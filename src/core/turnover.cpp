// How do full segments give way to their lanes' next ones? They are encoded, placed and linked, and the oldest evicted.
#include "turnover.hpp"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cstring>

#include "checksum.hpp"
#include "numpy_arrays.hpp"
#include "rooms.hpp"
#include "rows.hpp"
#include "unlocked.hpp"
#include "values.hpp"

namespace sharpwave {
namespace {

namespace nb = nanobind;

// As sharpwave.format.segment says.
constexpr int64_t header_bytes = 72, column_bytes = 32, checksum_bytes = 4, alignment = 8;
constexpr int64_t max_number = (int64_t{1} << 62) - (1 << 20);
constexpr uint64_t magic = 0x47535753, version = 2;  // "SWSG", the first letter lowest
constexpr uint8_t raw = 0;                           // number of the codec

void store_words(uint8_t* at, std::initializer_list<uint64_t> words) {
    for (const uint64_t word : words) {
        store(at, word);
        at += 8;
    }
}

}  // namespace

Turnover::Turnover(nb::object columns, nb::object ranges, nb::object slots, nb::object queue,
                   const nb::typed<nb::sequence, nb::object>& choices, const nb::typed<nb::sequence, nb::object>& uses,
                   Settings settings)
    : held_columns_(std::move(columns)),
      held_ranges_(std::move(ranges)),
      held_slots_(std::move(slots)),
      held_queue_(std::move(queue)),
      columns_(nb::cast<const Columns&>(held_columns_)),
      ranges_(nb::cast<Ranges&>(held_ranges_)),
      slots_(nb::cast<FreeSlots&>(held_slots_)),
      queue_(nb::cast<SlotQueue&>(held_queue_)),
      settings_(settings),
      packed_(first_field_at + columns_.fields.size()) {
    for (nb::handle choice : choices) {
        held_.push_back(nb::borrow(choice));
        choices_.push_back(&nb::cast<LaneCodecs&>(choice));
    }
    for (nb::handle one : uses) {
        held_.push_back(nb::borrow(one));
        uses_.push_back(&nb::cast<DictionaryUses&>(one));
    }
    marks_.reserve(choices_.size());
}

// Encodes the columns of a segment; ``frames``: with that of the next step.
bool Turnover::pack_columns(const LogState& log, int64_t lane, int32_t slot, int64_t frames) {
    const int64_t steps = log.index.rows[slot];
    marks_.clear();
    for (std::size_t c = 0; c < packed_.size(); ++c) {
        const bool is_field = c >= first_field_at;
        const FieldColumn* column = is_field ? &columns_.fields[c - first_field_at] : nullptr;
        const int64_t rows = column && column->framed ? frames : steps;
        const int64_t size = column ? column->row_bytes : c == flags_at ? 1 : 4;
        const int64_t begin = log.index.offset[static_cast<int64_t>(c)][slot];
        require(begin >= 0 && begin + rows * size <= std::ssize(log.memory), "a column lies in memory");
        const uint8_t* data = log.memory.data() + begin;
        packed_[c] = {data, rows * size, rows, raw, 0, 0};
        if (!is_field) continue;
        LaneCodecs& choice = *choices_[c - first_field_at];
        const LaneCodecs::Mark mark = choice.mark(lane);
        const std::optional<Encoded> encoded = choice.encode(lane, {data, rows, size}, std::nullopt);
        if (!encoded) return false;
        marks_.push_back(mark);
        if (encoded->codec == raw) continue;
        packed_[c] = {
            encoded->payload.data(), std::ssize(encoded->payload), rows, encoded->codec, encoded->place, encoded->key};
    }
    return true;
}

// Undoes what ``pack_columns`` changed.
void Turnover::forget_columns(int64_t lane) {
    for (std::size_t k = 0; k < marks_.size(); ++k) {
        choices_[k]->undo(lane, marks_[k]);
        const int64_t place = packed_[first_field_at + k].place;
        if (place) uses_[first_field_at + k]->drop(place);
    }
    marks_.clear();
}

int64_t Turnover::nbytes() const {
    int64_t total = header_bytes + column_bytes * std::ssize(packed_);
    for (const Packed& column : packed_) total = rounded(total, alignment) + column.nbytes;
    return total + checksum_bytes;
}

// Writes a segment at ``base``; the offsets of its columns become those of the sealed ones.
void Turnover::write(const LogState& log, int64_t lane, int32_t slot, int64_t frames, int64_t base, int64_t nbytes) {
    const IndexArrays& index = log.index;
    require(base >= 0 && base + nbytes <= std::ssize(log.memory), "a sealed segment lies in memory");
    const std::optional<Released> alone = unlocked_for(nbytes);
    uint8_t* begin = log.memory.data() + base;
    const auto count = static_cast<uint64_t>(packed_.size());
    store_words(begin, {magic | version << 32 | count << 48, settings_.schema,
                        static_cast<uint64_t>(log.first_lane + lane), static_cast<uint64_t>(index.first_step[slot]),
                        static_cast<uint64_t>(index.rows[slot]) | static_cast<uint64_t>(frames) << 32,
                        static_cast<uint64_t>(index.context[slot]), static_cast<uint64_t>(nbytes), settings_.features,
                        static_cast<uint64_t>(index.episode_step[slot])});
    int64_t at = header_bytes + column_bytes * std::ssize(packed_);
    for (std::size_t c = 0; c < packed_.size(); ++c) {
        const Packed& column = packed_[c];
        for (; at % alignment; ++at) begin[at] = 0;
        store_words(begin + header_bytes + column_bytes * static_cast<int64_t>(c),
                    {static_cast<uint64_t>(column.codec) | static_cast<uint64_t>(column.rows) << 32,
                     static_cast<uint64_t>(at), static_cast<uint64_t>(column.nbytes), column.key});
        std::memcpy(begin + at, column.data, static_cast<std::size_t>(column.nbytes));
        const auto number = static_cast<int64_t>(c);
        index.offset[number][slot] = base + at;
        index.codec[number][slot] = static_cast<uint8_t>(column.codec);
        index.dictionary[number][slot] = static_cast<int32_t>(column.place);
        at += column.nbytes;
    }
    require(at + checksum_bytes == nbytes, "a segment has the bytes that were measured");
    store(begin + at, crc32({begin, static_cast<std::size_t>(at)}));
}

Turnover::Sealed Turnover::seal_one(const LogState& log, int64_t lane, Coming coming) {
    const IndexArrays& index = log.index;
    const int32_t slot = log.lanes.slots[lane];
    const int64_t steps = index.rows[slot], held = index.frames[slot];
    if (steps <= 0 || log.lanes.steps[lane] > max_number) return Sealed::otherwise;
    const ConstBytes flags =
        log.memory.subspan(static_cast<std::size_t>(index.offset[flags_at][slot]), static_cast<std::size_t>(steps));
    const bool goes_on = !(flags[steps - 1] & ended);
    if (goes_on) {  // behind the frames: the segment's last one, and the next one's first
        const Place place{log.memory, index};
        for (std::size_t k = 0; k < columns_.fields.size(); ++k) {
            const int64_t size = columns_.fields[k].row_bytes;
            if (!columns_.fields[k].framed) continue;
            std::memcpy(place.row(first_field_at + k, slot, held, size), coming.rows[k] + coming.position * size,
                        static_cast<std::size_t>(size));
        }
    }

    const int64_t used = slots_.highest;
    int64_t next = slots_.take(index);
    while (next < 0 && evict_oldest(log)) next = slots_.take(index);
    if (next < 0) return Sealed::no_room;
    std::optional<int64_t> base;
    int64_t size = 0;
    bool packed = false;
    try {
        packed = pack_columns(log, lane, slot, held + goes_on);
        if (packed) {
            size = nbytes();
            base = ranges_.allocate(size);
            while (!base && evict_oldest(log)) base = ranges_.allocate(size);
            if (base) queue_.slots.push_back(slot);
        }
    } catch (...) {
        if (base) ranges_.free(*base, size);
        forget_columns(lane);
        slots_.put_back(index, next, used);
        throw;
    }
    if (!base) {
        forget_columns(lane);
        slots_.put_back(index, next, used);
        return packed ? Sealed::no_room : Sealed::otherwise;
    }

    // Nothing below fails.
    const int64_t start = last_flagged(flags, 0, steps, start_flag);  // with which the episode under way began
    const int64_t first = start < 0 ? 0 : index.context[slot] + start + count_ends(flags, start);  // its first frame
    const int64_t keep = goes_on ? std::min(settings_.max_context, held - first) : 0;
    const int64_t number = start >= 0 ? steps - start : index.episode_step[slot] + steps;
    for (int64_t c = 0; c < std::ssize(packed_); ++c) {
        index.offset[c][next] = index.offset[c][slot];
        index.codec[c][next] = raw;
        index.dictionary[c][next] = 0;
    }
    index.frames[slot] += goes_on;
    write(log, lane, slot, index.frames[slot], *base, size);
    index.base[slot] = *base;
    index.nbytes[slot] = size;
    index.region[slot] = -1;
    index.region_offset[slot] = 0;
    index.sealed[slot] = 1;
    log.counts[sealed_bytes] += size;
    if (goes_on && held > keep) {  // the newest frames, and the next step's, go to the beginning
        for (std::size_t k = 0; k < columns_.fields.size(); ++k) {
            const FieldColumn& column = columns_.fields[k];
            if (!column.framed) continue;
            uint8_t* begin = log.memory.data() + index.offset[static_cast<int64_t>(first_field_at + k)][next];
            std::memmove(begin, begin + (held - keep) * column.row_bytes,
                         static_cast<std::size_t>((keep + 1) * column.row_bytes));
        }
    }
    index.lane[next] = static_cast<int32_t>(lane);
    index.first_step[next] = log.lanes.steps[lane];
    index.resident[next] = 1;
    index.begins[next] = !goes_on;
    index.episode_step[next] = goes_on ? number : 0;
    index.context[next] = index.frames[next] = static_cast<int32_t>(keep);
    index.next[slot] = static_cast<int32_t>(next);
    index.previous[next] = slot;
    log.lanes.successor_known[lane] = goes_on;
    log.lanes.watch[lane] &= static_cast<uint8_t>(~just_ended);
    log.lanes.slots[lane] = static_cast<int32_t>(next);
    log.lanes.shares[lane] = static_cast<int32_t>(whole);
    return Sealed::yes;
}

int64_t Turnover::seal(const LogState& log, ConstInts which, ConstInts positions, Pointers coming) {
    ++log.counts[changes];
    for (std::size_t i = 0; i < which.size(); ++i) {
        const Sealed sealed = seal_one(log, which[i], {coming, positions[i]});
        const auto done = static_cast<int64_t>(i);
        if (sealed != Sealed::yes) return sealed == Sealed::no_room ? -1 - done : done;
    }
    return std::ssize(which);
}

bool Turnover::make_room(const LogState& log, ConstInts which, Pointers coming, int64_t max_rows, int64_t max_frames,
                         int64_t capacity) {
    ++log.counts[changes];
    for (int64_t i = 0; i < std::ssize(which); ++i) {
        if (is_full(log.index, log.lanes, which[i], max_rows, max_frames) &&
            seal_one(log, which[i], {coming, i}) != Sealed::yes)
            return false;
    }
    while (capacity >= 0 && log.counts[held_steps] + std::ssize(which) > capacity) {
        if (!evict_oldest(log)) return false;
    }
    return true;
}

bool Turnover::evict_oldest(const LogState& log) {
    if (!log.followers || queue_.slots.empty()) return false;
    const int64_t slot = queue_.slots.front();
    if (!releases(log.index, slot) || !log.followers->forget(slot)) return false;
    release(log, slot);
    queue_.slots.pop_front();
    return true;
}

bool Turnover::releases(const IndexArrays& index, int64_t slot) const {
    for (int64_t c = 0; c < std::ssize(packed_); ++c) {
        const int64_t place = index.dictionary[c][slot];
        if (place && uses_[static_cast<std::size_t>(c)]->count(place) == 1) return false;
    }
    return true;
}

void Turnover::release(const LogState& log, int64_t slot) {
    const IndexArrays& index = log.index;
    for (int64_t c = 0; c < std::ssize(packed_); ++c) {
        const int64_t place = index.dictionary[c][slot];
        if (place) uses_[static_cast<std::size_t>(c)]->drop(place);
    }
    const int64_t size = index.nbytes[slot], steps = index.rows[slot];
    ranges_.free(index.base[slot], size);
    unlink(index, log.oldest, slot);
    slots_.give_back(index, slot);
    log.counts[sealed_bytes] -= size;
    log.counts[held_steps] -= steps;
    log.counts[evicted_steps] += steps;
    ++log.counts[evicted_segments];
    ++log.counts[changes];
}

void define_turnover(nb::module_& module) {
    using namespace nb::literals;
    nb::class_<Turnover>(module, "Turnover",
                         "Change from full segments to the next ones of their lanes, in a store in memory that evicts "
                         "in order.")
        .def(
            "__init__",
            [](Turnover* self, nb::object columns, nb::object ranges, nb::object slots, nb::object queue,
               const nb::typed<nb::sequence, nb::object>& choices, const nb::typed<nb::sequence, nb::object>& uses,
               uint64_t schema, uint64_t features, int64_t max_context) {
                new (self) Turnover(std::move(columns), std::move(ranges), std::move(slots), std::move(queue), choices,
                                    uses, {schema, features, max_context});
            },
            "columns"_a, "ranges"_a, "slots"_a, "queue"_a, "choices"_a, "uses"_a, "schema"_a, "features"_a,
            "max_context"_a,
            "Args:\n    columns: of the spec's fields. ``ranges``: of the arena. ``slots``, ``queue``: those that are "
            "free, and sealed.\n    choices: ``LaneCodecs`` by field. ``uses``: ``DictionaryUses`` by column.\n"
            "    max_context: frames before the newest that a stack has.")
        .def(
            "seal",
            [](Turnover& self, Bytes memory, const IndexArrays& index, const LaneArrays& lanes,
               std::span<int32_t> oldest, Ints counts, int64_t first_lane, ConstInts which, ConstInts positions,
               nb::handle rows, int64_t row_count, std::optional<nb::typed<nb::sequence, nb::object>> followers) {
                const Values coming(self.columns(), rows, row_count, Which::framed);
                std::optional<Followers> told;
                if (followers) told.emplace(*followers);
                return self.seal({memory, index, lanes, oldest, counts, first_lane, told ? &*told : nullptr}, which,
                                 positions, coming.rows());
            },
            "memory"_a, "index"_a, "lanes"_a, "oldest"_a, "counts"_a, "first_lane"_a, "which"_a, "positions"_a,
            "rows"_a, "row_count"_a, "followers"_a.none(),
            "Seal the open segments of the lanes ``which`` [n] and open their next ones, up to the first that is not "
            "the core's to\nencode, or for which there is no room; return how many were sealed, and for lack of room "
            "-1 minus that.\n\n"
            "Args:\n    rows: observations by field [row_count, *shape], at ``positions`` [n] those of the next steps."
            "\n    followers: ``Items`` of views, which are told of evictions; ``None``: nothing is evicted.\n\n"
            "Cost: the encoding, a copy and a checksum.  Raises: MemoryError: some may be sealed.")
        .def(
            "release",
            [](Turnover& self, Bytes memory, const IndexArrays& index, const LaneArrays& lanes,
               std::span<int32_t> oldest, Ints counts, int64_t slot) {
                if (!self.releases(index, slot)) return false;
                self.release({memory, index, lanes, oldest, counts, 0, nullptr}, slot);
                return true;
            },
            "memory"_a, "index"_a, "lanes"_a, "oldest"_a, "counts"_a, "slot"_a,
            "Free a segment that is evicted, and its slot; return whether that was done: not where a dictionary goes "
            "with it.");
}

}  // namespace sharpwave
