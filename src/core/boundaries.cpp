#include "boundaries.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "distances.hpp"
#include "numpy_arrays.hpp"
#include "rooms.hpp"
#include "values.hpp"

namespace sharpwave {
namespace {

namespace nb = nanobind;

constexpr int64_t enough = 6;      // boundaries that speak for something, more than speak against it
constexpr int64_t unclear_is = 3;  // weight of one that shows nothing: half of them look like resets in a world that
                                   // goes on after an episode's end
constexpr int64_t against_is = 4;  // weight of an episode that begins with another observation
// How many times as far a jump must go as the other step: where the environment may not have been reset at all, as
// after a truncation that is only the program's; and where it was.
constexpr double min_jump = 2.0, reset_jump = 1.5;
constexpr int64_t max_undecided = 64;  // boundaries that say nothing, as in a constant world, before it is left alone

// Calls ``each`` with the number and the bytes of every field of an observation while it returns true; returns whether
// it did for all.
template <class Each>
bool all_framed(const Columns& columns, const Each& each) {
    for (std::size_t k = 0; k < columns.fields.size(); ++k) {
        const FieldColumn& column = columns.fields[k];
        if (column.framed && !each(k, column)) return false;
    }
    return true;
}

bool are_equal(const Columns& columns, Pointers one, Pointers other) {
    return all_framed(columns, [&](std::size_t k, const FieldColumn& column) {
        return std::memcmp(one[k], other[k], static_cast<std::size_t>(column.row_bytes)) == 0;
    });
}

double distance_between(const Columns& columns, Pointers one, Pointers other) {
    double sum = 0;
    all_framed(columns, [&](std::size_t k, const FieldColumn& column) {
        sum += distance(column.type, one[k], other[k], column.row_bytes);
        return true;
    });
    return sum;
}

uint64_t hash_of(const Columns& columns, Pointers rows) {
    uint64_t hash = 0;
    const auto mix = [&hash](uint64_t word) {
        hash = (hash ^ word) * 0x9e3779b97f4a7c15;
        hash ^= hash >> 32;
    };
    all_framed(columns, [&](std::size_t k, const FieldColumn& column) {
        int64_t at = 0;
        for (; at + 8 <= column.row_bytes; at += 8) mix(load<uint64_t>(rows[k] + at));
        for (; at < column.row_bytes; ++at) mix(rows[k][at]);
        return true;
    });
    return hash;
}

// Sets ``one`` to where row ``i`` of each field of an observation lies.
void set_rows(std::vector<const uint8_t*>& one, const Columns& columns, Pointers rows, int64_t i) {
    one.resize(columns.fields.size());
    all_framed(columns, [&](std::size_t k, const FieldColumn& column) {
        one[k] = rows[k] + i * column.row_bytes;
        return true;
    });
}

void set_rows(std::vector<const uint8_t*>& one, const Columns& columns, const Place& place, int64_t slot,
              int64_t frame) {
    one.resize(columns.fields.size());
    all_framed(columns, [&](std::size_t k, const FieldColumn& column) {
        one[k] = place.row(first_field_at + k, slot, frame, column.row_bytes);
        return true;
    });
}

}  // namespace

bool Boundaries::look_at(const Place& place, const Columns& columns, const LaneArrays& lanes, int64_t lane, int64_t i,
                         bool ends, float reward, Pointers own, Pointers after, bool quiet) {
    uint8_t& watch = lanes.watch[lane];
    const IndexArrays& index = place.index;
    const int64_t slot = lanes.slots[lane], row = index.rows[slot] - 1, frame = index.frames[slot];
    set_rows(obs_, columns, own, i);
    bool found = false;
    if (!(watch & met)) {
        seen_[lane].first = hash_of(columns, obs_);
        watch |= met;
    } else {
        set_rows(after_, columns, place, slot, frame - 1);  // the final observation
        if (!are_equal(columns, obs_, after_)) {
            lanes.fresh[lane] += 1;
        } else {
            set_rows(before_, columns, place, slot, frame - 2);
            if (!after.empty()) set_rows(after_, columns, after, i);
            found = judge(columns, lanes, lane,
                          {.step = lanes.steps[lane],
                           .before = before_,
                           .obs = obs_,
                           .after = after.empty() ? Pointers{} : after_,
                           .terminated = (*place.row(flags_at, slot, row, 1) & terminated_flag) != 0,
                           .ends = ends,
                           .earned = load<float>(place.row(reward_at, slot, row, 4)),
                           .reward = reward},
                          quiet);
        }
    }
    if (!found || !quiet) watch &= static_cast<uint8_t>(~just_ended);
    return found;
}

int64_t Boundaries::look_within(const Columns& columns, const LaneArrays& lanes, ConstInts which,
                                Grid<const uint8_t> flags, Grid<const uint8_t> broken, const float* reward,
                                Pointers own, Pointers finals, int64_t begin) {
    const int64_t count = flags.columns;
    for (int64_t at = begin; at + count < std::ssize(flags.flat()); ++at) {
        const int64_t next = at + count, lane = which[at % count];
        if (!(flags.flat()[at] & ended) || broken.flat()[at] || lanes.watch[lane] & left_alone) continue;
        set_rows(obs_, columns, own, next);
        set_rows(after_, columns, finals, at);
        if (!are_equal(columns, obs_, after_)) {
            lanes.fresh[lane] += 1;
            continue;
        }
        const bool cut = broken.flat()[next], ends = (flags.flat()[next] & ended) != 0;
        const bool followed = !ends && next + count < std::ssize(flags.flat());
        set_rows(before_, columns, own, at);
        if (followed)
            set_rows(after_, columns, own, next + count);
        else if (cut)
            set_rows(after_, columns, finals, next);
        const Boundary boundary{.step = lanes.steps[lane] + next / count,
                                .before = before_,
                                .obs = obs_,
                                .after = followed || cut ? Pointers{after_} : Pointers{},
                                .terminated = (flags.flat()[at] & terminated_flag) != 0,
                                .ends = ends && !cut,
                                .earned = reward[at],
                                .reward = reward[next]};
        if (judge(columns, lanes, lane, boundary, false)) return at;
    }
    return -1;
}

// Decides what a step is that observes what its lane's last episode ended with.
Boundaries::Verdict Boundaries::decide(const Columns& columns, int64_t lane, const Seen& seen,
                                       const Boundary& at) const {
    const bool followed = !at.ends && !at.after.empty();
    // An episode of one step; nothing moves; or the world's first observation: reset states may be final ones.
    if (at.ends || (followed && are_equal(columns, at.obs, at.after)) || hash_of(columns, at.obs) == seen.first)
        return Verdict::undecided;
    const double came = distance_between(columns, at.before, at.obs);
    const double went = followed ? distance_between(columns, at.obs, at.after) : 0;
    if (at.reward == 0 && (followed ? went > came * (at.terminated ? 1.0 : min_jump) : at.earned != 0))
        return Verdict::reset;
    const bool is_true = true_finals_.contains(nb::int_(lane));
    if (!followed || !(is_true ? came > reset_jump * went : came > min_jump * went && !at.terminated))
        return Verdict::unclear;
    // One or the other: a step goes farther than a reset, as in CartPole, and this one has no reward.
    return !is_true && at.earned != 0 && at.reward == 0 ? Verdict::reset_or_final : Verdict::final;
}

bool Boundaries::judge(const Columns& columns, const LaneArrays& lanes, int64_t lane, const Boundary& at, bool quiet) {
    Seen& seen = seen_[lane];
    const Verdict verdict = decide(columns, lane, seen, at);
    if (verdict == Verdict::reset || verdict == Verdict::final) {
        Evidence& found = verdict == Verdict::reset ? seen.resets : seen.finals;
        const bool is_enough = found.count + 1 - unclear_is * seen.unclear - against_is * lanes.fresh[lane] >= enough;
        const bool to_say = is_enough && (strict || !found.said);
        if (to_say && quiet) return true;
        found.last[found.count++ % shown] = verdict == Verdict::reset ? at.step : at.step - 1;
        count_repeated();
        if (to_say) {
            found.said |= !strict;
            lane_ = lane, resets_ = verdict == Verdict::reset;
        }
        return to_say;
    }
    if (verdict == Verdict::reset_or_final) count_repeated();
    (verdict == Verdict::unclear ? seen.unclear : seen.undecided) += 1;
    const int64_t nothing = seen.undecided + seen.unclear;
    if (nothing >= max_undecided && 2 * (seen.resets.count + seen.finals.count) < nothing)
        lanes.watch[lane] |= left_alone;
    return false;
}

void Boundaries::count_repeated() const {
    const nb::str name("repeated_finals");
    const nb::dict counted = counted_;
    counted[name] = nb::cast<int64_t>(counted[name]) + 1;
}

Boundaries::Found Boundaries::found() const {
    const Evidence& found = resets_ ? seen_.at(lane_).resets : seen_.at(lane_).finals;
    std::vector<int64_t> last;
    for (int64_t k = std::max<int64_t>(0, found.count - shown); k < found.count; ++k)
        last.push_back(found.last[k % shown]);
    return {lane_, resets_, found.count, last};
}

namespace {

std::optional<Boundaries::Found> find(Boundaries& self, const Columns& columns, const IndexArrays& index,
                                      const LaneArrays& lanes, Bytes memory, ConstInts which, ConstBytes flags,
                                      nb::handle rows, nb::handle nexts) {
    if (std::ranges::none_of(which, [&](int64_t lane) { return Boundaries::is_to_be_looked_at(lanes.watch[lane]); }))
        return std::nullopt;
    const auto count = std::ssize(which);
    const Values own(columns, rows, count, Which::framed);
    const Values after(columns, nexts, nexts.is_none() ? 0 : count, Which::framed);
    const Value reward(nb::str("reward"), rows, 4 * count);
    for (int64_t i = 0; i < count; ++i) {
        if (self.look({memory, index}, columns, lanes, which[i], i, flags[i] & ended,
                      load<float>(reward.data() + 4 * i), own.rows(), after.rows(), false))
            return self.found();
    }
    return std::nullopt;
}

std::optional<std::pair<int64_t, Boundaries::Found>> find_within(Boundaries& self, const Columns& columns,
                                                                 const LaneArrays& lanes, ConstInts which,
                                                                 Grid<const uint8_t> flags, Grid<const uint8_t> broken,
                                                                 nb::handle rows, nb::handle finals, int64_t begin) {
    const auto count = std::ssize(flags.flat());
    const Values own(columns, rows, count, Which::framed), last(columns, finals, count, Which::framed);
    const Value reward(nb::str("reward"), rows, 4 * count);
    const int64_t at = self.look_within(columns, lanes, which, flags, broken,
                                        reinterpret_cast<const float*>(reward.data()), own.rows(), last.rows(), begin);
    if (at < 0) return std::nullopt;
    return std::pair(at + 1, self.found());
}

}  // namespace

void define_boundaries(nb::module_& module) {
    using namespace nb::literals;
    nb::class_<Boundaries>(module, "Boundaries",
                           "Detector of steps that are resets, and of final observations that are the reset's.\n\n"
                           "Args:\n    counted: counts by name. ``true_finals``: lanes whose final observations are "
                           "true.\nAttributes:\n    strict: whether it is an error each time, or said once.")
        .def(nb::init<nb::typed<nb::dict, nb::str, int64_t>, nb::typed<nb::set, int64_t>>(), "counted"_a,
             "true_finals"_a)
        .def_rw("strict", &Boundaries::strict)
        .def("find", &find, "columns"_a, "index"_a, "lanes"_a, "memory"_a, "which"_a, "flags"_a, "rows"_a,
             "nexts"_a.none(),
             "Look at the steps that are about to be appended to the lanes ``which`` [n], as ``Boundaries.look`` says, "
             "up to the\nfirst of which something is to be said; what was looked at is not looked at again.\n\n"
             "Returns its lane, whether steps are resets (else final observations are), how many of them, and the "
             "numbers of\nthe last; ``None``: there is none.")
        .def("find_within", &find_within, "columns"_a, "lanes"_a, "which"_a, "flags"_a, "broken"_a, "rows"_a,
             "finals"_a, "begin"_a,
             "Look at the steps [T, N] of a block, but the first, from the one numbered ``begin`` on, as "
             "``Boundaries.look_within``\nsays. Returns where to go on, and as ``find``.");
}

}  // namespace sharpwave
