// How does a sum tree descend, and how is it kept up? Level by level, for all leaves of a call together.
#include "sum_tree.hpp"

#include <bit>
#include <cmath>

#include "numpy_arrays.hpp"
#include "rooms.hpp"
#include "unlocked.hpp"
#include "words.hpp"

namespace sharpwave {
namespace {

// Nodes of a level that are remembered in a set of bits; below such levels few leaves of a call share a parent.
constexpr std::size_t most_marked = 4096;
constexpr std::size_t word_bits = 64;

// Leaves of a call that are refreshed together: as many as their numbers take 32 KiB of the stack.
constexpr std::size_t part_size = 4096;

}  // namespace

SumTree::SumTree(Floats nodes, ConstInts starts) : nodes_(nodes), levels_(starts.size()) {
    require(levels_ >= 2 && levels_ <= most_levels, "a sum tree has 2 to 24 levels");
    std::copy(starts.begin(), starts.end(), starts_.begin());
}

void SumTree::sum_up(std::size_t level, int64_t parent) {
    const int64_t first = starts_[level] + parent * fanout;
    require(parent >= 0 && first + fanout <= static_cast<int64_t>(nodes_.size()), "a node has eight children");
    const double* children = nodes_.data() + first;
    double total = 0.0;
    for (int64_t k = 0; k < fanout; ++k) total += children[k];
    nodes_[static_cast<std::size_t>(starts_[level - 1] + parent)] = total;
}

void SumTree::refresh(ConstInts leaves) {
    std::array<int64_t, part_size> touched;
    std::array<uint64_t, most_marked / word_bits> marks;
    for (int64_t leaf : leaves) touch(leaf + 1);
    while (!leaves.empty()) {
        std::size_t count = std::min(leaves.size(), part_size), level = levels_ - 1;
        const int64_t* below = leaves.data();
        leaves = leaves.subspan(count);
        // Large levels: parents are repeated only where neighbours follow one another, or by chance.
        for (; level > 0 && starts_[level] - starts_[level - 1] > static_cast<int64_t>(most_marked); --level) {
            std::size_t kept = 0;
            int64_t previous = -1;
            for (std::size_t i = 0; i < count; ++i) {
                const int64_t parent = below[i] >> 3;
                if (parent == previous) continue;
                previous = parent;
                sum_up(level, parent);
                touched[kept++] = parent;
            }
            below = touched.data();
            count = kept;
        }
        if (level == 0) continue;
        // Small levels: each parent once, in ascending order.
        std::size_t words = (static_cast<std::size_t>(starts_[level] - starts_[level - 1]) + word_bits - 1) / word_bits;
        std::fill_n(marks.begin(), words, 0);
        for (std::size_t i = 0; i < count; ++i) {
            const auto parent = static_cast<std::size_t>(below[i] >> 3);
            require(parent / word_bits < words, "a leaf is within its tree");
            marks[parent / word_bits] |= uint64_t{1} << (parent % word_bits);
        }
        for (; level > 0; --level) {
            for (std::size_t word = 0; word < words; ++word) {
                // The parents' parents are marked in the same place: their word is never above this one.
                uint64_t left = marks[word];
                marks[word] = 0;
                while (left) {
                    const std::size_t parent = word * word_bits + static_cast<std::size_t>(std::countr_zero(left));
                    left &= left - 1;
                    sum_up(level, static_cast<int64_t>(parent));
                    const std::size_t above = parent >> 3;
                    marks[above / word_bits] |= uint64_t{1} << (above % word_bits);
                }
            }
            words = (words + fanout - 1) / fanout;
        }
    }
}

void SumTree::set(ConstInts leaves, ConstFloats values) {
    require(leaves.size() == values.size(), "each leaf has a value");
    for (std::size_t i = 0; i < leaves.size(); ++i) leaf(leaves[i]) = values[i];
    refresh(leaves);
}

void SumTree::set_run(int64_t begin, int64_t end, double value) {
    if (end <= begin) return;
    touch(end);
    require(begin >= 0 && base() + end <= static_cast<int64_t>(nodes_.size()), "a run is within its tree");
    std::fill(nodes_.begin() + base() + begin, nodes_.begin() + base() + end, value);
    for (std::size_t level = levels_ - 1; level > 0; --level) {
        begin >>= 3;
        end = ((end - 1) >> 3) + 1;
        for (int64_t parent = begin; parent < end; ++parent) sum_up(level, parent);
    }
}

void SumTree::set_runs(int64_t group_size, ConstInts groups, ConstInts begins, ConstInts ends, double value) {
    for (std::size_t i = 0; i < groups.size(); ++i) {
        const int64_t first = groups[i] * group_size;
        set_run(first + begins[i], first + ends[i], value);
        touch(first + group_size);
    }
}

void SumTree::points(ConstFloats uniforms, Floats rest) const {
    const std::size_t count = rest.size();
    require(uniforms.size() == count, "a draw's arrays are as long");
    require(count == 0 || total() > 0.0, "a tree that is drawn from has a total above 0");
    const double whole = total();
    for (std::size_t i = 0; i < count; ++i) {
        rest[i] = (static_cast<double>(i) + uniforms[i]) / static_cast<double>(count) * whole;
    }
}

void SumTree::values(ConstInts leaves, Floats values) const {
    require(values.size() == leaves.size(), "a draw's arrays are as long");
    const double* last = nodes_.data() + base();
    for (std::size_t i = 0; i < leaves.size(); ++i) values[i] = last[leaves[i]];
}

void SumTree::draw(ConstFloats uniforms, Ints leaves, Floats values_of, Floats rest) const {
    points(uniforms, rest);
    std::ranges::fill(leaves, 0);
    descend(leaves, rest, 0);
    values(leaves, values_of);
}

void SumTree::draw_counts(ConstFloats uniforms, Ints leaves, Floats values_of, Floats rest) const {
    constexpr int64_t passed = 2;  // nodes that are passed in the time in which one point descends a level
    const int64_t count = std::ssize(leaves);
    std::size_t level = levels_ - 1;
    int64_t used = highest_;
    for (; level > 0 && used > passed * count; --level) used = (used + fanout - 1) / fanout;
    points(uniforms, rest);
    const double* nodes = nodes_.data() + starts_[level];
    double before = 0.0, behind = nodes[0];
    int64_t node = 0, i = 0;
    // Points ascend unless the caller chose them; from one that does not on, and one that rounding took to the end, all
    // are descended to from the root.
    for (; i < count && rest[i] >= before && rest[i] < total(); ++i) {
        while (rest[i] >= behind) before = behind, behind += nodes[++node];
        leaves[i] = node, rest[i] -= before;
    }
    const auto from = static_cast<std::size_t>(i);
    descend(leaves.first(from), rest.first(from), level);
    std::ranges::fill(leaves.subspan(from), 0);
    descend(leaves.subspan(from), rest.subspan(from), 0);
    values(leaves, values_of);
}

void SumTree::descend(Ints leaves, Floats rest, std::size_t from) const {
    const std::size_t count = leaves.size();
    require(rest.size() == count, "a draw's arrays are as long");
    for (std::size_t level = from + 1; level < levels_; ++level) {
        const double* nodes = nodes_.data() + starts_[level];
        const double* below = level + 1 < levels_ ? nodes_.data() + starts_[level + 1] : nullptr;
        for (std::size_t i = 0; i < count; ++i) {
            const double* children = nodes + leaves[i] * fanout;
            // What is left at each child. Values are not negative, so it stays below them once it is: the child is the
            // number of those that it reaches past. Without a branch, whose outcome is random.
            std::array<double, fanout> left;
            left[0] = rest[i];
            for (std::size_t k = 0; k + 1 < fanout; ++k) left[k + 1] = left[k] - children[k];
            int64_t chosen = 0;
            for (std::size_t k = 0; k < fanout; ++k) chosen += left[k] >= children[k];
            if (chosen < fanout) {
                rest[i] = left[static_cast<std::size_t>(chosen)];
            } else {  // rounding pushed it past the last child: take the last that can be drawn, at its very end
                chosen = 0;
                for (int64_t k = 0; k < fanout; ++k) chosen = children[k] > 0.0 ? k : chosen;
                rest[i] = std::nextafter(children[chosen], 0.0);
            }
            leaves[i] = leaves[i] * fanout + chosen;
            if (below) prefetch(below + leaves[i] * fanout);
        }
    }
}

void define_sum_tree(nanobind::module_& module) {
    using namespace nanobind::literals;
    nanobind::class_<SumTree>(module, "SumTree", "Sums of leaves in the memory of two arrays, which it keeps.")
        .def(nanobind::init<Floats, ConstInts>(), "nodes"_a, "starts"_a, nanobind::keep_alive<1, 2>())
        .def_prop_ro("total", &SumTree::total, "Sum of all leaves.")
        .def_prop_ro("highest", &SumTree::highest, "One more than the highest leaf ever set.")
        .def(
            "set",
            [](SumTree& tree, ConstInts leaves, ConstFloats values) {
                const Unlocked unlocked(leaves.size());
                tree.set(leaves, values);
            },
            "leaves"_a, "values"_a, "Set leaves; of repeated ones the last wins.")
        .def(
            "set_run",
            [](SumTree& tree, int64_t begin, int64_t end, double value) {
                const Unlocked unlocked(static_cast<std::size_t>(std::max<int64_t>(0, end - begin)));
                tree.set_run(begin, end, value);
            },
            "begin"_a, "end"_a, "value"_a, "Set the leaves ``begin <= i < end`` to ``value``.")
        .def(
            "set_runs",
            [](SumTree& tree, int64_t group_size, ConstInts groups, ConstInts begins, ConstInts ends, double value) {
                const Unlocked unlocked(groups.size() * static_cast<std::size_t>(group_size));
                tree.set_runs(group_size, groups, begins, ends, value);
            },
            "group_size"_a, "groups"_a, "begins"_a, "ends"_a, "value"_a,
            "Set the leaves ``begins[i] <= k < ends[i]`` of each of ``groups`` to ``value``.")
        .def(
            "draw",
            [](const SumTree& tree, ConstFloats uniforms, Ints leaves, Floats values, Floats rest) {
                const Unlocked unlocked(leaves.size());
                tree.draw(uniforms, leaves, values, rest);
            },
            "uniforms"_a, "leaves"_a, "values"_a, "rest"_a,
            "Draw one leaf from each nth of the total; ``values`` and ``rest`` receive their values, and the points in "
            "them.");
}

}  // namespace sharpwave
