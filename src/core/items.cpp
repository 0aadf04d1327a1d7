// Which items has a view, and which does an eviction take from it?
#include "items.hpp"

#include <algorithm>
#include <memory>

#include "collected.hpp"
#include "numpy_arrays.hpp"
#include "rooms.hpp"

namespace sharpwave {

namespace nb = nanobind;

void Items::bind(nb::object log, nb::object spans, nb::object leaves, nb::object finder, nb::object expected,
                 nb::object judged) {
    unbind();
    held_log_ = std::move(log), held_spans_ = std::move(spans), held_leaves_ = std::move(leaves);
    held_finder_ = std::move(finder), expected_ = std::move(expected);
    spans_ = nb::cast<Grid<int32_t>>(held_spans_);
    leaves_ = &nb::cast<Leaves&>(held_leaves_);
    finder_ = &nb::cast<Finder&>(held_finder_);
    held_judged_ = std::move(judged);
    judged_ = held_judged_.is_none() ? Bytes() : nb::cast<Bytes>(held_judged_);
    log_ = &nb::cast<const Log&>(held_log_);
}

bool Items::settled() const { return found.is_none() && PyList_Size(losing.ptr()) == 0; }

void Items::forget(int64_t slot) {
    require(forgets(), "what awaits memory is inserted and excluded first");
    const int64_t most = finder_->most_lost(*log_, slot);
    const auto room = most ? std::make_unique_for_overwrite<int64_t[]>(static_cast<std::size_t>(most)) : nullptr;
    if (PyDict_Size(expected_.ptr())) nb::borrow<nb::dict>(expected_).attr("pop")(slot, nb::none());
    // Nothing below fails.
    const std::span<int32_t> span = spans_[slot];
    leaves_->remove(slot);
    if (judged_.empty()) {
        count -= span[1] - span[0];
    } else {
        const auto stride = static_cast<std::size_t>(log_->stride), first = static_cast<std::size_t>(slot) * stride;
        const Bytes own = judged_.subspan(first, stride);
        count -=
            std::ranges::count(own.subspan(static_cast<std::size_t>(span[0]), std::size_t(span[1] - span[0])), matches);
        std::ranges::fill(own, unjudged);
    }
    span[0] = span[1] = 0;
    const Ints room_for_all(room.get(), static_cast<std::size_t>(most));
    Ints lost = room_for_all.first(static_cast<std::size_t>(finder_->lose(*log_, slot, spans_, room_for_all)));
    if (!judged_.empty()) {
        const auto excluded = [&](int64_t item) { return judged_[static_cast<std::size_t>(item)] != matches; };
        lost = lost.first(lost.size() - std::ranges::remove_if(lost, excluded).size());
    }
    if (lost.empty()) return;
    leaves_->exclude(lost);
    count -= std::ssize(lost);
}

Followers::Followers(const nb::typed<nb::sequence, nb::object>& items) {
    for (nb::handle one : items) items_.emplace_back(one);
}

bool Followers::forget(int64_t slot) const {
    const auto each = [&](auto&& call) {
        for (const nb::weakref& weak : items_) {
            const nb::object one = weak();
            if (!one.is_none() && !call(*nb::inst_ptr<Items>(one))) return false;
        }
        return true;
    };
    if (!each([](const Items& items) { return items.forgets(); })) return false;  // before any of them changes
    return each([&](Items& items) {
        items.forget(slot);
        return true;
    });
}

void define_items(nb::module_& module) {
    using namespace nb::literals;
    nb::class_<Items>(module, "Items", "Items of a view; its attributes are those of ``sharpwave.views.items.Items``.",
                      nb::type_slots(Collected<Items>::slots))
        .def(nb::init<>())
        .def_rw("count", &Items::count)
        .def_rw("samples", &Items::samples)
        .def_rw("seen", &Items::seen)
        .def_rw("grew", &Items::grew)
        .def_rw("found", &Items::found,
                nb::for_getter(nb::sig("def found(self) -> numpy.typing.NDArray[numpy.int64] | None")),
                nb::for_setter(nb::sig("def found(self, runs: numpy.typing.NDArray[numpy.int64] | None, /) -> None")),
                nb::arg("runs").none())
        .def_ro("losing", &Items::losing,
                nb::for_getter(nb::sig("def losing(self) -> list[numpy.typing.NDArray[numpy.int64]]")))
        .def("bind", &Items::bind, "log"_a, "spans"_a, "leaves"_a, "finder"_a, "expected"_a,
             "judged"_a.none() = nb::none(),
             "Bind ``Log``, int32 [slots, 2], ``Leaves``, ``Finder``, a dict by slot, of segments that are held, and "
             "uint8 [items],\nwhere only those with 1 are in the tree; valid until they are replaced. Uses are not "
             "limited.")
        .def("unbind", &Items::unbind, "Forget what was bound.")
        .def("lose_segment", &Items::forget, "slot"_a,
             "Drop all items that need the segment in ``slot``. Something is bound, and nothing in ``found`` and "
             "``losing``.\n\nRaises: MemoryError: nothing changed.");
}

}  // namespace sharpwave
