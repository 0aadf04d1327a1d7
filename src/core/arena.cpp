// Where in the arena is there room? How ranges are taken from chunks, and given back.
#include "arena.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "numpy_arrays.hpp"
#include "rooms.hpp"

namespace sharpwave {

namespace nb = nanobind;

Ranges::Ranges(int64_t begin, int64_t chunk_bytes, Grid<int64_t> chunks, nb::object owner, bool across, bool huge_pages,
               nb::object commit)
    : limit_bytes(chunks.columns * chunk_bytes),
      begin_(begin),
      chunk_bytes_(chunk_bytes),
      live_(chunks[0]),
      touched_(chunks[1]),
      opened_(chunks[2]),
      owner_(std::move(owner)),
      across_(across),
      huge_pages_(huge_pages),
      commit_(std::move(commit)) {
    require(chunk_bytes > 0 && chunk_bytes % page_bytes == 0, "a chunk has whole pages");
    empty_.reserve(live_.size());
}

std::optional<int64_t> Ranges::allocate(int64_t nbytes) {
    require(holds(nbytes), "a chunk holds a range");
    nbytes = rounded(nbytes, range_alignment);
    const int64_t top = top_ + nbytes;
    if (current_ < 0 || top > chunk_bytes_ || !may_commit(current_, top)) {
        if (reaches_next(top)) {
            const int64_t offset = begin_of(current_) + top_;
            grow(current_, chunk_bytes_, chunk_bytes_ - top_);
            ++current_;
            top_ = top - chunk_bytes_;
            grow(current_, top_, top_);
            return offset;
        }
        const std::optional<int64_t> chunk = take(nbytes);
        if (!chunk) return std::nullopt;
        reopen(*chunk);
    }
    const int64_t offset = begin_of(current_) + top_;
    top_ += nbytes;
    grow(current_, top_, nbytes);
    return offset;
}

std::size_t Ranges::allocate_some(ConstInts nbytes, Ints offsets) {
    require(!nbytes.empty() && offsets.size() >= nbytes.size(), "each range has an offset");
    const std::optional<int64_t> first = allocate(nbytes[0]);
    if (!first) return 0;
    const int64_t spare = std::max<int64_t>(0, limit_bytes - committed_bytes_) / page_bytes * page_bytes;
    const int64_t end = std::min(chunk_bytes_, touched_[at(current_)] + spare), begin = top_;
    int64_t next = *first + rounded(nbytes[0], range_alignment);
    offsets[0] = *first;
    std::size_t count = 1;
    for (; count < nbytes.size(); ++count) {
        const int64_t more = rounded(nbytes[count], range_alignment);
        if (top_ + more > end) break;
        offsets[count] = next;
        next += more;
        top_ += more;
    }
    grow(current_, top_, top_ - begin);
    return count;
}

std::pair<int64_t, int64_t> Ranges::reserve(int64_t nbytes, int64_t count) {
    require(holds(nbytes) && nbytes % range_alignment == 0, "a chunk holds a range of whole words");
    const int64_t top = open_top_ + nbytes;
    if (open_ < 0 || top > chunk_bytes_ || !may_commit(open_, top)) {
        const std::optional<int64_t> chunk = take(nbytes);
        if (!chunk) return {0, 0};
        open_ = *chunk;
        open_top_ = 0;
        opened_[at(open_)] = 1;
    }
    count = std::min(count, (chunk_bytes_ - open_top_) / nbytes);
    while (!may_commit(open_, open_top_ + count * nbytes)) --count;
    const int64_t first = begin_of(open_) + open_top_;
    open_top_ += count * nbytes;
    grow(open_, open_top_, count * nbytes);
    return {first, count};
}

void Ranges::free(int64_t offset, int64_t nbytes) {
    const int64_t chunk = chunk_of(offset), border = begin_of(chunk + 1);
    const int64_t end = offset + rounded(nbytes, range_alignment);
    free_part(chunk, offset, std::min(end, border) - offset);
    if (end > border) free_part(chunk + 1, border, end - border);
}

void Ranges::free_part(int64_t chunk, int64_t offset, int64_t nbytes) {
    int64_t& live = live_[at(chunk)];
    used_bytes_ -= nbytes;
    live -= nbytes;
    require(live >= 0, "a range is freed once");
    if (live == 0) {
        if (chunk == current_) {
            top_ = 0;
            return;
        }
        if (chunk == open_) {
            open_ = -1;
            open_top_ = 0;
        }
        opened_[at(chunk)] = 0;
        empty_.push_back(chunk);
    } else if (chunk == open_ && offset + nbytes == begin_of(chunk) + open_top_) {
        open_top_ -= nbytes;
    }
}

std::optional<int64_t> Ranges::emptiest(int64_t nbytes, double max_share) const {
    nbytes = rounded(nbytes, range_alignment);
    const int64_t top = top_ + nbytes;
    if (current_ >= 0 && top <= chunk_bytes_ && may_commit(current_, top)) return std::nullopt;
    int64_t best = -1, most = 0;
    for (std::size_t chunk = 0; chunk < at(fresh_); ++chunk) {
        const int64_t spare = touched_[chunk] - live_[chunk];
        if (spare <= most || !is_sealed(chunk)) continue;
        if (static_cast<double>(live_[chunk]) > max_share * static_cast<double>(chunk_bytes_)) continue;
        best = static_cast<int64_t>(chunk);
        most = spare;
    }
    return best >= 0 && most >= nbytes ? std::optional(best) : std::nullopt;
}

std::optional<int64_t> Ranges::loosest() const {
    int64_t best = -1, most = 0;
    for (std::size_t chunk = 0; chunk < at(fresh_); ++chunk) {
        const int64_t spare = touched_[chunk] - rounded(live_[chunk], page_bytes);
        if (spare <= most || !is_sealed(chunk)) continue;
        best = static_cast<int64_t>(chunk);
        most = spare;
    }
    return best >= 0 ? std::optional(best) : std::nullopt;
}

void Ranges::reopen(int64_t chunk) {
    const int64_t previous = current_;
    current_ = chunk;
    top_ = live_[at(chunk)];
    if (previous >= 0 && previous != chunk && live_[at(previous)] == 0) empty_.push_back(previous);
}

void Ranges::note_released(int64_t chunk, int64_t touched) {
    committed_bytes_ -= touched_[at(chunk)] - touched;
    touched_[at(chunk)] = touched;
}

void Ranges::continue_in(Ranges& larger) {
    require(larger.live_.size() >= live_.size() && larger.fresh_ == 0, "a larger arena is larger, and empty");
    const std::size_t used = at(fresh_);
    std::ranges::copy(live_.first(used), larger.live_.begin());
    std::ranges::copy(touched_.first(used), larger.touched_.begin());
    std::ranges::copy(opened_.first(used), larger.opened_.begin());
    begin_ = larger.begin_;
    live_ = larger.live_;
    touched_ = larger.touched_;
    opened_ = larger.opened_;
    owner_ = larger.owner_;
    huge_pages_ = larger.huge_pages_;
    commit_ = larger.commit_;
    larger.empty_.assign(empty_.begin(), empty_.end());
    empty_.swap(larger.empty_);
}

// Takes the chunk behind the current one, for a range that ends at ``top`` of the latter, beyond its border; returns
// whether it may.
bool Ranges::reaches_next(int64_t top) {
    const int64_t following = current_ + 1;
    if (!across_ || current_ < 0 || following >= std::ssize(live_) || top_ >= chunk_bytes_ || top <= chunk_bytes_) {
        return false;
    }
    const bool is_fresh = following == fresh_;
    const auto place = std::ranges::find(empty_, following);
    if (is_fresh ? !empty_.empty() : place == empty_.end()) return false;  // empty chunks are used before fresh ones
    const int64_t more = std::max<int64_t>(0, chunk_bytes_ - touched_[at(current_)]) +
                         std::max<int64_t>(0, rounded(top - chunk_bytes_, page_bytes) - touched_[at(following)]);
    if (committed_bytes_ + more > limit_bytes) return false;
    if (is_fresh) {
        commit(following);
        ++fresh_;
    } else {
        empty_.erase(place);
    }
    return true;
}

// Takes the empty chunk with most committed memory, so that memory touched once is reused, or else a fresh one.
std::optional<int64_t> Ranges::take(int64_t nbytes) {
    if (!empty_.empty()) {
        const auto best = std::ranges::max_element(empty_, {}, [&](int64_t chunk) { return touched_[at(chunk)]; });
        const int64_t chunk = *best;
        if (!may_commit(chunk, nbytes)) return std::nullopt;
        empty_.erase(best);
        return chunk;
    }
    if (fresh_ >= std::ssize(live_) || !may_commit(fresh_, nbytes)) return std::nullopt;
    commit(fresh_);
    return fresh_++;
}

void Ranges::commit(int64_t chunk) const {
    if (!commit_.is_none()) commit_(begin_of(chunk), chunk_bytes_);
}

bool Ranges::may_commit(int64_t chunk, int64_t top) const {
    const int64_t more = rounded(top, page_bytes) - touched_[at(chunk)];
    return more <= 0 || committed_bytes_ + more <= limit_bytes;
}

void Ranges::grow(int64_t chunk, int64_t top, int64_t nbytes) {
    used_bytes_ += nbytes;
    live_[at(chunk)] += nbytes;
    // A huge page is committed as a whole, and with it parts of the chunk that are unwritten so far.
    const int64_t touched = huge_pages_ && chunk ? chunk_bytes_ : rounded(top, page_bytes);
    if (touched > touched_[at(chunk)]) {
        committed_bytes_ += touched - touched_[at(chunk)];
        touched_[at(chunk)] = touched;
    }
}

namespace {

void check_size(const Ranges& ranges, int64_t nbytes) {
    if (ranges.holds(nbytes)) return;
    PyErr_Format(PyExc_AssertionError, "a range of %lld bytes, in chunks of %lld", static_cast<long long>(nbytes),
                 static_cast<long long>(ranges.chunk_bytes()));
    nb::raise_python_error();
}

nb::object allocate_some(Ranges& ranges, ConstInts nbytes) {
    check_size(ranges, nbytes.empty() ? 0 : nbytes[0]);
    std::vector<int64_t> offsets(nbytes.size());
    const std::size_t count = ranges.allocate_some(nbytes, offsets);
    const auto length = static_cast<npy_intp>(count);
    nb::object array = nb::steal(PyArray_SimpleNew(1, &length, NPY_INT64));
    if (!array.is_valid()) {
        for (std::size_t i = 0; i < count; ++i) ranges.free(offsets[i], nbytes[i]);
        nb::raise_python_error();
    }
    std::copy_n(offsets.data(), count,
                static_cast<int64_t*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr()))));
    return array;
}

