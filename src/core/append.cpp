// How are steps appended? One call checks all their values, writes them into open segments and counts them.
//
// No signal handler of Python runs inside, so steps are appended whole or not at all. Values that need what this call
// does not do (other types, errors, waiting, sealing) are left to the caller.
#include <nanobind/stl/optional.h>

#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "boundaries.hpp"
#include "given.hpp"
#include "ids.hpp"
#include "rooms.hpp"
#include "turnover.hpp"
#include "unlocked.hpp"
#include "words.hpp"

namespace sharpwave {
namespace {

namespace nb = nanobind;

constexpr int64_t otherwise = -1;  // the steps need what ``Appender::append`` does not do
constexpr int64_t full = -2;       // a segment is to be sealed, or one evicted, first
constexpr int64_t outdated = -3;   // the log has changed since ``Appender::bind``
constexpr int64_t ahead = 12;      // steps between a prefetch and its use

enum After : uint8_t { here, final_one, next_one };  // which rows a field has: its own, and those after the step

// The log's arrays, which live until it has had more changes than were ``seen``.
struct Log {
    Bytes memory;
    nb::object held_index, held_lanes;
    const IndexArrays* index = nullptr;  // null: none were bound yet
    const LaneArrays* lanes = nullptr;
    Ints counts;
    int64_t stride = 0, max_rows = 0, max_frames = 0, capacity = 0, seen = 0;
    nb::object held_turnover;
    Turnover* turnover = nullptr;        // makes room for steps; null: the caller must
    std::optional<Followers> followers;  // which it tells of evictions; none: it evicts nothing
    std::span<int32_t> oldest;
    int64_t first_lane = 0;
};

// Values of the steps of one call: where each field's rows lie, in the caller's arrays or in working memory.
struct Values {
    int64_t count;
    std::array<std::vector<const uint8_t*>, 3> rows;  // by ``After``, by field
    const float* reward;
    const uint8_t *terminated, *truncated;
    const int64_t* lanes;
    bool has_final, has_next;
};

class Appender {
  public:
    Appender(nb::object columns, nb::object boundaries, const nb::typed<nb::sequence, nb::object>& rows,
             nb::object split, nb::object ids_type, nb::object tag)
        : held_columns_(std::move(columns)),
          held_boundaries_(std::move(boundaries)),
          columns_(nb::cast<const Columns&>(held_columns_)),
          boundaries_(nb::cast<Boundaries&>(held_boundaries_)),
          split_(std::move(split)),
          ids_type_(std::move(ids_type)),
          tag_(std::move(tag)) {
        for (nb::handle row : rows) fields_.push_back(field_of(reinterpret_cast<PyArrayObject*>(row.ptr())));
        for (auto& rows_after : values_.rows) rows_after.resize(fields_.size());
    }

    void bind(Bytes memory, nb::object index, nb::object lanes, Ints counts, int64_t stride, int64_t max_rows,
              int64_t max_frames, int64_t capacity, int64_t seen, nb::object turnover,
              std::optional<nb::typed<nb::sequence, nb::object>> followers, std::span<int32_t> oldest,
              int64_t first_lane) {
        const auto& index_arrays = nb::cast<const IndexArrays&>(index);
        const auto& lane_arrays = nb::cast<const LaneArrays&>(lanes);
        auto* const turns = turnover.is_none() ? nullptr : &nb::cast<Turnover&>(turnover);
        std::optional<Followers> told;
        if (followers) told.emplace(*followers);
        log_ = {memory, std::move(index), std::move(lanes), &index_arrays, &lane_arrays, counts,
                stride, max_rows,         max_frames,       capacity,      seen,         std::move(turnover),
                turns,  std::move(told),  oldest,           first_lane};
    }

    // Appends one step to one lane; returns its id.
    int64_t append(nb::handle lane, nb::object obs, nb::handle given, nb::handle reward, nb::handle terminated,
                   nb::handle truncated, nb::object final_obs, nb::object next_obs) {
        if (!split(obs, final_obs, next_obs)) return otherwise;
        int64_t id = -1;
        const int64_t found =
            run(single, single, lane, obs, given, reward, terminated, truncated, final_obs, next_obs, {&id, 1});
        return found < 0 ? found : id;
    }

