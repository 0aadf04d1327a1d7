// Which steps became known since the last call, and which does an eviction take?
#pragma once

#include <vector>

#include "log.hpp"

namespace sharpwave {

// Finder of a view's items, as far as evictions go.
class Finder {
  public:
    Finder() = default;
    Finder(const Finder&) = delete;
    Finder& operator=(const Finder&) = delete;
    virtual ~Finder() = default;

    // Returns a bound of the items that ``lose`` finds.
    virtual int64_t most_lost(const Log& log, int64_t slot) const = 0;
    // Narrows the spans of other segments, as the segment in ``slot`` is about to be evicted. ``lost`` receives their
    // items that need it, ascending; returns how many there are.
    virtual int64_t lose(const Log& log, int64_t slot, Grid<int32_t> spans, Ints lost) = 0;
};

// Finder of the steps that can be items. Such steps are a prefix of their segment, because steps arrive in order.
class StepFinder : public Finder {
  public:
    // Follows all lanes from now on, new ones from their ``oldest`` segment on.
    void follow(std::span<const int32_t> oldest);

    // Finds the steps that became known since the last call, by lanes; returns the number of runs. ``successor_known``:
    // by lane; empty: for none.
    virtual int64_t find(const Log& log, ConstBytes successor_known, Grid<int32_t> spans, Grid<int64_t> runs) = 0;

    int64_t lanes() const { return std::ssize(cursor_); }

  protected:
    // Goes on behind a segment that is about to be evicted; returns whether it was the one followed.
    bool leave(const Log& log, int64_t slot);

    std::vector<int32_t> cursor_;  // by lane, the slot of the segment up to which it was followed
};

// A step can be sampled when an episode's end lies within the n steps that begin with it, or when the observation n
// steps later is known: that step has been appended, or the one before it came with its ``next_obs``. Where steps in
// between were evicted, a return may reach up to the last step before them, whose successor frame its segment holds.
class KnownSteps final : public StepFinder {
  public:
    explicit KnownSteps(int64_t n_step) : n_step_(n_step) {}

    int64_t find(const Log& log, ConstBytes successor_known, Grid<int32_t> spans, Grid<int64_t> runs) override;
    int64_t most_lost(const Log& log, int64_t slot) const override;
    int64_t lose(const Log& log, int64_t slot, Grid<int32_t> spans, Ints lost) override;

  private:
    int64_t n_step_;
};

// A step can be sampled when its episode has ended: with a step that ended it, or where the steps that follow were
// evicted; and when it can be one of ``KnownSteps``.
class EndedSteps final : public StepFinder {
  public:
    explicit EndedSteps(int64_t n_step) : n_step_(n_step) {}

    int64_t find(const Log& log, ConstBytes, Grid<int32_t> spans, Grid<int64_t> runs) override;
    int64_t most_lost(const Log& log, int64_t slot) const override;
    int64_t lose(const Log& log, int64_t slot, Grid<int32_t> spans, Ints lost) override;

  private:
    int64_t n_step_;
    std::vector<int32_t> tail_;  // by lane, the slot of the segment up to which it was searched for ends
};

}  // namespace sharpwave
