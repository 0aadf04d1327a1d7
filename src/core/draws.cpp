// Which items does a batch have, in which order, and what do they weigh? Draws of samplers, updates of priorities,
// uses.
#include "draws.hpp"

#include <nanobind/stl/pair.h>
#include <numpy/random/bitgen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "rooms.hpp"
#include "unlocked.hpp"
#include "words.hpp"

namespace sharpwave {
namespace {

// Items in proportion to their values in a tree over items.
void draw_by_value(const SumTree& tree, ConstFloats uniforms, Ints items, Floats probabilities, Floats rest) {
    tree.draw(uniforms, items, probabilities, rest);
    const double total = tree.total();
    for (double& probability : probabilities) probability /= total;
}

constexpr std::size_t ahead = 8;  // draws ahead of which the marks of a group are fetched
constexpr int64_t cache_line = 64;

// Items alike, by a tree over groups that counts their items; of a group, those that are not excluded.
void draw_alike(const Leaves& leaves, ConstFloats uniforms, Ints items, Floats probabilities, Floats rest) {
    const SumTree& tree = leaves.tree();
    const std::optional<ConstBytes> excluded = leaves.excluded();
    tree.draw_counts(uniforms, items, probabilities, rest);
    const double probability = 1.0 / tree.total();
    for (std::size_t i = 0; i < items.size(); ++i) {
        // What is left in the group is the item's number there, as counts are whole numbers.
        auto before = static_cast<int64_t>(std::min(rest[i], probabilities[i] - 1.0));
        int64_t item = items[i] * leaves.group_size();
        if (excluded) {
            if (i + ahead < items.size()) {
                const uint8_t* const coming = excluded->data() + items[i + ahead] * leaves.group_size();
                for (int64_t k = 0; k < leaves.group_size(); k += cache_line) prefetch(coming + k);
            }
            constexpr int64_t word = sizeof(uint64_t);
            constexpr uint64_t ones = 0x0101010101010101;  // times marks of 0 or 1: their sum is the top byte
            while (item + word <= std::ssize(*excluded)) {
                const auto gone = static_cast<int64_t>(load<uint64_t>(excluded->data() + item) * ones >> 56);
                const int64_t there = word - gone;
                if (before < there) break;
                before -= there, item += word;
            }
            for (;; ++item) {
                require(static_cast<std::size_t>(item) < excluded->size(), "a group has as many items as it counts");
                const bool gone = (*excluded)[static_cast<std::size_t>(item)];
                if (!gone && before == 0) break;
                before -= !gone;
            }
        } else {
            item += before;
        }
        items[i] = item;
        probabilities[i] = probability;
    }
}

// Every order is equally likely (Fisher and Yates).
void shuffle(ConstFloats uniforms, Ints items, Floats probabilities) {
    for (std::size_t i = items.size(); i-- > 1;) {
        const auto k = static_cast<std::size_t>(uniforms[i] * static_cast<double>(i + 1));
        require(k <= i, "uniforms are below 1");
        std::swap(items[i], items[k]);
        std::swap(probabilities[i], probabilities[k]);
    }
}

// (N P_i)^-beta, divided by the batch's largest (Schaul et al. 2016, 3.4): (min_j P_j / P_i)^beta. Without a bias to
// correct, 1; then probabilities are not read.
void weigh(ConstFloats probabilities, double beta, std::span<float> weights) {
    require(probabilities.size() == weights.size(), "each item has a weight");
    if (beta == 0.0) return std::fill(weights.begin(), weights.end(), 1.0f);
    double lowest = std::numeric_limits<double>::infinity(), highest = 0.0;
    for (double probability : probabilities) {
        lowest = std::min(lowest, probability);
        highest = std::max(highest, probability);
    }
    if (lowest == highest) return std::fill(weights.begin(), weights.end(), 1.0f);
    for (std::size_t i = 0; i < weights.size(); ++i) {
        weights[i] = static_cast<float>(std::pow(lowest / probabilities[i], beta));
    }
}

// Counts a use of each item that has one left, and moves those to the front, in order. Returns how many they are, and
// the number of distinct ones that had their last use, which ``full`` receives.
std::pair<int64_t, int64_t> count_uses(Ints items, Floats probabilities, std::span<int32_t> given, int32_t most,
                                       Ints full) {
    std::size_t kept = 0, found = 0;
    for (std::size_t i = 0; i < items.size(); ++i) {
        const int64_t item = items[i];
        int32_t& uses = given[static_cast<std::size_t>(item)];
        if (uses >= most) continue;
        if (++uses == most) full[found++] = item;
        items[kept] = item;
        probabilities[kept++] = probabilities[i];
    }
    return {kept, found};
}

void draw(const Leaves& leaves, ConstFloats uniforms, Ints items, Floats probabilities, Floats rest) {
    if (leaves.counts()) return draw_alike(leaves, uniforms, items, probabilities, rest);
    draw_by_value(leaves.tree(), uniforms, items, probabilities, rest);
}

}  // namespace

double set_priorities(SumTree& tree, ConstInts items, ConstFloats errors, double eps, double alpha) {
    require(items.size() == errors.size(), "each item has an error");
    double largest = 0.0;
    for (std::size_t i = 0; i < items.size(); ++i) {
        const double priority = std::abs(errors[i]) + eps;
        largest = std::max(largest, priority);
        tree.leaf(items[i]) = std::pow(priority, alpha);
    }
    tree.refresh(items);
    return largest;
}

void Generator::fill(Floats values) const {
    for (double& value : values) value = bits_->next_double(bits_->state);
}

void draw_shuffled(const Leaves& leaves, const Generator& generator, double beta, const Drawing& out) {
    generator.fill(out.uniforms);
    draw(leaves, out.uniforms, out.items, out.probabilities, out.rest);
    generator.fill(out.uniforms);
    shuffle(out.uniforms, out.items, out.probabilities);
    weigh(out.probabilities, beta, out.weights);
}

void define_draws(nanobind::module_& module) {
    using namespace nanobind::literals;
    module.def(
        "stratify",
        [](ConstFloats points, Floats uniforms) {
            require(points.size() == uniforms.size(), "each point has a uniform");
            const auto count = static_cast<double>(points.size());
            for (std::size_t i = 0; i < points.size(); ++i) uniforms[i] = points[i] * count - static_cast<double>(i);
        },
        "points"_a, "uniforms"_a, "Write the ``uniforms`` with which a stratified draw draws at ``points``.");
    module.def(
        "draw",
        [](const Leaves& leaves, Ints items, Floats probabilities, Floats rest, ConstFloats uniforms) {
            const Unlocked unlocked(items.size());
            draw(leaves, uniforms, items, probabilities, rest);
        },
        "leaves"_a, "items"_a, "probabilities"_a, "rest"_a, "uniforms"_a,
        "Draw items, one from each nth of the total, in order: in proportion to their values where each is a leaf, "
        "else "
        "equally often.");
    module.def(
        "shuffle",
        [](ConstFloats uniforms, Ints items, Floats probabilities) {
            const Unlocked unlocked(items.size());
            shuffle(uniforms, items, probabilities);
        },
        "uniforms"_a, "items"_a, "probabilities"_a, "Shuffle a draw by ``uniforms``.");
    module.def(
        "importance_weights",
        [](ConstFloats probabilities, double beta, std::span<float> weights) {
            if (beta != 0.0 && std::find(probabilities.begin(), probabilities.end(), 0.0) != probabilities.end()) {
                throw nanobind::value_error("sampler: it drew an item of probability 0");
            }
            const Unlocked unlocked(weights.size());
            weigh(probabilities, beta, weights);
        },
        "probabilities"_a, "beta"_a, "weights"_a,
        "Compute ``(N P_i)^-beta``, divided by the batch's largest. Raises: ValueError: a probability is 0.");
    module.def(
        "set_priorities",
        [](SumTree& tree, ConstInts items, ConstFloats errors, double eps, double alpha) {
            const Unlocked unlocked(items.size());
            return set_priorities(tree, items, errors, eps, alpha);
        },
        "tree"_a, "items"_a, "errors"_a, "eps"_a, "alpha"_a,
        "Set ``items`` to ``p^alpha`` where ``p = |error| + eps``; return the largest p.");
    module.def(
        "count_uses",
        [](Ints items, Floats probabilities, std::span<int32_t> given, int32_t most, Ints full) {
            const Unlocked unlocked(items.size());
            return count_uses(items, probabilities, given, most, full);
        },
        "items"_a, "probabilities"_a, "given"_a, "most"_a, "full"_a,
        "Count a use of each item that has one left, and move those to the front; return how many they are, and the "
        "number of those in ``full``, which had their last.");
}

}  // namespace sharpwave