    // Appends a step that is being recorded, as ``append`` does, and copies what it led to.
    int64_t record(nb::handle lane, nb::handle before, nb::handle after, nb::handle obs, nb::handle given,
                   nb::handle reward, nb::handle terminated, nb::handle truncated) {
        if (!split_.is_none() || !copy_alike(obs, after)) return otherwise;
        int64_t id = -1;
        const int64_t found =
            run(single, 1, lane, before, given, reward, terminated, truncated, nb::none(), after, {&id, 1});
        return found < 0 ? found : id;
    }

    // Appends one step to each of several lanes; returns their ids, or what hinders it.
    nb::object extend(nb::handle lanes, nb::object obs, nb::handle given, nb::handle reward, nb::handle terminated,
                      nb::handle truncated, nb::object final_obs, nb::object next_obs) {
        auto* rewards = reinterpret_cast<PyArrayObject*>(reward.ptr());
        if (!PyArray_CheckExact(reward.ptr()) || PyArray_NDIM(rewards) != 1) return nb::int_(otherwise);
        if (!split(obs, final_obs, next_obs)) return nb::int_(otherwise);
        if (is_outdated()) return nb::int_(outdated);
        npy_intp count = PyArray_DIM(rewards, 0);
        if (count > std::ssize(log_.lanes->slots)) return nb::int_(otherwise);  // before memory for so many ids
        PyArray_Descr* kind = PyArray_DescrFromType(NPY_INT64);
        auto* type = reinterpret_cast<PyTypeObject*>(ids_type_.ptr());
        nb::object ids = nb::steal(PyArray_NewFromDescr(type, kind, 1, &count, nullptr, nullptr, 0, nullptr));
        if (!ids.is_valid()) nb::raise_python_error();
        auto* numbers = static_cast<int64_t*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(ids.ptr())));
        const int64_t found = run(count, count, lanes, obs, given, reward, terminated, truncated, final_obs, next_obs,
                                  {numbers, static_cast<std::size_t>(count)});
        if (found < 0) return nb::int_(found);
        ids.attr("tag") = tag_;
        return ids;
    }

  private:
    nb::object held_columns_, held_boundaries_;
    const Columns& columns_;
    Boundaries& boundaries_;
    std::vector<Field> fields_;  // of the columns
    const Field reward_ = field_of(NPY_FLOAT32), flag_ = field_of(NPY_BOOL);
    nb::object split_;  // turns an observation of several fields into a dict; None where there is a single one
    nb::object ids_type_, tag_;
    Log log_;
    Values values_{};
    Given given_;
    std::vector<int64_t> numbers_;  // 0, 1, ...

    // Splits observations of several fields; returns whether they have the spec's parts. Python code runs here, and may
    // append; nothing was taken yet.
    bool split(nb::object& obs, nb::object& final_obs, nb::object& next_obs) const {
        if (split_.is_none()) return true;
        try {
            obs = split_(obs);
            if (!final_obs.is_none()) final_obs = split_(final_obs);
            if (!next_obs.is_none()) next_obs = split_(next_obs);
        } catch (nb::python_error& error) {  // what the spec refuses: the long way says it by name. Else a handler's
            if (!error.matches(PyExc_ValueError)) throw;
            return false;
        }
        return true;
    }

    bool is_outdated() const { return !log_.index || log_.counts[changes] != log_.seen; }

    // Runs a call. observed: rows of observations, ``single`` for one without a leading axis.
    int64_t run(int64_t count, int64_t observed, nb::handle lanes, nb::handle obs, nb::handle given, nb::handle reward,
                nb::handle terminated, nb::handle truncated, nb::handle final_obs, nb::handle next_obs, Ints ids) {
        if (is_outdated()) return outdated;
        struct Ending {  // also where an exception ends the call
            Given& given;
            ~Ending() { given.clear(); }
        } ending{given_};
        return take_and_append(count, observed, lanes, obs, given, reward, terminated, truncated, final_obs, next_obs,
                               ids);
    }

