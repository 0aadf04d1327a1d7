// Which shared values are held, which segments refer to each, and where in files is it?
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "arrays.hpp"

namespace sharpwave {

// Entries by number, in pages: they grow without a copy, and take no more memory than they need.
template <class T>
class Pages {
  public:
    T& operator[](uint32_t number) { return pages_[number / page][number % page]; }
    const T& operator[](uint32_t number) const { return pages_[number / page][number % page]; }

    // Adds an entry and returns its number.
    uint32_t add() {
        if (size_ % page == 0) pages_.push_back(std::make_unique<T[]>(page));
        return size_++;
    }
    uint32_t size() const { return size_; }
    int64_t nbytes() const {
        return static_cast<int64_t>(pages_.size() * (page * sizeof(T)) + pages_.capacity() * sizeof(T*));
    }

  private:
    static constexpr uint32_t page = 128;
    std::vector<std::unique_ptr<T[]>> pages_;
    uint32_t size_ = 0;
};

// Index of shared values by column and key, each with a number, with the segments that refer to it, and with the places
// of its copies in files. A value without references stays only until ``drop_unused``, or until its last copy goes.
class SharedIndex {
  public:
    using Key = std::array<uint32_t, 4>;
    static constexpr uint32_t none = UINT32_MAX;

    // Copy of a value in a region's file, by the payload of its record. ``none`` as its region: there is no copy.
    struct Copy {
        uint32_t region = none, nbytes = 0, low = 0, next = none;  // next: the number of another copy
        uint16_t high = 0, column = 0;                             // column: of the value

        int64_t offset() const { return static_cast<int64_t>(high) << 32 | low; }
    };

    // Outcome of ``hold``: the segment referred to the value before, or it was held by others, or it is new.
    enum class Held { before, by_others, by_none };

    SharedIndex();
    SharedIndex(const SharedIndex&) = delete;
    SharedIndex& operator=(const SharedIndex&) = delete;

    uint32_t find(uint32_t column, const Key& key) const;  // ``none``: there is no such value
    std::pair<uint32_t, Held> hold(uint32_t slot, uint32_t column, const Key& key);
    Held hold(uint32_t slot, uint32_t number);

    // Releases values of a segment, or all that it refers to; returns the numbers of those that nothing refers to now.
    std::vector<uint32_t> release(uint32_t slot, const std::vector<uint32_t>& numbers);
    std::vector<uint32_t> release_all(uint32_t slot);

    // Frees memory that a segment needs only while it is open.
    void settle(uint32_t slot);

    std::vector<uint32_t> of(uint32_t slot) const;
    std::vector<uint32_t> numbers() const;
    const Key& key(uint32_t number) const { return values_[number].key; }
    uint32_t column(uint32_t number) const { return values_[number].copy.column; }
    uint32_t uses(uint32_t number) const { return values_[number].uses; }

    // Notes a copy, or without a region the bytes that one would have; adds the value where it is not there.
    void place(uint32_t column, const Key& key, uint32_t region, int64_t offset, uint32_t nbytes);
    std::vector<Copy> copies(uint32_t number) const;
    bool has_copies(uint32_t number) const { return values_[number].copy.region != none; }
    bool has_copy(uint32_t number, uint32_t region) const;
    uint32_t payload_bytes(uint32_t number) const { return values_[number].copy.nbytes; }

    // Returns the values in use that have no copy outside a region.
    std::vector<uint32_t> only_in(uint32_t region) const;
    void drop_region(uint32_t region);
    void drop_copy(uint32_t number, uint32_t region);
    void drop_unused();
    int64_t bytes_in(uint32_t region) const;                // space of the records of its copies
    int64_t copied_bytes() const { return copied_bytes_; }  // of all regions'

    int64_t count() const { return count_; }
    std::pair<int64_t, int64_t> counts(uint32_t column) const;  // of values in use, and the bytes of their payloads
    int64_t nbytes() const;

  private:
    struct Value {
        Key key{};
        uint32_t chain = none;  // next value with an equal hash, or the next free one
        uint32_t uses = 0;
        Copy copy;
    };
    struct Segment {
        std::vector<uint32_t> values;
        std::vector<uint32_t> places;  // of values by number, where there are many: a hash table of numbers
    };

    std::size_t head_of(uint32_t column, const Key& key) const;
    uint32_t find_or_add(uint32_t column, const Key& key);
    bool refers(const Segment& segment, uint32_t number) const;
    void refer(Segment& segment, uint32_t number);
    void rehash(Segment& segment);
    void grow();
    void release_one(uint32_t number, std::vector<uint32_t>& freed);
    void remove(uint32_t number);
    void count_bytes(uint32_t region, int64_t nbytes);
    static int64_t bytes_of(const Segment& segment);

    Pages<Value> values_;
    Pages<Copy> copies_;  // the second and further ones of a value
    std::vector<uint32_t> heads_;
    std::unordered_map<uint32_t, Segment> segments_;   // by slot
    std::unordered_map<uint32_t, int64_t> in_region_;  // bytes
    uint32_t free_value_ = none, free_copy_ = none;
    int64_t count_ = 0, segment_bytes_ = 0, copied_bytes_ = 0;
    uint64_t salts_[2];  // so that nobody can choose keys of equal hashes
};

}  // namespace sharpwave
