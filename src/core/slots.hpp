// Which slots of the index are free, and which segments were sealed first?
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "segments.hpp"

namespace sharpwave {

// Bits of generations that leave the upper 10 of an id for a shard's number; slots beyond are used last.
inline constexpr int generation_bits = 21;

// Free slots of an index, the lowest of which is taken first: untouched slots cost no memory.
//
// Numbers: ``highest`` slots were used so far; ids of slots that were never used have the generation ``first``, and
// none has a higher one than ``latest``.
class FreeSlots {
  public:
    int64_t highest = 0, first = 0, latest = 0;

    // Arrays by slot, the number of bytes of a slot with each, that are cleared when a slot's ids become stale: values
    // of steps that lie beside segments. They must outlive it.
    std::vector<std::pair<Bytes, int64_t>> cleared;

    // Takes the lowest free slot and returns it, with its entries reset; -1 if all are in use.
    int64_t take(const IndexArrays& index);

    // Frees a slot; ids of its steps are stale from now on. There is memory for it: ``take`` provides it.
    void give_back(const IndexArrays& index, int64_t slot);

    // Undoes ``take``, which had ``highest`` before, before anything refers to the slot.
    void put_back(const IndexArrays& index, int64_t slot, int64_t before);

    // Gives the coming steps of a segment that is empty ids that were never used.
    void renew(const IndexArrays& index, int64_t slot);

    // Replaces the free slots.
    void restore(const IndexArrays& index, ConstInts free);

    std::vector<int64_t> slots() const;  // all of them, in no order
    int64_t count() const { return std::ssize(returned_) + std::ssize(worn_); }

  private:
    std::vector<int64_t> returned_, worn_;  // heaps: of slots whose ids have room for a shard's number, and without

    std::vector<int64_t>& heap_of(const IndexArrays& index, int64_t slot);
};

// Slots of the sealed segments, the one that was sealed first before the others.
struct SlotQueue {
    std::deque<int64_t> slots;
};

// Unlinks a slot that another follows from its lane's chain; ``oldest``: by lane.
void unlink(const IndexArrays& index, std::span<int32_t> oldest, int64_t slot);

}  // namespace sharpwave
