// How do rows come into a batch? Windows of a field's rows are decoded straight into it, by several threads if large.
#include "gather.hpp"

#include <atomic>
#include <memory>
#include <optional>

#include "helpers.hpp"
#include "rooms.hpp"
#include "unlocked.hpp"
#include "words.hpp"

namespace sharpwave {
namespace {

namespace nb = nanobind;

constexpr int64_t most_prefetched = 2048;  // bytes of raw rows that are prefetched: the processor goes on by itself

// Windows of one length, each with a place of its own.
struct Even {
    Places<3> out;
    int64_t length(int64_t) const { return out.rows; }
    uint8_t* at(int64_t i) const { return out.data + i * out.window_stride; }
};

// Windows of different lengths, whose first rows go to the ``target``.
struct Uneven {
    Places<2> out;
    ConstInts lengths, target;
    int64_t length(int64_t i) const { return lengths[static_cast<std::size_t>(i)]; }
    uint8_t* at(int64_t i) const { return out.data + target[static_cast<std::size_t>(i)] * out.row_stride; }
};

// Windows to decode, shared by the threads that do. Counters have cache lines of their own.
template <class Windows>
struct Job {
    const Column& column;
    ConstInts slot, newest, first;  // segments, and the rows with which windows end and episodes begin
    Windows windows;
    int64_t bytes, chunk;  // bytes of all windows; windows that a thread takes at a time
    Bytes scratch;         // a row for each thread, at multiples of a cache line
    int64_t scratch_bytes;
    alignas(64) mutable std::atomic<int64_t> taken{0};  // by any thread
    alignas(64) mutable std::atomic<int64_t> from_first{0};
    alignas(64) mutable std::atomic<int64_t> from_last{0};
    alignas(64) mutable std::atomic<int64_t> left_out{0};  // whose codec the core does not decode
};

// Copies a row. Most are short, and all of one length: branches cost less than a call.
void copy_row(uint8_t* out, const uint8_t* row, int64_t size) {
    if (size > 128) {
        std::memcpy(out, row, static_cast<std::size_t>(size));
    } else if (size > 64) {  // the ends overlap
        std::memcpy(out, row, 64);
        std::memcpy(out + size - 64, row + size - 64, 64);
    } else if (size >= 32) {
        std::memcpy(out, row, 32);
        std::memcpy(out + size - 32, row + size - 32, 32);
    } else if (size >= 16) {
        std::memcpy(out, row, 16);
        std::memcpy(out + size - 16, row + size - 16, 16);
    } else if (size >= 8) {
        std::memcpy(out, row, 8);
        std::memcpy(out + size - 8, row + size - 8, 8);
    } else if (size >= 4) {
        std::memcpy(out, row, 4);
        std::memcpy(out + size - 4, row + size - 4, 4);
    } else {
        for (int64_t k = 0; k < size; ++k) out[k] = row[k];
    }
}

// Copies a window of a raw column, which begins at ``rows``.
inline void copy_window(const uint8_t* rows, int64_t newest, int64_t first, int64_t length, int64_t size, bool zeros,
                        uint8_t* out, int64_t row_stride) {
    for (int64_t wanted = newest - length + 1; wanted <= newest; ++wanted, out += row_stride) {
        if (wanted < first && zeros) {
            std::memset(out, 0, static_cast<std::size_t>(size));
        } else {
            copy_row(out, rows + std::max(wanted, first) * size, size);
        }
    }
}

// Decodes a window whose rows lie ``row_stride`` apart.
void decode_window(const WindowCodec& codec, Window window, uint8_t* out, int64_t row_stride, Bytes scratch) {
    if (window.length == 1 || row_stride == window.size) {
        window.out = {out, static_cast<std::size_t>(window.length * window.size)};
        window.scratch = scratch;
        codec.decode(window);
        return;
    }
    const int64_t oldest = window.newest - window.length + 1;
    for (int64_t wanted = oldest; wanted < oldest + window.length; ++wanted, out += row_stride) {
        if (wanted < window.first && window.zeros) {
            std::memset(out, 0, static_cast<std::size_t>(window.size));
            continue;
        }
        Window row = window;
        row.newest = std::max(wanted, window.first), row.length = 1;
        row.out = {out, static_cast<std::size_t>(window.size)};
        codec.decode(row);
    }
}

// Decodes the windows ``begin <= i < end``; returns how many are left out.
//
// Memory at random addresses is prefetched some windows ahead, on each of three levels: the index, then the offsets,
// then the rows.
template <class Windows>
int64_t decode_some(const Job<Windows>& job, int64_t begin, int64_t end, Bytes scratch) {
    const Column column = job.column;  // of this call's own: no store can be one to them
    const Windows windows = job.windows;
    const int64_t size = column.size(), row_stride = windows.out.row_stride;
    const int64_t *slot = job.slot.data(), *newest = job.newest.data(), *first = job.first.data();
    const uint8_t* const memory = column.memory.data();
    const int64_t ahead = job.bytes < 1024 * std::ssize(job.slot) ? 32 : 2;
    Window window{.memory = column.memory, .size = size, .line = column.line, .zeros = column.zeros};
    const auto set = [&](int64_t i) {
        const auto s = static_cast<std::size_t>(slot[i]);
        window.begin = column.offset[s], window.rows = column.counts[s];
        window.newest = newest[i], window.first = first[i], window.length = windows.length(i);
    };
    const auto decodes = [&](uint8_t codec) { return column.decoded[codec] != 0; };
    const auto find_index = [&](int64_t i) {
        const int64_t s = slot[i];
        prefetch(&column.offset[s]);
        prefetch(&column.codec[s]);
    };
    const auto find_offsets = [&](int64_t i) {
        const auto s = static_cast<std::size_t>(slot[i]);
        if (column.codec[s] == raw_codec) return;
        prefetch(memory + column.offset[s]);
        if (column.codec[s] == packed_codec) return;
        prefetch(&column.counts[s]);
        prefetch(&column.dictionary[s]);
        prefetch(memory + column.offset[s] + 4 * newest[i]);
    };
    const auto find_rows = [&](int64_t i) {
        const auto s = static_cast<std::size_t>(slot[i]);
        const uint8_t codec = column.codec[s];
        if (codec == raw_codec) {
            const int64_t bytes = windows.length(i) * size;
            const uint8_t* rows = memory + column.offset[s] + (newest[i] + 1) * size - bytes;
            for (int64_t at = 0; at < std::min(bytes, most_prefetched); at += 64) prefetch(rows + at);
            prefetch(rows + bytes - 1);
        } else if (codec == packed_codec) {
            prefetch(PackedColumn{column.memory, column.offset[s]}.row_address(newest[i]));
        } else if (decodes(codec) && window_codecs[codec].prefetch) {
            set(i);
            window_codecs[codec].prefetch(window);
        }
    };
    for (int64_t i = begin; i < std::min(begin + 3 * ahead, end); ++i) find_index(i);
    for (int64_t i = begin; i < std::min(begin + 2 * ahead, end); ++i) find_offsets(i);
    for (int64_t i = begin; i < std::min(begin + ahead, end); ++i) find_rows(i);
    int64_t left_out = 0;
    for (int64_t i = begin; i < end; ++i) {
        if (i + 3 * ahead < end) find_index(i + 3 * ahead);
        if (i + 2 * ahead < end) find_offsets(i + 2 * ahead);
        if (i + ahead < end) find_rows(i + ahead);
        const auto s = static_cast<std::size_t>(slot[i]);
        const uint8_t codec = column.codec[s];
        if (codec == raw_codec) {
            copy_window(memory + column.offset[s], newest[i], first[i], windows.length(i), size, column.zeros,
                        windows.at(i), row_stride);
        } else if (codec == packed_codec) {
            const PackedColumn packed{column.memory, column.offset[s]};
            read_packed_window(packed, newest[i], first[i], windows.length(i), size, column.zeros, windows.at(i),
                               row_stride);
        } else if (decodes(codec)) {
            set(i);
            window.dictionary = column.references[column.dictionary[s]];
            decode_window(window_codecs[codec], window, windows.at(i), row_stride, scratch);
        } else {
            ++left_out;
        }
    }
    return left_out;
}

// Decodes windows until none is left; the thread's number says which end it takes them from.
template <class Windows>
void work(const void* shared, int64_t number) noexcept {
    const auto& job = *static_cast<const Job<Windows>*>(shared);
    const int64_t count = std::ssize(job.slot);
    const Bytes scratch{job.scratch.data() + number * job.scratch_bytes, static_cast<std::size_t>(job.column.size())};
    int64_t left_out = 0;
    while (true) {
        const int64_t taken = job.taken.fetch_add(job.chunk);
        if (taken >= count) break;
        // The number is settled; which: the next from this end, so that a core decodes into its own cache.
        const int64_t some = std::min(job.chunk, count - taken);
        const bool last = number % 2;
        const int64_t before = (last ? job.from_last : job.from_first).fetch_add(some);
        const int64_t begin = last ? count - before - some : before;
        left_out += decode_some(job, begin, begin + some, scratch);
    }
    job.left_out.fetch_add(left_out);
}

// Decodes all windows on up to ``threads`` threads; returns how many are left out.
template <class Windows>
int64_t gather(const Column& column, ConstInts slot, ConstInts newest, ConstInts first, const Windows& windows,
               int64_t bytes, int64_t longest, Threads threads) {
    const int64_t count = std::ssize(slot);
    if (!count) return 0;
    require(std::ssize(newest) == count && std::ssize(first) == count, "a window has a newest and a first row");
    require(windows.out.size == column.size(), "rows are the column's");
    const std::optional<Released> alone = unlocked_for(bytes);
    const int64_t helpers = std::max<int64_t>(std::min(threads.most, bytes / threads.bytes_each) - 1, 0);
    const int64_t chunk =
        helpers ? std::max<int64_t>(threads.chunk_bytes * count / std::max<int64_t>(bytes, 1), 1) : count;
    // A row for each thread, which stays in the cache from window to window.
    constexpr int64_t line = 64;
    const int64_t scratch_bytes = longest > 1 ? (column.size() + line - 1) / line * line : 0;
    std::unique_ptr<uint8_t[]> held;
    Bytes scratch;
    if (scratch_bytes) {
        const auto room = static_cast<std::size_t>((helpers + 1) * scratch_bytes);
        held.reset(new uint8_t[room + line]);
        scratch = {held.get() + (line - reinterpret_cast<std::uintptr_t>(held.get()) % line), room};
    }
    const Job<Windows> job{column, slot, newest, first, windows, bytes, chunk, scratch, scratch_bytes};
    work_together(helpers, &work<Windows>, &job);
    return job.left_out.load();
}

std::array<uint8_t, codec_numbers> decoded_codecs() {
    std::array<uint8_t, codec_numbers> decoded{};
    for (std::size_t i = 0; i < decoded.size(); ++i) decoded[i] = window_codecs[i].decode != nullptr;
    return decoded;
}

}  // namespace

int64_t gather_windows(const Column& column, ConstInts slot, ConstInts newest, ConstInts first, Places<3> out,
                       Threads threads) {
    require(out.windows == std::ssize(slot), "a window has a place");
    return gather(column, slot, newest, first, Even{out}, out.windows * out.rows * out.size, out.rows, threads);
}

int64_t gather_pieces(const Column& column, Grid<const int64_t> pieces, int64_t count, Places<2> out, Threads threads) {
    require(pieces.rows == 5 && count <= pieces.columns, "pieces have five rows");
    const auto some = static_cast<std::size_t>(count);
    const ConstInts lengths = pieces[3].first(some);
    int64_t rows = 0, longest = 0;
    for (const int64_t length : lengths) rows += length, longest = std::max(longest, length);
    return gather(column, pieces[0].first(some), pieces[1].first(some), pieces[2].first(some),
                  Uneven{out, lengths, pieces[4].first(some)}, rows * out.size, longest, threads);
}

void define_gather(nb::module_& module) {
    using namespace nb::literals;
    using Numbers = std::span<const int32_t>;
    nb::class_<Column>(module, "Column", "Arrays of one field's column by slot, which must outlive it.")
        .def(
            "__init__",
            [](Column* self, ConstBytes memory, ConstInts offset, ConstBytes codec, Numbers dictionary, Numbers counts,
               Grid<const uint8_t> references, ConstBytes decoded, int64_t line, bool zeros) {
                new (self) Column{memory, offset, codec, dictionary, counts, references, decoded, line, zeros};
            },
            "memory"_a, "offset"_a, "codec"_a, "dictionary"_a, "counts"_a, "references"_a, "decoded"_a, "line"_a,
            "zeros"_a);
    module.def(
        "decoded_codecs",
        [] {
            const auto decoded = decoded_codecs();
            return nb::bytes(decoded.data(), decoded.size());
        },
        "Return, by codec number, whether the core decodes windows of its rows.");
    module.def(
        "gather_windows",
        [](const Column& column, ConstInts slot, ConstInts newest, ConstInts first, Places<3> out, int64_t threads,
           int64_t thread_bytes, int64_t chunk_bytes) {
            return gather_windows(column, slot, newest, first, out, {threads, thread_bytes, chunk_bytes});
        },
        "column"_a, "slot"_a, "newest"_a, "first"_a, "out"_a, "threads"_a, "thread_bytes"_a, "chunk_bytes"_a,
        R"(Decode the windows of W rows that end with ``newest`` into ``out`` uint8 [B, W, size], whose rows may lie apart.

Rows before ``first`` are padded. Items of codecs that the core does not decode are left out.

Args:
    slot, newest, first: int64 [B], location of each window.
    threads: limit of those that decode, the caller included; one for each ``thread_bytes``.
    chunk_bytes: bytes that a thread decodes at a time.

Returns how many are left out.)");
    module.def(
        "gather_pieces",
        [](const Column& column, Grid<const int64_t> pieces, Places<2> out, int64_t threads, int64_t thread_bytes,
           int64_t chunk_bytes) {
            return gather_pieces(column, pieces, pieces.columns, out, {threads, thread_bytes, chunk_bytes});
        },
        "column"_a, "pieces"_a, "out"_a, "threads"_a, "thread_bytes"_a, "chunk_bytes"_a,
        R"(Decode windows of different lengths into ``out`` uint8 [R, size], as ``gather_windows`` does.

Args:
    pieces: int64 [5, n]: slot, newest and first row, and length of each window, and the row of ``out`` that its
        first goes to.

Returns how many are left out.)");
}

}  // namespace sharpwave
