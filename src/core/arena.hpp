// Where in the arena is there room? In chunks of one size, filled one after another, and filled again when empty.
//
// It knows offsets only: the memory and its return to the system are Python's (``memory/arena.py``).
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <utility>
#include <vector>

#include "arrays.hpp"

namespace sharpwave {

inline constexpr int64_t page_bytes = 4096;
inline constexpr int64_t range_alignment = 8;

// Rounds ``nbytes`` up to a multiple of ``unit``, a power of two.
constexpr int64_t rounded(int64_t nbytes, int64_t unit) { return (nbytes + unit - 1) & -unit; }

class Ranges {
  public:
    // ``begin``: of the first chunk, ``chunk_bytes`` of each. ``across``: whether a range from ``allocate`` may lie
    // across chunks. ``huge_pages``: memory is committed by the chunk, except in the first. ``commit``: called with the
    // begin and the size of a chunk before its first use, or None; if it raises, nothing has changed.
    //
    // ``chunks``: zeros [3, chunks], which ``owner`` keeps: the bytes allocated in each chunk, the highest byte written
    // since it was committed, and whether it has ranges from ``reserve``.
    Ranges(int64_t begin, int64_t chunk_bytes, Grid<int64_t> chunks, nanobind::object owner, bool across,
           bool huge_pages, nanobind::object commit);

    // Returns the offset of ``nbytes`` (at most a chunk), a multiple of 8; none if limit or space is exhausted.
    std::optional<int64_t> allocate(int64_t nbytes);
    // Allocates the first of several ranges, as many as fit into one chunk, and returns how many; none as above.
    std::size_t allocate_some(ConstInts nbytes, Ints offsets);
    // Returns the offset of the first of adjacent ranges of ``nbytes`` in chunks of their own, and their number: up to
    // ``count``, as many as fit into one chunk; 0 as above.
    std::pair<int64_t, int64_t> reserve(int64_t nbytes, int64_t count);
    // Frees a range from ``allocate`` or from ``reserve``.
    void free(int64_t offset, int64_t nbytes);

    // Returns the chunk with the most committed memory to spare, of those with at most ``max_share`` in use, if the
    // current one has no room for ``nbytes``, and that one has.
    std::optional<int64_t> emptiest(int64_t nbytes, double max_share) const;
    // Returns the chunk in use that frees most pages when compacted.
    std::optional<int64_t> loosest() const;
    // Continues allocating in ``chunk``, all of whose ranges were moved to its beginning without holes.
    void reopen(int64_t chunk);

    // Counts the memory of a chunk behind its first ``touched`` bytes as released.
    void note_released(int64_t chunk, int64_t touched);
    // Continues in the place of ``larger``, to which the contents were moved.
    void continue_in(Ranges& larger);

    bool holds(int64_t nbytes) const { return 0 < nbytes && nbytes <= chunk_bytes_; }
    int64_t chunk_of(int64_t offset) const { return (offset - begin_) / chunk_bytes_; }
    int64_t begin_of(int64_t chunk) const { return begin_ + chunk * chunk_bytes_; }
    int64_t begin() const { return begin_; }
    int64_t chunk_bytes() const { return chunk_bytes_; }
    bool across() const { return across_; }
    bool huge_pages() const { return huge_pages_; }
    ConstInts live() const { return live_; }
    const nanobind::object& owner() const { return owner_; }
    // Empty chunks, which are used again before fresh ones.
    const std::vector<int64_t>& empty() const { return empty_; }
    // Chunks from here on are unused so far.
    int64_t fresh() const { return fresh_; }
    // The chunk that ranges are allocated in, -1 before the first, and the end of the last one in it.
    int64_t current() const { return current_; }
    int64_t top() const { return top_; }
    int64_t used_bytes() const { return used_bytes_; }
    int64_t committed_bytes() const { return committed_bytes_; }

    int64_t limit_bytes;

  private:
    static std::size_t at(int64_t chunk) { return static_cast<std::size_t>(chunk); }
    bool may_commit(int64_t chunk, int64_t top) const;
    bool reaches_next(int64_t top);
    std::optional<int64_t> take(int64_t nbytes);
    void commit(int64_t chunk) const;
    void grow(int64_t chunk, int64_t top, int64_t nbytes);
    void free_part(int64_t chunk, int64_t offset, int64_t nbytes);
    bool is_sealed(std::size_t chunk) const { return live_[chunk] > 0 && !opened_[chunk]; }

    int64_t begin_, chunk_bytes_;
    Ints live_, touched_, opened_;
    nanobind::object owner_;
    bool across_, huge_pages_;
    nanobind::object commit_;
    std::vector<int64_t> empty_;  // has memory for all chunks, so that freeing needs none
    int64_t fresh_ = 0;
    int64_t current_ = -1, top_ = 0;
    int64_t open_ = -1, open_top_ = 0;  // the chunk that ``reserve`` cuts the next ranges from
    int64_t used_bytes_ = 0, committed_bytes_ = 0;
};

}  // namespace sharpwave
