// What does a fuzz target take from its input, and where does it put it? Numbers, and arrays of exactly their bytes.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "arrays.hpp"

namespace sharpwave::fuzz {

// Ends the process where the core and a plain twin differ.
inline void expect(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "sharpwave fuzz: expected that %s\n", what);
    std::abort();
}

// An array of its own: AddressSanitizer sees each access behind it.
class Array {
  public:
    explicit Array(std::size_t size) : data_(new uint8_t[size]), size_(size) { std::memset(data_.get(), 0xA5, size); }
    explicit Array(ConstBytes bytes) : Array(bytes.size()) {
        if (size_) std::memcpy(data_.get(), bytes.data(), size_);
    }
    Bytes all() const { return {data_.get(), size_}; }
    bool operator==(const Array& other) const {
        return size_ == other.size_ && (!size_ || std::memcmp(data_.get(), other.data_.get(), size_) == 0);
    }

  private:
    std::unique_ptr<uint8_t[]> data_;
    std::size_t size_;
};

// The input's bytes that are not taken yet; zeros behind them.
struct Input {
    ConstBytes left;

    ConstBytes take(std::size_t count) {
        const ConstBytes taken = left.first(std::min(count, left.size()));
        left = left.subspan(taken.size());
        return taken;
    }
    // Returns a number from ``lowest`` to ``highest``, of one byte, or two if there are more numbers.
    int64_t number(int64_t lowest, int64_t highest) {
        const int64_t numbers = highest - lowest + 1;
        int64_t value = 0;
        for (const uint8_t byte : take(numbers > 256 ? 2 : 1)) value = value << 8 | byte;
        return lowest + value % numbers;
    }
    // Returns bytes behind their number.
    ConstBytes piece() { return take(static_cast<std::size_t>(number(0, 255))); }
    // Fills an array with what is left of so many bytes.
    Array array(std::size_t size) {
        Array filled(size);
        const ConstBytes bytes = take(size);
        if (!bytes.empty()) std::memcpy(filled.all().data(), bytes.data(), bytes.size());
        return filled;
    }
};

// Adds a number of ``count`` bytes, little-endian.
inline void add_number(std::vector<uint8_t>& out, std::size_t number, int count) {
    for (int k = 0; k < count; ++k) out.push_back(static_cast<uint8_t>(number >> 8 * k));
}

// Changes up to two bytes of what was well formed, and how many there are, as the input says.
inline void damage(std::vector<uint8_t>& content, Input& input) {
    for (int64_t left = input.number(0, 2); left > 0 && !content.empty(); --left) {
        const auto at = static_cast<std::size_t>(input.number(0, 1023)) % content.size();
        content[at] = static_cast<uint8_t>(content[at] + input.number(0, 255));
    }
    const auto cut = static_cast<std::size_t>(input.number(-200, 55));
    if (cut < content.size()) content.resize(content.size() - cut);
}

}  // namespace sharpwave::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
