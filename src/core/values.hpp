// How does a call take rows by field? As contiguous bytes, which it holds until it returns.
#pragma once

#include <vector>

#include "numpy_arrays.hpp"
#include "segments.hpp"

namespace sharpwave {

// One field's rows, from a mapping of arrays. Raises Python's error, as MemoryError where they had to be copied.
class Value {
  public:
    Value(nanobind::handle name, nanobind::handle rows, int64_t nbytes) {
        PyObject* given = PyDict_CheckExact(rows.ptr()) ? Py_XNewRef(PyDict_GetItemWithError(rows.ptr(), name.ptr()))
                                                        : PyObject_GetItem(rows.ptr(), name.ptr());
        if (!given) {
            if (!PyErr_Occurred()) PyErr_SetObject(PyExc_KeyError, name.ptr());
            throw nanobind::python_error();
        }
        held_ = nanobind::steal(given);
        if (!PyArray_Check(given)) throw nanobind::type_error("rows: expected arrays");
        auto* array = reinterpret_cast<PyArrayObject*>(given);
        if (!PyArray_IS_C_CONTIGUOUS(array)) {
            PyObject* copy = PyArray_NewCopy(array, NPY_CORDER);
            if (!copy) throw nanobind::python_error();
            held_ = nanobind::steal(copy);
            array = reinterpret_cast<PyArrayObject*>(copy);
        }
        if (PyArray_NBYTES(array) != nbytes) throw nanobind::value_error("rows: not as many bytes as the field has");
        data_ = static_cast<const uint8_t*>(PyArray_DATA(array));
    }

    const uint8_t* data() const { return data_; }

  private:
    nanobind::object held_;
    const uint8_t* data_;
};

enum class Which : uint8_t { all, framed };  // fields

// Rows of several fields, ``count`` each; of none if that is 0.
class Values {
  public:
    Values(const Columns& columns, nanobind::handle rows, int64_t count, Which which) {
        if (!count) return;
        at_.resize(columns.fields.size());
        held_.reserve(columns.fields.size());
        for (std::size_t k = 0; k < columns.fields.size(); ++k) {
            const FieldColumn& column = columns.fields[k];
            if (which == Which::framed && !column.framed) continue;
            at_[k] = held_.emplace_back(column.name, rows, count * column.row_bytes).data();
        }
    }

    // By field; null for fields that were not asked for.
    Pointers rows() const { return at_; }

  private:
    std::vector<Value> held_;
    std::vector<const uint8_t*> at_;
};

}  // namespace sharpwave
