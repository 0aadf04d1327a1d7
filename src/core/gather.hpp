// How is a window gathered into memory whose rows may lie apart?
#pragma once

#include "column.hpp"
#include "numpy_arrays.hpp"

namespace sharpwave {

// Memory for rows of windows, [windows, rows, size] or [windows, size], whose bytes lie together but whose rows may
// not.
template <int axes>
struct Places {
    uint8_t* data;
    int64_t windows, rows, size;
    int64_t window_stride, row_stride;
};

// Limits of the threads that decode: their number, the caller included, and the bytes for each; and the bytes that one
// decodes at a time.
struct Threads {
    int64_t most, bytes_each, chunk_bytes;
};

// Decodes the windows of as many rows as ``out`` has that end with ``newest``, padded before ``first``; returns how
// many are left out, as the core does not decode their codec. The interpreter's lock is held, and given up meanwhile.
int64_t gather_windows(const Column& column, ConstInts slot, ConstInts newest, ConstInts first, Places<3> out,
                       Threads threads);

// Decodes the first ``count`` of ``pieces`` likewise, windows of different lengths: slot, newest and first row, length,
// and the row of ``out`` that its first goes to.
int64_t gather_pieces(const Column& column, Grid<const int64_t> pieces, int64_t count, Places<2> out, Threads threads);

}  // namespace sharpwave

namespace nanobind::detail {

template <int axes>
struct type_caster<sharpwave::Places<axes>> {
    NB_TYPE_CASTER(sharpwave::Places<axes>, const_name("numpy.typing.NDArray[numpy.uint8]"))
    bool from_python(handle object, uint8_t, cleanup_list*) noexcept {
        if (!PyArray_Check(object.ptr())) return false;
        auto* array = reinterpret_cast<PyArrayObject*>(object.ptr());
        if (PyArray_NDIM(array) != axes || PyArray_TYPE(array) != NPY_UINT8 || !PyArray_ISWRITEABLE(array))
            return false;
        const npy_intp *shape = PyArray_DIMS(array), *strides = PyArray_STRIDES(array);
        if (shape[axes - 1] > 1 && strides[axes - 1] != 1 && PyArray_SIZE(array)) return false;
        value = {static_cast<uint8_t*>(PyArray_DATA(array)),
                 shape[0],
                 axes == 3 ? shape[1] : 1,
                 shape[axes - 1],
                 strides[0],
                 strides[axes - 2]};
        return true;
    }
};

}  // namespace nanobind::detail
