// Which items are the oldest, the newest, or of the highest rank? An order of insertion, and a heap by priority.
#include <nanobind/stl/pair.h>

#include <cstddef>
#include <utility>

#include "numpy_arrays.hpp"
#include "rooms.hpp"
#include "sum_tree.hpp"
#include "unlocked.hpp"

namespace sharpwave {
namespace {

std::size_t at(int64_t number) { return static_cast<std::size_t>(number); }

// Items of the runs ``begins[i] <= k < ends[i]`` of groups.
struct Runs {
    int64_t group_size;
    ConstInts groups, begins, ends;

    template <class Each>
    void each(Each each) const {
        for (std::size_t i = 0; i < groups.size(); ++i) {
            const int64_t first = groups[i] * group_size;
            for (int64_t item = first + begins[i]; item < first + ends[i]; ++item) each(item);
        }
    }
};

// Items in the order in which they came.

// Items in order, -1 where one was removed; each item's position there, from 1, or 0; its rank, which it keeps.
int64_t append(Ints order, Ints place, Ints rank, int64_t tail, int64_t last, const Runs& runs) {
    runs.each([&](int64_t item) {
        require(at(tail) < order.size() && at(item) < place.size(), "an order has room for its items");
        order[at(tail)] = item;
        place[at(item)] = ++tail;
        rank[at(item)] = ++last;
    });
    return tail;
}

// Removes the items ``begin <= i < end``; returns how many of them were present.
int64_t drop_run(Ints order, Ints place, int64_t begin, int64_t end) {
    int64_t count = 0;
    for (int64_t item = begin; item < end; ++item) {
        if (place[at(item)] <= 0) continue;
        order[at(place[at(item)] - 1)] = -1;
        place[at(item)] = 0;
        ++count;
    }
    return count;
}

// Moves remaining entries to the front; returns the new tail.
int64_t close_up(Ints order, Ints place, int64_t head, int64_t tail) {
    const Unlocked unlocked(at(tail - head));
    int64_t count = 0;
    for (int64_t i = head; i < tail; ++i) {
        const int64_t item = order[at(i)];
        if (item < 0) continue;
        order[at(count)] = item;
        place[at(item)] = ++count;
    }
    return count;
}

// Narrows head and tail to items that are present.
std::pair<int64_t, int64_t> ends_of(ConstInts order, int64_t head, int64_t tail) {
    while (head < tail && order[at(head)] < 0) ++head;
    while (head < tail && order[at(tail - 1)] < 0) --tail;
    return {head, tail};
}

// Copies items from position ``from`` on, up to before ``end``; begins again where there are fewer.
void take(ConstInts order, int64_t from, int64_t end, int64_t step, Ints items) {
    std::size_t found = 0;
    for (; found < items.size() && from != end; from += step) {
        if (order[at(from)] >= 0) items[found++] = order[at(from)];
    }
    require(found > 0 || items.empty(), "at least one item is present");
    for (std::size_t i = found; i < items.size(); ++i) items[i] = items[i - found];
}

// Items by priority.

// A heap, the highest priority first, and each item's position there, from 1, or 0.
struct Heap {
    Ints heap, place;
    Floats priority;

    void put(int64_t position, int64_t item) const {
        heap[at(position)] = item;
        place[at(item)] = position + 1;
    }
    double value(int64_t position) const { return priority[at(heap[at(position)])]; }

    // Moves the item at ``position`` up or down to its own, above others of the same priority.
    void settle(int64_t count, int64_t position) const {
        require(position >= 0 && position < count && at(count) <= heap.size(), "a heap has its items");
        const int64_t item = heap[at(position)];
        const double own = priority[at(item)];
        for (; position > 0 && value((position - 1) >> 1) <= own; position = (position - 1) >> 1) {
            put(position, heap[at((position - 1) >> 1)]);
        }
        for (;;) {
            int64_t child = 2 * position + 1;
            if (child + 1 < count && value(child + 1) > value(child)) ++child;
            if (child >= count || value(child) <= own) break;
            put(position, heap[at(child)]);
            position = child;
        }
        put(position, item);
    }

    int64_t add(int64_t count, int64_t item, double value) const {
        priority[at(item)] = value;
        put(count, item);
        settle(count + 1, count);
        return count + 1;
    }

