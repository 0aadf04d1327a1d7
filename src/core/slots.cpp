// Which slots of the index are free, and which segments were sealed first?
#include "slots.hpp"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>

#include "numpy_arrays.hpp"
#include "rooms.hpp"

namespace sharpwave {
namespace {

namespace nb = nanobind;

void reset(const IndexArrays& index, int64_t slot) {
    index.rows[slot] = index.frames[slot] = index.context[slot] = 0;
    index.episode_step[slot] = 0;
    for (int64_t k = 0; k < index.sparse.rows; ++k) index.sparse[k][slot] = 0;
    index.sealed[slot] = index.gap[slot] = 0;
    index.next[slot] = index.previous[slot] = -1;
}

}  // namespace

std::vector<int64_t>& FreeSlots::heap_of(const IndexArrays& index, int64_t slot) {
    constexpr int64_t bound = int64_t{1} << generation_bits;  // of ids of which other slots may have some left
    return bound > first && index.generation[slot] >= bound ? worn_ : returned_;
}

int64_t FreeSlots::take(const IndexArrays& index) {
    if (returned_.empty() && highest < std::ssize(index.rows)) {
        if (returned_.capacity() < static_cast<std::size_t>(highest + 1)) {
            const auto more = static_cast<std::size_t>(std::max<int64_t>(64, 2 * highest));
            worn_.reserve(more);
            returned_.reserve(more);  // last: its capacity says that both have it
        }
        const int64_t slot = highest++;
        reset(index, slot);
        index.generation[slot] = first;
        return slot;
    }
    std::vector<int64_t>& heap = returned_.empty() ? worn_ : returned_;
    if (heap.empty()) return -1;
    std::ranges::pop_heap(heap, std::greater<>{});
    const int64_t slot = heap.back();
    heap.pop_back();
    reset(index, slot);
    return slot;
}

void FreeSlots::renew(const IndexArrays& index, int64_t slot) {
    int64_t& generation = index.generation[slot];
    generation = std::max(generation + 1, first);  // one restored after a crash may be older than the last in its slot
    latest = std::max(latest, generation);
    for (const auto& [memory, nbytes] : cleared) {
        const int64_t begin = slot * nbytes;
        if (begin + nbytes <= std::ssize(memory))
            std::memset(memory.data() + begin, 0, static_cast<std::size_t>(nbytes));
    }
}

void FreeSlots::give_back(const IndexArrays& index, int64_t slot) {
    index.rows[slot] = 0;
    renew(index, slot);
    std::vector<int64_t>& heap = heap_of(index, slot);
    heap.push_back(slot);
    std::ranges::push_heap(heap, std::greater<>{});
}

void FreeSlots::put_back(const IndexArrays& index, int64_t slot, int64_t before) {
    if (highest > before) {
        highest = before;
        return;
    }
    std::vector<int64_t>& heap = heap_of(index, slot);
    heap.push_back(slot);
    std::ranges::push_heap(heap, std::greater<>{});
}

void FreeSlots::restore(const IndexArrays& index, ConstInts free) {
    std::vector<int64_t> returned, worn;
    returned.reserve(static_cast<std::size_t>(highest));
    worn.reserve(static_cast<std::size_t>(highest));
    returned_.swap(returned);
    worn_.swap(worn);
    for (const int64_t slot : free) heap_of(index, slot).push_back(slot);
    std::ranges::make_heap(returned_, std::greater<>{});
    std::ranges::make_heap(worn_, std::greater<>{});
}

std::vector<int64_t> FreeSlots::slots() const {
    std::vector<int64_t> all = returned_;
    all.insert(all.end(), worn_.begin(), worn_.end());
    return all;
}

void unlink(const IndexArrays& index, std::span<int32_t> oldest, int64_t slot) {
    const int32_t before = index.previous[slot], following = index.next[slot];
    if (before >= 0) {
        index.next[before] = following;
        index.gap[before] = 1;
    } else {
        oldest[index.lane[slot]] = following;
    }
    index.previous[following] = before;
}

void define_slots(nb::module_& module) {
    using namespace nb::literals;
    nb::class_<FreeSlots>(module, "FreeSlots", "Free slots of an index, the lowest of which is taken first.")
        .def(nb::init<>())
        .def_rw("highest", &FreeSlots::highest, "Slots used so far.")
        .def_rw("first", &FreeSlots::first, "Generation of ids in slots that were never used.")
        .def_rw("latest", &FreeSlots::latest, "The highest generation of any id so far.")
        .def(
            "clear_with",
            [](FreeSlots& free, Bytes memory, int64_t nbytes) { free.cleared.emplace_back(memory, nbytes); },
            "memory"_a, "nbytes"_a,
            "Clear ``nbytes`` a slot of ``memory``, which must outlive this, as ids become stale.")
        .def(
            "clear_nothing", [](FreeSlots& free) { free.cleared.clear(); }, "Forget the arrays of ``clear_with``.")
        .def("take", &FreeSlots::take, "index"_a, "Take the lowest free slot and return it, reset; -1: all are in use.")
        .def("give_back", &FreeSlots::give_back, "index"_a, "slot"_a,
             "Free a slot; ids of its steps are stale from now on.")
        .def("renew", &FreeSlots::renew, "index"_a, "slot"_a,
             "Give the coming steps of a segment that is empty ids that were never used.")
        .def("restore", &FreeSlots::restore, "index"_a, "free"_a, "Replace the free slots by ``free`` [n].")
        .def("slots", &FreeSlots::slots, "Return all of them, in no order.")
        .def("__len__", &FreeSlots::count);
    module.attr("GENERATION_BITS") = generation_bits;
    module.def("unlink", &unlink, "index"_a, "oldest"_a, "slot"_a,
               "Unlink a segment that another follows from its lane's chain, with its lane's ``oldest`` slot.");
    nb::class_<SlotQueue>(module, "SlotQueue", "Slots of sealed segments, in the order in which they were sealed.")
        .def(nb::init<>())
        .def(
            "add", [](SlotQueue& queue, int64_t slot) { queue.slots.push_back(slot); }, "slot"_a, "Append a slot.")
        .def(
            "take",
            [](SlotQueue& queue) {
                if (queue.slots.empty()) throw nb::index_error("no segment is sealed");
                const int64_t slot = queue.slots.front();
                queue.slots.pop_front();
                return slot;
            },
            "Remove the first slot and return it.  Raises: IndexError.")
        .def(
            "discard",
            [](SlotQueue& queue, int64_t slot) {
                const auto found = std::ranges::find(queue.slots, slot);
                if (found == queue.slots.end()) throw nb::value_error("the slot is not in the queue");
                queue.slots.erase(found);
            },
            "slot"_a, "Remove a slot.  Raises: ValueError.")
        .def(
            "fill", [](SlotQueue& queue, ConstInts slots) { queue.slots.assign(slots.begin(), slots.end()); },
            "slots"_a, "Replace all slots by ``slots`` [n].")
        .def(
            "slots",
            [](const SlotQueue& queue, int64_t begin, int64_t end) {
                end = std::min(end, std::ssize(queue.slots));
                begin = std::clamp<int64_t>(begin, 0, end);
                return std::vector<int64_t>(queue.slots.begin() + begin, queue.slots.begin() + end);
            },
            "begin"_a, "end"_a, "Return the slots at the positions from ``begin`` to before ``end``.")
        .def(
            "__getstate__",
            [](const SlotQueue& queue) { return std::vector<int64_t>(queue.slots.begin(), queue.slots.end()); },
            "Return the slots.")
        .def(
            "__setstate__",
            [](SlotQueue& queue, const std::vector<int64_t>& slots) {
                new (&queue) SlotQueue{{slots.begin(), slots.end()}};
            },
            "slots"_a)
        .def("__len__", [](const SlotQueue& queue) { return queue.slots.size(); });
}

}  // namespace sharpwave
