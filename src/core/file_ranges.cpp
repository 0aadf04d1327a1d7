// How is a range of a file read? Through the page cache where that holds it, and directly where it does not.
//
// A read through the page cache fills pages, copies from them, and evicts others: on a fast disk that costs the
// processor more than the disk needs for the read. Data written lately is still in the page cache, and is read from
// there. Asking whether it is (``cachestat``) takes Linux 6.5; elsewhere all reads go through the page cache.
#include "file_ranges.hpp"

#include <algorithm>
#include <cstring>

#include "numpy_arrays.hpp"
#include "rooms.hpp"
#include "unlocked.hpp"

#if !defined(_WIN32)
#include <unistd.h>
#endif
#if defined(__linux__)
#include <fcntl.h>
#include <sys/syscall.h>
#endif

namespace sharpwave {
namespace {

// Returns how many bytes were read at an offset; -1 after an error.
int64_t read_at([[maybe_unused]] int64_t descriptor, [[maybe_unused]] uint8_t* target, [[maybe_unused]] int64_t nbytes,
                [[maybe_unused]] int64_t offset) {
#if defined(_WIN32)
    return -1;  // Python reads
#else
    return pread(static_cast<int>(descriptor), target, static_cast<std::size_t>(nbytes), offset);
#endif
}

}  // namespace

const ReadWindow& own_window() {
    thread_local const ReadWindow window;
    return window;
}

bool is_cached([[maybe_unused]] int64_t descriptor, [[maybe_unused]] int64_t offset, [[maybe_unused]] int64_t nbytes) {
#if defined(__linux__)
    constexpr long cachestat = 451;
    static const int64_t page = sysconf(_SC_PAGESIZE);
    struct {
        uint64_t offset, nbytes;
    } asked{static_cast<uint64_t>(offset), static_cast<uint64_t>(nbytes)};
    struct {
        uint64_t cached, dirty, written_back, evicted, evicted_lately;
    } answer{};
    if (syscall(cachestat, static_cast<long>(descriptor), &asked, &answer, 0L) != 0) return true;
    return static_cast<int64_t>(answer.cached) >= (offset + nbytes + page - 1) / page - offset / page;
#else
    return true;
#endif
}

bool free_range([[maybe_unused]] int64_t descriptor, [[maybe_unused]] int64_t offset, [[maybe_unused]] int64_t nbytes) {
#if defined(__linux__)
    constexpr int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    return fallocate(static_cast<int>(descriptor), mode, offset, nbytes) == 0;
#else
    return false;
#endif
}

bool read_range(int64_t descriptor, int64_t direct, int64_t offset, Bytes target, const ReadWindow& window) {
    uint8_t *at = target.data(), *end = at + target.size();
    if (direct >= 0 && !is_cached(descriptor, offset, end - at)) {
        while (at < end) {
            const int64_t skip = offset % block_bytes;
            const int64_t whole = (skip + (end - at) + block_bytes - 1) / block_bytes * block_bytes;
            const int64_t read = read_at(direct, window.data(), std::min(window_bytes, whole), offset - skip);
            const int64_t count = std::min<int64_t>(read - skip, end - at);
            if (count <= 0) break;
            std::memcpy(at, window.data() + skip, static_cast<std::size_t>(count));
            at += count;
            offset += count;
        }
    }
    while (at < end) {
        const int64_t count = read_at(descriptor, at, end - at, offset);
        if (count <= 0) return false;
        at += count;
        offset += count;
    }
    return true;
}

int64_t look_at_range(int64_t descriptor, int64_t direct, int64_t offset, int64_t nbytes, const ReadWindow& window) {
    require(nbytes >= 0 && nbytes <= window_bytes - block_bytes, "the range fits into a window");
    if (direct >= 0 && !is_cached(descriptor, offset, nbytes)) {
        const int64_t skip = offset % block_bytes;
        const int64_t whole = (skip + nbytes + block_bytes - 1) / block_bytes * block_bytes;
        if (read_at(direct, window.data(), whole, offset - skip) >= skip + nbytes) return skip;
    }
    const Bytes target{window.data(), static_cast<std::size_t>(nbytes)};
    return read_range(descriptor, -1, offset, target, window) ? 0 : -1;
}

void define_file_ranges(nanobind::module_& module) {
    using namespace nanobind::literals;
    module.attr("WINDOW_BYTES") = window_bytes;
    module.def("is_cached", &is_cached, "descriptor"_a, "offset"_a, "nbytes"_a,
               "Return whether the page cache holds all of a range of a file, or that is unknown.");
    module.def("free_range", &free_range, "descriptor"_a, "offset"_a, "nbytes"_a,
               "Give the disk space of a range of a file back, which reads as zeros from then on; return whether the "
               "system can.");
    module.def(
        "read_range",
        [](int64_t descriptor, int64_t direct, int64_t offset, Bytes out) {
            return read_range(descriptor, direct, offset, out, own_window());
        },
        "descriptor"_a, "direct"_a, "offset"_a, "out"_a, nanobind::call_guard<Released>(),
        "Fill ``out`` uint8 [n] from ``offset`` of a file; return whether all of it was read.\n\n"
        "Args:\n    direct: descriptor for reads that bypass the page cache; -1: there is none.");
}

}  // namespace sharpwave