    // Removes those of ``items`` that are present; returns the new count.
    int64_t drop(int64_t count, ConstInts items) const {
        for (int64_t item : items) {
            const int64_t position = place[at(item)] - 1;
            if (position < 0) continue;
            place[at(item)] = 0;
            if (position < --count) {  // the last item takes its position
                put(position, heap[at(count)]);
                settle(count, position);
            }
        }
        return count;
    }
};

// Draws n items: item i is where the running mass of the ranks passes ``(i + uniforms[i]) / n`` of the total.
void draw_by_rank(ConstInts heap, ConstFloats mass, int64_t count, ConstFloats uniforms, Ints items,
                  Floats probabilities) {
    const Unlocked unlocked(items.size());
    const double total = mass[at(count)];
    for (std::size_t i = 0; i < items.size(); ++i) {
        const double wanted = (static_cast<double>(i) + uniforms[i]) / static_cast<double>(items.size()) * total;
        int64_t low = 0, high = count - 1;
        while (low < high) {
            const int64_t middle = (low + high) >> 1;
            if (mass[at(middle + 1)] > wanted) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        items[i] = heap[at(low)];
        probabilities[i] = (mass[at(low + 1)] - mass[at(low)]) / total;
    }
}

}  // namespace

void define_orders(nanobind::module_& module) {
    using namespace nanobind::literals;
    module.def(
        "order_append",
        [](Ints order, Ints place, Ints rank, int64_t tail, int64_t last, int64_t group_size, ConstInts groups,
           ConstInts begins,
           ConstInts ends) { return append(order, place, rank, tail, last, {group_size, groups, begins, ends}); },
        "order"_a, "place"_a, "rank"_a, "tail"_a, "last"_a, "group_size"_a, "groups"_a, "begins"_a, "ends"_a,
        "Append the items of runs, with ranks above ``last``; return the new tail.");
    module.def("order_drop", &drop_run, "order"_a, "place"_a, "begin"_a, "end"_a,
               "Remove the items ``begin <= i < end``; return how many were present.");
    module.def("order_close_up", &close_up, "order"_a, "place"_a, "head"_a, "tail"_a,
               "Move remaining entries to the front; return the new tail.");
    module.def("order_ends", &ends_of, "order"_a, "head"_a, "tail"_a,
               "Narrow head and tail to items that are present.");
    module.def("order_take", &take, "order"_a, "at"_a, "end"_a, "step"_a, "items"_a,
               "Copy items from position ``at`` on, up to before ``end``; begin again where there are fewer.");

    module.def(
        "heap_add",
        [](Ints heap, Ints place, Floats priority, int64_t count, int64_t group_size, ConstInts groups,
           ConstInts begins, ConstInts ends, double value) {
            const Unlocked unlocked(groups.size() * at(group_size));
            const Heap held{heap, place, priority};
            Runs{group_size, groups, begins, ends}.each([&](int64_t item) { count = held.add(count, item, value); });
            return count;
        },
        "heap"_a, "place"_a, "priority"_a, "count"_a, "group_size"_a, "groups"_a, "begins"_a, "ends"_a, "value"_a,
        "Add the items of runs, with priority ``value``; return the new count.");
    module.def(
        "heap_put_back",
        [](Ints heap, Ints place, Floats priority, int64_t count, ConstInts items, ConstFloats values) {
            const Unlocked unlocked(items.size());
            const Heap held{heap, place, priority};
            for (std::size_t i = 0; i < items.size(); ++i) count = held.add(count, items[i], values[i]);
            return count;
        },
        "heap"_a, "place"_a, "priority"_a, "count"_a, "items"_a, "values"_a,
        "Add ``items`` with priorities ``values``; return the new count.");
    module.def(
        "heap_drop",
        [](Ints heap, Ints place, Floats priority, int64_t count, ConstInts items) {
            const Unlocked unlocked(items.size());
            return Heap{heap, place, priority}.drop(count, items);
        },
        "heap"_a, "place"_a, "priority"_a, "count"_a, "items"_a,
        "Remove those of ``items`` that are present; return the new count.");
    module.def(
        "heap_change",
        [](Ints heap, Ints place, Floats priority, int64_t count, ConstInts items, ConstFloats values) {
            const Unlocked unlocked(items.size());
            const Heap held{heap, place, priority};
            for (std::size_t i = 0; i < items.size(); ++i) {
                priority[at(items[i])] = values[i];
                held.settle(count, place[at(items[i])] - 1);
            }
        },
        "heap"_a, "place"_a, "priority"_a, "count"_a, "items"_a, "values"_a, "Set the priorities of ``items``.");
    module.def("draw_by_rank", &draw_by_rank, "heap"_a, "mass"_a, "count"_a, "uniforms"_a, "items"_a, "probabilities"_a,
               "Draw items by the masses of their ranks, one from each nth of the total.");
}

}  // namespace sharpwave
