// How do items come to a sum tree, and leave it? Each is a leaf, or counted by the leaf of its group.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "sum_tree.hpp"

namespace sharpwave {

// Items of a view in the tree that they are drawn by; the items of a group have numbers of their own.
class Leaves {
  public:
    // ``marks``: which items are excluded ahead of their group, where the tree counts the items of groups; None: the
    // tree is over items.
    Leaves(nanobind::object tree, int64_t group_size, nanobind::object marks);

    SumTree& tree() const { return tree_; }
    int64_t group_size() const { return group_size_; }
    bool counts() const { return !held_marks_.is_none(); }

    // Adds the items ``begins[i] <= k < ends[i]`` of ``groups[i]``, distinct ones, each of that value if it is a leaf.
    void insert(ConstInts groups, ConstInts begins, ConstInts ends, double value);
    // Removes all items of a group.
    void remove(int64_t group);
    // Removes items, distinct ones and all present, ahead of their group. Allocates nothing.
    void exclude(ConstInts items);
    // Adds items that were excluded from groups that the tree counts. Allocates nothing.
    void readmit(ConstInts items);

    bool any_excluded = false;  // whether any item was ever marked

    // Which items are excluded from the groups that the tree counts; none, if no item ever was.
    std::optional<ConstBytes> excluded() const {
        return any_excluded ? std::optional<ConstBytes>(marks_) : std::nullopt;
    }

  private:
    void mark(ConstInts items, bool excluded);

    nanobind::object held_tree_, held_marks_;
    SumTree& tree_;
    int64_t group_size_;
    Bytes marks_;  // empty: the tree is over items
};

}  // namespace sharpwave
