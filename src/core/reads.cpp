// How are segments read from disk, many at a time? By threads that take reads from a queue, without the interpreter.
//
// A read of some kilobytes takes a few microseconds where the page cache holds the file: less than handing the
// interpreter lock from thread to thread. Threads that wait for a read take from the queue as well. Errors are not
// reported here: a read that failed, or whose bytes do not match their checksum, is suspect, and Python repeats it.
#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "checksum.hpp"
#include "file_ranges.hpp"
#include "numpy_arrays.hpp"
#include "quiet.hpp"
#include "rooms.hpp"
#include "shared_words.hpp"
#include "unlocked.hpp"
#include "words.hpp"

#if !defined(_WIN32)
#include <unistd.h>
#endif

namespace sharpwave {
namespace {

namespace nb = nanobind;

// States of a slot while its segment is read; 0 and other numbers are the caller's.
constexpr int64_t coming = 1, sound = 2, suspect = 3;
constexpr std::size_t max_joined = 8;  // reads of adjoining ranges that are made as one
constexpr int64_t queue_length = 2048;
constexpr std::chrono::microseconds nap{30};
constexpr int max_naps = 1000;  // then a waiting thread returns to Python, which notices the user's interrupts
constexpr std::size_t checksum_bytes = 4;
constexpr std::size_t line = 64;  // bytes of a cache line

// A read of a segment, in the order of the columns in Python: its slot; the file's descriptor, and that for direct
// reads; the offset in the file and that in memory; bytes, the last 4 their CRC-32.
struct Read {
    int64_t slot, descriptor, direct, offset, base, nbytes;
};
constexpr std::size_t columns = sizeof(Read) / sizeof(int64_t);
using Words = std::array<int64_t, columns>;
using Some = std::array<Read, max_joined>;

Read as_read(std::span<const int64_t> words) {
    require(words.size() == columns, "a read has six columns");
    return {words[0], words[1], words[2], words[3], words[4], words[5]};
}

// Returns whether a read is worth joining with the one before it, and fits into the window.
bool adjoins(const Read& first, const Read& before, const Read& read) {
    const int64_t gap = read.offset - before.offset - before.nbytes;
    const int64_t span = read.offset + read.nbytes - first.offset;
    return read.descriptor == first.descriptor && gap >= 0 && gap < block_bytes && span <= window_bytes - block_bytes;
}

// Queue of reads, shared with the threads that make them.
class Queue {  // NOLINT(clang-analyzer-optin.performance.Padding): each counter has a cache line of its own
  public:
    Queue(Bytes memory, Ints state) : memory_(memory), state_(state), places_(queue_length) {}

    // Queues as many of the first reads as there is room for; returns how many. One thread at a time.
    int64_t put(Grid<const int64_t> reads) {
        const int64_t tail = tail_.load(), room = queue_length - (tail - head_.load());
        const int64_t count = std::min(reads.rows, room);
        for (int64_t i = 0; i < count; ++i) {
            const auto words = reads[i];
            const Read read = as_read(words);
            require(read.nbytes >= int64_t{checksum_bytes} && read.base >= 0 &&
                        read.base + read.nbytes <= std::ssize(memory_),
                    "a read fits into memory");
            Place& place = place_of(tail + i);
            for (std::size_t k = 0; k < columns; ++k) place[k].store(words[k], std::memory_order_relaxed);
            store_shared(state_[static_cast<std::size_t>(read.slot)], coming);
        }
        tail_.fetch_add(count);
        return count;
    }

    // Takes the oldest read from the queue, and adjoining ones behind it; returns how many.
    std::size_t take(std::span<Read> reads) {
        for (;;) {
            int64_t head = head_.load();
            const int64_t tail = tail_.load();
            std::size_t count = 0;
            while (count < reads.size() && head + static_cast<int64_t>(count) < tail) {
                // Copied before its place is free; where another thread took it meanwhile, the copy is not used.
                const Place& place = place_of(head + static_cast<int64_t>(count));
                Words words;
                for (std::size_t k = 0; k < columns; ++k) words[k] = place[k].load(std::memory_order_relaxed);
                reads[count] = as_read(words);
                if (count && !adjoins(reads[0], reads[count - 1], reads[count])) break;
                ++count;
            }
            if (!count || head_.compare_exchange_strong(head, head + static_cast<int64_t>(count))) return count;
        }
    }

    // Makes reads of adjoining ranges, and notes their outcomes.
    void make(std::span<const Read> reads, const ReadWindow& window) {
        const Read &first = reads.front(), &last = reads.back();
        int64_t at = -1;
        if (reads.size() > 1) {
            const int64_t span = last.offset + last.nbytes - first.offset;
            at = look_at_range(first.descriptor, first.direct, first.offset, span, window);
            joined_.fetch_add(std::ssize(reads) - 1);
        }
        for (const Read& read : reads) {
            const Bytes target =
                memory_.subspan(static_cast<std::size_t>(read.base), static_cast<std::size_t>(read.nbytes));
            bool whole = true;
            if (at >= 0) {
                std::memcpy(target.data(), window.data() + at + read.offset - first.offset, target.size());
            } else {
                whole = read_range(read.descriptor, read.direct, read.offset, target, window);
            }
            settle(read.slot, whole && matches(target));
        }
    }

