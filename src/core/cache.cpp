// Which segments lie in each chunk of the arena, and which chunk is to be emptied?
//
// Two kinds of lists, each a ring through its head: the segments of every chunk, and the chunks that have any, in the
// order in which they began to be filled. Each slot and chunk has links to its neighbours; nothing is searched for.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "numpy_arrays.hpp"
#include "rooms.hpp"
#include "shared_words.hpp"
#include "unlocked.hpp"

namespace sharpwave {
namespace {

namespace nb = nanobind;

constexpr int64_t alignment = 8;    // of segments in the arena
constexpr int64_t first_field = 2;  // columns before: flags and rewards, which do not move with their segment

// Returns the bytes that a segment takes in the arena.
int64_t space(int64_t nbytes) { return (nbytes + alignment - 1) / alignment * alignment; }

// Lists through their heads, numbers from 0; a list's nodes are numbers, too.
class Rings {
  public:
    Rings(int64_t heads, int64_t nodes)
        : heads_(heads), size_(heads + nodes), links_(static_cast<Link*>(std::calloc(size_, sizeof(Link)))) {
        if (!links_) throw std::bad_alloc();
        for (int64_t head = 0; head < heads; ++head) {
            links_[head] = {static_cast<int32_t>(head), static_cast<int32_t>(head)};
        }
    }

    bool is_empty(int64_t head) const { return at(head).after == head; }

    void append(int64_t head, int64_t node) {
        const auto place = static_cast<int32_t>(heads_ + node);
        const int32_t last = at(head).before;
        at(last).after = at(head).before = place;
        at(place) = {last, static_cast<int32_t>(head)};
    }

    void remove(int64_t node) {
        const Link link = at(heads_ + node);
        at(link.before).after = link.after;
        at(link.after).before = link.before;
    }

    // Returns the first node of a list; -1 if there is none.
    int64_t first(int64_t head) const { return node_of(at(head).after); }

    // Returns the node after one; -1 after the last.
    int64_t after(int64_t node) const { return node_of(at(heads_ + node).after); }

    int64_t nbytes() const { return size_ * static_cast<int64_t>(sizeof(Link)); }

  private:
    struct Link {
        int32_t before, after;
    };
    struct Free {
        void operator()(Link* links) const { std::free(links); }
    };

    int64_t node_of(int32_t place) const { return place < heads_ ? -1 : place - heads_; }
    Link& at(int64_t place) const {
        require(place >= 0 && place < size_, "a list's place is within it");
        return links_[place];
    }

    int64_t heads_, size_;
    std::unique_ptr<Link[], Free> links_;  // zeros: nodes that are never used take no memory
};

class ChunkLists {
  public:
    ChunkLists(int64_t chunks, int64_t slots) : members_(chunks, slots), order_(1, chunks), held_(chunks) {}

    std::vector<int64_t> held() const { return held_; }
    int64_t held_in(int64_t chunk) const { return held_[static_cast<std::size_t>(chunk)]; }
    int64_t nbytes() const { return members_.nbytes(); }

    void place(Bytes resident, ConstInts slots, ConstInts base, ConstInts nbytes, int64_t first, int64_t chunk_bytes) {
        for (const int64_t slot : slots) {
            const int64_t chunk = (base[slot] - first) / chunk_bytes;
            if (members_.is_empty(chunk)) order_.append(0, chunk);
            members_.append(chunk, slot);
            held_[chunk] += space(nbytes[slot]);
            resident[slot] = 1;
        }
    }

    void enter(Bytes resident, ConstInts slots, ConstInts base, ConstInts nbytes, Grid<int64_t> offset, int64_t first,
               int64_t chunk_bytes) {
        for (int64_t column = first_field; column < offset.rows; ++column) {
            const auto offsets = offset[column];
            for (const int64_t slot : slots) offsets[slot] += base[slot];
        }
        place(resident, slots, base, nbytes, first, chunk_bytes);
    }

    void uncache(Bytes resident, int64_t chunk, int64_t slot, ConstInts base, ConstInts nbytes, Grid<int64_t> offset) {
        members_.remove(slot);
        if (members_.is_empty(chunk)) order_.remove(chunk);
        held_[chunk] -= space(nbytes[slot]);
        resident[slot] = 0;
        for (int64_t column = first_field; column < offset.rows; ++column) offset[column][slot] -= base[slot];
    }

    int64_t uncache_chunk(Bytes resident, int64_t chunk, ConstInts base, ConstInts nbytes, Grid<int64_t> offset,
                          std::span<const int32_t> pins, Ints kept) {
        std::size_t count = 0;
        for (int64_t slot; (slot = members_.first(chunk)) >= 0;) {
            uncache(resident, chunk, slot, base, nbytes, offset);
            if (pins[slot]) kept[count++] = slot;
        }
        return static_cast<int64_t>(count);
    }

    // Returns the number of segments in a chunk, and of those pinned.
    std::pair<int64_t, int64_t> count(int64_t chunk, std::span<const int32_t> pins) const {
        int64_t found = 0, pinned = 0;
        for (int64_t slot = members_.first(chunk); slot >= 0; slot = members_.after(slot)) {
            ++found;
            pinned += pins[slot] > 0;
        }
        return {found, pinned};
    }

    std::pair<int64_t, int64_t> choose(ConstInts live, std::span<const int32_t> pins, int64_t current,
                                       int64_t candidates) const {
        int64_t best = -1, fewest = -1, looked = 0;
        for (int64_t chunk = order_.first(0); chunk >= 0 && looked < candidates && fewest != 0;
             chunk = order_.after(chunk)) {
            if (chunk == current || held_[chunk] != live[chunk]) continue;
            const auto [found, pinned] = count(chunk, pins);
            if (pinned == found) continue;
            ++looked;
            if (best < 0 || pinned < fewest) {
                best = chunk;
                fewest = pinned;
            }
        }
        return {best, fewest};
    }

