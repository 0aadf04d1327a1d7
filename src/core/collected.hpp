// How does Python's garbage collector see what an object of the core refers to? By its ``held``.
//
// Without this, a cycle through such an object is never freed. The cycle's other objects are those that are cleared.
#pragma once

#include <nanobind/nanobind.h>

namespace sharpwave {

// Slots of the type of T, whose ``each_held`` calls a function with each ``nanobind::object`` that it owns.
template <class T>
struct Collected {
    static int traverse(PyObject* self, visitproc visit, void* arg) {
        Py_VISIT(Py_TYPE(self));
        int found = 0;
        if (!nanobind::inst_ready(self)) return found;
        nanobind::inst_ptr<T>(self)->each_held([&](const nanobind::object& one) {
            if (!found && one.is_valid()) found = visit(one.ptr(), arg);
        });
        return found;
    }

    static inline PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse)}, {0, nullptr}};
};

}  // namespace sharpwave
