// How is a range of a file read? Through the page cache where that holds it, and directly where it does not.
#pragma once

#include <memory>
#include <new>

#include "arrays.hpp"

namespace sharpwave {

inline constexpr int64_t block_bytes = 4096;        // alignment of direct reads; disks require 512 or this
inline constexpr int64_t window_bytes = 128 << 10;  // largest direct read, and the largest of adjoining ranges at once

// Aligned memory for a thread's direct reads; pages that are never read into take none.
class ReadWindow {
  public:
    ReadWindow() : data_(static_cast<uint8_t*>(::operator new[](window_bytes, alignment))) {}
    uint8_t* data() const { return data_.get(); }

  private:
    static constexpr std::align_val_t alignment{block_bytes};
    struct Free {
        void operator()(uint8_t* data) const { ::operator delete[](data, alignment); }
    };
    std::unique_ptr<uint8_t[], Free> data_;
};

// Returns the calling thread's window. Raises bad_alloc.
const ReadWindow& own_window();

// Returns whether the page cache holds all of a range, or that is unknown. Pages are evicted at any time: the answer is
// a hint.
bool is_cached(int64_t descriptor, int64_t offset, int64_t nbytes);

// Gives the disk space of a range of a file back, which reads as zeros from then on; returns whether the system can.
bool free_range(int64_t descriptor, int64_t offset, int64_t nbytes);

// Fills ``target`` from ``offset`` of a file; returns whether all of it was read.
// ``direct``: a descriptor for reads that bypass the page cache; -1: there is none.
bool read_range(int64_t descriptor, int64_t direct, int64_t offset, Bytes target, const ReadWindow& window);

// Reads ``nbytes`` (a window less a block, at most) at ``offset`` of a file; returns where in the window, or -1.
int64_t look_at_range(int64_t descriptor, int64_t direct, int64_t offset, int64_t nbytes, const ReadWindow& window);

}  // namespace sharpwave