  private:
    Rings members_;              // heads are chunks, nodes are slots
    Rings order_;                // its only head is 0, nodes are chunks
    std::vector<int64_t> held_;  // bytes of segments in each chunk
};

std::pair<int64_t, int64_t> find_missing(ConstInts slots, ConstBytes resident, Ints state, int64_t mark, Ints wanted,
                                         Ints where) {
    std::size_t found = 0;
    int64_t here = 0;
    for (std::size_t i = 0; i < slots.size(); ++i) {
        const int64_t slot = slots[i];
        if (resident[slot]) {
            ++here;
        } else if (load_shared(state[slot]) == 0) {
            store_shared(state[slot], mark);
            wanted[found] = slot;
            where[found++] = static_cast<int64_t>(i);
        }
    }
    for (const int64_t slot : wanted.first(found)) store_shared(state[slot], 0);
    return {static_cast<int64_t>(found), here};
}

void pin(std::span<int32_t> pins, ConstInts slots, int32_t by) {
    for (const int64_t slot : slots) pins[slot] = std::max(0, pins[slot] + by);
}

int64_t pick(ConstInts slots, Ints state, int64_t wanted, Ints into) {
    std::size_t found = 0;
    for (const int64_t slot : slots) {
        if (load_shared(state[slot]) != wanted) continue;  // the bytes read are seen as well
        store_shared(state[slot], 0);
        into[found++] = slot;
    }
    return static_cast<int64_t>(found);
}

void copy_ranges(ConstBytes source, ConstInts begins, Bytes target, ConstInts to, ConstInts nbytes) {
    for (std::size_t i = 0; i < nbytes.size(); ++i) {
        require(begins[i] + nbytes[i] <= std::ssize(source) && to[i] + nbytes[i] <= std::ssize(target),
                "a range lies within its array");
        std::memcpy(target.data() + to[i], source.data() + begins[i], static_cast<std::size_t>(nbytes[i]));
    }
}

}  // namespace

void define_cache(nb::module_& module) {
    using namespace nb::literals;
    nb::class_<ChunkLists>(module, "ChunkLists",
                           "Lists of the segments in each of the arena's ``chunks``, by their slots.\n\n"
                           "Its methods take the index's arrays of all slots, by their names.")
        .def(nb::init<int64_t, int64_t>(), "chunks"_a, "slots"_a)
        .def_prop_ro("nbytes", &ChunkLists::nbytes, "Bytes of the links of all slots.")
        .def_prop_ro("held", &ChunkLists::held, "Bytes of segments in each chunk, a list.")
        .def("held_in", &ChunkLists::held_in, "chunk"_a, "Return the bytes of segments in a chunk.")
        .def("place", &ChunkLists::place, "resident"_a, "slots"_a, "base"_a, "nbytes"_a, "first"_a, "chunk_bytes"_a,
             "Enter the segments in ``slots`` [n] as lying in the arena at their ``base``.\n\n"
             "Args:\n    first, chunk_bytes: where the arena's first chunk begins, and the size of each.")
        .def("enter", &ChunkLists::enter, "resident"_a, "slots"_a, "base"_a, "nbytes"_a, "offset"_a, "first"_a,
             "chunk_bytes"_a,
             "Do as ``place``; the offsets of the segments' fields count from the arena's beginning from now on.")
        .def("uncache", &ChunkLists::uncache, "resident"_a, "chunk"_a, "slot"_a, "base"_a, "nbytes"_a, "offset"_a,
             "Take the segment in ``slot`` out of ``chunk``, in which it lies; its offsets count from its beginning "
             "again.")
        .def("uncache_chunk", &ChunkLists::uncache_chunk, "resident"_a, "chunk"_a, "base"_a, "nbytes"_a, "offset"_a,
             "pins"_a, "kept"_a,
             "Remove all segments from a chunk; return how many of them are pinned, whose slots ``kept`` receives.")
        .def("choose", &ChunkLists::choose, "live"_a, "pins"_a, "current"_a, "candidates"_a,
             "Return the chunk with the fewest pinned segments among the oldest ``candidates`` that could be freed, "
             "and how many\nthese are; -1 if there is none.\n\nA chunk that is being filled (``current``), or with "
             "room reserved for reads under way, is left alone.");
    module.def(
        "find_missing", &find_missing, "slots"_a, "resident"_a, "state"_a, "mark"_a, "wanted"_a, "where"_a,
        "Find the distinct ones of ``slots`` [n] that are not resident and have ``state`` 0, and their positions "
        "in ``slots``.\n\n"
        "Args:\n    mark: any ``state`` other than 0; slots have it during this call.\n"
        "    wanted, where: int64 [n] each, receive them.\n\n"
        "Returns how many are wanted; how many of ``slots`` are resident.");
    module.def("pin", &pin, "pins"_a, "slots"_a, "by"_a,
               "Add ``by`` to the pins of slots; a segment evicted since it was pinned has none.");
    module.def("pick", &pick, "slots"_a, "state"_a, "wanted"_a, "into"_a,
               "Collect the distinct ones of ``slots`` in the ``wanted`` state, which becomes 0; return how many.");
    module.def("copy_ranges", &copy_ranges, "source"_a, "begins"_a, "target"_a, "to"_a, "nbytes"_a,
               nb::call_guard<Released>(), "Copy ranges [n] from one array of bytes to another.");
}

}  // namespace sharpwave
