// How are checked steps written into open segments? A row of each column, or several of one lane, in one call.
#include "rows.hpp"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "numpy_arrays.hpp"
#include "rooms.hpp"
#include "unlocked.hpp"
#include "values.hpp"

namespace sharpwave {

namespace nb = nanobind;

Columns::Columns(const nb::list& described) {
    int64_t sparse = 0;
    for (nb::handle one : described) {
        const nb::tuple about = nb::borrow<nb::tuple>(one);
        FieldColumn column{.name = nb::borrow(about[0]),
                           .type = nb::cast<int>(about[1]),
                           .row_bytes = nb::cast<int64_t>(about[2]),
                           .framed = nb::cast<bool>(about[3]),
                           .every = nb::cast<int64_t>(about[4]),
                           .sparse_number = 0};
        if (column.every) column.sparse_number = sparse++;
        step_bytes += column.row_bytes;
        fields.push_back(std::move(column));
    }
}

namespace {

bool write_steps(const Columns& columns, const IndexArrays& index, const LaneArrays& lanes, Bytes memory,
                 ConstInts which, ConstBytes flags, nb::handle rows, nb::handle finals, nb::handle nexts,
                 bool any_known) {
    const auto count = static_cast<int64_t>(which.size());
    const bool any_ended = std::ranges::any_of(flags, [](uint8_t flag) { return flag & ended; });
    const bool has_nexts = !nexts.is_none(), final_given = has_nexts || !finals.is_none();
    const nb::handle source = !finals.is_none() ? finals : has_nexts ? nexts : rows;
    const Values values(columns, rows, count, Which::all), after(columns, nexts, has_nexts ? count : 0, Which::framed),
        last(columns, source, any_ended ? count : 0, Which::framed);
    const Value reward(nb::str("reward"), rows, 4 * count);
    const std::optional<Released> alone = unlocked_for(columns.step_bytes * count);
    const StepRows given{values.rows(), last.rows(), after.rows()};
    for (int64_t i = 0; i < count; ++i) {
        write_step({memory, index}, columns, lanes, which[i], i, flags[i], reward.data() + 4 * i, given, final_given);
    }
    return has_nexts || (any_known && std::ranges::any_of(lanes.successor_known, [](uint8_t known) { return known; }));
}

// Appends a frame, the first of the values, to an open segment.
void write_frame(const Columns& columns, const Place& place, int64_t slot, const Values& values) {
    for (std::size_t k = 0; k < columns.fields.size(); ++k) {
        const int64_t size = columns.fields[k].row_bytes;
        if (!columns.fields[k].framed) continue;
        std::memcpy(place.row(first_field_at + k, slot, place.index.frames[slot], size), values.rows()[k],
                    static_cast<std::size_t>(size));
    }
    place.index.frames[slot] += 1;
}

void write_run(const Columns& columns, const IndexArrays& index, const LaneArrays& lanes, Bytes memory, int64_t lane,
               ConstBytes flags, nb::handle rows, nb::handle final) {
    const auto count = static_cast<int64_t>(flags.size());
    const Values values(columns, rows, count, Which::all), last(columns, final, final.is_none() ? 0 : 1, Which::framed);
    const Value reward(nb::str("reward"), rows, 4 * count);
    const std::optional<Released> alone = unlocked_for(columns.step_bytes * count);
    const Place place{memory, index};
    const int64_t slot = lanes.slots[lane], row = index.rows[slot], frame = index.frames[slot];
    for (std::size_t k = 0; k < columns.fields.size(); ++k) {
        const FieldColumn& column = columns.fields[k];
        require(!column.every, "runs have no sparse fields");
        const int64_t size = column.row_bytes * count;
        std::memcpy(place.row(first_field_at + k, slot, column.framed ? frame : row, column.row_bytes),
                    values.rows()[k], static_cast<std::size_t>(size));
    }
    place.commit(slot, flags.data(), reward.data(), count);
    lanes.steps[lane] += count;
    lanes.successor_known[lane] = 0;
    lanes.watch[lane] &= static_cast<uint8_t>(~just_ended);
    if (!final.is_none()) write_frame(columns, place, slot, last);
}

void add_frame(const Columns& columns, const IndexArrays& index, Bytes memory, int64_t slot, nb::handle rows) {
    write_frame(columns, {memory, index}, slot, Values(columns, rows, 1, Which::framed));
}

void count_sparse(const Columns& columns, const IndexArrays& index, Bytes memory, int64_t slot) {
    Place{memory, index}.count_sparse(columns, slot);
}

std::vector<int64_t> find_breaks(const Columns& columns, const IndexArrays& index, const LaneArrays& lanes,
                                 Bytes memory, ConstInts which, nb::handle rows) {
    const Values values(columns, rows, static_cast<int64_t>(which.size()), Which::framed);
    const Place place{memory, index};
    std::vector<int64_t> found;
    for (int64_t i = 0; i < std::ssize(which); ++i) {
        const int64_t slot = lanes.slots[which[i]];
        if (!lanes.successor_known[which[i]]) continue;
        for (std::size_t k = 0; k < columns.fields.size(); ++k) {
            const int64_t size = columns.fields[k].row_bytes;
            if (!columns.fields[k].framed) continue;
            const uint8_t* known = place.row(first_field_at + k, slot, index.frames[slot], size);
            if (std::memcmp(known, values.rows()[k] + i * size, static_cast<std::size_t>(size)) != 0) {
                found.push_back(i);
                break;
            }
        }
    }
    return found;
}

std::vector<int64_t> find_full(const IndexArrays& index, const LaneArrays& lanes, ConstInts which, int64_t max_rows,
                               int64_t max_frames) {
    std::vector<int64_t> found;
    for (int64_t i = 0; i < std::ssize(which); ++i) {
        if (is_full(index, lanes, which[i], max_rows, max_frames)) found.push_back(i);
    }
    return found;
}

void locate_sparse(ConstBytes memory, ConstInts flags_offset, ConstInts episode_step, ConstInts slots, ConstInts rows,
                   int64_t every, Ints positions) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
        const int64_t slot = slots[i];
        const auto flags =
            memory.subspan(static_cast<std::size_t>(flags_offset[slot]), static_cast<std::size_t>(rows[i] + 1));
        positions[i] = sparse_row(flags, episode_step[slot], rows[i], every);
    }
}

}  // namespace