    void settle(int64_t slot, bool whole) {
        exchange_shared(state_[static_cast<std::size_t>(slot)], coming, whole ? sound : suspect);
        done_.fetch_add(1);
    }

    bool is_coming(int64_t slot) const {
        const int64_t& state = state_[static_cast<std::size_t>(slot)];
        return load_shared(state) == coming;
    }

    // Makes the oldest read, and adjoining ones; returns whether there was any.
    bool work(const ReadWindow& window) {
        Some reads;
        const std::size_t count = take(reads);
        if (count) make({reads.data(), count}, window);
        return count;
    }

    // Takes all reads from the queue without making them.
    void drop() {
        Some reads;
        while (const std::size_t count = take(reads)) {
            for (std::size_t i = 0; i < count; ++i) settle(reads[i].slot, false);
        }
    }

    bool waits() const { return head_.load() < tail_.load(); }
    // Reads that were taken or wait, and have no outcome yet.
    int64_t pending() const { return tail_.load() - done_.load(); }
    int64_t joined() const { return joined_.load(); }
    int64_t nbytes() const { return queue_length * static_cast<int64_t>(sizeof(Place)); }

    // Wakes up to ``count`` of the threads that serve.
    void wake(int64_t count) {
        {
            const std::lock_guard lock(mutex_);
            wakes_ = std::min(wakes_ + count, threads_);
        }
        if (count == 1) {
            called_.notify_one();
        } else {
            called_.notify_all();
        }
    }

    // Makes the reads that wait, then those whenever woken, until ``end``.
    void serve(const ReadWindow& window) {
        while (work(window)) {
        }
        std::unique_lock lock(mutex_);
        while (!ending_) {
            if (!wakes_) {
                called_.wait(lock);
                continue;
            }
            --wakes_;
            lock.unlock();
            while (work(window)) {
            }
            lock.lock();
        }
        if (--threads_ == 0) ended_.notify_all();
    }

    void enter() {
        const std::lock_guard lock(mutex_);
        ++threads_;
    }

    void leave() {
        const std::lock_guard lock(mutex_);
        --threads_;
    }

    // Ends the threads that serve, and waits for the reads that they make.
    void end() {
        std::unique_lock lock(mutex_);
        ending_ = true;
        called_.notify_all();
        ended_.wait(lock, [this] { return threads_ == 0; });
        ending_ = false;
    }

  private:
    using Place = std::array<std::atomic<int64_t>, columns>;

    Place& place_of(int64_t number) { return places_[static_cast<std::size_t>(number % queue_length)]; }

    static bool matches(ConstBytes data) {
        const ConstBytes body = data.first(data.size() - checksum_bytes);
        return load<uint32_t>(data.data() + body.size()) == crc32(body);
    }

    Bytes memory_;
    Ints state_;
    std::vector<Place> places_;
    // Reads ever taken from the queue, put there, and settled; and reads joined with the one before.
    alignas(line) std::atomic<int64_t> head_{0};
    alignas(line) std::atomic<int64_t> tail_{0};
    alignas(line) std::atomic<int64_t> done_{0};
    alignas(line) std::atomic<int64_t> joined_{0};
    alignas(line) std::mutex mutex_;
    std::condition_variable called_, ended_;
    int64_t wakes_ = 0, threads_ = 0;  // wake-ups that no thread has followed yet; threads that serve
    bool ending_ = false;
};

int64_t process() {
#if defined(_WIN32)
    return 0;
#else
    return getpid();
#endif
}

// Queue as Python sees it. Its arrays outlive it.
class ReadQueue {
  public:
    ReadQueue(Bytes memory, Ints state)
        : held_(std::make_unique<std::shared_ptr<Queue>>(std::make_shared<Queue>(memory, state))),
          queue_(held_->get()) {}
    ReadQueue(const ReadQueue&) = delete;
    ReadQueue& operator=(const ReadQueue&) = delete;

    ~ReadQueue() {
        // The threads, and what they wait on, are the parent's: waiting for them would never end.
        if (is_forked()) {
            [[maybe_unused]] auto* left = held_.release();
            return;
        }
        queue_->drop();
        queue_->end();
    }

    // While reads wait: where the page cache has them all, few threads are worth their start.
    int64_t start_readers(int64_t count) {
        const Quiet quiet;
        for (; started_ < count && !refused_ && queue_->waits(); ++started_) {
            refused_ = true;
            try {
                auto window = std::make_unique<ReadWindow>();  // a thread that had no memory would end the process
                queue_->enter();
                try {
                    std::thread([queue = *held_, window = std::move(window)] { queue->serve(*window); }).detach();
                } catch (...) {
                    queue_->leave();
                    throw;
                }
            } catch (const std::system_error&) {
                break;
            } catch (const std::bad_alloc&) {
                break;
            }
            refused_ = false;
        }
        return started_;
    }

