// Who asks the system for memory that is about to be written to? A thread, a few pages ahead of the writer.
//
// A page that is touched for the first time holds the writer up while the system clears it. The thread never holds the
// interpreter's lock, and changes no byte: it has pages mapped.
#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

#include "numpy_arrays.hpp"
#include "quiet.hpp"
#include "rooms.hpp"

#if __has_include(<pthread.h>)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace sharpwave {
namespace {

constexpr int64_t piece_bytes = 2 << 20;  // between two looks at whether the rest is still wanted
constexpr int64_t huge_page_bytes = 2 << 20;
// What is touched ahead: this share of what was written before, at most so much, and from a huge page on. It takes
// longest where a virtual machine's host has to find a page's memory: benchmarks/vectors.py --worst prints them.
constexpr int64_t ahead_share = 64, max_ahead_bytes = 8 << 20;
constexpr int populate_write = 23;  // MADV_POPULATE_WRITE of Linux 5.14, which older headers lack

// States. idle -> called by the caller, called -> working -> idle by the thread, called -> idle by a caller that no
// longer wants it.
enum State : int { idle, called, working };

struct Toucher {
    std::atomic<int> state{idle};
    std::atomic<bool> wanted{false};
    Bytes range;  // written while idle
};

// Never freed: its thread uses it until the process ends.
std::atomic<Toucher*> toucher{nullptr};
std::atomic<bool> refused{false};  // the system has no such call, or allows no more threads

// Has the pages of a range mapped; returns whether the system can do that.
bool populate([[maybe_unused]] Bytes range) {
#if defined(__linux__)
    return madvise(range.data(), range.size(), populate_write) == 0;
#else
    return false;
#endif
}

void touch(Toucher* mine) noexcept {
    while (true) {
        mine->state.wait(idle);
        int expected = called;
        if (!mine->state.compare_exchange_strong(expected, working)) continue;
        for (Bytes left = mine->range; !left.empty() && mine->wanted.load();) {
            const Bytes piece = left.first(std::min<std::size_t>(left.size(), piece_bytes));
            if (!populate(piece)) {
                refused.store(true);
                break;
            }
            left = left.subspan(piece.size());
        }
        mine->state.store(idle);
        mine->state.notify_one();
    }
}

// Returns the process's one, which is made if need be and can be.
Toucher* the_toucher() {
    Toucher* mine = toucher.load();
    if (mine || refused.load()) return mine;
    mine = new Toucher;
    try {
        const Quiet quiet;
        std::thread(touch, mine).detach();
    } catch (const std::exception&) {
        refused.store(true);
        delete mine;
        return nullptr;
    }
    toucher.store(mine);
    return mine;
}

// The interpreter's lock is held, so that one caller at a time is here.
bool touch_ahead(Bytes range) {
    Toucher* const mine = refused.load() ? nullptr : the_toucher();
    if (!mine || mine->state.load() != idle) return false;
    mine->range = range;
    mine->wanted.store(true);
    mine->state.store(called);
    mine->state.notify_one();
    return true;
}

void stop_touching(Bytes memory) {
    Toucher* const mine = toucher.load();
    if (!mine || mine->range.data() < memory.data() || mine->range.data() >= memory.data() + memory.size()) return;
    mine->wanted.store(false);
    int expected = called;
    if (!mine->state.compare_exchange_strong(expected, idle)) mine->state.wait(working);
}

// Memory of huge pages that is written to from its beginning on. It is the core's: an arena takes a chunk amid an
// append, where no signal handler of Python may run.
struct Ahead {
    Bytes memory;
    int64_t touched = 0;  // end of what the thread was asked to touch

    explicit Ahead(Bytes range) : memory(range) {}

    void commit(int64_t begin, int64_t nbytes) {
        const int64_t end = begin + nbytes, share = std::min(max_ahead_bytes, begin / ahead_share);
        const int64_t ahead = share / huge_page_bytes * huge_page_bytes;
        if (!ahead || end + ahead / 2 <= touched) return;
        const int64_t to = std::min(end + ahead, std::ssize(memory)), from = std::max(end, touched);
        if (from < to &&
            touch_ahead(memory.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from))))
            touched = to;
    }
};

}  // namespace

void define_pages(nanobind::module_& module) {
    namespace nb = nanobind;
    using namespace nanobind::literals;
    nb::class_<Ahead>(module, "Ahead",
                      "Memory, uint8 [n], that a thread touches ahead of what is written. It is not kept.\n\n"
                      "Attributes:\n    touched: end of what the thread was asked to touch.")
        .def(nb::init<Bytes>(), "memory"_a)
        .def("commit", &Ahead::commit, "begin"_a, "nbytes"_a,
             "Have memory behind a range touched that is about to be written to.")
        .def_ro("touched", &Ahead::touched);
    module.def("touch_ahead", &touch_ahead, "range"_a,
               "Have a thread ask the system for the pages of a range of private memory, uint8 [n]; return whether it "
               "does: not\nwhile it is at work. The memory outlives that, or ``stop_touching`` is called before.");
    module.def("stop_touching", &stop_touching, "memory"_a,
               "Return once the thread touches none of ``memory``, uint8 [n], any more.");
#if __has_include(<pthread.h>)
    // A forked child has no such thread: it starts its own. Before any hook of Python's, which may free an arena.
    pthread_atfork(nullptr, nullptr, [] { toucher.store(nullptr); });
#endif
}

}  // namespace sharpwave