    // Takes the values of all fields with a row a frame, or of the others, from a dict by field name; of the only
    // field of an observation that is not split, as they are.
    bool take_all(nb::handle values, bool framed, After after, int64_t count) {
        const bool bare = framed && split_.is_none();
        if (!bare && !PyDict_CheckExact(values.ptr())) return false;
        int64_t found = 0;
        for (std::size_t k = 0; k < fields_.size(); ++k) {
            const FieldColumn& column = columns_.fields[k];
            if (column.framed != framed) continue;
            nb::handle value = bare ? values : nb::handle(PyDict_GetItem(values.ptr(), column.name.ptr()));
            if (!value.is_valid()) return false;
            const uint8_t* rows = given_.take(fields_[k], value, count);
            if (!rows) return false;
            values_.rows[after][k] = rows;
            ++found;
        }
        return bare || found == PyDict_Size(values.ptr());
    }

    bool take_lanes(nb::handle lanes, int64_t count) {
        if (count == single) {
            int overflow = 0;
            const int64_t lane = PyLong_AsLongLongAndOverflow(lanes.ptr(), &overflow);
            auto* at = reinterpret_cast<int64_t*>(given_.room(8));
            *at = lane;
            values_.lanes = at;
            return !overflow;
        }
        if (lanes.is_none()) {
            while (std::ssize(numbers_) < count) numbers_.push_back(std::ssize(numbers_));
            values_.lanes = numbers_.data();
            return true;
        }
        if (!PyArray_CheckExact(lanes.ptr())) return false;
        auto* array = reinterpret_cast<PyArrayObject*>(lanes.ptr());
        if (PyArray_NDIM(array) != 1 || PyArray_DIM(array, 0) != count ||
            !is_type<int64_t>(PyArray_DESCR(array)->type_num) || !PyArray_ISNOTSWAPPED(array))
            return false;
        const void* const numbers = given_.items(array);
        auto* const own = reinterpret_cast<int64_t*>(given_.room(8 * count));
        if (!numbers || !own) return false;
        // What is checked stays so, whatever another thread writes to the caller's array meanwhile.
        std::memcpy(own, numbers, static_cast<std::size_t>(8 * count));
        values_.lanes = own;
        return true;
    }

    bool any_ended() const {
        bool found = false;
        for (int64_t i = 0; i < values_.count; ++i) found |= values_.terminated[i] | values_.truncated[i];
        return found;
    }

    int64_t take_and_append(int64_t count, int64_t observed, nb::handle lanes, nb::handle obs, nb::handle given,
                            nb::handle reward, nb::handle terminated, nb::handle truncated, nb::handle final_obs,
                            nb::handle next_obs, Ints ids) {
        values_.count = count == single ? 1 : count;
        if (!take_lanes(lanes, count) || !take_all(obs, true, here, observed) || !take_all(given, false, here, count))
            return otherwise;
        const uint8_t* rewards = given_.take(reward_, reward, count);
        values_.reward = reinterpret_cast<const float*>(rewards);
        values_.terminated = given_.take(flag_, terminated, count);
        values_.truncated = given_.take(flag_, truncated, count);
        if (!rewards || !values_.terminated || !values_.truncated) return otherwise;
        values_.has_final = !final_obs.is_none() && any_ended();
        values_.has_next = !next_obs.is_none();
        if (values_.has_final && !take_all(final_obs, true, final_one, observed)) return otherwise;
        if (values_.has_next && !take_all(next_obs, true, next_one, observed)) return otherwise;
        const int64_t found = check();
        if (found != 0 && !(found == full && makes_room())) return found;
        const std::optional<Released> alone = unlocked_for(columns_.step_bytes * values_.count);
        return write(ids);
    }

