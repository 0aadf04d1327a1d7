// What does a whole batch take? One call: find the items that became known, draw, fill, make its arrays.
//
// No signal handler of Python runs inside, so a batch is drawn whole or not at all. What this call does not do
// (waiting, memory that is not there yet, reading from disk, codecs of Python's) is left to the caller.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "collected.hpp"
#include "draws.hpp"
#include "filling.hpp"
#include "ids.hpp"
#include "items.hpp"
#include "rooms.hpp"
#include "segments.hpp"

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

// Draws batches of one view.
class Sampling {
  public:
    struct Arrays {
        Ints counts;
        ConstInts generation;
    };

    Sampling(const nb::dict& objects, const Arrays& arrays, const Residents& residents, int64_t stride)
        : held_(objects),
          sampler_(objects["sampler"]),
          cache_(objects["cache"]),
          generator_(objects["generator"]),
          expected_(objects["expected"]),
          runs_(objects["runs"]),
          held_judged_(objects["judged"]),
          filler_(nb::cast<Filler&>(objects["filler"])),
          leaves_(nb::cast<Leaves&>(objects["leaves"])),
          pool_(nb::cast<Pool&>(objects["pool"])),
          bits_(nb::cast<nb::capsule>(nb::getattr(generator_, "capsule"))),
          arrays_(arrays),
          residents_(residents),
          stride_(stride) {
        if (!held_judged_.is_none()) judged_ = nb::cast<Bytes>(held_judged_);
        judges_ = nb::cast<bool>(objects["judges"]);
        for (nb::handle one : nb::borrow<nb::list>(objects["same"])) {
            same_.push_back({nb::borrow(one[0]), Name(one[1]), nb::borrow(one[2])});
        }
    }

    bool is_stale() const { return stale_; }

    template <class Call>
    void each_held(Call&& call) const {
        for (const auto* one : {&held_, &sampler_, &cache_, &generator_, &expected_, &runs_, &held_judged_}) call(*one);
        for (const Same& one : same_) call(one.owner), call(one.value);
    }

    int64_t numbers() const { return filler_.numbers(); }

    // Whether items can be drawn by this, those that became known included.
    bool can_draw(Items& items) {
        if (stale_ || (arrays_.counts[changes] != seen_ && !follow(items))) return false;
        return leaves_.tree().total() > 0.0 && (cache_.is_none() || !nb::len(damaged_.of(cache_)));
    }

    // Draws the chosen items of a batch, and fills them; returns how many segments each needed, -1 where it takes more.
    int64_t fill(Filling& filling, double beta) {
        const Drawing out{filling.items, filling.column<double>(probabilities_at), filling.column<float>(weights_at),
                          filling.rest, filling.uniforms};
        draw_shuffled(leaves_, bits_, beta, out);
        if (filler_.numbers() > 2) bits_.fill(filling.uniforms);
        const int64_t needed = filler_.fill(filling, residents_);
        if (needed >= 0) {
            write_ids(filling.items, arrays_.generation, stride_, filling.column<int64_t>(ids_at));
        }
        return needed;
    }

    // Undoes the draw of so many items.
    void undo(int64_t count) const { generator_.attr("advance")(-filler_.numbers() * count); }

    // Counts so many items as sampled.
    void count(Items& items, int64_t count, int64_t needed) const {
        items.samples += count;
        if (!cache_.is_none()) hits_.add(cache_, needed * count);
    }

    Pool& pool() const { return pool_; }

