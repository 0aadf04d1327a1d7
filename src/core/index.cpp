// Which id has an item, and which item has an id? By the arrays of the index of segments, one entry a slot.
#include <algorithm>
#include <bit>

#include "ids.hpp"
#include "numpy_arrays.hpp"
#include "rooms.hpp"
#include "unlocked.hpp"

namespace sharpwave {
namespace {

using ConstInt32s = std::span<const int32_t>;

std::size_t at(int64_t number) { return static_cast<std::size_t>(number); }

// Returns the slot of an item. ``bits``: of the stride, if that is a power of two; a division takes ten times as long.
int64_t slot_of(int64_t item, int64_t stride, int bits) { return bits < 0 ? item / stride : item >> bits; }

int bits_of(int64_t stride) {
    const auto number = static_cast<uint64_t>(stride);
    return std::has_single_bit(number) ? std::countr_zero(number) : -1;
}

// Whether the item of an id is there: its slot has the same segment still, and its view knows the item.
bool is_there(int64_t id, ConstInts generation, Grid<const int32_t> spans, int64_t stride, int bits) {
    const int64_t item = id & leaf_mask, slot = slot_of(item, stride, bits), row = item - slot * stride;
    if (id < 0 || at(slot) >= generation.size() || generation[at(slot)] != id >> leaf_bits) return false;
    const std::span<const int32_t> span = spans[slot];
    return span[0] <= row && row < span[1];
}

// Writes the id of the last step of each of ``lanes``, whose open segments are in ``slots`` by lane.
void write_last_ids(ConstInts lanes, ConstInt32s slots, ConstInt32s rows, ConstInts generation, int64_t stride,
                    Ints ids) {
    require(lanes.size() == ids.size(), "each lane has an id");
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        const int64_t slot = slots[at(lanes[i])];
        require(slot >= 0 && at(slot) < rows.size() && rows[at(slot)] > 0, "a lane's open segment has steps");
        ids[i] = id_of(generation[at(slot)], slot * stride + rows[at(slot)] - 1);
    }
}

// Searches ``held``, slots by lane and first step, for the segment of each step; its id is -1 where it is not held.
void find_steps(ConstInts held, ConstInt32s lane, ConstInts first_step, ConstInt32s rows, ConstInts generation,
                int64_t stride, ConstInts lanes, ConstInts steps, Ints ids) {
    require(lanes.size() == ids.size() && steps.size() == ids.size(), "each step has an id");
    const Unlocked unlocked(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const auto behind = std::partition_point(held.begin(), held.end(), [&](int64_t slot) {
            const int64_t other = lane[at(slot)];
            return other < lanes[i] || (other == lanes[i] && first_step[at(slot)] <= steps[i]);
        });
        ids[i] = -1;
        if (behind == held.begin()) continue;
        const int64_t slot = *(behind - 1), row = steps[i] - first_step[at(slot)];
        if (lane[at(slot)] == lanes[i] && row >= 0 && row < rows[at(slot)]) {
            ids[i] = id_of(generation[at(slot)], slot * stride + row);
        }
    }
}

}  // namespace

void write_ids(ConstInts items, ConstInts generation, int64_t stride, Ints ids) {
    require(items.size() == ids.size(), "each item has an id");
    const Unlocked unlocked(items.size());
    const int bits = bits_of(stride);
    for (std::size_t i = 0; i < items.size(); ++i) {
        const std::size_t slot = at(slot_of(items[i], stride, bits));
        require(items[i] >= 0 && slot < generation.size(), "an item's slot is within the index");
        ids[i] = id_of(generation[slot], items[i]);
    }
}

void resolve(ConstInts ids, ConstInts generation, Grid<const int32_t> spans, int64_t stride, Ints items, Bytes there) {
    require(items.size() == ids.size() && there.size() == ids.size(), "each id has an item");
    const Unlocked unlocked(ids.size());
    const int bits = bits_of(stride);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        there[i] = is_there(ids[i], generation, spans, stride, bits);
        items[i] = there[i] ? ids[i] & leaf_mask : 0;
    }
}

void define_index(nanobind::module_& module) {
    using namespace nanobind::literals;
    module.def("write_ids", &write_ids, "items"_a, "generation"_a, "stride"_a, "ids"_a, "Write the ids of ``items``.");
    module.def("resolve", &resolve, "ids"_a, "generation"_a, "spans"_a, "stride"_a, "items"_a, "there"_a,
               "Write the items of ``ids``, and whether each is within the span of its slot; others are item 0.");
    module.def("write_last_ids", &write_last_ids, "lanes"_a, "slots"_a, "rows"_a, "generation"_a, "stride"_a, "ids"_a,
               "Write the id of the last step of each of ``lanes``, whose open segments are in ``slots``.");
    module.def("find_steps", &find_steps, "held"_a, "lane"_a, "first_step"_a, "rows"_a, "generation"_a, "stride"_a,
               "lanes"_a, "steps"_a, "ids"_a,
               "Write the ids of steps by lane and number, -1 where one is not in ``held``, slots by lane and step.");
}

}  // namespace sharpwave