    // Seals and evicts for the steps; returns whether there is room for all of them.
    bool makes_room() {
        const ConstInts which(values_.lanes, static_cast<std::size_t>(values_.count));
        return log_.turnover &&
               log_.turnover->make_room({log_.memory, *log_.index, *log_.lanes, log_.oldest, log_.counts,
                                         log_.first_lane, log_.followers ? &*log_.followers : nullptr},
                                        which, values_.rows[here], log_.max_rows, log_.max_frames, log_.capacity);
    }

    // Returns whether step ``i`` observes what the lane's last step led to.
    bool repeats(int64_t lane, int64_t i) const {
        const Place place{log_.memory, *log_.index};
        const int64_t slot = log_.lanes->slots[lane], frame = log_.index->frames[slot];
        for (std::size_t k = 0; k < columns_.fields.size(); ++k) {
            const int64_t size = columns_.fields[k].row_bytes;
            if (columns_.fields[k].framed && std::memcmp(place.row(first_field_at + k, slot, frame, size),
                                                         values_.rows[here][k] + i * size, size) != 0)
                return false;
        }
        return true;
    }

    // Returns 0 if the steps can be appended now.
    int64_t check() {
        const LaneArrays& lanes = *log_.lanes;
        const IndexArrays& index = *log_.index;
        bool any_watched = false,
             any_full = log_.capacity >= 0 && log_.counts[held_steps] + values_.count > log_.capacity;
        int64_t last = -1;
        for (int64_t i = 0; i < values_.count; ++i) {
            const int64_t lane = values_.lanes[i];
            if (lane <= last || lane >= std::ssize(lanes.slots) || lanes.staging[lane] < 0 ||
                !(std::abs(values_.reward[i]) <= max_reward))
                return otherwise;
            last = lane;
            if (values_.truncated[i] && !values_.terminated[i] && !values_.has_final && !values_.has_next)
                return otherwise;
            any_full |= is_full(index, lanes, lane, log_.max_rows, log_.max_frames);
            any_watched |= Boundaries::is_to_be_looked_at(lanes.watch[lane]);
            if (lanes.successor_known[lane] && !repeats(lane, i)) return otherwise;
        }
        if (any_watched && !look()) return otherwise;
        return any_full ? full : 0;
    }

    // Looks at steps where episodes begin; returns whether nothing is to be said of them.
    bool look() {
        const Pointers after = values_.has_next ? values_.rows[next_one] : Pointers{};
        for (int64_t i = 0; i < values_.count; ++i) {
            if (boundaries_.look({log_.memory, *log_.index}, columns_, *log_.lanes, values_.lanes[i], i,
                                 values_.terminated[i] | values_.truncated[i], values_.reward[i], values_.rows[here],
                                 after, true))
                return false;
        }
        return true;
    }

    void prefetch_rows(int64_t lane) const {
        const IndexArrays& index = *log_.index;
        const int64_t slot = log_.lanes->slots[lane], row = index.rows[slot];
        uint8_t* const memory = log_.memory.data();
        prefetch_to_write(memory + index.offset[flags_at][slot] + row);
        prefetch_to_write(memory + index.offset[reward_at][slot] + 4 * row);
        for (std::size_t k = 0; k < columns_.fields.size(); ++k) {
            const FieldColumn& column = columns_.fields[k];
            const int64_t at = column.framed ? index.frames[slot] : row;
            uint8_t* const to =
                memory + index.offset[static_cast<int64_t>(first_field_at + k)][slot] + at * column.row_bytes;
            prefetch_to_write(to);
            if (column.row_bytes > 1) prefetch_to_write(to + column.row_bytes - 1);
            if (column.framed && values_.has_next) prefetch_to_write(to + 2 * column.row_bytes - 1);
        }
    }

