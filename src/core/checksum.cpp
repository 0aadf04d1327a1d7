// How is CRC-32 computed? 64 bytes at a time by carry-less multiplication where the processor has it, else by tables.
//
// After V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Intel, 2009): 64
// bytes are multiplied by a power of x that moves them 64 bytes further, and added to the bytes there. The last 16
// bytes have the same remainder as all the bytes before them.
#include "checksum.hpp"

#include <array>

#include "numpy_arrays.hpp"
#include "rooms.hpp"
#include "unlocked.hpp"
#include "words.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sharpwave {
namespace {

using Tables = std::array<std::array<uint32_t, 256>, 16>;

// Reflected polynomials of CRC-32 and of CRC-32C (Castagnoli).
constexpr uint32_t usual = 0xEDB88320, castagnoli = 0x82F63B78;

// Table z holds the CRC of a byte that z zero bytes follow.
constexpr Tables make_tables(uint32_t polynomial) {
    Tables tables{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? polynomial : 0u);
        tables[0][byte] = value;
    }
    for (std::size_t zeros = 1; zeros < tables.size(); ++zeros) {
        for (std::size_t byte = 0; byte < 256; ++byte) {
            const uint32_t before = tables[zeros - 1][byte];
            tables[zeros][byte] = (before >> 8) ^ tables[0][before & 0xFF];
        }
    }
    return tables;
}

constexpr Tables tables = make_tables(usual), castagnoli_tables = make_tables(castagnoli);

// Returns the CRC of a word's bytes that ``zeros`` zero bytes follow.
uint32_t of_word(const Tables& tables, uint64_t word, std::size_t zeros) {
    uint32_t value = 0;
    for (std::size_t k = 0; k < 8; ++k) value ^= tables[zeros + 7 - k][word >> (8 * k) & 0xFF];
    return value;
}

// Continues ``crc``, without the first and last inversion.
uint32_t by_tables(const Tables& tables, ConstBytes data, uint32_t crc) {
    const uint8_t *at = data.data(), *end = at + data.size();
    for (; end - at >= 16; at += 16) {
        crc = of_word(tables, load<uint64_t>(at) ^ crc, 8) ^ of_word(tables, load<uint64_t>(at + 8), 0);
    }
    for (; at < end; ++at) crc = tables[0][(crc ^ *at) & 0xFF] ^ (crc >> 8);
    return crc;
}

#if defined(__x86_64__)
constexpr std::size_t block = 64;

[[gnu::target("pclmul,sse2")]] __m128i further(__m128i value, __m128i factors, __m128i beside) {
    const __m128i low = _mm_clmulepi64_si128(value, factors, 0x00), high = _mm_clmulepi64_si128(value, factors, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), beside);
}

// Continues ``crc`` over whole blocks, one or more.
[[gnu::target("pclmul,sse2")]] uint32_t by_multiplication(const uint8_t* at, std::size_t blocks, uint32_t crc) {
    // x^n mod P, bits reflected, shifted by one: n = 512 + 32, 512 - 32, for four words; 128 + 32, 128 - 32, for one.
    const __m128i by_four = _mm_set_epi64x(0x1C6E41596, 0x154442BD4), by_one = _mm_set_epi64x(0x0CCAA009E, 0x1751997D0);
    const auto* words = reinterpret_cast<const __m128i*>(at);
    std::array<__m128i, 4> held;
    for (std::size_t i = 0; i < 4; ++i) held[i] = _mm_loadu_si128(words + i);
    held[0] = _mm_xor_si128(held[0], _mm_cvtsi32_si128(static_cast<int>(crc)));
    for (std::size_t k = 1; k < blocks; ++k) {
        for (std::size_t i = 0; i < 4; ++i) held[i] = further(held[i], by_four, _mm_loadu_si128(words + 4 * k + i));
    }
    __m128i value = held[0];
    for (std::size_t i = 1; i < 4; ++i) value = further(value, by_one, held[i]);
    std::array<uint8_t, 16> rest;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(rest.data()), value);
    return by_tables(tables, rest, 0);
}
#endif

}  // namespace

uint32_t crc32(ConstBytes data) {
    uint32_t crc = 0xFFFFFFFF;
#if defined(__x86_64__)
    static const bool multiplies = __builtin_cpu_supports("pclmul");
    if (multiplies && data.size() >= block) {
        const std::size_t blocks = data.size() / block;
        crc = by_multiplication(data.data(), blocks, crc);
        data = data.subspan(blocks * block);
    }
#endif
    return ~by_tables(tables, data, crc);
}

uint32_t crc32c(ConstBytes data) { return ~by_tables(castagnoli_tables, data, 0xFFFFFFFF); }

void define_checksum(nanobind::module_& module) {
    using namespace nanobind::literals;
    module.def("crc32", &crc32, "data"_a, nanobind::call_guard<Released>(),
               "Return the CRC-32 of ``data`` uint8 [n], as ``zlib.crc32``. Cost: O(bytes).");
    module.def("crc32c", &crc32c, "data"_a, nanobind::call_guard<Released>(),
               "Return the CRC-32C (Castagnoli) of ``data`` uint8 [n]. Cost: O(bytes).");
}

}  // namespace sharpwave
