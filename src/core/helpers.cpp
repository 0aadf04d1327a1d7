// How do threads help? A helper sleeps until it is called, and works if it is still wanted then.
//
// Helpers never hold the interpreter's lock, for which the calling thread would have to wait, and run no Python. They
// take items from counters shared with the caller: one that wakes late takes fewer, or none.
#include "helpers.hpp"

#include <atomic>
#include <deque>
#include <exception>
#include <thread>

#include "numpy_arrays.hpp"
#include "quiet.hpp"
#include "rooms.hpp"

namespace sharpwave {
namespace {

// States of a helper. idle -> called by the caller, called -> working -> idle by the helper, called -> idle by a caller
// that finds nothing left to do.
enum State : int { idle, called, working };
constexpr int spins = 1000;  // looks at a working helper before the caller sleeps: about a helper's time to wake

struct alignas(64) Helper {
    std::atomic<int> state{idle};
};

struct Team {
    std::atomic<bool> taken{false};
    std::deque<Helper> helpers;
    bool refused = false;  // the system allows no more threads
    Work work = nullptr;
    const void* job = nullptr;
};

// Never freed: helpers use it until the process ends.
std::atomic<Team*> team{nullptr};

void help(Team* mine, Helper* self, int64_t number) noexcept {
    while (true) {
        self->state.wait(idle);
        int expected = called;
        if (self->state.compare_exchange_strong(expected, working)) {
            mine->work(mine->job, number);
            self->state.store(idle);
            self->state.notify_one();
        }
    }
}

// Starts helpers until there are so many; returns how many there are of those.
std::size_t start(Team& ours, std::size_t count) {
    while (ours.helpers.size() < count && !ours.refused) {
        try {
            Helper& helper = ours.helpers.emplace_back();
            try {
                const Quiet quiet;
                std::thread(help, &ours, &helper, static_cast<int64_t>(ours.helpers.size())).detach();
            } catch (...) {
                ours.helpers.pop_back();
                throw;
            }
        } catch (const std::exception&) {
            ours.refused = true;
        }
    }
    return std::min(ours.helpers.size(), count);
}

// Waits until the helper will not touch the job any more.
void dismiss(Helper& helper) {
    int expected = called;
    if (helper.state.compare_exchange_strong(expected, idle)) return;
    for (int k = 0; k < spins; ++k) {
        if (helper.state.load() == idle) return;
    }
    helper.state.wait(working);
}

Team& the_team() {
    Team* ours = team.load();
    if (!ours) {
        auto* fresh = new Team;
        if (team.compare_exchange_strong(ours, fresh)) return *fresh;
        delete fresh;
    }
    return *ours;
}

}  // namespace

void work_together(int64_t helpers, Work work, const void* job) {
    Team* ours = helpers > 0 ? &the_team() : nullptr;
    if (!ours || ours->taken.exchange(true)) {
        work(job, 0);
        return;
    }
    const std::size_t count = start(*ours, static_cast<std::size_t>(helpers));
    ours->work = work, ours->job = job;
    for (std::size_t i = 0; i < count; ++i) {
        ours->helpers[i].state.store(called);
        ours->helpers[i].state.notify_one();
    }
    work(job, 0);
    for (std::size_t i = 0; i < count; ++i) dismiss(ours->helpers[i]);
    ours->taken.store(false);
}

void define_helpers(nanobind::module_& module) {
    module.def(
        "helper_threads",
        [] {
            const Team* ours = team.load();
            return ours ? ours->helpers.size() : 0;
        },
        "Return how many threads wait to help in decoding.");
    module.def(
        "forget_helpers", [] { team.store(nullptr); },
        "Forget the threads that help, which a forked child does not have: it starts its own.");
}

}  // namespace sharpwave
