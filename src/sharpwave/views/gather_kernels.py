"""Kernels that decode windows of a field's rows straight into a batch.

They trust the index and the arena, which only ``sharpwave.log.step_log`` writes.

A kernel reads a column through one NamedTuple of arrays, ``Column``. It is not passed as an argument: numba takes
1.8 us for a call with nine of them in a tuple, 0.8 us where each is an argument of its own, and 0.4 us where their
addresses come in one array of words, from which ``read_column`` makes the tuple in compiled code, for the calling
thread and for helpers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.codecs import fused
from sharpwave.codecs.raw import RAW
from sharpwave.codecs.registry import GATHER, NUMBERS, PREFETCH
from sharpwave.native.function_pointers import call
from sharpwave.native.jit import inner_of, njit
from sharpwave.native.memory_ops import array_at, copy, fetch_add, prefetch

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

TAKEN, LEFT_OUT, ENDS, TURNS = 0, 8, 16, 32
"""Positions in ``turns`` int64 [TURNS], each with a cache line of its own: items taken by any thread, items without a
kernel, and at ENDS and ENDS + 8 the items taken from the first on and from the last back."""
PIECE_ROWS = 5


class Column(NamedTuple):
    """Column of one field in every segment.

    Attributes:
        memory, words: the arena as uint8, and as uint32 (offset tables).
        offset, codec, dictionary, counts: the column's arrays of the index; counts are the column's rows by slot.
        references: uint8 [places, size], dictionaries as long as a row.
        kernels: int64 [2, NUMBERS], addresses by codec (``sharpwave.codecs.registry.kernels``).
        line: bytes from a pixel to the one below, 0 for none.
        zeros: whether rows before an episode's first are zeros; else they are the first again.
    """

    memory: Bytes
    words: npt.NDArray[np.uint32]
    offset: Ints
    codec: Bytes
    dictionary: Int32s
    counts: Int32s
    references: Bytes
    kernels: Ints
    line: int
    zeros: bool


def write_column(column: Column) -> Ints:
    """Return the words that ``read_column`` reads. The arrays must outlive them."""
    slots, (places, size) = len(column.offset), column.references.shape
    by_slot = (column.offset, column.codec, column.dictionary, column.counts)
    assert {len(array) for array in by_slot} == {slots} and column.kernels.shape == (2, NUMBERS)
    arrays: tuple[npt.NDArray[Any], ...] = (column.memory, *by_slot, column.references, column.kernels)
    kinds = (np.uint8, np.int64, np.uint8, np.int32, np.int32, np.uint8, np.int64)
    for array, kind in zip(arrays, kinds, strict=True):
        assert array.dtype == kind and array.flags.c_contiguous
    return np.array(
        [*(array.ctypes.data for array in arrays), column.memory.size, slots, places, size, column.line, column.zeros],
        np.int64,
    )


@njit(nogil=True, cache=True, inner=True)
def read_column(words: Ints) -> Column:
    """Return the column whose addresses and sizes are in ``words``."""
    nbytes, slots, places, size = words[7], words[8], words[9], words[10]
    return Column(
        array_at(words[0], (nbytes,), np.uint8),
        array_at(words[0], (nbytes >> 2,), np.uint32),
        array_at(words[1], (slots,), np.int64),
        array_at(words[2], (slots,), np.uint8),
        array_at(words[3], (slots,), np.int32),
        array_at(words[4], (slots,), np.int32),
        array_at(words[5], (places, size), np.uint8),
        array_at(words[6], (2, NUMBERS), np.int64),
        words[11],
        words[12] != 0,
    )


COLUMN_WORDS = 13


@njit(nogil=True, cache=True, inner=True)
def _copy_window(memory: Bytes, begin: int, zeros: bool, newest: int, first: int, out: Bytes) -> None:
    """Copy the window of W rows that ends with ``newest`` of the raw column at ``begin`` to ``out`` uint8 [W, size]."""
    window, size = out.shape
    for j in range(window):
        wanted = newest - window + 1 + j
        if wanted < first and zeros:
            out[j, :] = 0
        else:
            start = begin + (wanted if wanted > first else first) * size
            source, target = memory[start : start + size], out[j]
            for k in range(size):  # over slices: an index with an offset may be negative, and is not vectorised
                target[k] = source[k]


@njit(nogil=True, cache=True)
def gather_items(
    end: int,
    turns: Ints,
    chunk: int,
    column_words: Ints,
    slot: Ints,
    newest: Ints,
    first: Ints,
    out: Bytes,
    last: Bytes,
) -> None:
    """Decode the windows of W rows that end with ``newest`` into ``out`` uint8 [B, W, size], shared by several threads.

    Where ``last`` is not empty, windows have two rows, neither of them padded: the first ones go to ``out``
    [B, 1, size], the others to ``last`` [B, 1, size].

    Rows before ``first`` are padded. Items whose codec has no kernel are left out and counted.

    Args:
        end: 0 to take from the first item on, 1 from the last back.
        turns: zeros at first.
        chunk: items that a thread takes at a time.
        column_words: from ``write_column``.
        slot, newest, first: int64 [B], location of each window.

    Cost: raw and delta 0.5 to 0.7 us a row of 7 KB (benchmarks/codec_sizes.py).
    """
    column = read_column(column_words)
    memory, words, offset, codec, counts = column.memory, column.words, column.offset, column.codec, column.counts
    count = slot.size
    window = fused.new_window(out.shape[2])  # arguments of a codec's kernel
    window[fused.MEMORY], window[fused.MEMORY_BYTES] = memory.ctypes.data, memory.size
    length = out.shape[1] + last.shape[1]
    window[fused.LENGTH], window[fused.LINE], window[fused.ZEROS] = length, column.line, column.zeros
    window_bytes = length * out.shape[2]
    # Items between a prefetch and its use, on each of three levels: as many as take 0.1 us, or 0.2.
    ahead = 16 if window_bytes < 1024 else 2
    rows, last_rows, size = out.reshape(-1), last.reshape(-1), out.shape[2]
    while True:
        taken = fetch_add(turns, TAKEN, chunk)
        if taken >= count:
            break
        # The number is settled; which: the next from this end, so that a core decodes into its own cache.
        some = chunk if chunk < count - taken else count - taken
        begin = fetch_add(turns, ENDS + 8 * end, some)
        if end == 1:
            begin = count - begin - some
        left_out = 0
        for i in range(begin, begin + some):
            # Memory at random addresses is prefetched: the index, then the offsets, then the patches.
            if i + 3 * ahead < count:
                s = slot[i + 3 * ahead]
                prefetch(offset, s)
                prefetch(codec, s)
                prefetch(counts, s)
                prefetch(column.dictionary, s)
            if i + 2 * ahead < count:
                s = slot[i + 2 * ahead]
                prefetch(words, offset[s] >> 2)
                prefetch(words, (offset[s] >> 2) + newest[i + 2 * ahead])
            if i + ahead < count:
                s = slot[i + ahead]
                kernel = column.kernels[PREFETCH, codec[s]]
                if codec[s] == RAW:
                    after = offset[s] + (newest[i + ahead] + 1) * out.shape[2]
                    prefetch(memory, after - 1)
                    for at in range(after - (window_bytes if window_bytes < 512 else 512), after, 64):
                        prefetch(memory, at)
                elif kernel:
                    window[fused.BEGIN], window[fused.ROWS] = offset[s], counts[s]
                    window[fused.NEWEST], window[fused.FIRST] = newest[i + ahead], first[i + ahead]
                    call(kernel, window.ctypes.data)
            s = slot[i]
            kernel = column.kernels[GATHER, codec[s]]
            if codec[s] == RAW:
                start = offset[s] + newest[i] * size
                if last.shape[1]:
                    copy(rows, i * size, memory, start - size, size)
                    copy(last_rows, i * size, memory, start, size)
                elif length == 1:
                    copy(rows, i * size, memory, start, size)
                else:
                    _copy_window(memory, offset[s], column.zeros, newest[i], first[i], out[i])
            elif kernel:
                window[fused.BEGIN], window[fused.ROWS] = offset[s], counts[s]
                window[fused.NEWEST], window[fused.FIRST] = newest[i], first[i]
                window[fused.DICTIONARY] = column.references[column.dictionary[s]].ctypes.data
                window[fused.OUT] = out[i].ctypes.data
                if last.shape[1]:
                    window[fused.NEWEST], window[fused.LENGTH] = newest[i] - 1, 1
                    call(kernel, window.ctypes.data)
                    window[fused.NEWEST], window[fused.OUT] = newest[i], last[i].ctypes.data
                call(kernel, window.ctypes.data)
                window[fused.LENGTH] = length  # that of prefetches
            else:
                left_out += 1
        fetch_add(turns, LEFT_OUT, left_out)


@njit(nogil=True, cache=True)
def gather_pieces(end: int, turns: Ints, chunk: int, column_words: Ints, pieces: Ints, out: Bytes) -> None:
    """Decode windows of different lengths into ``out`` uint8 [R, size], shared by several threads.

    Args:
        end, turns, chunk, column_words: as in :func:`gather_items`.
        pieces: int64 [PIECE_ROWS, n]: slot, newest and first row, and length of each window, and the row of ``out``
            that its first goes to.
    """
    column = read_column(column_words)
    memory, offset, codec, counts = column.memory, column.offset, column.codec, column.counts
    slot, newest, first, length, target = pieces[0], pieces[1], pieces[2], pieces[3], pieces[4]
    count = slot.size
    window = fused.new_window(out.shape[1])
    window[fused.MEMORY], window[fused.MEMORY_BYTES] = memory.ctypes.data, memory.size
    window[fused.LINE], window[fused.ZEROS] = column.line, column.zeros
    while True:
        taken = fetch_add(turns, TAKEN, chunk)
        if taken >= count:
            break
        size = chunk if chunk < count - taken else count - taken
        begin = fetch_add(turns, ENDS + 8 * end, size)
        if end == 1:
            begin = count - begin - size
        left_out = 0
        for i in range(begin, begin + size):
            s = slot[i]
            kernel = column.kernels[GATHER, codec[s]]
            into = out[target[i] : target[i] + length[i]]
            if codec[s] == RAW:
                _copy_window(memory, offset[s], column.zeros, newest[i], first[i], into)
            elif kernel:
                window[fused.BEGIN], window[fused.ROWS] = offset[s], counts[s]
                window[fused.NEWEST], window[fused.FIRST], window[fused.LENGTH] = newest[i], first[i], length[i]
                window[fused.DICTIONARY] = column.references[column.dictionary[s]].ctypes.data
                window[fused.OUT] = into.ctypes.data
                call(kernel, window.ctypes.data)
            else:
                left_out += 1
        fetch_add(turns, LEFT_OUT, left_out)


_gather_items, _gather_pieces = inner_of(gather_items), inner_of(gather_pieces)


@njit(nogil=True, cache=True, inner=True)
def _new_turns() -> Ints:
    turns = np.empty(TURNS, np.int64)  # zeros would be compiled, and nothing else here needs them
    for i in range(TURNS):
        turns[i] = 0
    return turns


@njit(nogil=True, cache=True)
def gather_alone(column_words: Ints, slot: Ints, newest: Ints, first: Ints, out: Bytes) -> int:
    """Run ``gather_items`` on one thread; return how many items are left out.

    Making and reading ``turns`` outside took 0.6 us a field.
    """
    turns = _new_turns()
    first_end: int = np.int64(0)  # type: ignore[assignment]
    none = array_at(out.ctypes.data, (0, 0, 0), np.uint8)
    _gather_items(first_end, turns, slot.size, column_words, slot, newest, first, out, none)
    return int(turns[LEFT_OUT])


@njit(nogil=True, cache=True)
def gather_pairs_alone(column_words: Ints, slot: Ints, newest: Ints, first: Ints, out: Bytes) -> int:
    """Run ``gather_items`` on one thread for windows of two rows, ``out`` [B, 2, size], of which all first ones lie
    before all last ones; return how many items are left out."""
    turns, shape = _new_turns(), (out.shape[0], 1, out.shape[2])
    begin, first_end = out.ctypes.data, np.int64(0)
    rows, last = array_at(begin, shape, np.uint8), array_at(begin + out.strides[1], shape, np.uint8)
    _gather_items(first_end, turns, slot.size, column_words, slot, newest, first, rows, last)  # type: ignore[arg-type]
    return int(turns[LEFT_OUT])


@njit(nogil=True, cache=True)
def gather_pieces_alone(column_words: Ints, pieces: Ints, out: Bytes) -> int:
    """Run :func:`gather_pieces` in one thread; returns how many pieces are left out."""
    turns = _new_turns()
    first_end: int = np.int64(0)  # type: ignore[assignment]
    _gather_pieces(first_end, turns, pieces.shape[1], column_words, pieces, out)
    return int(turns[LEFT_OUT])
