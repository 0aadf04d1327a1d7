// What does a whole batch of transitions take? One call: find the steps that became known, draw, fill, make its arrays.
//
// No signal handler of Python runs inside, so a batch is drawn whole or not at all. What this call does not do
// (waiting, memory that is not there yet, reading from disk, codecs of Python's) is left to the caller.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <optional>
#include <vector>

#include "batches.hpp"
#include "collected.hpp"
#include "draws.hpp"
#include "gather.hpp"
#include "ids.hpp"
#include "items.hpp"
#include "rooms.hpp"
#include "segments.hpp"
#include "transitions.hpp"

namespace sharpwave {
namespace {

namespace nb = nanobind;

// Name of an attribute. Those that are used here are plain ones: no Python code runs where they are read or written.
class Name {
  public:
    explicit Name(const char* name) : name_(nb::steal(PyUnicode_InternFromString(name))) {}
    explicit Name(nb::handle name) : name_(nb::borrow(name)) {}

    nb::object of(nb::handle owner) const { return nb::getattr(owner, name_); }
    void set(nb::handle owner, nb::handle value) const { nb::setattr(owner, name_, value); }
    void add(nb::handle owner, int64_t number) const { set(owner, nb::int_(nb::cast<int64_t>(of(owner)) + number)); }

  private:
    nb::object name_;
};

// Columns that batches of transitions have; then come the windows of fields.
enum Number : std::size_t {
    weights_at,
    probabilities_at,
    ids_at,
    reward_at,
    discount_at,
    terminated_at,
    truncated_at,
    n_at,
    lane_at,
    step_at,
    first_window_at,
};

// Where the columns of batches of one size are, and working memory for them.
class Filling {
  public:
    // ``roots``: arrays over the blocks of a batch, whose ``columns`` are in the order of ``Number``.
    Filling(nb::object layout, std::vector<int64_t> sizes, const nb::typed<nb::sequence, nb::object>& roots,
            const nb::typed<nb::sequence, nb::object>& columns, nb::object items, nb::object rest, nb::object uniforms,
            nb::object located)
        : layout_(nb::cast<const Layout&>(layout)),
          sizes(std::move(sizes)),
          items(nb::cast<Ints>(items)),
          rest(nb::cast<Floats>(rest)),
          uniforms(nb::cast<Floats>(uniforms)),
          located(nb::cast<Grid<int64_t>>(located)) {
        std::vector<PyArrayObject*> arrays;
        for (nb::handle root : roots) arrays.push_back(reinterpret_cast<PyArrayObject*>(root.ptr()));
        for (nb::handle column : columns) places_.push_back(place_of(column, arrays));
        for (nb::object* one : {&layout, &items, &rest, &uniforms, &located}) held_.push_back(std::move(*one));
    }

    // Columns of the batch in these blocks.
    template <class T>
    std::span<T> column(Number number) const {
        return {reinterpret_cast<T*>(at(number)), items.size()};
    }
    Places<3> window(std::size_t number) const {
        Places<3> window = places_[first_window_at + number].window;
        window.data = at(first_window_at + number);
        return window;
    }
    nb::object batch(const std::vector<Layout::Root>& roots) const { return layout_.over(roots); }

    std::vector<std::shared_ptr<Block>> blocks;  // of the batch that is being filled

  private:
    struct Place {
        std::size_t root;
        int64_t offset;
        Places<3> window;
    };

    static Place place_of(nb::handle column, const std::vector<PyArrayObject*>& roots) {
        const auto [root, offset] = spot_of(reinterpret_cast<PyArrayObject*>(column.ptr()), roots);
        Place place{root, offset, {}};
        (void)nb::try_cast<Places<3>>(column, place.window);  // others are no windows
        return place;
    }

    uint8_t* at(std::size_t number) const {
        const Place& place = places_[number];
        return blocks[place.root]->data() + place.offset;
    }

    std::vector<nb::object> held_;
    const Layout& layout_;
    std::vector<Place> places_;

