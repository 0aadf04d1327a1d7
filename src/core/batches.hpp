// How does a batch get its memory? In blocks that are lent for as long as an array over them lives; the arrays of all
// batches of one size lie alike.
#pragma once

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "numpy_arrays.hpp"

namespace sharpwave {

// Piece of memory: the buffer of an object of Python's.
class Block {
  public:
    Block(int64_t nbytes, nanobind::object memory);
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    ~Block();

    uint8_t* data() const { return static_cast<uint8_t*>(buffer_.buf); }

    int64_t nbytes;
    nanobind::object memory;
    nanobind::object arrays = nanobind::none();  // the borrower's, over ``memory`` itself
    int64_t lent = 0;                            // number of blocks lent until this one last was
    std::shared_ptr<Block> behind;               // in the queue of blocks that were returned

  private:
    Py_buffer buffer_{};
};

// Blocks that were returned and not collected yet. The interpreter's lock is held; no memory is allocated.
struct Returned {
    std::shared_ptr<Block> first;
    Block* last = nullptr;

    Returned() = default;
    Returned(const Returned&) = delete;
    Returned& operator=(const Returned&) = delete;
    ~Returned() {
        while (pop()) {
        }
    }
    void push(std::shared_ptr<Block> block);
    std::shared_ptr<Block> pop();
};

// Blocks of one store's batches. A lent block returns when the last array over it dies, in any thread.
class Pool {
  public:
    explicit Pool(nanobind::object memory) : memory_(std::move(memory)) {}

    // Takes back the blocks that nobody holds any more.
    void collect();
    // Bytes of memory that blocks of ``sizes`` would have to be made of.
    int64_t missing(std::vector<int64_t> sizes);
    // Takes a free block; null without one.
    std::shared_ptr<Block> take(int64_t size);
    // Takes a free block, or makes one.
    std::shared_ptr<Block> lend(int64_t size);
    // Takes back a block without a lease.
    void give_back(std::shared_ptr<Block> block);
    // Returns an object that holds a block which was taken: the base of arrays over it.
    nanobind::object lease(std::shared_ptr<Block> block) const;
    // Lets go of all memory that nobody holds; returns how many bytes that were.
    int64_t trim();

    int64_t held_bytes = 0, free_bytes = 0;

  private:
    void count(Block& block);
    void sweep();

    nanobind::object memory_;                                                // makes memory of so many bytes
    std::unordered_map<int64_t, std::vector<std::shared_ptr<Block>>> free_;  // by size, the latest to return last
    std::shared_ptr<Returned> returned_ = std::make_shared<Returned>();
    int64_t lent_ = 0, swept_ = 0;
};

// Where an array lies: in which of several arrays over blocks, and at which of its bytes.
struct Spot {
    std::size_t root;
    int64_t offset;
};

// Finds an array in its block; another block may begin where one ends.
Spot spot_of(PyArrayObject* array, const std::vector<PyArrayObject*>& roots);

// Makes batches like one, of arrays over other blocks.
class Layout {
  public:
    // ``like``: a batch, or a dict of arrays; ``roots``: arrays over its blocks.
    Layout(nanobind::handle like, const nanobind::typed<nanobind::sequence, nanobind::object>& roots);

    struct Root {
        nanobind::object base;  // of arrays over the block
        uint8_t* data;
    };
    nanobind::object over(const std::vector<Root>& roots) const;

  private:
    struct Array {
        std::size_t root;
        int64_t offset;
        nanobind::object type, kind;                                            // its class, and its dtype
        std::vector<npy_intp> shape, strides;                                   // no strides: contiguous
        std::vector<std::pair<nanobind::object, nanobind::object>> attributes;  // a subclass's, by name
    };
    enum class Kind : uint8_t { same, array, dict, tuple, batch };
    // Part of a batch: itself; an array, by its number; or parts of a dict, a tuple, or of a batch, which are others.
    struct Part {
        Kind kind = Kind::same;
        nanobind::object value;  // for a dict one of what all batches share, for a batch its class
        std::size_t number = 0;
        std::vector<nanobind::object> keys;  // of the parts of a dict
        std::vector<Part> parts;
    };

    Part part_of(nanobind::handle value, const std::vector<PyArrayObject*>& roots);
    Part dict_of(nanobind::handle dict, const std::vector<PyArrayObject*>& roots);
    Part array_of(nanobind::handle value, const std::vector<PyArrayObject*>& roots);
    nanobind::object made(const Part& part, const std::vector<Root>& roots) const;

    std::vector<Array> arrays_;
    Part whole_;
};

}  // namespace sharpwave