    // Sets the priorities of those of ``ids`` that can be sampled; returns their number, -1 where the view has to.
    int64_t update(Items& items, ConstInts ids, ConstFloats errors) {
        if (stale_ || (arrays_.counts[changes] != seen_ && !follow(items))) return -1;
        const std::size_t count = ids.size(), width = count ? errors.size() / count : 0;
        require(errors.size() == count * width, "each id has as many errors");
        updated_.resize(count), errors_.assign(errors.begin(), errors.end()), there_.resize(count);
        resolve(ids, arrays_.generation, filler_.spans, stride_, updated_, there_);
        std::size_t kept = 0;
        for (std::size_t i = 0; i < count; ++i) {
            if (!there_[i] || (!judged_.empty() && judged_[static_cast<std::size_t>(updated_[i])] != matches)) continue;
            if (kept < i) std::copy_n(&errors_[i * width], width, &errors_[kept * width]);
            updated_[kept++] = updated_[i];
        }
        if (!leaves_.counts() && kept) {
            const ConstInts updated{updated_.data(), kept};
            mixed_.resize(kept);
            filler_.mix_errors(updated, {errors_.data(), std::ssize(updated), static_cast<int64_t>(width)}, mixed_);
            const double alpha = nb::cast<double>(alpha_.of(sampler_)), eps = nb::cast<double>(eps_.of(sampler_));
            const double before = nb::cast<double>(max_priority_.of(sampler_));
            const double largest = set_priorities(leaves_.tree(), updated, mixed_, eps, alpha);
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
        const int64_t now = arrays_.counts[changes], limit = filler_.runs.columns;
        for (int64_t found = limit; found == limit;) {
            found = filler_.find();
            if (are_lost(found) || (found && judges_)) {  // in part, or to be judged: the view goes on
                items.found = runs_[nb::make_tuple(nb::slice(nb::none(), nb::none(), nb::none()), nb::slice(found))];
                return false;
            }
            const int64_t came = insert(found);
            items.count += came;
            items.grew |= came > 0;
        }
        items.seen = seen_ = now;
        return true;
    }

    // Whether some items of the first runs were lost before they were found.
    bool are_lost(int64_t count) const {
        bool lost = false;
        for (int64_t i = 0; i < count; ++i) {
            lost |= filler_.spans[filler_.runs[0][static_cast<std::size_t>(i)]][0] >
                    filler_.runs[1][static_cast<std::size_t>(i)];
        }
        return lost;
    }

    // Inserts the first runs; returns how many items these are.
    int64_t insert(int64_t count) {
        const auto some = static_cast<std::size_t>(count);
        const ConstInts slots = filler_.runs[0].first(some);
        const ConstInts begins = filler_.runs[1].first(some), ends = filler_.runs[2].first(some);
        int64_t came = 0;
        for (std::size_t i = 0; i < some; ++i) came += ends[i] - begins[i];
        if (!came) return 0;
        double value = 1.0;
        if (!leaves_.counts()) {
            const double largest = nb::cast<double>(max_priority_.of(sampler_));
            value = std::pow(largest, nb::cast<double>(alpha_.of(sampler_)));
        }
        leaves_.insert(slots, begins, ends, value);
        for (std::size_t i = 0; i < some && !judged_.empty(); ++i) {
            const auto first = static_cast<std::size_t>(slots[i] * stride_ + begins[i]);
            std::ranges::fill(judged_.subspan(first, static_cast<std::size_t>(ends[i] - begins[i])), matches);
        }
        return came;
    }

    const Name damaged_{"damaged"}, hits_{"hits"}, max_priority_{"max_priority"}, alpha_{"alpha"}, eps_{"eps"};
    nb::object held_, sampler_, cache_, generator_, expected_, runs_, held_judged_;
    Filler& filler_;
    Leaves& leaves_;
    Pool& pool_;
    Generator bits_;
    Arrays arrays_;
    Residents residents_;
    int64_t stride_;
    Bytes judged_;                  // empty: all items match
    bool judges_ = false;           // new items are to be judged
    std::vector<int64_t> updated_;  // items of an update, their errors, as given and one each, and which ids name one
    std::vector<double> errors_, mixed_;
    std::vector<uint8_t> there_;
    std::vector<Same> same_;
    int64_t seen_ = -1;
    bool stale_ = false;
};

bool take_blocks(Pool& pool, Filling& filling) {
    pool.collect();
    for (const int64_t size : filling.sizes) {
        std::shared_ptr<Block> block = pool.take(size);
        if (!block) return false;
        filling.blocks.push_back(std::move(block));
    }
    return true;
}

void give_back(Pool& pool, Filling& filling) {
    for (auto& block : filling.blocks) {
        if (block) pool.give_back(std::move(block));
    }
    filling.blocks.clear();
}

nb::object make_batch(const Pool& pool, Filling& filling) {
    std::vector<Layout::Root> roots;
    while (roots.size() < filling.blocks.size()) {
        std::shared_ptr<Block>& block = filling.blocks[roots.size()];
        uint8_t* const data = block->data();
        roots.push_back({pool.lease(std::move(block)), data});  // with which the block returns
    }
    filling.blocks.clear();
    return filling.batch(roots);
}

// Working memory of a part of a batch.
struct Work {
    Ints items;
    Floats uniforms;
    Grid<int64_t> scratch;
};

// Fills the items of a batch from ``begin`` on that were drawn already, in blocks lent to it; returns false where that
// takes more.
bool fill_lent(Filler& filler, Filling& filling, std::vector<std::shared_ptr<Block>> blocks, int64_t begin,
               const Work& work) {
    const Work own{filling.items, filling.uniforms, filling.scratch};
    const auto use = [&](const Work& some) {
        filling.items = some.items, filling.uniforms = some.uniforms, filling.scratch = some.scratch;
    };
    const auto end = [&] {
        filling.blocks.clear();
        use(own);
    };
    filling.blocks = std::move(blocks);
    filling.choose(begin, std::ssize(work.items));
    use(work);
    try {
        const bool filled = filler.fill(filling, {}) >= 0;
        end();
        return filled;
    } catch (...) {
        end();
        throw;
    }
}

// A view's part of a batch: what draws it, for which items, and the share of the batch that the view has.
struct Part {
    Sampling& sampling;
    Items& items;
    double beta, share;
    int64_t count, needed = -1;
    bool drawn = false;
};

// Draws and fills the parts one after the other; returns false where one takes more.
bool fill_parts(std::vector<Part>& parts, Filling& filling) {
    int64_t begin = 0;
    for (Part& part : parts) {
        filling.choose(begin, part.count);
        part.drawn = true;
        part.needed = part.sampling.fill(filling, part.beta);
        if (part.needed < 0) return false;
        if (part.share != 1.0) {
            for (double& probability : filling.column<double>(probabilities_at)) probability *= part.share;
        }
        begin += part.count;
    }
    return true;
}

// Moves items, which are grouped by view, to where ``source`` says that one is of their view: as few as can be.
void arrange(const Filling& filling, ConstInts source) {
    std::vector<int64_t> grouped(source.begin(), source.end()), wrong;
    std::ranges::sort(grouped);
    for (std::size_t i = 0; i < source.size(); ++i) {
        if (grouped[i] != source[i]) wrong.push_back(static_cast<int64_t>(i));
    }
    std::vector<int64_t> places = wrong;
    std::ranges::sort(places, {}, [&](int64_t i) { return std::pair(source[static_cast<std::size_t>(i)], i); });
    filling.move(wrong, places);
}

// Returns a batch of these parts, arranged by ``source`` if there are several; None, and nothing was drawn, where it
// takes more.
nb::object sample_parts(Pool& pool, std::vector<Part>& parts, Filling& filling, ConstInts source) {
    nb::object batch = nb::none();
    const auto undo = [&] {
        for (const Part& part : parts) {
            if (part.drawn) part.sampling.undo(part.count);
        }
        give_back(pool, filling);
    };
    try {
        if (take_blocks(pool, filling) && fill_parts(parts, filling)) {
            if (parts.size() > 1) arrange(filling, source);
            batch = make_batch(pool, filling);
        }
    } catch (...) {
        undo();
        throw;
    }
    if (batch.is_none()) {
        undo();
        return batch;
    }
    for (const Part& part : parts) part.sampling.count(part.items, part.count, part.needed);
    return batch;
}

// Views that a batch is drawn from, by number: what draws them, for which items, and with which beta and share.
struct Views {
    nb::list samplings, items;
    ConstFloats betas, shares;
};

// Chooses the view of each item, as ``numpy.random.Generator.choice``; returns a batch of them, which the blend counts.
nb::object sample_blend(nb::handle blend, nb::handle generator, const Views& views, int64_t lender, Filling& filling,
                        Ints source) {
    std::vector<double> points(source.size()), sums(views.shares.begin(), views.shares.end());
    std::partial_sum(sums.begin(), sums.end(), sums.begin());
    for (double& sum : sums) sum /= sums.back();
    Generator(nb::cast<nb::capsule>(nb::getattr(generator, "capsule"))).fill(points);
    const auto undo = [&] { generator.attr("advance")(-std::ssize(source)); };
    try {
        std::vector<int64_t> counts(sums.size());
        for (std::size_t i = 0; i < source.size(); ++i) {
            source[i] = std::ranges::upper_bound(sums, points[i]) - sums.begin();
            ++counts[static_cast<std::size_t>(source[i])];
        }
        std::vector<Part> parts;
        bool can_draw = true;
        for (std::size_t k = 0; k < counts.size() && can_draw; ++k) {
            if (!counts[k]) continue;
            auto& sampling = nb::cast<Sampling&>(views.samplings[k]);
            auto& items = nb::cast<Items&>(views.items[k]);
            can_draw = sampling.can_draw(items);
            parts.push_back({sampling, items, views.betas[k], views.shares[k], counts[k]});
        }
        Pool& pool = nb::cast<Sampling&>(views.samplings[lender]).pool();
        nb::object batch = can_draw ? sample_parts(pool, parts, filling, source) : nb::none();
        if (batch.is_none()) {
            undo();
        } else {
            Name("samples").add(blend, std::ssize(source));
        }
        return batch;
    } catch (...) {
        undo();
        throw;
    }
}

}  // namespace