  public:
    const std::vector<int64_t> sizes;
    const Ints items;
    const Floats rest, uniforms;
    const Grid<int64_t> located;
};

// Draws batches of one view.
class Sampling {
  public:
    struct Settings {
        int64_t n_step;
        double gamma;
        bool stacks;
        Threads threads;
    };
    struct Arrays {
        Ints counts;
        ConstInts generation;
        Grid<int32_t> spans;
        Grid<int64_t> runs;
        ConstBytes endings;
        std::optional<ConstBytes> resident;
    };

    Sampling(const nb::dict& objects, const Arrays& arrays, const Settings& settings)
        : held_(objects),
          sampler_(objects["sampler"]),
          cache_(objects["cache"]),
          generator_(objects["generator"]),
          expected_(objects["expected"]),
          log_(nb::cast<const Log&>(objects["log"])),
          leaves_(nb::cast<Leaves&>(objects["leaves"])),
          known_(nb::cast<KnownSteps&>(objects["known"])),
          pool_(nb::cast<Pool&>(objects["pool"])),
          bits_(nb::cast<nb::capsule>(nb::getattr(generator_, "capsule"))),
          arrays_(arrays),
          settings_(settings) {
        for (nb::handle one : nb::borrow<nb::list>(objects["same"])) {
            same_.push_back({nb::borrow(one[0]), Name(one[1]), nb::borrow(one[2])});
        }
        for (nb::handle one : nb::borrow<nb::list>(objects["columns"])) {
            columns_.push_back(&nb::cast<const Column&>(one));
        }
    }

    bool is_stale() const { return stale_; }

    template <class Call>
    void each_held(Call&& call) const {
        for (const auto* one : {&held_, &sampler_, &cache_, &generator_, &expected_}) call(*one);
        for (const Same& one : same_) call(one.owner), call(one.value);
    }

    // Draws a batch; None, and nothing was drawn, where it takes more.
    nb::object sample(Items& items, Filling& filling, double beta) {
        if (stale_ || (arrays_.counts[changes] != seen_ && !follow(items))) return nb::none();
        if (!(leaves_.tree().total() > 0.0) || (!cache_.is_none() && nb::len(damaged_.of(cache_)))) return nb::none();
        if (!take_blocks(filling)) return nb::none();
        try {
            draw(filling, beta);
            nb::object batch = fill(filling) ? made(items, filling) : nb::none();
            if (!batch.is_none()) return batch;
        } catch (...) {
            undo(filling);
            throw;
        }
        undo(filling);
        return nb::none();
    }

    // Sets the priorities of those of ``ids`` that can be sampled; returns their number, -1 where the view has to.
    int64_t update(Items& items, ConstInts ids, ConstFloats errors) {
        require(ids.size() == errors.size(), "each id has an error");
        if (stale_ || (arrays_.counts[changes] != seen_ && !follow(items))) return -1;
        updated_.resize(ids.size()), errors_.assign(errors.begin(), errors.end()), there_.resize(ids.size());
        resolve(ids, arrays_.generation, arrays_.spans, log_.stride, updated_, there_);
        std::size_t kept = 0;
        for (std::size_t i = 0; i < ids.size(); ++i) {
            updated_[kept] = updated_[i], errors_[kept] = errors_[i];
            kept += there_[i];
        }
        if (!leaves_.counts()) {
            const double alpha = nb::cast<double>(alpha_.of(sampler_)), eps = nb::cast<double>(eps_.of(sampler_));
            const double before = nb::cast<double>(max_priority_.of(sampler_));
            const double largest =
                set_priorities(leaves_.tree(), {updated_.data(), kept}, {errors_.data(), kept}, eps, alpha);
            if (largest > before) max_priority_.set(sampler_, nb::float_(largest));
        }
        return static_cast<int64_t>(kept);
    }

  private:
    struct Same {
        nb::object owner;
        Name name;
        nb::object value;
    };
    // Finds the items that became known; returns false where the view has to.
    bool follow(Items& items) {
        for (const Same& one : same_) stale_ |= !one.name.of(one.owner).is(one.value);
        if (stale_ || !items.settled() || nb::len(expected_)) return false;
        const int64_t now = arrays_.counts[changes];
        int64_t came = 0, found = arrays_.runs.columns;
        while (found == arrays_.runs.columns) {
            found = known_.find(log_, {}, arrays_.spans, arrays_.runs);
            came += insert(found);
        }
        items.count += came;
        items.grew |= came > 0;
        items.seen = seen_ = now;
        return true;
    }

