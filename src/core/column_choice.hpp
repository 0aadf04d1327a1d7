// Which codec does each lane's column have, and when are codecs tried again?
#pragma once

#include <deque>
#include <limits>
#include <optional>
#include <vector>

#include "arrays.hpp"
#include "dictionary_uses.hpp"
#include "row_encoder.hpp"

namespace sharpwave {

// Choice for a lane's column of one field.
struct LaneCodec {
    int64_t codec = 0;  // number of the codec, 0: raw
    int64_t place = 0;  // of the dictionary in use
    // Of the first segment after the one that the dictionary was trained on.
    double bytes_per_row = std::numeric_limits<double>::infinity();
    int64_t segments = 0, next_trial = 1;
};

// What becomes of a lane's choice with its next segment: it stays as it is, every codec is tried, or the lane takes the
// leading codec untried.
enum class Next { stays, tries, follows };

// Encoded column, with a reference to the dictionary at ``place``. Codec 0: the rows stay raw, and there is no payload.
struct Encoded {
    int64_t codec = 0, place = 0;
    uint64_t key = 0;  // of the dictionary
    ConstBytes payload;
};

// Choices of codecs for one field, by lane. Trials of codecs are Python's; this decides when there is one.
//
// The interpreter's lock is held in all calls. Addresses of lanes' choices stay valid.
class LaneCodecs {
  public:
    // ``automatic``: whether codecs compete, so that rows may stay raw. ``untried``: whether there is one codec,
    // without dictionaries, that encodes every segment without a trial. ``slow_bytes``: of a column below which no
    // encoding takes long. ``references`` [places, row_bytes]: dictionaries as long as a row, by place.
    LaneCodecs(int64_t line_bytes, bool automatic, bool untried, int64_t slow_bytes, Grid<const uint8_t> references,
               DictionaryUses& uses)
        : line_bytes_(line_bytes),
          automatic_(automatic),
          untried_(untried),
          slow_bytes_(slow_bytes),
          references_(references),
          uses_(&uses) {}

    // Adds a codec to choose from. ``encoder``: the core's, if there is one.
    void add_codec(int64_t number, bool slow, RowEncoder* encoder) { codecs_.push_back({number, slow, encoder}); }

    // Returns the lane's choice, or ``nullptr``: it has no segment yet.
    const LaneCodec* find(int64_t lane) const {
        if (lane >= std::ssize(lanes_)) return nullptr;
        const std::optional<LaneCodec>& one = lanes_[static_cast<std::size_t>(lane)];
        return one ? &*one : nullptr;
    }

    // Returns the lane's choice, which is made if need be.
    LaneCodec& at(int64_t lane);

    // Returns the places of the dictionaries that lanes use, each once.
    std::vector<int64_t> places() const;

    // Returns whether encoding so many rows of the lane takes long: by a slow codec, or for a trial.
    bool takes_long(int64_t lane, int64_t rows) const;

    // Returns whether what is done for the lane's next segment depends on other lanes' segments: on trials of rows that
    // stayed raw.
    bool depends_on_others(int64_t lane, int64_t rows) const;

    // Returns whether a trial begins with the lane's next segment whose outcome is for later ones: the segment stays
    // raw.
    bool begins_trial(int64_t lane, int64_t rows) const;
    void begin_trial(int64_t lane);

    // Returns whether the outcome of the trial under way is due before the lane's next segment is encoded. So it does
    // not matter how fast a trial is made.
    bool ends_trial(int64_t lane, int64_t rows) const;
    // Ends the trial under way; returns the lane that it was made for.
    int64_t end_trial();

    // Returns whether encoding so many rows may make a trial, later; one that is due counts from now on.
    bool reserve_trial(int64_t lane, int64_t rows);

    // Encodes the lane's next segment, counts it and takes a reference to its dictionary; nothing where Python has to
    // do that, and then nothing has changed. The payload is valid until the next call.
    //
    // ``may_try``: from ``reserve_trial`` of the same arguments; nothing: as ``trials_left`` has it. Other threads have
    // the interpreter's lock while much is encoded.
    std::optional<Encoded> encode(int64_t lane, Grid<const uint8_t> rows, std::optional<bool> may_try);

    // What ``encode`` changes of a lane, so that it can be undone; the reference to a dictionary is apart.
    struct Mark {
        bool known;
        LaneCodec one;
        int64_t pause, until;
    };
    Mark mark(int64_t lane) const { return {find(lane) != nullptr, choice_of(lane), pause_, until_}; }
    void undo(int64_t lane, const Mark& before);

    // Counts the lane's next segment, whose rows the lane's codec encodes in ``nbytes``, and returns what becomes of
    // its choice. 0 bytes: it is raw, or encoding saves none. A trial of a large column is taken from ``trials_left``.
    Next count_encoded(int64_t lane, int64_t rows, int64_t nbytes, std::optional<bool> may_try);

    // Sets when codecs are tried next, after a trial on the segment that was counted last.
    void tried(int64_t lane);

    double trials_left = std::numeric_limits<double>::infinity();  // which the present call may make still
    int64_t leading = 0;                                           // number of the latest choice of any lane
    // Whether trials are made for later segments, where the latest one left rows raw, and the lane's are raw.
    bool later = false;

  private:
    struct Candidate {
        int64_t number;
        bool slow;
        RowEncoder* encoder;
    };

    const LaneCodec& choice_of(int64_t lane) const;
    const Candidate* candidate(int64_t number) const;
    bool are_few(int64_t rows) const;
    bool are_large(int64_t rows) const { return rows * references_.columns >= slow_bytes_; }
    bool is_due(const LaneCodec& one) const;
    bool tries_later(const LaneCodec& one) const { return later && raw_trials_ > 0 && !one.codec; }
    bool is_worse(const LaneCodec& one, int64_t rows, int64_t nbytes) const;
    Next next(const LaneCodec& one, int64_t rows, std::optional<bool> may_try) const;
    void count(LaneCodec& one);
    Encoded encode_untried(LaneCodec& one, Grid<const uint8_t> rows);

    int64_t line_bytes_;
    bool automatic_, untried_;
    int64_t slow_bytes_;
    Grid<const uint8_t> references_;
    DictionaryUses* uses_;
    std::vector<Candidate> codecs_;
    std::deque<std::optional<LaneCodec>> lanes_;
    int64_t raw_trials_ = 0;  // in a row, of any lane, after which rows stayed raw
    int64_t pause_ = 0;       // segments before the next trial of a lane whose rows are raw
    int64_t trying_ = -1;     // lane of the trial under way, if there is one
    int64_t until_ = 0;       // segments of all lanes before its outcome is due
};

}  // namespace sharpwave