    int64_t write(Ints ids) {
        const LaneArrays& lanes = *log_.lanes;
        const IndexArrays& index = *log_.index;
        const Pointers own = values_.rows[here], after = values_.has_next ? values_.rows[next_one] : Pointers{};
        const Pointers at_end = values_.has_final ? Pointers{values_.rows[final_one]} : after.empty() ? own : after;
        const StepRows rows{own, at_end, after};
        for (int64_t i = 0; i < values_.count; ++i) {
            if (i + ahead < values_.count) prefetch_rows(values_.lanes[i + ahead]);
            const int64_t lane = values_.lanes[i], slot = lanes.slots[lane];
            ids[i] = id_of(index.generation[slot], slot * log_.stride + index.rows[slot]);
            write_step({log_.memory, index}, columns_, lanes, lane, i,
                       (values_.terminated[i] ? terminated_flag : 0) | (values_.truncated[i] ? truncated_flag : 0),
                       reinterpret_cast<const uint8_t*>(values_.reward + i), rows,
                       values_.has_final || values_.has_next);
        }
        log_.counts[held_steps] += values_.count;
        log_.counts[total_steps] += values_.count;
        log_.seen = ++log_.counts[changes];
        return values_.count ? ids[values_.count - 1] : -1;
    }
};

}  // namespace

void define_append(nb::module_& module) {
    using namespace nb::literals;
    nb::class_<Appender>(module, "Appender", "Appender of steps to lanes whose arrays are bound.")
        .def(
            nb::init<nb::object, nb::object, nb::typed<nb::sequence, nb::object>, nb::object, nb::object, nb::object>(),
            "columns"_a, "boundaries"_a, "rows"_a, "split"_a.none(), "ids_type"_a, "tag"_a,
            "Args:\n    columns, rows: ``Columns`` of the spec's fields, and an array of one row of each.\n"
            "    boundaries: ``Boundaries``, which look at the steps.\n"
            "    split: makes a dict by field name of an observation; ``None``: of the only field.\n"
            "    ids_type, tag: of the arrays of ids.")
        .def(
            "bind", &Appender::bind, "memory"_a, "index"_a, "lanes"_a, "counts"_a, "stride"_a, "max_rows"_a,
            "max_frames"_a, "capacity"_a, "seen"_a, "turnover"_a.none(), "followers"_a.none(), "oldest"_a,
            "first_lane"_a,
            "Bind the arena's memory, ``IndexArrays`` and ``LaneArrays``, valid while ``counts`` says that the log has "
            "had\n``seen`` changes.\n\n"
            "Args:\n    turnover: seals where steps need it, and evicts; ``None``: the caller must.\n"
            "    followers: ``Items`` of views, which are told of evictions; ``None``: nothing is evicted.")
        .def("append", &Appender::append, "lane"_a, "obs"_a.none(), "given"_a, "reward"_a.none(), "terminated"_a.none(),
             "truncated"_a.none(), "final_obs"_a.none(), "next_obs"_a.none(),
             "Append one step to a lane, or change nothing.\n\n"
             "Returns its id; OTHERWISE, FULL or OUTDATED.")
        .def("record", &Appender::record, "lane"_a, "before"_a, "after"_a.none(), "obs"_a.none(), "given"_a,
             "reward"_a.none(), "terminated"_a.none(), "truncated"_a.none(),
             "Append a step that is being recorded: ``append``, with what it led to as ``next_obs``.\n\n"
             "Args:\n    before: the observation before it, [1, *shape]. ``after``: receives ``obs``, the one after "
             "it, likewise.")
        .def("extend", &Appender::extend,
             nb::sig("def extend(self, lanes: object, obs: object, given: object, reward: object, terminated: object, "
                     "truncated: object, final_obs: object, next_obs: object) -> typing.Any"),
             "lanes"_a.none(), "obs"_a.none(), "given"_a, "reward"_a.none(), "terminated"_a.none(),
             "truncated"_a.none(), "final_obs"_a.none(), "next_obs"_a.none(),
             "Append one step to each of ``lanes``, or change nothing.\n\n"
             "Returns their ids, or as ``append``.");
    module.attr("OTHERWISE") = otherwise;
    module.attr("FULL") = full;
    module.attr("OUTDATED") = outdated;
}

}  // namespace sharpwave