    // Inserts the first runs; returns how many items these are.
    int64_t insert(int64_t count) {
        const auto some = static_cast<std::size_t>(count);
        const ConstInts slots = arrays_.runs[0].first(some);
        const ConstInts begins = arrays_.runs[1].first(some), ends = arrays_.runs[2].first(some);
        int64_t came = 0;
        for (std::size_t i = 0; i < some; ++i) came += ends[i] - begins[i];
        if (!came) return 0;
        double value = 1.0;
        if (!leaves_.counts()) {
            const double largest = nb::cast<double>(max_priority_.of(sampler_));
            value = std::pow(largest, nb::cast<double>(alpha_.of(sampler_)));
        }
        leaves_.insert(slots, begins, ends, value);
        return came;
    }

    bool take_blocks(Filling& filling) {
        pool_.collect();
        for (const int64_t size : filling.sizes) {
            std::shared_ptr<Block> block = pool_.take(size);
            if (!block) {
                give_back(filling);
                return false;
            }
            filling.blocks.push_back(std::move(block));
        }
        return true;
    }

    void draw(const Filling& filling, double beta) {
        const Drawing out{filling.items, filling.column<double>(probabilities_at), filling.column<float>(weights_at),
                          filling.rest, filling.uniforms};
        draw_shuffled(leaves_, bits_, beta, out);
    }

    void give_back(Filling& filling) {
        for (auto& block : filling.blocks) {
            if (block) pool_.give_back(std::move(block));
        }
        filling.blocks.clear();
    }

    // Undoes a draw, which takes two numbers an item.
    void undo(Filling& filling) {
        give_back(filling);
        generator_.attr("advance")(-2 * std::ssize(filling.items));
    }

    // Makes the batch, and counts it.
    nb::object made(Items& items, Filling& filling) {
        const auto count = std::ssize(filling.items);
        std::vector<Layout::Root> roots;
        while (roots.size() < filling.blocks.size()) {
            std::shared_ptr<Block>& block = filling.blocks[roots.size()];
            uint8_t* const data = block->data();
            roots.push_back({pool_.lease(std::move(block)), data});  // with which the block returns
        }
        filling.blocks.clear();
        nb::object batch = filling.batch(roots);
        items.samples += count;
        if (!cache_.is_none()) hits_.add(cache_, settings_.n_step == 1 ? count : 2 * count);
        return batch;
    }

    // Fills all but the arrays of the draw; returns whether all could be.
    bool fill(const Filling& filling) {
        const Numbers out{filling.column<float>(reward_at),       filling.column<float>(discount_at),
                          filling.column<uint8_t>(terminated_at), filling.column<uint8_t>(truncated_at),
                          filling.column<int64_t>(n_at),          filling.column<int64_t>(lane_at),
                          filling.column<int64_t>(step_at)};
        locate_transitions(log_, filling.items, settings_.n_step, settings_.gamma, settings_.stacks, out,
                           filling.located);
        const Ints ids = filling.column<int64_t>(ids_at), slots = filling.located[slot_at];
        for (std::size_t i = 0; i < ids.size(); ++i) {
            ids[i] = id_of(arrays_.generation[static_cast<std::size_t>(slots[i])], filling.items[i]);
        }
        if (const auto& resident = arrays_.resident;
            resident && !(are_resident(*resident, slots) && are_resident(*resident, filling.located[next_slot_at])))
            return false;
        for (std::size_t i = 0; i < columns_.size(); ++i) {
            const Ends ends = ends_of(static_cast<Ending>(arrays_.endings[i]), filling.located);
            if (gather_windows(*columns_[i], ends.slot, ends.newest, ends.first, filling.window(i), settings_.threads))
                return false;
        }
        return true;
    }

    static bool are_resident(ConstBytes resident, ConstInts slots) {
        bool all = true;
        for (const int64_t slot : slots) all &= resident[static_cast<std::size_t>(slot)] != 0;
        return all;
    }

