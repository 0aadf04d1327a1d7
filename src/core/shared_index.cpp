// Which shared values are held, which segments refer to each, and where in files is it?
#include "shared_index.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <bit>
#include <random>
#include <tuple>

#include "numpy_arrays.hpp"
#include "rooms.hpp"

namespace sharpwave {
namespace {

constexpr std::size_t few = 8;                // values of a segment that are looked through in their order
constexpr std::size_t least_heads = 64;       // a power of two, as all sizes of hash tables
constexpr int64_t node_bytes = 96;            // of a segment in the map, roughly
constexpr int64_t record_bytes = 40;          // before a record's payload
constexpr uint64_t odd = 0x9e3779b97f4a7c15;  // the golden ratio

uint64_t mixed(uint64_t word) {
    word ^= word >> 32;
    word *= odd;
    word ^= word >> 29;
    word *= 0xbf58476d1ce4e5b9;
    return word ^ word >> 32;
}

int64_t space_of(uint32_t nbytes) { return (record_bytes + nbytes + 7) / 8 * 8; }

}  // namespace

SharedIndex::SharedIndex() : heads_(least_heads, none) {
    std::random_device random;
    for (uint64_t& salt : salts_) salt = static_cast<uint64_t>(random()) << 32 | random();
}

std::size_t SharedIndex::head_of(uint32_t column, const Key& key) const {
    const uint64_t low = static_cast<uint64_t>(key[1]) << 32 | key[0],
                   high = static_cast<uint64_t>(key[3]) << 32 | key[2];
    return mixed(mixed(low ^ salts_[0]) + (high ^ salts_[1]) + column * odd) & (heads_.size() - 1);
}

uint32_t SharedIndex::find(uint32_t column, const Key& key) const {
    uint32_t number = heads_[head_of(column, key)];
    while (number != none && (values_[number].key != key || values_[number].copy.column != column)) {
        number = values_[number].chain;
    }
    return number;
}

uint32_t SharedIndex::find_or_add(uint32_t column, const Key& key) {
    uint32_t number = find(column, key);
    if (number != none) return number;
    if (count_ >= 2 * std::ssize(heads_)) grow();
    number = free_value_;
    if (number == none) {
        number = values_.add();
    } else {
        free_value_ = values_[number].chain;
    }
    uint32_t& head = heads_[head_of(column, key)];
    values_[number] = {key, head, 0, {}};
    values_[number].copy.column = static_cast<uint16_t>(column);
    head = number;
    ++count_;
    return number;
}

void SharedIndex::grow() {
    std::vector<uint32_t> before(2 * heads_.size(), none);
    before.swap(heads_);
    for (uint32_t number : before) {
        while (number != none) {
            Value& value = values_[number];
            uint32_t& head = heads_[head_of(value.copy.column, value.key)];
            const uint32_t next = value.chain;
            value.chain = head;
            head = number;
            number = next;
        }
    }
}

int64_t SharedIndex::bytes_of(const Segment& segment) {
    return node_bytes +
           static_cast<int64_t>((segment.values.capacity() + segment.places.capacity()) * sizeof(uint32_t));
}

bool SharedIndex::refers(const Segment& segment, uint32_t number) const {
    if (segment.places.empty()) return std::ranges::find(segment.values, number) != segment.values.end();
    const std::size_t mask = segment.places.size() - 1;
    for (std::size_t at = mixed(number) & mask; segment.places[at] != none; at = (at + 1) & mask) {
        if (segment.places[at] == number) return true;
    }
    return false;
}

void SharedIndex::rehash(Segment& segment) {
    segment.places.assign(std::bit_ceil(4 * segment.values.size()), none);
    const std::size_t mask = segment.places.size() - 1;
    for (const uint32_t number : segment.values) {
        std::size_t at = mixed(number) & mask;
        while (segment.places[at] != none) at = (at + 1) & mask;
        segment.places[at] = number;
    }
}

void SharedIndex::refer(Segment& segment, uint32_t number) {
    segment.values.push_back(number);
    if (segment.values.size() <= few) return;
    if (2 * segment.values.size() > segment.places.size()) return rehash(segment);
    const std::size_t mask = segment.places.size() - 1;
    std::size_t at = mixed(number) & mask;
    while (segment.places[at] != none) at = (at + 1) & mask;
    segment.places[at] = number;
}

std::pair<uint32_t, SharedIndex::Held> SharedIndex::hold(uint32_t slot, uint32_t column, const Key& key) {
    const uint32_t number = find_or_add(column, key);
    return {number, hold(slot, number)};
}

SharedIndex::Held SharedIndex::hold(uint32_t slot, uint32_t number) {
    const auto [place, fresh] = segments_.try_emplace(slot);
    Segment& segment = place->second;
    if (!fresh) {
        // A sealed segment has no table; one that is open, and large, has lost it where values were released.
        if (segment.places.empty() && segment.values.size() > few) {
            segment_bytes_ -= bytes_of(segment);
            rehash(segment);
            segment_bytes_ += bytes_of(segment);
        }
        if (refers(segment, number)) return Held::before;
        segment_bytes_ -= bytes_of(segment);
    }
    refer(segment, number);
    segment_bytes_ += bytes_of(segment);
    return values_[number].uses++ ? Held::by_others : Held::by_none;
}

void SharedIndex::release_one(uint32_t number, std::vector<uint32_t>& freed) {
    require(values_[number].uses > 0, "a reference that is released was taken");
    if (--values_[number].uses) return;
    freed.push_back(number);
    remove(number);
}

std::vector<uint32_t> SharedIndex::release(uint32_t slot, const std::vector<uint32_t>& numbers) {
    std::vector<uint32_t> freed;
    const auto found = segments_.find(slot);
    if (found == segments_.end() || numbers.empty()) return freed;
    Segment& segment = found->second;
    segment_bytes_ -= bytes_of(segment);
    const std::size_t before = segment.values.size();
    if (numbers.size() == 1 && before && segment.values.back() == numbers[0]) {
        segment.values.pop_back();
    } else {
        std::vector<uint32_t> gone = numbers;
        std::ranges::sort(gone);
        std::erase_if(segment.values, [&](uint32_t one) { return std::ranges::binary_search(gone, one); });
    }
    require(segment.values.size() + numbers.size() == before, "a segment refers to the values that it releases");
    segment.places.clear();
    segment.places.shrink_to_fit();
    if (segment.values.empty()) {
        segments_.erase(found);
    } else {
        segment_bytes_ += bytes_of(segment);
    }
    for (const uint32_t number : numbers) release_one(number, freed);
    return freed;
}

std::vector<uint32_t> SharedIndex::release_all(uint32_t slot) {
    std::vector<uint32_t> freed;
    const auto found = segments_.find(slot);
    if (found == segments_.end()) return freed;
    segment_bytes_ -= bytes_of(found->second);
    const std::vector<uint32_t> values = std::move(found->second.values);
    segments_.erase(found);
    for (const uint32_t number : values) release_one(number, freed);
    return freed;
}

void SharedIndex::settle(uint32_t slot) {
    const auto found = segments_.find(slot);
    if (found == segments_.end()) return;
    segment_bytes_ -= bytes_of(found->second);
    found->second.places.clear();
    found->second.places.shrink_to_fit();
    found->second.values.shrink_to_fit();
    segment_bytes_ += bytes_of(found->second);
}

std::vector<uint32_t> SharedIndex::of(uint32_t slot) const {
    const auto found = segments_.find(slot);
    return found == segments_.end() ? std::vector<uint32_t>() : found->second.values;
}

std::vector<uint32_t> SharedIndex::numbers() const {
    std::vector<uint32_t> found;
    for (uint32_t number : heads_) {
        for (; number != none; number = values_[number].chain) found.push_back(number);
    }
    return found;
}

void SharedIndex::remove(uint32_t number) {
    Value& value = values_[number];
    uint32_t* link = &heads_[head_of(value.copy.column, value.key)];
    while (*link != number) link = &values_[*link].chain;
    *link = value.chain;
    while (value.copy.region != none) drop_copy(number, value.copy.region);
    value.chain = free_value_;
    free_value_ = number;
    if (--count_) return;
    values_ = {};
    copies_ = {};
    heads_.assign(least_heads, none);
    heads_.shrink_to_fit();
    free_value_ = free_copy_ = none;
}

void SharedIndex::count_bytes(uint32_t region, int64_t nbytes) {
    int64_t& bytes = in_region_[region];
    bytes += nbytes;
    copied_bytes_ += nbytes;
    if (!bytes) in_region_.erase(region);
}

void SharedIndex::place(uint32_t column, const Key& key, uint32_t region, int64_t offset, uint32_t nbytes) {
    Value& value = values_[find_or_add(column, key)];
    Copy* copy = &value.copy;
    if (region == none) {
        if (copy->region == none) copy->nbytes = nbytes;
        return;
    }
    if (copy->region != none) {
        while (copy->region != region && copy->next != none) copy = &copies_[copy->next];
        if (copy->region == region) {
            count_bytes(region, -space_of(copy->nbytes));
        } else {
            uint32_t more = free_copy_;
            if (more == none) {
                more = copies_.add();
            } else {
                free_copy_ = copies_[more].next;
            }
            copy->next = more;
            copy = &copies_[more];
            *copy = {};
        }
    }
    copy->region = region;
    copy->nbytes = nbytes;
    copy->low = static_cast<uint32_t>(offset);
    copy->high = static_cast<uint16_t>(offset >> 32);
    count_bytes(region, space_of(nbytes));
}

std::vector<SharedIndex::Copy> SharedIndex::copies(uint32_t number) const {
    std::vector<Copy> found;
    for (const Copy* copy = &values_[number].copy; copy->region != none; copy = &copies_[copy->next]) {
        found.push_back(*copy);
        if (copy->next == none) break;
    }
    return found;
}

bool SharedIndex::has_copy(uint32_t number, uint32_t region) const {
    const Copy* copy = &values_[number].copy;
    while (copy->region != region && copy->next != none) copy = &copies_[copy->next];
    return copy->region == region;
}

void SharedIndex::drop_copy(uint32_t number, uint32_t region) {
    Copy* copy = &values_[number].copy;
    Copy* before = nullptr;
    while (copy->region != region) {
        if (copy->next == none) return;
        before = copy;
        copy = &copies_[copy->next];
    }
    count_bytes(region, -space_of(copy->nbytes));
    uint32_t gone = none;
    if (before) {
        gone = before->next;
        before->next = copy->next;
    } else if (copy->next != none) {  // the first copy lies in the value: the second takes its place
        gone = copy->next;
        const uint16_t column = copy->column;
        *copy = copies_[gone];
        copy->column = column;
    } else {
        copy->region = none;
    }
    if (gone != none) {
        copies_[gone] = {};
        copies_[gone].next = free_copy_;
        free_copy_ = gone;
    }
}

std::vector<uint32_t> SharedIndex::only_in(uint32_t region) const {
    std::vector<uint32_t> found;
    if (!in_region_.contains(region)) return found;
    for (uint32_t number : heads_) {
        for (; number != none; number = values_[number].chain) {
            const Value& value = values_[number];
            if (value.uses && value.copy.region == region && value.copy.next == none) found.push_back(number);
        }
    }
    return found;
}

void SharedIndex::drop_region(uint32_t region) {
    if (!in_region_.contains(region)) return;
    for (const uint32_t number : numbers()) {
        drop_copy(number, region);
        if (!values_[number].uses && values_[number].copy.region == none) remove(number);
    }
}

void SharedIndex::drop_unused() {
    for (const uint32_t number : numbers()) {
        if (!values_[number].uses) remove(number);
    }
}

int64_t SharedIndex::bytes_in(uint32_t region) const {
    const auto found = in_region_.find(region);
    return found == in_region_.end() ? 0 : found->second;
}

std::pair<int64_t, int64_t> SharedIndex::counts(uint32_t column) const {
    std::pair<int64_t, int64_t> found;
    for (uint32_t number : heads_) {
        for (; number != none; number = values_[number].chain) {
            const Value& value = values_[number];
            if (!value.uses || value.copy.column != column) continue;
            ++found.first;
            found.second += value.copy.nbytes;
        }
    }
    return found;
}

int64_t SharedIndex::nbytes() const {
    return values_.nbytes() + copies_.nbytes() + static_cast<int64_t>(heads_.capacity() * sizeof(uint32_t)) +
           segment_bytes_;
}

namespace nb = nanobind;

namespace {

SharedIndex::Key key_of(const nb::bytes& bytes) {
    SharedIndex::Key key{};
    if (bytes.size() != sizeof key) throw nb::value_error("a shared value's key has 16 bytes");
    std::memcpy(key.data(), bytes.c_str(), sizeof key);
    return key;
}

SharedIndex::Key key_in(std::span<const uint64_t> halves) {
    SharedIndex::Key key{};
    std::memcpy(key.data(), halves.data(), sizeof key);
    return key;
}

}  // namespace

void define_shared_index(nb::module_& module) {
    using namespace nb::literals;
    using Copy = std::tuple<int64_t, int64_t, int64_t>;
    nb::class_<SharedIndex>(module, "SharedIndex",
                            "Shared values by column and key, each with a number, the segments that refer to it, and "
                            "the places of its copies in files.")
        .def(nb::init<>())
        .def("__len__", &SharedIndex::count)
        .def_prop_ro("nbytes", &SharedIndex::nbytes, "Bytes of memory.")
        .def(
            "find",
            [](const SharedIndex& index, uint32_t column, const nb::bytes& key) {
                const uint32_t number = index.find(column, key_of(key));
                return number == SharedIndex::none ? int64_t{-1} : int64_t{number};
            },
            "column"_a, "key"_a, "Return a value's number; -1: there is none.")
        .def(
            "hold",
            [](SharedIndex& index, uint32_t slot, uint32_t column, const nb::bytes& key) {
                const auto [number, held] = index.hold(slot, column, key_of(key));
                return std::pair(number, static_cast<int>(held));
            },
            "slot"_a, "column"_a, "key"_a,
            "Make a segment refer to a value; return its number, and who did so before: 0 this segment, 1 others, 2 "
            "none.")
        .def(
            "hold_all",
            [](SharedIndex& index, uint32_t slot, const std::vector<uint32_t>& numbers) {
                for (const uint32_t number : numbers) index.hold(slot, number);
            },
            "slot"_a, "numbers"_a, "Make a segment refer to values by their numbers.")
        .def("release", &SharedIndex::release, "slot"_a, "numbers"_a,
             "Release values of a segment; return the numbers of those that nothing refers to now, which are free.")
        .def("release_all", &SharedIndex::release_all, "slot"_a, "Release all values of a segment, likewise.")
        .def("settle", &SharedIndex::settle, "slot"_a, "Free memory that a segment needs only while it is open.")
        .def("of", &SharedIndex::of, "slot"_a, "Return the numbers of the values that a segment refers to.")
        .def("numbers", &SharedIndex::numbers, "Return the numbers of all values.")
        .def(
            "key",
            [](const SharedIndex& index, uint32_t number) {
                const SharedIndex::Key& key = index.key(number);
                return nb::bytes(reinterpret_cast<const char*>(key.data()), sizeof key);
            },
            "number"_a, "Return a value's key.")
        .def("column", &SharedIndex::column, "number"_a, "Return a value's column.")
        .def("uses", &SharedIndex::uses, "number"_a, "Return how many segments refer to a value.")
        .def(
            "place",
            [](SharedIndex& index, uint32_t column, const nb::bytes& key, uint32_t region, int64_t offset,
               uint32_t nbytes) {
                if (column > UINT16_MAX) throw nb::value_error("a store has fewer columns");
                index.place(column, key_of(key), region, offset, nbytes);
            },
            "column"_a, "key"_a, "region"_a, "offset"_a, "nbytes"_a,
            "Note a copy in a region, by its payload; another one there is forgotten. Adds the value if it is new.")
        .def(
            "place_all",
            [](SharedIndex& index, uint32_t region, Grid<const uint64_t> found) {
                for (int64_t i = 0; i < found.rows; ++i) {
                    const auto row = found[i];
                    index.place(static_cast<uint32_t>(row[4]), key_in(row.subspan(5)), region,
                                static_cast<int64_t>(row[0]), static_cast<uint32_t>(row[1]));
                }
            },
            "region"_a, "found"_a, "Note the copies that ``find_values`` found in a region.")
        .def(
            "stored",
            [](const SharedIndex& index, uint32_t column, Grid<const uint64_t> keys, int64_t most) {
                std::vector<uint32_t> found;
                for (int64_t i = 0; i < keys.rows; ++i) {
                    const uint32_t number = index.find(column, key_in(keys[i]));
                    if (number == SharedIndex::none || !index.has_copies(number)) break;
                    if (index.payload_bytes(number) > most) break;
                    found.push_back(number);
                }
                return found;
            },
            "column"_a, "keys"_a, "most"_a,
            "Return the numbers of values by their ``keys`` uint64 [n, 2]; up to the first one without a copy, or with "
            "a larger payload than ``most``.")
        .def(
            "expect",
            [](SharedIndex& index, uint32_t number, uint32_t nbytes) {
                index.place(index.column(number), index.key(number), SharedIndex::none, 0, nbytes);
            },
            "number"_a, "nbytes"_a, "Note the bytes of the payload that a value without copies would have.")
        .def(
            "copies",
            [](const SharedIndex& index, uint32_t number) {
                std::vector<Copy> found;
                for (const SharedIndex::Copy& copy : index.copies(number)) {
                    found.emplace_back(copy.region, copy.offset(), copy.nbytes);
                }
                return found;
            },
            "number"_a, "Return the region, offset and bytes of each copy's payload.")
        .def("has_copy", &SharedIndex::has_copy, "number"_a, "region"_a, "Return whether a region has a copy.")
        .def(
            "all_have_copy",
            [](const SharedIndex& index, const std::vector<uint32_t>& numbers, uint32_t region) {
                return std::ranges::all_of(numbers, [&](uint32_t one) { return index.has_copy(one, region); });
            },
            "numbers"_a, "region"_a, "Return whether a region has a copy of each value.")
        .def("payload_bytes", &SharedIndex::payload_bytes, "number"_a, "Return the bytes of a value's payload.")
        .def("only_in", &SharedIndex::only_in, "region"_a,
             "Return the values in use that have no copy outside a region.")
        .def("drop_region", &SharedIndex::drop_region, "region"_a, "Forget all copies in a region.")
        .def("drop_copy", &SharedIndex::drop_copy, "number"_a, "region"_a, "Forget the copy of a value in a region.")
        .def("drop_unused", &SharedIndex::drop_unused, "Forget the values that no segment refers to.")
        .def("bytes_in", &SharedIndex::bytes_in, "region"_a, "Return the space of a region's copies.")
        .def_prop_ro("copied_bytes", &SharedIndex::copied_bytes, "Space of all copies.")
        .def("counts", &SharedIndex::counts, "column"_a,
             "Return how many values of a column are in use, and the bytes of their payloads.");
}

}  // namespace sharpwave