nb::object reserve(Ranges& ranges, int64_t nbytes, int64_t count) {
    check_size(ranges, nbytes);
    const auto [first, some] = ranges.reserve(nbytes, count);
    const nb::handle range(reinterpret_cast<PyObject*>(&PyRange_Type));
    return range(first, first + some * nbytes, nbytes);
}

}  // namespace

void define_arena(nb::module_& module) {
    using namespace nb::literals;
    nb::class_<Ranges>(module, "Ranges", "Allocator of ranges of bytes in chunks of one size, by their offsets.")
        .def(
            "__init__",
            [](Ranges* ranges, int64_t begin, int64_t chunk_bytes, nb::object chunks, bool across, bool huge_pages,
               nb::object commit) {
                const auto grid = nb::cast<Grid<int64_t>>(chunks);
                new (ranges) Ranges(begin, chunk_bytes, grid, std::move(chunks), across, huge_pages, std::move(commit));
            },
            nb::sig("def __init__(self, begin: int, chunk_bytes: int, chunks: numpy.typing.NDArray[numpy.int64], "
                    "across: bool, huge_pages: bool, commit: typing.Callable[[int, int], None] | None) -> None"),
            "begin"_a, "chunk_bytes"_a, "chunks"_a, "across"_a, "huge_pages"_a, "commit"_a.none(),
            R"(Args:
    begin, chunk_bytes: where the first chunk begins, and the size of each; multiples of the page size.
    chunks: zeros [3, chunks], which it keeps: bytes allocated in each, the highest byte written in it since it was
        committed, and whether it has ranges from ``reserve``.
    across: whether a range from ``allocate`` may lie across chunks; not where chunks are compacted.
    huge_pages: whether memory is committed by the chunk, except in the first.
    commit: called with the begin and the size of a chunk before its first use; if it raises, nothing has changed.)")
        .def_rw("limit_bytes", &Ranges::limit_bytes, "Limit of ``committed_bytes``; settable at any time.")
        .def_prop_ro("chunk_bytes", &Ranges::chunk_bytes, "Size of a chunk, and of the largest range.")
        .def_prop_ro("used_bytes", &Ranges::used_bytes, "Bytes allocated and not freed.")
        .def_prop_ro("committed_bytes", &Ranges::committed_bytes,
                     "Bytes written to and not released to the system: what the arena costs in RAM.")
        .def_prop_ro("across", &Ranges::across, "Whether a range may lie across chunks.")
        .def_prop_ro("huge_pages", &Ranges::huge_pages, "Whether memory is committed by the chunk.")
        .def_prop_ro("chunks", &Ranges::owner,
                     nb::for_getter(nb::sig("def chunks(self, /) -> numpy.typing.NDArray[numpy.int64]")),
                     "The array of chunks. [3, chunks]")
        .def_prop_ro("empty", &Ranges::empty, "Chunks used so far that are empty, a list.")
        .def_prop_ro("fresh", &Ranges::fresh, "Chunks from here on are unused so far.")
        .def_prop_ro("current", &Ranges::current,
                     "Number of the chunk that ranges are allocated in; -1 before the first.")
        .def_prop_ro("top", &Ranges::top, "Bytes of the current chunk before its unused end.")
        .def("begin_of", &Ranges::begin_of, "chunk"_a, "Return the offset of a chunk.")
        .def(
            "allocate",
            [](Ranges& ranges, int64_t nbytes) {
                check_size(ranges, nbytes);
                return ranges.allocate(nbytes);
            },
            "nbytes"_a,
            "Return the offset of ``nbytes`` (at most a chunk), a multiple of 8; ``None`` if limit or space is\n"
            "exhausted.")
        .def(
            "allocate_some", &allocate_some,
            nb::sig("def allocate_some(self, nbytes: numpy.typing.NDArray[numpy.int64]) -> "
                    "numpy.typing.NDArray[numpy.int64]"),
            "nbytes"_a,
            "Return offsets of the first of several ranges ([n], n > 0), as many as fit into one chunk; none as above.")
        .def(
            "reserve", &reserve, nb::sig("def reserve(self, nbytes: int, count: int) -> range"), "nbytes"_a, "count"_a,
            "Return offsets of ``count`` ranges of ``nbytes`` (at most a chunk, a multiple of 8) for rows still being\n"
            "written: as many as fit into one chunk, none where the limit or the space is exhausted.\n\n"
            "They lie in chunks of their own, many to a chunk, so that they keep no other chunk in use.")
        .def("free", &Ranges::free, "offset"_a, "nbytes"_a, "Free a range from ``allocate`` or from ``reserve``.")
        .def("emptiest", &Ranges::emptiest, "nbytes"_a, "max_share"_a = 1.0,
             "Return the chunk to compact for ``nbytes``, if the current one has no room for them; ``None`` if none "
             "serves.\n\nIt is the chunk with the most committed memory to spare, of those with at most ``max_share`` "
             "in use.")
        .def("loosest", &Ranges::loosest,
             "Return the chunk in use that frees most pages when compacted; ``None`` if none frees any.")
        .def("reopen", &Ranges::reopen, "chunk"_a,
             "Continue allocating in ``chunk``, all of whose ranges were moved to its beginning without holes.")
        .def("note_released", &Ranges::note_released, "chunk"_a, "touched"_a,
             "Count the memory of a chunk behind its first ``touched`` bytes as released to the system.")
        .def("continue_in", &Ranges::continue_in, "larger"_a,
             "Continue in the place of ``larger``, which is empty; the contents were moved there.");
}

}  // namespace sharpwave
