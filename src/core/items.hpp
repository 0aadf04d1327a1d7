// Which items has a view, and which does an eviction take from it?
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "known_steps.hpp"
#include "leaves.hpp"

namespace sharpwave {

// What a view's condition says of an item.
enum Judged : uint8_t { unjudged, matches, refused };

// Items of a view, as sharpwave.views.items.Items has them, which is derived from this class.
class Items {
  public:
    int64_t count = 0, samples = 0;  // that can be sampled; that were drawn
    int64_t seen = -1;               // changes of the log when items were searched for last
    bool grew = false;
    nanobind::object found = nanobind::none();  // runs of items that await memory in the sampler
    nanobind::list losing;                      // arrays of items that await exclusion, for lack of memory

    // Binds the arrays of a log and of a view without limited uses, until ``unbind``.
    //
    // spans: which items of each slot there are. expected: dict by slot, of segments that are held. judged: by item;
    // None: all match.
    void bind(nanobind::object log, nanobind::object spans, nanobind::object leaves, nanobind::object finder,
              nanobind::object expected, nanobind::object judged);
    void unbind() { log_ = nullptr; }

    template <class Call>
    void each_held(Call&& call) const {
        for (const auto* one : {&held_log_, &held_spans_, &held_leaves_, &held_finder_, &expected_, &held_judged_})
            call(*one);
    }

    // Whether nothing awaits memory.
    bool settled() const;
    // Whether ``forget`` may be called.
    bool forgets() const { return log_ && settled(); }

    // Drops all items that need the segment in ``slot``, which is about to be evicted. Throws before anything changed.
    void forget(int64_t slot);

  private:
    nanobind::object held_log_, held_spans_, held_leaves_, held_finder_, expected_, held_judged_;
    const Log* log_ = nullptr;  // null: nothing is bound
    Grid<int32_t> spans_;
    Leaves* leaves_ = nullptr;
    Finder* finder_ = nullptr;
    Bytes judged_;  // empty: all items match
};

// Views that are told of evictions: weak references to their items, so that a view which is dropped is gone.
class Followers {
  public:
    explicit Followers(const nanobind::typed<nanobind::sequence, nanobind::object>& items);

    // Has all of them forget the segment in ``slot``; returns whether they could. If it throws, it is to be repeated.
    bool forget(int64_t slot) const;

  private:
    std::vector<nanobind::weakref> items_;
};

}  // namespace sharpwave
