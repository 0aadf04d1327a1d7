// How do full segments give way to their lanes' next ones? They are encoded, placed and linked, and the oldest evicted.
//
// For stores in memory that evict in order; the bytes are those that sharpwave.format.segment.pack makes, without
// annotations. Where codecs are to be tried, or a codec is not the core's, sharpwave.log.sealing does it.
#pragma once

#include <optional>
#include <vector>

#include "arena.hpp"
#include "column_choice.hpp"
#include "items.hpp"
#include "slots.hpp"

namespace sharpwave {

// Arrays of a log that are replaced as it grows.
struct LogState {
    Bytes memory;
    const IndexArrays& index;
    const LaneArrays& lanes;
    std::span<int32_t> oldest;  // by lane
    Ints counts;
    int64_t first_lane;          // number of lane 0 in segments
    const Followers* followers;  // views that are told of evictions; null: nothing is evicted here
};

// Observations of the coming steps: where each field's rows lie, and which of them a lane's has.
struct Coming {
    Pointers rows;
    int64_t position;
};

class Turnover {
  public:
    // What each segment's header says, and how many frames a stack reaches back.
    struct Settings {
        uint64_t schema, features;
        int64_t max_context;
    };

    Turnover(nanobind::object columns, nanobind::object ranges, nanobind::object slots, nanobind::object queue,
             const nanobind::typed<nanobind::sequence, nanobind::object>& choices,
             const nanobind::typed<nanobind::sequence, nanobind::object>& uses, Settings settings);

    const Columns& columns() const { return columns_; }

    // Seals the open segments of lanes, one after the other, and opens their next ones. Stops at one that is not the
    // core's to encode, or where there is no room for it; returns how many were sealed, and for lack of room -1 minus
    // that.
    //
    // which: lanes. positions: rows of their coming observations.
    int64_t seal(const LogState& log, ConstInts which, ConstInts positions, Pointers coming);

    // Seals and evicts for a step of each of the lanes ``which``, whose observations are ``coming``; returns
    // whether there is room for all. If not, sharpwave.log.step_log goes on from what was done.
    bool make_room(const LogState& log, ConstInts which, Pointers coming, int64_t max_rows, int64_t max_frames,
                   int64_t capacity);

    // Whether no dictionary goes with a segment: then it can be released here.
    bool releases(const IndexArrays& index, int64_t slot) const;
    // Frees a segment that was evicted, and its slot.
    void release(const LogState& log, int64_t slot);

  private:
    struct Packed {  // a column's payload
        const uint8_t* data = nullptr;
        int64_t nbytes = 0, rows = 0, codec = 0, place = 0;
        uint64_t key = 0;
    };

    nanobind::object held_columns_, held_ranges_, held_slots_, held_queue_;
    std::vector<nanobind::object> held_;
    const Columns& columns_;
    Ranges& ranges_;
    FreeSlots& slots_;
    SlotQueue& queue_;
    std::vector<LaneCodecs*> choices_;   // by field
    std::vector<DictionaryUses*> uses_;  // by column
    Settings settings_;
    std::vector<Packed> packed_;           // by column, of the segment that is being sealed
    std::vector<LaneCodecs::Mark> marks_;  // by field, what encoding it changes

    enum class Sealed : uint8_t { yes, otherwise, no_room };
    Sealed seal_one(const LogState& log, int64_t lane, Coming coming);
    bool pack_columns(const LogState& log, int64_t lane, int32_t slot, int64_t frames);
    void forget_columns(int64_t lane);
    int64_t nbytes() const;
    void write(const LogState& log, int64_t lane, int32_t slot, int64_t frames, int64_t base, int64_t nbytes);
    bool evict_oldest(const LogState& log);
};

}  // namespace sharpwave