    void end_readers() {
        if (!is_forked()) queue_->end();
        started_ = 0;
    }

    int64_t put(Grid<const int64_t> reads) {
        const int64_t count = queue_->put(reads);
        if (count && started_) queue_->wake(std::min(count, started_));
        return count;
    }

    bool work() {
        const Released alone;
        return queue_->work(own_window());
    }

    // Waits until none of the slots is being read, making reads meanwhile; returns false to be called again.
    bool wait(ConstInts slots) {
        if (std::ranges::none_of(slots, [this](int64_t slot) { return queue_->is_coming(slot); })) return true;
        const Released alone;
        const ReadWindow& window = own_window();
        int naps = 0;
        for (const int64_t slot : slots) {
            while (queue_->is_coming(slot)) {
                if (queue_->work(window)) continue;
                if (naps++ == max_naps) return false;
                std::this_thread::sleep_for(nap);
            }
        }
        return true;
    }

    // Takes reads as ``Queue::take``, into ``out``; for a caller that makes them itself.
    int64_t take(Grid<int64_t> out) {
        Some reads;
        const std::size_t count =
            queue_->take({reads.data(), std::min(reads.size(), static_cast<std::size_t>(out.rows))});
        for (std::size_t i = 0; i < count; ++i) {
            const auto& [slot, descriptor, direct, offset, base, nbytes] = reads[i];
            std::ranges::copy(Words{slot, descriptor, direct, offset, base, nbytes},
                              out[static_cast<int64_t>(i)].begin());
        }
        return static_cast<int64_t>(count);
    }

    void settle(int64_t slot, bool whole) { queue_->settle(slot, whole); }
    bool is_coming(int64_t slot) const { return queue_->is_coming(slot); }
    void drop() { queue_->drop(); }
    int64_t pending() const { return queue_->pending(); }
    int64_t joined() const { return queue_->joined(); }
    int64_t nbytes() const { return queue_->nbytes(); }

  private:
    bool is_forked() const { return process_ != process(); }

    std::unique_ptr<std::shared_ptr<Queue>> held_;
    Queue* queue_;
    int64_t started_ = 0, process_ = process();
    bool refused_ = false;  // by the system, another thread
};

}  // namespace

void define_reads(nb::module_& module) {
    using namespace nb::literals;
    module.attr("COMING") = coming;
    module.attr("READ") = sound;
    module.attr("SUSPECT") = suspect;
    module.attr("READ_COLUMNS") = columns;
    module.attr("READ_QUEUE") = queue_length;
    module.attr("MAX_JOINED_READS") = max_joined;
    nb::class_<ReadQueue>(module, "ReadQueue",
                          "Queue of reads of segments into ``memory`` uint8 [bytes], and threads that make them.\n\n"
                          "Reads are int64 [n, READ_COLUMNS]: the slot; the file's descriptor, and that for direct "
                          "reads; the offset\nin the file and that in memory; bytes, the last 4 their CRC-32. "
                          "``state`` int64 [slots] is COMING while a slot is\nread, then READ or SUSPECT.")
        .def(nb::init<Bytes, Ints>(), "memory"_a, "state"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
        .def("start_readers", &ReadQueue::start_readers, "count"_a,
             "While reads wait, start threads until there are ``count``, or as many as the system allows; return how "
             "many "
             "there are.")
        .def("end_readers", &ReadQueue::end_readers, "End the threads, and wait for the reads that they make.")
        .def("put", &ReadQueue::put, "reads"_a,
             "Queue as many of the first reads as there is room for; return how many. One thread at a time.")
        .def("work", &ReadQueue::work, "Make the oldest read, and adjoining ones; return whether there was any.")
        .def("wait", &ReadQueue::wait, "slots"_a,
             "Wait until none of ``slots`` is being read, making reads meanwhile; return False to be called again.")
        .def("take", &ReadQueue::take, "out"_a,
             "Take the oldest read, and adjoining ones, into ``out``, for a caller that makes them; return how many.")
        .def("settle", &ReadQueue::settle, "slot"_a, "whole"_a, "Note the outcome of a read from ``take``.")
        .def("is_coming", &ReadQueue::is_coming, "slot"_a, "Return whether a slot is being read.")
        .def("drop", &ReadQueue::drop, "Take all reads from the queue; they become SUSPECT.")
        .def_prop_ro("pending", &ReadQueue::pending, "Reads without an outcome.")
        .def_prop_ro("joined", &ReadQueue::joined, "Reads that were joined with the one before.")
        .def_prop_ro("nbytes", &ReadQueue::nbytes, "Bytes of the queue.");
}

}  // namespace sharpwave
