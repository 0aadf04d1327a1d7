// How is a batch drawn in one call? By a tree, shuffled and weighed.
#pragma once

#include "leaves.hpp"
#include "numpy_arrays.hpp"

struct bitgen;  // numpy's, of random numbers

namespace sharpwave {

// A numpy generator of random numbers, whose lock the caller holds.
class Generator {
  public:
    explicit Generator(const nanobind::capsule& bits) : bits_(static_cast<bitgen*>(bits.data("BitGenerator"))) {}

    // As ``numpy.random.Generator.random(out=values)``.
    void fill(Floats values) const;

  private:
    bitgen* bits_;
};

// Arrays of one draw, each of an item's.
struct Drawing {
    Ints items;
    Floats probabilities;
    std::span<float> weights;
    Floats rest, uniforms;  // working memory
};

// Draws items alike, or by value where each is a leaf; shuffles and weighs them.
void draw_shuffled(const Leaves& leaves, const Generator& generator, double beta, const Drawing& out);

// Sets p^alpha with p = |error| + eps; returns the largest p.
double set_priorities(SumTree& tree, ConstInts items, ConstFloats errors, double eps, double alpha);

}  // namespace sharpwave