void define_rows(nb::module_& module) {
    using namespace nb::literals;
    nb::class_<IndexArrays>(module, "IndexArrays", "Arrays of a segment index, by their names; they must outlive it.")
        .def(
            "__init__",
            [](IndexArrays* self, std::span<int32_t> rows, Ints generation, std::span<int32_t> lane,
               std::span<int32_t> next, std::span<int32_t> previous, Bytes gap, std::span<int32_t> context,
               std::span<int32_t> frames, Bytes sealed, Bytes begins, Grid<int64_t> offset, Grid<uint8_t> codec,
               Grid<int32_t> dictionary, Ints base, Ints nbytes, Bytes resident, std::span<int32_t> region,
               Ints region_offset, Ints first_step, Ints episode_step, Grid<int32_t> sparse) {
                new (self) IndexArrays{rows,   generation, lane,   next,          previous,   gap,          context,
                                       frames, sealed,     begins, offset,        codec,      dictionary,   base,
                                       nbytes, resident,   region, region_offset, first_step, episode_step, sparse};
            },
            "rows"_a, "generation"_a, "lane"_a, "next"_a, "previous"_a, "gap"_a, "context"_a, "frames"_a, "sealed"_a,
            "begins"_a, "offset"_a, "codec"_a, "dictionary"_a, "base"_a, "nbytes"_a, "resident"_a, "region"_a,
            "region_offset"_a, "first_step"_a, "episode_step"_a, "sparse"_a);
    nb::class_<LaneArrays>(module, "LaneArrays", "Arrays of open segments, by their names; they must outlive it.")
        .def(
            "__init__",
            [](LaneArrays* self, std::span<int32_t> slots, Ints steps, std::span<int32_t> shares, Bytes successor_known,
               Bytes watch, Ints staging,
               Ints fresh) { new (self) LaneArrays{slots, steps, shares, successor_known, watch, staging, fresh}; },
            "slots"_a, "steps"_a, "shares"_a, "successor_known"_a, "watch"_a, "staging"_a, "fresh"_a);
    nb::class_<Columns>(
        module, "Columns",
        "Columns of a spec's fields: of each the name, numpy's number of its dtype, the bytes of a row, "
        "whether it has\none a frame, and a sparse field's period (0: none).")
        .def(nb::init<const nb::typed<nb::list, nb::object>&>(), "fields"_a);
    module.def("write_steps", &write_steps, "columns"_a, "index"_a, "lanes"_a, "memory"_a, "which"_a, "flags"_a,
               "rows"_a, "finals"_a.none(), "nexts"_a.none(), "any_known"_a,
               "Append one step to each of the lanes ``which`` [n], as ``Lanes.write`` says; return its ``any_known``."
               "\n\nRaises: MemoryError: nothing changed.");
    module.def("write_run", &write_run, "columns"_a, "index"_a, "lanes"_a, "memory"_a, "lane"_a, "flags"_a, "rows"_a,
               "final"_a.none(),
               "Append steps of one episode to one lane, as ``Lanes.write_run`` says.  Raises: MemoryError: nothing "
               "changed.");
    module.def("add_frame", &add_frame, "columns"_a, "index"_a, "memory"_a, "slot"_a, "rows"_a,
               "Append a frame, of one row by field, to an open segment.  Raises: MemoryError: nothing changed.");
    module.def("count_sparse", &count_sparse, "columns"_a, "index"_a, "memory"_a, "slot"_a,
               "Count the rows that an open segment's columns of sparse fields have after its steps.");
    module.def("find_breaks", &find_breaks, "columns"_a, "index"_a, "lanes"_a, "memory"_a, "which"_a, "rows"_a,
               "Return the positions in ``which`` [n] of lanes whose known successor differs, bit by bit, from the "
               "observation in\n``rows`` (by field [n, *shape]).");
    module.def("find_full", &find_full, "index"_a, "lanes"_a, "which"_a, "max_rows"_a, "max_frames"_a,
               "Return the positions in ``which`` [n] of lanes whose segment must be sealed before another step.");
    module.def("locate_sparse", &locate_sparse, "memory"_a, "flags_offset"_a, "episode_step"_a, "slots"_a, "rows"_a,
               "every"_a, "positions"_a,
               "Compute the rows of a sparse field's column for the steps in ``rows`` [n] of ``slots`` [n], into "
               "``positions``: of\ntheir own values, or else of the last ones kept before.\n\n"
               "Args:\n    flags_offset, episode_step: by slot.");
}

}  // namespace sharpwave