Filling::Filling(nb::object layout, std::vector<int64_t> sizes, const nb::typed<nb::sequence, nb::object>& roots,
                 const nb::typed<nb::sequence, nb::object>& columns, nb::object items, nb::object rest,
                 nb::object uniforms, nb::object scratch)
    : sizes(std::move(sizes)),
      size(std::ssize(nb::cast<Ints>(items))),
      items(nb::cast<Ints>(items)),
      rest(nb::cast<Floats>(rest)),
      uniforms(nb::cast<Floats>(uniforms)),
      scratch(nb::cast<Grid<int64_t>>(scratch)),
      layout_(nb::cast<const Layout&>(layout)) {
    std::vector<PyArrayObject*> arrays;
    for (nb::handle root : roots) arrays.push_back(reinterpret_cast<PyArrayObject*>(root.ptr()));
    for (nb::handle column : columns) {
        auto* array = reinterpret_cast<PyArrayObject*>(column.ptr());
        const auto [root, offset] = spot_of(array, arrays);
        const int64_t stride = PyArray_STRIDES(array)[0];
        places_.push_back({root, offset, stride, {nullptr, size, 1, stride, stride, stride}});
        (void)nb::try_cast<Places<3>>(column, places_.back().window);  // others are no windows
    }
    for (nb::object* one : {&layout, &items, &rest, &uniforms, &scratch}) held_.push_back(std::move(*one));
}

