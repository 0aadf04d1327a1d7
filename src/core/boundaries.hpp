// Which transitions never happened? Episodes are looked at where they begin with what the one before them ended with.
//
// sharpwave.log.boundaries says what that is a sign of. The step before the observation and the one after it are
// compared: one that jumps is a reset.
#pragma once

#include <array>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "rows.hpp"

namespace sharpwave {

// Looks at steps that are about to be appended, and counts what they tell of their lanes.
class Boundaries {
  public:
    // What is to be said: of which lane, whether its steps are resets (else final observations are), how many of them,
    // and the numbers of the last.
    using Found = std::tuple<int64_t, bool, int64_t, std::vector<int64_t>>;

    bool strict = false;  // whether what is found is an error

    // counted: counts by name. true_finals: numbers of the lanes whose final observations are true.
    Boundaries(nanobind::dict counted, nanobind::set true_finals)
        : counted_(std::move(counted)), true_finals_(std::move(true_finals)) {}

    static bool is_to_be_looked_at(uint8_t watch) {
        return (watch & (just_ended | left_alone)) == just_ended || !(watch & met);
    }

    // Looks at step ``i`` of a call if it is the first of its lane or of an episode; a second call sees nothing new.
    // Returns whether something is to be said of it; where ``quiet``, nothing has changed then.
    //
    // ends: whether it ends its episode. own, after: observations by field, before steps and after them (empty:
    // unknown).
    bool look(const Place& place, const Columns& columns, const LaneArrays& lanes, int64_t lane, int64_t i, bool ends,
              float reward, Pointers own, Pointers after, bool quiet) {
        return is_to_be_looked_at(lanes.watch[lane]) &&
               look_at(place, columns, lanes, lane, i, ends, reward, own, after, quiet);
    }

    // Looks at steps [T, N] of a block, but the first, from the one numbered ``begin`` on. Returns the number of one of
    // which something is to be said; -1: there is none.
    int64_t look_within(const Columns& columns, const LaneArrays& lanes, ConstInts which, Grid<const uint8_t> flags,
                        Grid<const uint8_t> broken, const float* reward, Pointers own, Pointers finals, int64_t begin);

    Found found() const;  // by the last call that returned that something is to be said

  private:
    static constexpr int64_t shown = 4;

    // Steps of a lane that speak for something: how many, the numbers of the last, and whether it was said.
    struct Evidence {
        int64_t count = 0;
        std::array<int64_t, shown> last{};
        bool said = false;
    };

    // What was seen of a lane: the hash of the first observation that this process appended to it; resets, and steps
    // after final observations that are the reset's; boundaries that speak for neither, and that say nothing.
    struct Seen {
        std::optional<uint64_t> first;
        Evidence resets, finals;
        int64_t unclear = 0, undecided = 0;
    };

    // A step that observes what its lane's last episode ended with: its number, the observations before that episode's
    // last step, after it, and after this one (none: unknown), by field; and what both steps earned.
    struct Boundary {
        int64_t step;
        Pointers before, obs, after;
        bool terminated, ends;
        float earned, reward;
    };

    enum class Verdict : uint8_t { undecided, unclear, reset_or_final, reset, final };

    nanobind::dict counted_;
    nanobind::set true_finals_;
    std::unordered_map<int64_t, Seen> seen_;
    std::vector<const uint8_t*> before_, obs_, after_;  // working memory: rows of one step by field
    int64_t lane_ = -1;                                 // of which something is to be said
    bool resets_ = false;

    bool look_at(const Place& place, const Columns& columns, const LaneArrays& lanes, int64_t lane, int64_t i,
                 bool ends, float reward, Pointers own, Pointers after, bool quiet);
    Verdict decide(const Columns& columns, int64_t lane, const Seen& seen, const Boundary& at) const;
    bool judge(const Columns& columns, const LaneArrays& lanes, int64_t lane, const Boundary& at, bool quiet);
    void count_repeated() const;
};

}  // namespace sharpwave
