// Which values fit a field as they are, and where do their rows lie? In the caller's arrays, or converted.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "numpy_arrays.hpp"
#include "steps.hpp"
#include "words.hpp"

namespace sharpwave {

inline constexpr int64_t single = -1;              // rows: one value, without a leading axis
inline constexpr int64_t scratch_bytes = 1 << 14;  // for values that are converted; larger ones get arrays of their own

// What a field's values are.
struct Field {
    int64_t row_bytes;
    int type;  // numpy's number
    PyTypeObject* scalar;
    std::vector<npy_intp> shape;
    int64_t lowest = 0, highest = -1;  // of a Python integer that is taken as it is
};

template <class T>
void set_limits_of(Field& field) {
    field.lowest = int64_t{std::numeric_limits<T>::min()};  // NOLINT(bugprone-signed-char-misuse): a number
    field.highest =
        sizeof(T) == 8 ? std::numeric_limits<int64_t>::max() : static_cast<int64_t>(std::numeric_limits<T>::max());
}

inline void set_limits(Field& field) {
    if (!field.shape.empty()) return;
    switch (field.row_bytes * (PyTypeNum_ISUNSIGNED(field.type) ? -1 : PyTypeNum_ISSIGNED(field.type) ? 1 : 0)) {
        case 1:
            return set_limits_of<std::int8_t>(field);
        case 2:
            return set_limits_of<std::int16_t>(field);
        case 4:
            return set_limits_of<std::int32_t>(field);
        case 8:
            return set_limits_of<std::int64_t>(field);
        case -1:
            return set_limits_of<std::uint8_t>(field);
        case -2:
            return set_limits_of<std::uint16_t>(field);
        case -4:
            return set_limits_of<std::uint32_t>(field);
        case -8:
            return set_limits_of<std::uint64_t>(field);
        default:
            return;
    }
}

// Describes values by an array of one row.
inline Field field_of(PyArrayObject* row) {
    Field field{.row_bytes = static_cast<int64_t>(PyArray_NBYTES(row)),
                .type = PyArray_DESCR(row)->type_num,
                .scalar = PyArray_DESCR(row)->typeobj,
                .shape = {PyArray_DIMS(row), PyArray_DIMS(row) + PyArray_NDIM(row)}};
    set_limits(field);
    return field;
}

inline Field field_of(int type) {
    const nanobind::object row = nanobind::steal(PyArray_SimpleNew(0, nullptr, type));
    if (!row.is_valid()) nanobind::raise_python_error();
    return field_of(reinterpret_cast<PyArrayObject*>(row.ptr()));
}

// Returns whether every value of one of numpy's types is one of another of the same kind.
inline bool widens(int type, int to) {
    const bool alike =
        PyTypeNum_ISFLOAT(to) ? PyTypeNum_ISFLOAT(type) : PyTypeNum_ISINTEGER(to) && PyTypeNum_ISINTEGER(type);
    return alike && PyArray_CanCastSafely(type, to);
}

// Copies an observation into ``row`` [1, *shape] if both are alike; returns whether they are.
inline bool copy_alike(nanobind::handle obs, nanobind::handle row) {
    if (!PyArray_CheckExact(obs.ptr()) || !PyArray_CheckExact(row.ptr())) return false;
    auto* from = reinterpret_cast<PyArrayObject*>(obs.ptr());
    auto* to = reinterpret_cast<PyArrayObject*>(row.ptr());
    const int axes = PyArray_NDIM(from);
    if (PyArray_NDIM(to) != axes + 1 || PyArray_DIM(to, 0) != 1 || !PyArray_ISCARRAY(to) ||
        !PyArray_CompareLists(PyArray_DIMS(from), PyArray_DIMS(to) + 1, axes) || !PyArray_ISCARRAY_RO(from) ||
        PyArray_DESCR(from)->type_num != PyArray_DESCR(to)->type_num)
        return false;
    std::memcpy(PyArray_DATA(to), PyArray_DATA(from), static_cast<std::size_t>(PyArray_NBYTES(to)));
    return true;
}

// Values of one call, which live until it ends.
class Given {
  public:
    Given() : scratch_(scratch_bytes) {}

    // Ends the call.
    void clear() {
        top_ = 0;
        kept_.clear();
    }

    // Returns memory until the end of the call; nullptr: there is none.
    uint8_t* room(int64_t nbytes) {
        const int64_t at = top_;
        if (nbytes <= scratch_bytes - at) {
            top_ += (nbytes + 7) & ~int64_t{7};
            return scratch_.data() + at;
        }
        npy_intp size = nbytes;
        return static_cast<uint8_t*>(keep(PyArray_SimpleNew(1, &size, NPY_UINT8)));
    }

    // Keeps a new array until the end of the call; returns its items, nullptr without one.
    void* keep(PyObject* array) {
        if (!array) {
            PyErr_Clear();
            return nullptr;
        }
        kept_.push_back(nanobind::steal(array));
        return PyArray_DATA(reinterpret_cast<PyArrayObject*>(array));
    }

    // Returns contiguous and aligned items of the array, which lives until the end of the call.
    const void* items(PyArrayObject* array) {
        if (PyArray_IS_C_CONTIGUOUS(array) && PyArray_ISALIGNED(array)) return PyArray_DATA(array);
        return keep(PyArray_NewCopy(array, NPY_CORDER));
    }