void Filling::choose(int64_t begin, int64_t count) {
    require(begin >= 0 && count >= 0 && begin + count <= size, "a part is within its batch");
    const auto some = static_cast<std::size_t>(count);
    begin_ = begin;
    items = {items.data(), some}, rest = {rest.data(), some}, uniforms = {uniforms.data(), some};
    scratch.columns = count;
}

void Filling::move(ConstInts from, ConstInts to) const {
    std::vector<uint8_t> moved;
    for (const Place& place : places_) {
        uint8_t* const data = blocks[place.root]->data() + place.offset;
        const Places<3>& window = place.window;
        moved.resize(from.size() * static_cast<std::size_t>(window.size));
        for (int64_t row = 0; row < window.rows; ++row) {
            uint8_t* const rows = data + row * window.row_stride;
            uint8_t* kept = moved.data();
            for (const int64_t i : from) kept = std::copy_n(rows + i * place.stride, window.size, kept);
            kept = moved.data();
            for (const int64_t i : to) std::copy_n(kept, window.size, rows + i * place.stride), kept += window.size;
        }
    }
}

void define_sampling(nb::module_& module) {
    using namespace nb::literals;
    using Objects = nb::typed<nb::sequence, nb::object>;
    const nb::class_<Filler> filler(module, "Filler", "Finder of one view's items, which fills batches of them.");
    nb::class_<Filling>(module, "Filling", "Places of the columns of batches of one size, and working memory.")
        .def(
            nb::init<nb::object, std::vector<int64_t>, Objects, Objects, nb::object, nb::object, nb::object,
                     nb::object>(),
            "layout"_a, "sizes"_a, "roots"_a, "columns"_a, "items"_a, "rest"_a, "uniforms"_a, "scratch"_a,
            "Args:\n"
            "    layout: ``Layout`` of the batches. ``sizes``: of their blocks.\n"
            "    roots, columns: arrays over the blocks of a batch, and its columns: weights, probabilities, ids, and\n"
            "        those of its filler.\n"
            "    items, rest, uniforms, scratch: int64 [B], float64 [B], float64 [B], int64 [rows, B].");
    nb::class_<Sampling>(module, "Sampling", "Draws of one view, each with its batch. The store's lock is held.",
                         nb::type_slots(Collected<Sampling>::slots))
        .def(
            "__init__",
            [](Sampling* self, const nb::typed<nb::dict, nb::str, nb::object>& objects, Ints counts,
               ConstInts generation, std::optional<ConstBytes> resident,
               int64_t stride) { new (self) Sampling(objects, {counts, generation}, {resident}, stride); },
            "objects"_a, "counts"_a, "generation"_a, "resident"_a.none(), "stride"_a,
            R"(Args:
    objects: by name; all that the arrays belong to is among them.
        sampler: with ``max_priority``, ``alpha`` and ``eps``, if it draws by value. ``leaves``: its ``Leaves``.
        generator: numpy's bit generator. ``pool``: ``Pool``. ``filler``: ``Filler``. ``runs``: its runs.
        cache: with ``damaged`` and ``hits``; None: all segments are in memory.
        same: list of an object, an attribute's name, and its value: with another one this is stale.
        expected: dict: with anything in it, items are found by the view.
        judged: uint8 [items], where those with 1 can be sampled; None: all can. ``judges``: whether the view judges
            new ones; otherwise they can be sampled.
    counts: int64 [6], the third counts changes of the log.
    generation, resident: by slot. ``stride``: of the log.)")
        .def_prop_ro("stale", &Sampling::is_stale, "Whether another is to take its place.")
        .def_prop_ro("numbers", &Sampling::numbers, "Random numbers that are drawn for each item.")
        .def(
            "sample",
            [](Sampling& sampling, Items& items, Filling& filling, double beta) -> nb::object {
                if (!sampling.can_draw(items)) return nb::none();
                std::vector<Part> parts{{sampling, items, beta, 1.0, filling.size}};
                return sample_parts(sampling.pool(), parts, filling, {});
            },
            nb::sig("def sample(self, items: Items, filling: Filling, beta: float) -> typing.Any"), "items"_a,
            "filling"_a, "beta"_a,
            R"(Draw a batch and return it; None, and nothing was drawn, where that takes more than this call does.

Args:
    items: they are not kept: they keep this.)")
        .def("update", &Sampling::update, "items"_a, "ids"_a, "errors"_a,
             "Set the priorities of those of ``ids`` [n] that can be sampled by ``errors``, n times as many as an item "
             "has;\nreturn their number, -1 where that takes more.");
    module.def(
        "fill_lent",
        [](Filler& filler, Filling& filling, std::vector<std::shared_ptr<Block>> blocks, int64_t begin, Ints items,
           Floats uniforms, Grid<int64_t> scratch) {
            return fill_lent(filler, filling, std::move(blocks), begin, {items, uniforms, scratch});
        },
        "filler"_a, "filling"_a, "blocks"_a, "begin"_a, "items"_a, "uniforms"_a, "scratch"_a,
        R"(Fill the items of a batch from number ``begin`` on, except for the arrays of their draw, in ``blocks`` lent to it.

Args:
    items, uniforms, scratch: drawn items, their random numbers, and working memory; their segments are in memory.

Returns false where rows are to be decoded by others.)");
    module.def(
        "sample_blend",
        [](nb::handle blend, nb::handle generator, const nb::list& samplings, const nb::list& items, ConstFloats betas,
           ConstFloats shares, int64_t lender, Filling& filling, Ints source) {
            return sample_blend(blend, generator, {samplings, items, betas, shares}, lender, filling, source);
        },
        nb::sig(
            "def sample_blend(blend: object, generator: object, samplings: list[Sampling], items: list[typing.Any], "
            "betas: numpy.typing.NDArray[numpy.float64], shares: numpy.typing.NDArray[numpy.float64], lender: int, "
            "filling: Filling, source: numpy.typing.NDArray[numpy.int64]) -> typing.Any"),
        "blend"_a, "generator"_a, "samplings"_a, "items"_a, "betas"_a, "shares"_a, "lender"_a, "filling"_a, "source"_a,
        R"(Draw a batch from several views and return it; None, and nothing was drawn, where that takes more.

Args:
    blend: with an attribute ``samples``. ``generator``: numpy's bit generator, which chooses the views.
    samplings, items, betas, shares: by view. ``lender``: the view whose memory it is, for which ``filling`` is.
    source: int64 [B], receives the view of each item.)");
}

}  // namespace sharpwave
