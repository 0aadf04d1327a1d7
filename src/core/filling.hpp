// Where are the columns of the batch that is being filled, and what fills them?
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "batches.hpp"
#include "gather.hpp"
#include "log.hpp"
#include "sum_tree.hpp"

namespace sharpwave {

// Columns that all batches have; those of a view follow, in the order of its filler.
enum Number : std::size_t { weights_at, probabilities_at, ids_at, own_at };

// Where the columns of batches of one size are, and working memory for them. A part of a batch is filled as a batch.
class Filling {
  public:
    // ``roots``: arrays over the blocks of a batch, whose ``columns`` are in the order of ``Number``.
    Filling(nanobind::object layout, std::vector<int64_t> sizes,
            const nanobind::typed<nanobind::sequence, nanobind::object>& roots,
            const nanobind::typed<nanobind::sequence, nanobind::object>& columns, nanobind::object items,
            nanobind::object rest, nanobind::object uniforms, nanobind::object scratch);

    // Chooses the items ``begin <= i < begin + count`` to be filled next.
    void choose(int64_t begin, int64_t count);

    // Columns of the chosen items in these blocks.
    template <class T>
    std::span<T> column(std::size_t number) const {
        return {reinterpret_cast<T*>(at(number)), items.size()};
    }
    template <class T>
    Grid<T> grid(std::size_t number, int64_t columns) const {
        return {reinterpret_cast<T*>(at(number)), std::ssize(items), columns};
    }
    Places<3> window(std::size_t number) const {
        Places<3> window = places_[number].window;
        window.data = at(number), window.windows = std::ssize(items);
        return window;
    }

    // Moves items of the whole batch to other places, both permutations of each other.
    void move(ConstInts items, ConstInts places) const;

    nanobind::object batch(const std::vector<Layout::Root>& roots) const { return layout_.over(roots); }

    std::vector<std::shared_ptr<Block>> blocks;  // of the batch that is being filled

    const std::vector<int64_t> sizes;
    const int64_t size;
    // Working memory for the chosen items.
    Ints items;
    Floats rest, uniforms;
    Grid<int64_t> scratch;

  private:
    struct Place {
        std::size_t root;
        int64_t offset, stride;  // bytes from an item to the next
        Places<3> window;        // of others: all bytes of an item in one row
    };

    uint8_t* at(std::size_t number) const {
        const Place& place = places_[number];
        return blocks[place.root]->data() + place.offset + begin_ * place.stride;
    }

    std::vector<nanobind::object> held_;
    const Layout& layout_;
    std::vector<Place> places_;
    int64_t begin_ = 0;
};

// Segments by slot that are in memory; without, all are.
struct Residents {
    std::optional<ConstBytes> resident;

    bool are(ConstInts slots) const {
        bool all = true;
        if (resident) {
            for (const int64_t slot : slots) all &= (*resident)[static_cast<std::size_t>(slot)] != 0;
        }
        return all;
    }
};

// One view's part of a draw: finds its items, and fills batches of them. The arrays must outlive it.
class Filler {
  public:
    explicit Filler(Grid<int32_t> spans, Grid<int64_t> runs) : spans(spans), runs(runs) {}
    Filler(const Filler&) = delete;
    Filler& operator=(const Filler&) = delete;
    virtual ~Filler() = default;

    // Finds the items that became known since the last call, as ``View.find``; returns the number of runs.
    virtual int64_t find() = 0;
    // Fills all of a batch but the arrays of its draw. Returns how many segments each item needed; -1 where they are to
    // be read, or to be decoded by others, first.
    virtual int64_t fill(const Filling& filling, const Residents& residents) = 0;
    // Numbers that are drawn for each item.
    virtual int64_t numbers() const { return 2; }
    // Makes one error an item of ``errors``, as ``View.item_errors``.
    virtual void mix_errors(ConstInts, Grid<const double> errors, Floats mixed) const {
        require(errors.columns == 1, "an item has an error");
        std::ranges::copy(errors.flat(), mixed.begin());
    }

    const Grid<int32_t> spans;
    const Grid<int64_t> runs;
};

}  // namespace sharpwave
