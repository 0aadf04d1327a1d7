// How does a batch get its memory? See the header.
#include "batches.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "rooms.hpp"

namespace sharpwave {
namespace {

namespace nb = nanobind;

constexpr int64_t sweep_every = 256;  // blocks lent between sweeps

// Holds a block for the arrays over it.
struct Lease {
    std::shared_ptr<Block> block;
    std::shared_ptr<Returned> returned;
};

void end_lease(PyObject* capsule) {
    auto* lease = static_cast<Lease*>(PyCapsule_GetPointer(capsule, nullptr));
    lease->returned->push(std::move(lease->block));
    delete lease;
}

// Makes an array over memory that ``base`` holds; without ``strides``, contiguous.
nb::object new_array(PyTypeObject* type, PyArray_Descr* kind, const std::vector<npy_intp>& shape,
                     const npy_intp* strides, void* data, nb::handle base) {
    Py_INCREF(reinterpret_cast<PyObject*>(kind));
    nb::object array = nb::steal(PyArray_NewFromDescr(type, kind, static_cast<int>(shape.size()), shape.data(), strides,
                                                      data, NPY_ARRAY_WRITEABLE, nullptr));
    auto* made = reinterpret_cast<PyArrayObject*>(array.ptr());
    if (!made || PyArray_SetBaseObject(made, nb::borrow(base).release().ptr()) < 0) nb::raise_python_error();
    return array;
}

// As ``object.__new__(kind)``.
nb::object empty_object(nb::handle kind) {
    static const auto make = reinterpret_cast<newfunc>(PyType_GetSlot(&PyBaseObject_Type, Py_tp_new));
    static PyObject* const nothing = PyTuple_New(0);
    nb::object made = nb::steal(make(reinterpret_cast<PyTypeObject*>(kind.ptr()), nothing, nullptr));
    if (!made.is_valid()) nb::raise_python_error();
    return made;
}

// As ``__array_finalize__`` of a class of arrays: what derives from one of it keeps its tag.
int keep_tag_of(PyArrayObject* made, PyObject* source) {
    auto* self = reinterpret_cast<PyObject*>(made);
    if (!source || PyArray_CheckExact(source) || !PyObject_TypeCheck(source, Py_TYPE(self))) return 0;
    static PyObject* const name = PyUnicode_InternFromString("tag");
    const nb::object tag = nb::steal(PyObject_GetAttr(source, name));
    return tag.is_valid() ? PyObject_SetAttr(self, name, tag.ptr()) : -1;
}

nb::object keep_tag() {
    return nb::steal(PyCapsule_New(reinterpret_cast<void*>(&keep_tag_of), nullptr, nullptr));  // as numpy asks for
}

}  // namespace

Block::Block(int64_t nbytes_, nb::object memory_) : nbytes(nbytes_), memory(std::move(memory_)) {
    if (PyObject_GetBuffer(memory.ptr(), &buffer_, PyBUF_WRITABLE) < 0) nb::raise_python_error();
    if (buffer_.len < nbytes) {
        PyBuffer_Release(&buffer_);
        throw nb::value_error("Block: the memory has fewer bytes");
    }
}

Block::~Block() {
    arrays.reset();  // over the buffer
    PyBuffer_Release(&buffer_);
}

void Returned::push(std::shared_ptr<Block> block) {
    Block* pushed = block.get();
    (last ? last->behind : first) = std::move(block);
    last = pushed;
}

std::shared_ptr<Block> Returned::pop() {
    std::shared_ptr<Block> block = std::move(first);
    if (block) first = std::move(block->behind);
    if (!first) last = nullptr;
    return block;
}

void Pool::collect() {
    while (std::shared_ptr<Block> block = returned_->pop()) give_back(std::move(block));
}

void Pool::give_back(std::shared_ptr<Block> block) {
    const int64_t size = block->nbytes;
    held_bytes -= size, free_bytes += size;
    free_[size].push_back(std::move(block));
}

int64_t Pool::missing(std::vector<int64_t> sizes) {
    collect();
    std::sort(sizes.begin(), sizes.end());
    int64_t bytes = 0;
    for (std::size_t i = 0; i < sizes.size();) {
        const int64_t size = sizes[i];
        int64_t wanted = 0;
        for (; i < sizes.size() && sizes[i] == size; ++i) ++wanted;
        const auto found = free_.find(size);
        bytes += size * std::max<int64_t>(0, wanted - (found == free_.end() ? 0 : std::ssize(found->second)));
    }
    return bytes;
}

std::shared_ptr<Block> Pool::take(int64_t size) {
    const auto found = free_.find(size);
    if (found == free_.end() || found->second.empty()) return nullptr;
    std::shared_ptr<Block> block = std::move(found->second.back());
    found->second.pop_back();
    free_bytes -= size;
    count(*block);
    return block;
}

std::shared_ptr<Block> Pool::lend(int64_t size) {
    std::shared_ptr<Block> block = take(size);
    if (!block) {
        block = std::make_shared<Block>(size, memory_(size));
        count(*block);
    }
    return block;
}

void Pool::count(Block& block) {
    held_bytes += block.nbytes;
    block.lent = ++lent_;
    if (lent_ - swept_ >= sweep_every) sweep();
}

nb::object Pool::lease(std::shared_ptr<Block> block) const {
    auto lease = std::make_unique<Lease>(std::move(block), returned_);
    nb::object capsule = nb::steal(PyCapsule_New(lease.get(), nullptr, &end_lease));
    if (!capsule.is_valid()) {
        returned_->push(std::move(lease->block));
        nb::raise_python_error();
    }
    [[maybe_unused]] const auto* held = lease.release();  // the capsule's
    return capsule;
}

int64_t Pool::trim() {
    collect();
    free_.clear();
    return std::exchange(free_bytes, 0);
}

// Lets go of blocks that were not needed since the last sweep: of sizes no longer used, or more than are in use.
void Pool::sweep() {
    for (auto one = free_.begin(); one != free_.end();) {
        auto& [size, blocks] = *one;
        const auto kept = std::remove_if(blocks.begin(), blocks.end(),
                                         [this](const std::shared_ptr<Block>& block) { return block->lent <= swept_; });
        free_bytes -= size * (blocks.end() - kept);
        blocks.erase(kept, blocks.end());
        one = blocks.empty() ? free_.erase(one) : std::next(one);
    }
    swept_ = lent_;
}

Spot spot_of(PyArrayObject* array, const std::vector<PyArrayObject*>& roots) {
    const auto* at = static_cast<const uint8_t*>(PyArray_DATA(array));
    const int64_t end = PyArray_SIZE(array) ? 0 : 1;  // without items it may lie at the very end
    for (std::size_t root = 0; root < roots.size(); ++root) {
        const int64_t offset = at - static_cast<const uint8_t*>(PyArray_DATA(roots[root]));
        if (offset >= 0 && offset < PyArray_NBYTES(roots[root]) + end) return {root, offset};
    }
    throw nb::value_error("an array that lies in no block");
}

Layout::Layout(nb::handle like, const nb::typed<nb::sequence, nb::object>& roots) {
    std::vector<PyArrayObject*> arrays;
    for (nb::handle root : roots) arrays.push_back(reinterpret_cast<PyArrayObject*>(root.ptr()));
    if (PyDict_CheckExact(like.ptr())) {
        whole_ = dict_of(like, arrays);
    } else {
        Part parts = dict_of(like.attr("__dict__"), arrays);
        whole_.kind = Kind::batch, whole_.value = nb::borrow(like.type());
        whole_.parts.push_back(std::move(parts));
    }
}

Layout::Part Layout::dict_of(nb::handle dict, const std::vector<PyArrayObject*>& roots) {
    Part part;
    part.kind = Kind::dict, part.value = nb::steal(PyDict_Copy(dict.ptr()));
    PyObject *key = nullptr, *value = nullptr;
    Py_ssize_t place = 0;
    while (PyDict_Next(dict.ptr(), &place, &key, &value)) {
        Part inner = part_of(value, roots);
        if (inner.kind == Kind::same) continue;
        if (PyDict_SetItem(part.value.ptr(), key, Py_None) < 0) nb::raise_python_error();
        part.keys.push_back(nb::borrow(key));
        part.parts.push_back(std::move(inner));
    }
    return part;
}

Layout::Part Layout::part_of(nb::handle value, const std::vector<PyArrayObject*>& roots) {
    Part part;
    if (PyDict_CheckExact(value.ptr())) return dict_of(value, roots);
    if (PyTuple_CheckExact(value.ptr())) {
        part.kind = Kind::tuple;
        for (nb::handle one : nb::borrow<nb::tuple>(value)) part.parts.push_back(part_of(one, roots));
        return part;
    }
    if (PyArray_Check(value.ptr())) return array_of(value, roots);
    part.value = nb::borrow(value);
    return part;
}

Layout::Part Layout::array_of(nb::handle value, const std::vector<PyArrayObject*>& roots) {
    auto* array = reinterpret_cast<PyArrayObject*>(value.ptr());
    const npy_intp *shape = PyArray_DIMS(array), *strides = PyArray_STRIDES(array);
    const int axes = PyArray_NDIM(array);
    const auto [root, offset] = spot_of(array, roots);
    const nb::handle kind(reinterpret_cast<PyObject*>(PyArray_DESCR(array)));
    Array like{.root = root,
               .offset = offset,
               .type = nb::borrow(value.type()),
               .kind = nb::borrow(kind),
               .shape = {shape, shape + axes},
               .strides = {},
               .attributes = {}};
    if (!PyArray_IS_C_CONTIGUOUS(array)) like.strides.assign(strides, strides + axes);  // else numpy knows them
    arrays_.push_back(std::move(like));
    if (!PyArray_CheckExact(value.ptr())) {
        for (auto [name, held] : nb::borrow<nb::dict>(value.attr("__dict__"))) {
            arrays_.back().attributes.emplace_back(nb::borrow(name), nb::borrow(held));
        }
    }
    Part part;
    part.kind = Kind::array, part.number = arrays_.size() - 1;
    return part;
}

nb::object Layout::over(const std::vector<Root>& roots) const { return made(whole_, roots); }

nb::object Layout::made(const Part& part, const std::vector<Root>& roots) const {
    switch (part.kind) {
        case Kind::array: {
            const Array& like = arrays_[part.number];
            const Root& root = roots[like.root];
            nb::object array = new_array(
                reinterpret_cast<PyTypeObject*>(like.type.ptr()), reinterpret_cast<PyArray_Descr*>(like.kind.ptr()),
                like.shape, like.strides.empty() ? nullptr : like.strides.data(), root.data + like.offset, root.base);
            for (const auto& [name, value] : like.attributes) {
                if (PyObject_SetAttr(array.ptr(), name.ptr(), value.ptr()) < 0) nb::raise_python_error();
            }
            return array;
        }
        case Kind::dict: {
            nb::object dict = nb::steal(PyDict_Copy(part.value.ptr()));
            if (!dict.is_valid()) nb::raise_python_error();
            for (std::size_t i = 0; i < part.parts.size(); ++i) {
                const nb::object inner = made(part.parts[i], roots);
                if (PyDict_SetItem(dict.ptr(), part.keys[i].ptr(), inner.ptr()) < 0) nb::raise_python_error();
            }
            return dict;
        }
        case Kind::tuple: {
            nb::object tuple = nb::steal(PyTuple_New(std::ssize(part.parts)));
            if (!tuple.is_valid()) nb::raise_python_error();
            Py_ssize_t place = 0;
            for (const Part& inner : part.parts) {
                PyTuple_SetItem(tuple.ptr(), place++, made(inner, roots).release().ptr());
            }
            return tuple;
        }
        case Kind::batch: {
            const nb::object parts = made(part.parts[0], roots);
            nb::object batch = empty_object(part.value);
            if (PyObject_GenericSetDict(batch.ptr(), parts.ptr(), nullptr) < 0) nb::raise_python_error();
            return batch;
        }
        case Kind::same:
            break;
    }
    return part.value;
}

void define_batches(nb::module_& module) {
    using namespace nb::literals;
    nb::class_<Block>(module, "Block", "Piece of memory: the buffer of an object.")
        .def(
            "__init__",
            [](Block* self, int64_t nbytes, nb::object memory) { new (self) Block(nbytes, std::move(memory)); },
            "nbytes"_a, "memory"_a)
        .def_ro("nbytes", &Block::nbytes, "Its bytes.")
        .def_ro("memory", &Block::memory, nb::for_getter(nb::sig("def memory(self, /) -> typing.Any")), "The object.")
        .def_rw("arrays", &Block::arrays, nb::arg().none(),
                nb::for_getter(nb::sig("def arrays(self, /) -> typing.Any")),
                nb::for_setter(nb::sig("def arrays(self, value: typing.Any, /) -> None")),
                "The borrower's arrays over ``memory`` itself: they do not count as holding the block, and must not be "
                "handed out.");
    nb::class_<Pool>(module, "Pool", "Blocks, lent and free.")
        .def(nb::init<nb::object>(), "memory"_a)
        .def_ro("held_bytes", &Pool::held_bytes, "Bytes of blocks that are lent, as of the last ``collect``.")
        .def_ro("free_bytes", &Pool::free_bytes, "Bytes of the others.")
        .def("collect", &Pool::collect, "Take back the blocks that nobody holds any more.")
        .def("missing", &Pool::missing, "sizes"_a,
             "Return the bytes of memory that ``lend`` of so many blocks would have to be given.")
        .def(
            "lend",
            [](Pool& pool, int64_t size, const nb::typed<nb::tuple, int, nb::ellipsis>& shape,
               const nb::object& dtype) {
                std::vector<npy_intp> axes;
                for (nb::handle axis : shape) axes.push_back(nb::cast<npy_intp>(axis));
                std::shared_ptr<Block> block = pool.lend(size);
                const nb::object lease = pool.lease(block);
                auto* kind = reinterpret_cast<PyArray_Descr*>(dtype.ptr());
                nb::object root = new_array(&PyArray_Type, kind, axes, nullptr, block->data(), lease);
                return std::pair(std::move(block), std::move(root));
            },
            nb::sig("def lend(self, size: int, shape: tuple[int, ...], dtype: numpy.dtype[typing.Any]) -> "
                    "tuple[Block, numpy.typing.NDArray[typing.Any]]"),
            "size"_a, "shape"_a, "dtype"_a,
            "Return a block, and an array of that shape over it, uninitialized, which holds the block.")
        .def("trim", &Pool::trim, "Let go of all memory that nobody holds; return how many bytes that were.");
    nb::class_<Layout>(module, "Layout", "Maker of batches like one, over other blocks.")
        .def(nb::init<nb::handle, nb::typed<nb::sequence, nb::object>>(), "like"_a, "roots"_a,
             "Args:\n    like: a batch, or a dict of arrays.\n    roots: arrays over its blocks.")
        .def(
            "over",
            [](const Layout& layout, const nb::typed<nb::sequence, nb::object>& roots) {
                std::vector<Layout::Root> found;
                for (nb::handle root : roots) {
                    auto* array = reinterpret_cast<PyArrayObject*>(root.ptr());
                    found.push_back({nb::borrow(root), static_cast<uint8_t*>(PyArray_DATA(array))});
                }
                return layout.over(found);
            },
            nb::sig("def over(self, roots: collections.abc.Sequence[typing.Any]) -> typing.Any"), "roots"_a,
            "Return a batch of arrays over the blocks of ``roots``, which are as many and as large.");
    module.def("keep_tag", &keep_tag, nb::sig("def keep_tag() -> typing.Any"),
               "Return what is ``__array_finalize__`` of arrays whose ``tag`` is kept by all that derives from them.");
}

}  // namespace sharpwave