    // Converts float64 to float32; returns nullptr where one becomes infinite.
    const uint8_t* narrow(const double* wide, int64_t count) {
        auto* narrowed = reinterpret_cast<float*>(room(4 * count));
        if (!narrowed) return nullptr;
        bool sound = true;
        for (int64_t k = 0; k < count; ++k) {
            narrowed[k] = static_cast<float>(wide[k]);
            sound &=
                !(std::abs(narrowed[k]) > max_reward) || std::abs(wide[k]) == std::numeric_limits<double>::infinity();
        }
        return sound ? reinterpret_cast<const uint8_t*>(narrowed) : nullptr;
    }

    // Converts integers to floats; returns nullptr where one may be none.
    template <class T>
    const uint8_t* as_floats(const int64_t* integers, int64_t count) {
        constexpr int64_t exact = int64_t{1} << std::numeric_limits<T>::digits;
        auto* floats = reinterpret_cast<T*>(room(static_cast<int64_t>(sizeof(T)) * count));
        if (!floats) return nullptr;
        bool sound = true;
        for (int64_t k = 0; k < count; ++k) {
            floats[k] = static_cast<T>(integers[k]);
            sound &= integers[k] >= -exact && integers[k] <= exact;
        }
        return sound ? reinterpret_cast<const uint8_t*>(floats) : nullptr;
    }

    const uint8_t* as_floats(const Field& field, const int64_t* integers, int64_t count) {
        if (field.type == NPY_FLOAT32) return as_floats<float>(integers, count);
        return field.type == NPY_FLOAT64 ? as_floats<double>(integers, count) : nullptr;
    }

    // Returns the rows [count, *shape] of a value that fits the field; nullptr for others.
    const uint8_t* take(const Field& field, nanobind::handle value, int64_t count) {
        PyObject* object = value.ptr();
        if (PyArray_CheckExact(object)) return take_array(field, reinterpret_cast<PyArrayObject*>(object), count);
        if (count != single || !field.shape.empty()) return nullptr;
        if (Py_TYPE(object) == field.scalar) {
            uint8_t* at = room(field.row_bytes);
            PyArray_ScalarAsCtype(object, at);
            return at;
        }
        if (PyFloat_CheckExact(object) || PyArray_IsScalar(object, Double)) {  // the latter is a Python float, too
            const double number = PyFloat_AsDouble(object);
            if (field.type == NPY_FLOAT32) return narrow(&number, 1);
            if (field.type != NPY_FLOAT64) return nullptr;
            uint8_t* at = room(8);
            std::memcpy(at, &number, 8);
            return at;
        }
        if (PyBool_Check(object) && field.type == NPY_BOOL) {
            uint8_t* at = room(1);
            *at = object == Py_True;
            return at;
        }
        if (PyLong_CheckExact(object)) return take_integer(field, object);
        if (!PyArray_IsScalar(object, Number)) return nullptr;
        PyObject* array = PyArray_FromScalar(object, nullptr);
        return keep(array) ? take_array(field, reinterpret_cast<PyArrayObject*>(array), single) : nullptr;
    }

    const uint8_t* take_array(const Field& field, PyArrayObject* array, int64_t count) {
        const int lead = count == single ? 0 : 1;
        if (PyArray_NDIM(array) != lead + static_cast<int>(field.shape.size())) return nullptr;
        const npy_intp* shape = PyArray_DIMS(array);
        if (lead && shape[0] != count) return nullptr;
        for (std::size_t k = 0; k < field.shape.size(); ++k) {
            if (shape[lead + k] != field.shape[k]) return nullptr;
        }
        if (!PyArray_ISNOTSWAPPED(array)) return nullptr;
        const int type = PyArray_DESCR(array)->type_num;
        if (type == field.type) return static_cast<const uint8_t*>(items(array));
        if (type == NPY_FLOAT64 && field.type == NPY_FLOAT32) {
            const void* at = items(array);
            return at ? narrow(static_cast<const double*>(at), PyArray_SIZE(array)) : nullptr;
        }
        if (PyTypeNum_ISFLOAT(field.type) && widens(type, NPY_INT64)) {
            const void* at = is_type<int64_t>(type) ? items(array) : cast(array, NPY_INT64);
            return at ? as_floats(field, static_cast<const int64_t*>(at), PyArray_SIZE(array)) : nullptr;
        }
        return widens(type, field.type) ? static_cast<const uint8_t*>(cast(array, field.type)) : nullptr;
    }

    // Returns items of another type.
    const void* cast(PyArrayObject* array, int type) {
        return keep(PyArray_CastToType(array, PyArray_DescrFromType(type), 0));
    }

    const uint8_t* take_integer(const Field& field, PyObject* object) {
        int overflow = 0;
        const int64_t number = PyLong_AsLongLongAndOverflow(object, &overflow);
        if (overflow) return nullptr;
        if (PyTypeNum_ISFLOAT(field.type)) return as_floats(field, &number, 1);
        if (number < field.lowest || number > field.highest) return nullptr;
        uint8_t* at = room(8);
        std::memcpy(at, &number, 8);  // little-endian: its first bytes are the number in fewer
        return at;
    }

  private:
    std::vector<uint8_t> scratch_;  // values that were converted
    int64_t top_ = 0;
    std::vector<nanobind::object> kept_;  // arrays of its own: larger ones, and copies of those that cannot be read
};

}  // namespace sharpwave
