// How do numpy's arrays come into the core? By their own fields, checked for type, axes and order.
#pragma once

#include <nanobind/nanobind.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_1_25_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL sharpwave_numpy
#ifndef SHARPWAVE_MODULE
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#include <type_traits>

#include "arrays.hpp"

namespace sharpwave {

template <class T>
constexpr bool is_type(int number) {
    using Item = std::remove_const_t<T>;
    if constexpr (std::is_same_v<Item, uint8_t>) {
        return number == NPY_UINT8 || number == NPY_BOOL;
    } else if constexpr (std::is_same_v<Item, std::int16_t>) {
        return number == NPY_INT16;
    } else if constexpr (std::is_same_v<Item, int32_t>) {
        return number == NPY_INT32;
    } else if constexpr (std::is_same_v<Item, uint32_t>) {
        return number == NPY_UINT32;
    } else if constexpr (std::is_same_v<Item, int64_t>) {
        return number == NPY_INT64 || (number == NPY_LONGLONG && sizeof(long long) == 8);
    } else if constexpr (std::is_same_v<Item, uint64_t>) {
        return number == NPY_UINT64 || (number == NPY_ULONGLONG && sizeof(long long) == 8);
    } else if constexpr (std::is_same_v<Item, float>) {
        return number == NPY_FLOAT32;
    } else {
        static_assert(std::is_same_v<Item, double>);
        return number == NPY_FLOAT64;
    }
}

// Returns the array if it holds T in C order with so many axes, writable unless T is const; else nullptr.
template <class T>
PyArrayObject* array_of(PyObject* object, int axes) noexcept {
    if (!PyArray_Check(object)) return nullptr;
    auto* array = reinterpret_cast<PyArrayObject*>(object);
    const int flags = PyArray_FLAGS(array);
    if (PyArray_NDIM(array) != axes || !(flags & NPY_ARRAY_C_CONTIGUOUS)) return nullptr;
    if (!std::is_const_v<T> && !(flags & NPY_ARRAY_WRITEABLE)) return nullptr;
    return is_type<T>(PyArray_DESCR(array)->type_num) && PyArray_ISNOTSWAPPED(array) ? array : nullptr;
}

}  // namespace sharpwave

namespace nanobind::detail {

// A type as type checkers write it.
template <class T>
constexpr auto array_name() {
    using Item = std::remove_const_t<T>;
    if constexpr (std::is_same_v<Item, uint8_t>)
        return const_name("numpy.typing.NDArray[numpy.uint8 | numpy.bool]");
    else if constexpr (std::is_same_v<Item, std::int16_t>)
        return const_name("numpy.typing.NDArray[numpy.int16]");
    else if constexpr (std::is_same_v<Item, int32_t>)
        return const_name("numpy.typing.NDArray[numpy.int32]");
    else if constexpr (std::is_same_v<Item, uint32_t>)
        return const_name("numpy.typing.NDArray[numpy.uint32]");
    else if constexpr (std::is_same_v<Item, int64_t>)
        return const_name("numpy.typing.NDArray[numpy.int64]");
    else if constexpr (std::is_same_v<Item, uint64_t>)
        return const_name("numpy.typing.NDArray[numpy.uint64]");
    else if constexpr (std::is_same_v<Item, float>)
        return const_name("numpy.typing.NDArray[numpy.float32]");
    else
        return const_name("numpy.typing.NDArray[numpy.float64]");
}

template <class T>
struct type_caster<std::span<T>> {
    NB_TYPE_CASTER(std::span<T>, array_name<T>())
    bool from_python(handle object, uint8_t, cleanup_list*) noexcept {
        PyArrayObject* array = sharpwave::array_of<T>(object.ptr(), 1);
        if (!array) return false;
        value = {static_cast<T*>(PyArray_DATA(array)), static_cast<std::size_t>(PyArray_DIM(array, 0))};
        return true;
    }
};

template <class T>
struct type_caster<sharpwave::Grid<T>> {
    NB_TYPE_CASTER(sharpwave::Grid<T>, array_name<T>())
    bool from_python(handle object, uint8_t, cleanup_list*) noexcept {
        PyArrayObject* array = sharpwave::array_of<T>(object.ptr(), 2);
        if (!array) return false;
        value = {static_cast<T*>(PyArray_DATA(array)), PyArray_DIM(array, 0), PyArray_DIM(array, 1)};
        return true;
    }
};

template <class T>
struct type_caster<sharpwave::Cube<T>> {
    NB_TYPE_CASTER(sharpwave::Cube<T>, array_name<T>())
    bool from_python(handle object, uint8_t, cleanup_list*) noexcept {
        PyArrayObject* array = sharpwave::array_of<T>(object.ptr(), 3);
        if (!array) return false;
        value = {static_cast<T*>(PyArray_DATA(array)), PyArray_DIM(array, 0), PyArray_DIM(array, 1),
                 PyArray_DIM(array, 2)};
        return true;
    }
};

}  // namespace nanobind::detail
