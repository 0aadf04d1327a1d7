// What is the CRC-32 of some bytes? As zlib's, without the interpreter lock.
#pragma once

#include "arrays.hpp"

namespace sharpwave {

// Returns the CRC-32 of ``data``. Cost: O(bytes).
uint32_t crc32(ConstBytes data);

// Returns the CRC-32C (Castagnoli) of ``data``, as TFRecord files have it. Cost: O(bytes).
uint32_t crc32c(ConstBytes data);

}  // namespace sharpwave
