// Which codecs does the core decode? Addresses of their functions, for kernels that are compiled elsewhere.
#include "codecs.hpp"

#include "numpy_arrays.hpp"
#include "rooms.hpp"

namespace sharpwave {
namespace {

// Words at the address that a kernel receives, as codecs/fused.py numbers them.
enum Word {
    memory_word,
    memory_bytes_word,
    begin_word,
    rows_word,
    dictionary_word,
    size_word,
    line_word,
    zeros_word,
    newest_word,
    first_word,
    out_word,
    length_word,
    scratch_word
};

template <class Byte>
std::span<Byte> span_at(int64_t address, int64_t size) {
    return {reinterpret_cast<Byte*>(address), static_cast<std::size_t>(size)};
}

template <bool decodes>
Window read_window(const int64_t* words) {
    const int64_t size = words[size_word], length = words[length_word];
    Window window{.memory = span_at<const uint8_t>(words[memory_word], words[memory_bytes_word]),
                  .begin = words[begin_word],
                  .rows = words[rows_word],
                  .newest = words[newest_word],
                  .first = words[first_word],
                  .length = length,
                  .size = size,
                  .line = words[line_word],
                  .zeros = words[zeros_word] != 0};
    if constexpr (decodes) {
        window.dictionary = span_at<const uint8_t>(words[dictionary_word], size);
        window.out = span_at<uint8_t>(words[out_word], length * size);
        window.scratch = span_at<uint8_t>(words[scratch_word], size);
    }
    return window;
}

template <int number>
int64_t decode_at(int64_t address) {
    window_codecs[number].decode(read_window<true>(reinterpret_cast<const int64_t*>(address)));
    return 0;
}

template <int number>
int64_t prefetch_at(int64_t address) {
    window_codecs[number].prefetch(read_window<false>(reinterpret_cast<const int64_t*>(address)));
    return 0;
}

template <int number>
void add_kernels(nanobind::dict& kernels) {
    kernels[nanobind::int_(number)] = nanobind::make_tuple(reinterpret_cast<std::uintptr_t>(&decode_at<number>),
                                                           reinterpret_cast<std::uintptr_t>(&prefetch_at<number>));
}

nanobind::typed<nanobind::dict, int, nanobind::object> codec_kernels() {
    nanobind::dict kernels;
    add_kernels<delta_codec>(kernels);
    add_kernels<patches_codec>(kernels);
    return nanobind::borrow<nanobind::typed<nanobind::dict, int, nanobind::object>>(kernels);
}

}  // namespace

void define_codecs(nanobind::module_& module) {
    module.def("codec_kernels", &codec_kernels,
               "Return, by codec number, the addresses of functions that decode and prefetch a window of rows. Each "
               "takes the address of words as of ``sharpwave.codecs.fused``, and returns 0.");
}

}  // namespace sharpwave
