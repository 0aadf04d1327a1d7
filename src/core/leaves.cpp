// How do items come to a sum tree, and leave it? Each is a leaf, or counted by the leaf of its group.
#include "leaves.hpp"

#include "numpy_arrays.hpp"
#include "rooms.hpp"
#include "unlocked.hpp"

namespace sharpwave {

namespace nb = nanobind;

Leaves::Leaves(nb::object tree, int64_t group_size, nb::object marks)
    : held_tree_(std::move(tree)),
      held_marks_(std::move(marks)),
      tree_(nb::cast<SumTree&>(held_tree_)),
      group_size_(group_size) {
    if (!held_marks_.is_none()) marks_ = nb::cast<Bytes>(held_marks_);
}

void Leaves::insert(ConstInts groups, ConstInts begins, ConstInts ends, double value) {
    if (!counts()) return tree_.set_runs(group_size_, groups, begins, ends, value);
    for (std::size_t i = 0; i < groups.size(); ++i) tree_.leaf(groups[i]) += static_cast<double>(ends[i] - begins[i]);
    tree_.refresh(groups);
}

void Leaves::remove(int64_t group) {
    const int64_t begin = group * group_size_, end = begin + group_size_;
    if (!counts()) return tree_.set_run(begin, end, 0.0);
    tree_.set_run(group, group + 1, 0.0);
    if (any_excluded) std::fill(marks_.begin() + begin, marks_.begin() + end, uint8_t{0});
}

void Leaves::exclude(ConstInts items) {
    if (counts()) return mark(items, true);
    for (const int64_t item : items) tree_.leaf(item) = 0.0;
    tree_.refresh(items);
}

void Leaves::readmit(ConstInts items) { mark(items, false); }

// Counts are whole numbers, whose sums are exact: items may come and go one by one.
void Leaves::mark(ConstInts items, bool excluded) {
    any_excluded |= excluded;
    for (std::size_t i = 0; i < items.size(); ++i) {
        require(items[i] >= 0 && items[i] < std::ssize(marks_), "an item has a mark");
        marks_[static_cast<std::size_t>(items[i])] = excluded;
        const int64_t group = items[i] / group_size_;
        tree_.leaf(group) += excluded ? -1.0 : 1.0;
        if (i + 1 == items.size() || items[i + 1] / group_size_ != group) tree_.refresh({&group, 1});
    }
}

void define_leaves(nb::module_& module) {
    using namespace nb::literals;
    nb::class_<Leaves>(module, "Leaves", "Items of groups in the ``SumTree`` that they are drawn by.")
        .def(nb::init<nb::object, int64_t, nb::object>(), "tree"_a, "group_size"_a, "marks"_a.none(),
             "Args:\n    marks: uint8 [items], zeros: receive which items are excluded ahead of their group, where the "
             "tree counts the items of\n        groups; ``None``: it is over items.")
        .def_rw("any_excluded", &Leaves::any_excluded, "Whether any item was ever marked.")
        .def(
            "insert",
            [](Leaves& leaves, ConstInts groups, ConstInts begins, ConstInts ends, double value) {
                const Unlocked unlocked(groups.size() *
                                        static_cast<std::size_t>(leaves.counts() ? 1 : leaves.group_size()));
                leaves.insert(groups, begins, ends, value);
            },
            "groups"_a, "begins"_a, "ends"_a, "value"_a = 0.0,
            "Add the items ``begins[i] <= k < ends[i]`` of distinct ``groups``, each of that ``value`` if it is a "
            "leaf.")
        .def("remove", &Leaves::remove, "group"_a, "Remove all items of a group.")
        .def(
            "exclude",
            [](Leaves& leaves, ConstInts items) {
                const Unlocked unlocked(items.size());
                leaves.exclude(items);
            },
            "items"_a, "Remove distinct items, all present, ahead of their group.")
        .def(
            "readmit",
            [](Leaves& leaves, ConstInts items) {
                const Unlocked unlocked(items.size());
                leaves.readmit(items);
            },
            "items"_a, "Add items that were excluded from groups that the tree counts.");
}

}  // namespace sharpwave
