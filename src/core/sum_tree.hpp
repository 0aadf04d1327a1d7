// How are leaves drawn in proportion to their values? By a tree of sums, eight children a node, in float64.
//
// Parents are always recomputed from their children, in order, never corrected by differences: no rounding error builds
// up, and equal leaves give equal sums. Draws and updates touch one cache line a level.
#pragma once

#include <algorithm>
#include <array>

#include "arrays.hpp"

namespace sharpwave {

using Floats = std::span<double>;
using ConstFloats = std::span<const double>;

class SumTree {
  public:
    // ``nodes``: the levels one after another, each rounded up to whole nodes; level k begins at ``starts[k]``, the
    // root is level 0, the leaves are the last.
    SumTree(Floats nodes, ConstInts starts);

    double total() const { return nodes_[0]; }
    // One more than the highest leaf ever set.
    int64_t highest() const { return highest_; }

    Floats leaves() const { return nodes_.subspan(static_cast<std::size_t>(base())); }
    // Counts the leaves below ``highest`` as set.
    void touch(int64_t highest) { highest_ = std::max(highest_, highest); }

    // Sets leaves; of repeated ones the last wins. Allocates nothing. Cost: O(n log8 leaves).
    void set(ConstInts leaves, ConstFloats values);
    // Sets the leaves ``begin <= i < end``. Cost: O(end - begin + log8 leaves).
    void set_run(int64_t begin, int64_t end, double value);
    // Sets the leaves ``begins[i] <= k < ends[i]`` of each of ``groups``, of so many leaves each.
    void set_runs(int64_t group_size, ConstInts groups, ConstInts begins, ConstInts ends, double value);
    // Recomputes all ancestors of ``leaves``, which the caller has set by ``leaf``. Allocates nothing.
    void refresh(ConstInts leaves);
    double& leaf(int64_t number) { return nodes_[static_cast<std::size_t>(base() + number)]; }

    // Draws n leaves, one from each nth of the total: leaf i is where the running sum passes ``(i + uniforms[i]) / n``
    // of it. ``values`` receives the leaves' values, ``rest`` the point drawn inside each, in [0, value). A leaf of
    // value 0 is never drawn; the total is positive. Cost: O(n log8 leaves).
    void draw(ConstFloats uniforms, Ints leaves, Floats values, Floats rest) const;
    // As ``draw``, where leaves are whole numbers: sums of those are exact, so nodes may be passed one after the other,
    // of the lowest level that has not many more than are drawn.
    void draw_counts(ConstFloats uniforms, Ints leaves, Floats values, Floats rest) const;

  private:
    static constexpr int64_t fanout = 8;
    static constexpr std::size_t most_levels = 24;

    int64_t base() const { return starts_[levels_ - 1]; }
    void sum_up(std::size_t level, int64_t parent);
    void points(ConstFloats uniforms, Floats rest) const;
    // Descends from nodes of the level ``from`` to leaves, at the points ``rest`` in them.
    void descend(Ints leaves, Floats rest, std::size_t from) const;
    void values(ConstInts leaves, Floats values) const;

    Floats nodes_;
    std::array<int64_t, most_levels> starts_{};
    std::size_t levels_ = 0;
    int64_t highest_ = 0;
};

}  // namespace sharpwave