    const Name damaged_{"damaged"}, hits_{"hits"}, max_priority_{"max_priority"}, alpha_{"alpha"}, eps_{"eps"};
    nb::object held_, sampler_, cache_, generator_, expected_;
    const Log& log_;
    Leaves& leaves_;
    KnownSteps& known_;
    Pool& pool_;
    Generator bits_;
    Arrays arrays_;
    Settings settings_;
    std::vector<int64_t> updated_;  // items of an update, their errors, and which ids name one
    std::vector<double> errors_;
    std::vector<uint8_t> there_;
    std::vector<Same> same_;
    std::vector<const Column*> columns_;
    int64_t seen_ = -1;
    bool stale_ = false;
};

}  // namespace

void define_sampling(nb::module_& module) {
    using namespace nb::literals;
    using Objects = nb::typed<nb::sequence, nb::object>;
    nb::class_<Filling>(module, "Filling", "Places of the columns of batches of one size, and working memory.")
        .def(nb::init<nb::object, std::vector<int64_t>, Objects, Objects, nb::object, nb::object, nb::object,
                      nb::object>(),
             "layout"_a, "sizes"_a, "roots"_a, "columns"_a, "items"_a, "rest"_a, "uniforms"_a, "located"_a,
             "Args:\n"
             "    layout: ``Layout`` of the batches. ``sizes``: of their blocks.\n"
             "    roots, columns: arrays over the blocks of a batch, and its columns: weights, probabilities, ids,\n"
             "        reward, discount, terminated, truncated, n, lane, step, and windows uint8 [B, W, size].\n"
             "    items, rest, uniforms, located: int64 [B], float64 [B], float64 [B], int64 [7, B].");
    nb::class_<Sampling>(module, "Sampling", "Draws of one view, each with its batch. The store's lock is held.",
                         nb::type_slots(Collected<Sampling>::slots))
        .def(
            "__init__",
            [](Sampling* self, const nb::typed<nb::dict, nb::str, nb::object>& objects, Ints counts,
               ConstInts generation, Grid<int32_t> spans, Grid<int64_t> runs, ConstBytes endings,
               std::optional<ConstBytes> resident, int64_t n_step, double gamma, bool stacks, int64_t threads,
               int64_t thread_bytes, int64_t chunk_bytes) {
                new (self) Sampling(objects, {counts, generation, spans, runs, endings, resident},
                                    {n_step, gamma, stacks, {threads, thread_bytes, chunk_bytes}});
            },
            "objects"_a, "counts"_a, "generation"_a, "spans"_a, "runs"_a, "endings"_a, "resident"_a.none(), "n_step"_a,
            "gamma"_a, "stacks"_a, "threads"_a, "thread_bytes"_a, "chunk_bytes"_a,
            R"(Args:
    objects: by name; all that the arrays belong to is among them.
        sampler: with ``max_priority``, ``alpha`` and ``eps``, if it draws by value. ``leaves``: its ``Leaves``.
        generator: numpy's bit generator. ``pool``: ``Pool``. ``log``: ``Log``.
        cache: with ``damaged`` and ``hits``; None: all segments are in memory.
        columns: list of ``Column``, of each window.
        same: list of an object, an attribute's name, and its value: with another one this is stale.
        known: ``KnownSteps``, which follow all lanes.
        expected: dict: with anything in it, items are found by the view.
    counts: int64 [3], the third counts changes of the log.
    generation, resident: by slot. ``spans``, ``runs``: as of ``find_known``.
    endings: uint8, of each window, as of ``fill_transitions``.
    n_step, gamma, stacks, threads, thread_bytes, chunk_bytes: as of ``fill_transitions``.)")
        .def_prop_ro("stale", &Sampling::is_stale, "Whether another is to take its place.")
        .def("sample", &Sampling::sample,
             nb::sig("def sample(self, items: Items, filling: Filling, beta: float) -> typing.Any"), "items"_a,
             "filling"_a, "beta"_a,
             R"(Draw a batch and return it; None, and nothing was drawn, where that takes more than this call does.

Args:
    items: they are not kept: they keep this.)")
        .def("update", &Sampling::update, "items"_a, "ids"_a, "errors"_a,
             "Set the priorities of those of ``ids`` that can be sampled by ``errors``; return their number, -1 where "
             "that\ntakes more.");
}

}  // namespace sharpwave
