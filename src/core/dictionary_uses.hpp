// How often is each place of a field's dictionaries used, and what is the key of the dictionary there?
#pragma once

#include <optional>
#include <vector>

#include "arrays.hpp"

namespace sharpwave {

// Counts of references, by place. Place 0 stands for "none": it is not counted, and its key is 0.
class DictionaryUses {
  public:
    explicit DictionaryUses(int64_t places)
        : counts_(static_cast<std::size_t>(places)), keys_(static_cast<std::size_t>(places)) {}

    // Returns the first place without references.
    std::optional<int64_t> first_free() const {
        for (std::size_t place = 1; place < counts_.size(); ++place) {
            if (!counts_[place]) return static_cast<int64_t>(place);
        }
        return std::nullopt;
    }

    // Puts the dictionary of that key at a place, where nothing refers to it yet.
    void put(int64_t place, uint64_t key) {
        keys_[index(place)] = key;
        counts_[index(place)] = 0;
    }

    // Takes another reference.
    void use(int64_t place) { counts_[index(place)] += place > 0; }

    // Releases a reference; returns whether it was the last one: the place is free.
    bool drop(int64_t place) {
        require(!place || count(place) > 0, "a reference that is released was taken");
        return place && --counts_[index(place)] == 0;
    }

    // Returns the number of references.
    int64_t count(int64_t place) const { return counts_[index(place)]; }

    // Returns the key of the dictionary that is there, or was there last.
    uint64_t key(int64_t place) const { return keys_[index(place)]; }

  private:
    std::size_t index(int64_t place) const {
        require(place >= 0 && place < std::ssize(counts_), "a dictionary's place is one of the table's");
        return static_cast<std::size_t>(place);
    }

    std::vector<int64_t> counts_;
    std::vector<uint64_t> keys_;
};

}  // namespace sharpwave
