// Which codec does each lane's column have, and when are codecs tried again?
#include "column_choice.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "numpy_arrays.hpp"
#include "rooms.hpp"
#include "unlocked.hpp"

namespace sharpwave {
namespace {

// Fewer rows than this are too few to measure: they stay raw, and the choice waits.
constexpr int64_t min_automatic_rows = 8;
// A dictionary is replaced when rows take this many times their bytes when it was chosen.
constexpr double worse = 1.3;
// Segments of a lane between two trials, at most.
constexpr int64_t max_wait = 256;
// Segments of all lanes between two trials of rows that stay raw, at most: a trial takes many times as long as
// sealing a raw segment.
constexpr int64_t max_pause = 256;
// Segments of all lanes that are sealed during a trial for later ones, at most; fewer if its lane's next one is full.
constexpr int64_t trial_segments = 256;

// Payload of the only codec, as a share of the rows' bytes, beyond which they stay raw.
constexpr double max_untried_share = 0.9;

}  // namespace

LaneCodec& LaneCodecs::at(int64_t lane) {
    require(lane >= 0, "a lane has a number");
    if (lane >= std::ssize(lanes_)) lanes_.resize(static_cast<std::size_t>(lane + 1));
    std::optional<LaneCodec>& one = lanes_[static_cast<std::size_t>(lane)];
    return one ? *one : one.emplace();
}

std::vector<int64_t> LaneCodecs::places() const {
    std::vector<bool> used(static_cast<std::size_t>(references_.rows));
    std::vector<int64_t> found;
    for (const std::optional<LaneCodec>& one : lanes_) {
        if (!one || used[static_cast<std::size_t>(one->place)]) continue;
        used[static_cast<std::size_t>(one->place)] = true;
        found.push_back(one->place);
    }
    return found;
}

// Returns the lane's choice, or that of a lane without a segment.
const LaneCodec& LaneCodecs::choice_of(int64_t lane) const {
    static constexpr LaneCodec fresh;
    const LaneCodec* const one = find(lane);
    return one ? *one : fresh;
}

const LaneCodecs::Candidate* LaneCodecs::candidate(int64_t number) const {
    for (const Candidate& one : codecs_) {
        if (one.number == number) return &one;
    }
    return nullptr;
}

// Returns whether so many rows need no trial, now or later, and are not counted.
bool LaneCodecs::are_few(int64_t rows) const {
    return untried_ || codecs_.empty() || rows < (automatic_ ? min_automatic_rows : 1);
}

// Returns whether codecs are to be tried on the lane's next segment, whatever it takes.
bool LaneCodecs::is_due(const LaneCodec& one) const {
    return one.segments + 1 >= one.next_trial && (one.codec || pause_ <= 1) && !tries_later(one);
}

// Returns whether they are, because rows take more bytes than they did.
bool LaneCodecs::is_worse(const LaneCodec& one, int64_t rows, int64_t nbytes) const {
    if (!one.codec || one.segments + 1 < one.next_trial / 4 + 8) return false;
    return !nbytes || static_cast<double>(nbytes) / static_cast<double>(rows) > worse * one.bytes_per_row;
}

// Returns what becomes of a choice where codecs are to be tried.
Next LaneCodecs::next(const LaneCodec& one, int64_t rows, std::optional<bool> may_try) const {
    if (!are_large(rows) || may_try.value_or(trials_left > 0)) return Next::tries;
    return !one.codec && leading ? Next::follows : Next::stays;
}

void LaneCodecs::count(LaneCodec& one) {
    ++one.segments;
    pause_ -= pause_ > 0;
    until_ -= until_ > 0;
}

bool LaneCodecs::takes_long(int64_t lane, int64_t rows) const {
    if (are_few(rows) || !are_large(rows)) return false;
    const LaneCodec& one = choice_of(lane);
    const Candidate* const codec = candidate(one.codec);
    return (codec && codec->slow) || (is_due(one) && trials_left > 0);
}

bool LaneCodecs::depends_on_others(int64_t lane, int64_t rows) const {
    if (are_few(rows)) return false;
    const LaneCodec& one = choice_of(lane);
    return trying_ >= 0 || (!one.codec && one.segments + 1 >= one.next_trial && (later || are_large(rows)));
}

bool LaneCodecs::begins_trial(int64_t lane, int64_t rows) const {
    const LaneCodec& one = choice_of(lane);
    return trying_ < 0 && tries_later(one) && pause_ <= 1 && one.segments + 1 >= one.next_trial && !are_few(rows);
}

void LaneCodecs::begin_trial(int64_t lane) {
    require(trying_ < 0 && lane >= 0, "one trial at a time is under way");
    trying_ = lane;
    until_ = trial_segments;
}

bool LaneCodecs::ends_trial(int64_t lane, int64_t rows) const {
    return trying_ >= 0 && !are_few(rows) && (until_ <= 0 || (lane == trying_ && until_ < trial_segments));
}

int64_t LaneCodecs::end_trial() { return std::exchange(trying_, -1); }

bool LaneCodecs::reserve_trial(int64_t lane, int64_t rows) {
    const bool allowed = trials_left > 0;
    if (allowed && !are_few(rows) && are_large(rows) && is_due(choice_of(lane))) --trials_left;
    return allowed;
}

void LaneCodecs::undo(int64_t lane, const Mark& before) {
    if (before.known) {
        at(lane) = before.one;
    } else {
        lanes_[static_cast<std::size_t>(lane)].reset();
    }
    pause_ = before.pause;
    until_ = before.until;
}

std::optional<Encoded> LaneCodecs::encode(int64_t lane, Grid<const uint8_t> rows, std::optional<bool> may_try) {
    require(rows.columns == references_.columns, "rows are as long as the field's");
    if (untried_) return encode_untried(at(lane), rows);
    if (are_few(rows.rows)) {
        at(lane);
        return Encoded{};
    }
    if (!may_try && (ends_trial(lane, rows.rows) || begins_trial(lane, rows.rows))) return std::nullopt;
    const LaneCodec& one = choice_of(lane);
    if (is_due(one) && next(one, rows.rows, may_try) != Next::stays) return std::nullopt;
    Encoded made;
    if (one.codec) {
        const Candidate* const codec = candidate(one.codec);
        if (!codec || !codec->encoder) return std::nullopt;
        const ConstBytes reference = one.place ? references_[one.place] : ConstBytes{};
        {
            const std::optional<Released> alone = unlocked_for(std::ssize(rows.flat()));
            made.payload = codec->encoder->encode(rows, reference, line_bytes_);
        }
        const int64_t nbytes = std::ssize(made.payload);
        if (is_worse(one, rows.rows, nbytes) && next(one, rows.rows, may_try) != Next::stays) return std::nullopt;
        if (nbytes) {
            made.codec = one.codec;
            made.place = one.place;
            made.key = uses_->key(one.place);
            uses_->use(one.place);
        }
    }
    count_encoded(lane, rows.rows, std::ssize(made.payload), may_try);
    return made;
}

// Encodes rows by the only codec. A lane whose rows stay raw waits for as many segments as it has, up to ``max_pause``.
Encoded LaneCodecs::encode_untried(LaneCodec& one, Grid<const uint8_t> rows) {
    if (rows.rows < min_automatic_rows || ++one.segments < one.next_trial) return {};
    const Candidate& only = codecs_.front();
    Encoded made;
    made.payload = only.encoder->encode(rows, {}, line_bytes_);
    const auto most = static_cast<int64_t>(max_untried_share * static_cast<double>(std::ssize(rows.flat())));
    if (!made.payload.empty() && std::ssize(made.payload) <= most) {
        made.codec = one.codec = only.number;
        return made;
    }
    one.codec = 0;
    one.next_trial = one.segments + std::min(max_pause, one.segments);
    return {};
}

Next LaneCodecs::count_encoded(int64_t lane, int64_t rows, int64_t nbytes, std::optional<bool> may_try) {
    LaneCodec& one = at(lane);
    const bool tries = is_due(one) || is_worse(one, rows, nbytes);
    const Next result = tries ? next(one, rows, may_try) : Next::stays;
    count(one);
    if (nbytes && one.bytes_per_row == std::numeric_limits<double>::infinity()) {
        one.bytes_per_row = static_cast<double>(nbytes) / static_cast<double>(rows);
    }
    if (result == Next::tries && are_large(rows) && !may_try) --trials_left;
    return result;
}

void LaneCodecs::tried(int64_t lane) {
    LaneCodec& one = at(lane);
    one.next_trial = one.segments + std::min(max_wait, 3 * one.segments);
    raw_trials_ = !one.codec && automatic_ ? raw_trials_ + 1 : 0;
    pause_ = std::min(raw_trials_, max_pause);
}

namespace {

namespace nb = nanobind;

using Packed = std::tuple<int64_t, std::optional<nb::bytes>, uint64_t, int64_t>;

std::optional<Packed> encode_in_python(LaneCodecs& lanes, int64_t lane, Grid<const uint8_t> rows,
                                       std::optional<bool> may_try) {
    const std::optional<Encoded> made = lanes.encode(lane, rows, may_try);
    if (!made) return std::nullopt;
    if (!made->codec) return Packed{0, std::nullopt, 0, 0};
    return Packed{made->codec, nb::bytes(made->payload.data(), made->payload.size()), made->key, made->place};
}

}  // namespace

void define_column_choice(nb::module_& module) {
    using namespace nb::literals;
    nb::class_<DictionaryUses>(module, "DictionaryUses",
                               "Counts of references to a field's dictionaries, by place, and their keys. Place 0 "
                               "stands for \"none\": it is not counted.")
        .def(nb::init<int64_t>(), "places"_a)
        .def("first_free", &DictionaryUses::first_free, "Return the first place without references.")
        .def("put", &DictionaryUses::put, "place"_a, "key"_a,
             "Put the dictionary of that key at a place, where nothing refers to it yet.")
        .def("use", &DictionaryUses::use, "place"_a, "Take another reference.")
        .def("drop", &DictionaryUses::drop, "place"_a, "Release a reference; return whether it was the last one.")
        .def("count", &DictionaryUses::count, "place"_a, "Return the number of references.")
        .def("key", &DictionaryUses::key, "place"_a,
             "Return the key of the dictionary that is there, or was there last; 0 of place 0.");
    nb::enum_<Next>(module, "Next",
                    "What becomes of a lane's choice with its next segment: it stays as it is, every codec is tried, "
                    "or the lane takes the leading codec untried.")
        .value("STAYS", Next::stays)
        .value("TRIES", Next::tries)
        .value("FOLLOWS", Next::follows);
    nb::class_<LaneCodec>(module, "LaneCodec", "Choice for a lane's column of one field. Codec 0: raw.")
        .def_rw("codec", &LaneCodec::codec)
        .def_rw("place", &LaneCodec::place, "Of the dictionary in use.")
        .def_rw("bytes_per_row", &LaneCodec::bytes_per_row,
                "Of the first segment after the one that the dictionary was trained on.")
        .def_rw("segments", &LaneCodec::segments)
        .def_rw("next_trial", &LaneCodec::next_trial);
    nb::class_<LaneCodecs>(module, "LaneCodecs",
                           "Choices of codecs for one field, by lane.\n\n"
                           "Attributes:\n    trials_left: trials that the present call may make still.\n"
                           "    leading: number of the latest choice of any lane.\n"
                           "    later: whether trials are made for later segments, where the latest one left rows raw, "
                           "and the lane's are\n        raw.")
        .def(nb::init<int64_t, bool, bool, int64_t, Grid<const uint8_t>, DictionaryUses&>(), "line_bytes"_a,
             "automatic"_a, "untried"_a, "slow_bytes"_a, "references"_a, "uses"_a, nb::keep_alive<1, 6>(),
             nb::keep_alive<1, 7>())
        .def("add_codec", &LaneCodecs::add_codec, "number"_a, "slow"_a, "encoder"_a.none(), nb::keep_alive<1, 4>(),
             "Add a codec to choose from. ``encoder``: the core's, if there is one.")
        .def("find", &LaneCodecs::find, "lane"_a, nb::rv_policy::reference_internal,
             nb::sig("def find(self, lane: int) -> LaneCodec | None"), "Return the lane's choice, if it has a segment.")
        .def("at", &LaneCodecs::at, "lane"_a, nb::rv_policy::reference_internal,
             "Return the lane's choice, which is made if need be.")
        .def("places", &LaneCodecs::places, "Return the places of the dictionaries that lanes use, each once.")
        .def("takes_long", &LaneCodecs::takes_long, "lane"_a, "rows"_a,
             "Return whether encoding so many rows of the lane takes long: by a slow codec, or for a trial.")
        .def("depends_on_others", &LaneCodecs::depends_on_others, "lane"_a, "rows"_a,
             "Return whether what is done for the lane's next segment depends on other lanes' segments: on trials of "
             "rows that\nstayed raw.")
        .def("begins_trial", &LaneCodecs::begins_trial, "lane"_a, "rows"_a,
             "Return whether a trial begins with the lane's next segment, of so many rows, whose outcome is for later "
             "ones: the\nsegment stays raw.")
        .def("begin_trial", &LaneCodecs::begin_trial, "lane"_a, "Count a trial for later segments as under way.")
        .def(
            "ends_trial", &LaneCodecs::ends_trial, "lane"_a, "rows"_a,
            "Return whether the outcome of the trial under way is due before the lane's next segment, of so many rows, "
            "is\nencoded: at its own lane's next one, or 256 segments later.")
        .def("end_trial", &LaneCodecs::end_trial, "End the trial under way; return the lane that it was made for.")
        .def("reserve_trial", &LaneCodecs::reserve_trial, "lane"_a, "rows"_a,
             "Return whether encoding so many rows may make a trial, later; one that is due counts from now on.")
        .def("encode", &encode_in_python, "lane"_a, "rows"_a, "may_try"_a.none(),
             "Encode the lane's next segment and count it, where neither a trial nor a codec of Python's is needed.\n\n"
             "Returns the codec, the payload, the dictionary's key and its place, with a reference to it; codec 0 and "
             "no payload:\nthe rows stay raw; ``None``: Python must do it, and nothing has changed.")
        .def("count_encoded", &LaneCodecs::count_encoded, "lane"_a, "rows"_a, "nbytes"_a, "may_try"_a.none(),
             "Count the lane's next segment, whose rows its codec encodes in ``nbytes``, and return what becomes of "
             "its choice.\n\nArgs:\n    nbytes: 0: the lane is raw, or encoding saves none.")
        .def("tried", &LaneCodecs::tried, "lane"_a,
             "Set when codecs are tried next, after a trial on the segment that was counted last.")
        .def_rw("trials_left", &LaneCodecs::trials_left)
        .def_rw("leading", &LaneCodecs::leading)
        .def_rw("later", &LaneCodecs::later);
}

}  // namespace sharpwave
