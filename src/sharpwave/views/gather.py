"""From leaves to batches: kernels that find a transition's frames in the log and decode them straight into the batch.

They trust the index and the arena, which only hold what :mod:`sharpwave.tiers.log` put there.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard
from numba import njit

from ..codecs import RAW, ZSTD
from ..delta import paint
from ..spec import START, TERMINATED, TRUNCATED
from ..tiers.dictionaries import DictionaryTable

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

ENDED = TERMINATED | TRUNCATED
THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
THREAD_BYTES = 2 << 20
"""Bytes to decode for which another thread is worth waking (some 0.15 ms)."""


@cache
def _pool() -> ThreadPoolExecutor:
    """Threads beside the calling one, shared by all stores."""
    return ThreadPoolExecutor(max(1, THREADS - 1), thread_name_prefix="sharpwave-gather")


if hasattr(os, "register_at_fork"):  # threads do not survive a fork: a child makes its own
    os.register_at_fork(after_in_child=_pool.cache_clear)


@njit(nogil=True, cache=True)
def sync(
    memory: Bytes,
    flags_offset: Ints,
    rows: Int32s,
    following: Int32s,
    sealed: Bytes,
    cursor: Int32s,
    known: Int32s,
    n_step: int,
    slots: Ints,
    begins: Ints,
    ends: Ints,
) -> int:
    """Find the steps whose n-step successor has become known since the last call.

    A step can be sampled when an episode's end lies within the n steps that begin with it, or when the step n later has
    been appended. In a segment such steps are a prefix, because steps come in order.

    Args:
        cursor: int32 [lanes], the slot each lane has been followed to; moved on.
        known: int32 [slots], rows of each slot already found; raised.
        slots, begins, ends: receive the new runs: rows ``begins <= r < ends`` of a slot.

    Returns the number of runs; as many as fit, so call again while it equals their size. Cost: 20 ns a lane, 2 a step.
    """
    found = 0
    for lane in range(cursor.size):
        slot = cursor[lane]
        while slot >= 0 and found < slots.size:
            count = int(rows[slot])
            last_end = -1
            base = flags_offset[slot]
            for r in range(count - 1, known[slot] - 1, -1):
                if memory[base + r] & ENDED:
                    last_end = r
                    break
            total = count
            after = following[slot]
            while after >= 0 and total < count + n_step:
                base = flags_offset[after]
                for r in range(min(int(rows[after]), count + n_step - total)):
                    if memory[base + r] & ENDED:
                        last_end = total + r
                total += int(rows[after])
                after = following[after]
            prefix = min(count, max(total - n_step, last_end + 1))
            if prefix > known[slot]:
                slots[found] = slot
                begins[found] = known[slot]
                ends[found] = prefix
                found += 1
                known[slot] = prefix
            if prefix < count or not sealed[slot] or following[slot] < 0:
                break
            slot = following[slot]
        cursor[lane] = slot
    return found


@njit(nogil=True, cache=True)
def _frame_of(memory: Bytes, flags: int, context: int, row: int) -> tuple[int, int]:
    """Frame of the step in ``row``, and the first frame of its episode (0 where that lies before the segment)."""
    ends = 0
    first = 0
    r = 0
    while r < row:
        flag = memory[flags + r]
        if flag & START:
            first = context + r + ends
        if flag & ENDED:
            ends += 1
        r += 1
    frame = context + row + ends
    if memory[flags + row] & START:
        first = frame
    return frame, first


@njit(nogil=True, cache=True)
def locate(
    memory: Bytes,
    floats: Floats,
    flags_offset: Ints,
    reward_offset: Ints,
    rows: Int32s,
    following: Int32s,
    context: Int32s,
    leaves: Ints,
    stride: int,
    n_step: int,
    gamma: float,
    reward: Floats,
    discount: Floats,
    slot: Ints,
    row: Ints,
    frame: Ints,
    first: Ints,
    next_slot: Ints,
    next_frame: Ints,
    next_first: Ints,
) -> None:
    """N-step returns and where the frames lie, for each of ``leaves`` [B].

    ``reward`` and ``discount`` receive ``sum_i gamma^i r_i`` over the n_used steps up to the episode's end, and
    ``gamma^n_used * (1 - terminated)`` (Sutton & Barto 2018, eq. 7.1). ``frame`` and ``next_frame`` are the newest
    frames of the stacks, in the columns of ``slot`` and ``next_slot``; ``first`` and ``next_first`` the frames below
    which the stacks are padded. Cost: 0.1 to 0.3 us an item, mostly cache misses.
    """
    for i in range(leaves.size):
        s = leaves[i] // stride
        r = leaves[i] - s * stride
        slot[i] = s
        row[i] = r
        frame[i], first[i] = _frame_of(memory, flags_offset[s], context[s], r)
        total = 0.0
        factor = 1.0
        for used in range(1, n_step + 1):
            total += factor * floats[(reward_offset[s] >> 2) + r]
            factor *= gamma
            flag = memory[flags_offset[s] + r]
            if flag & ENDED or used == n_step:
                break
            r += 1
            if r == rows[s]:
                s = np.int64(following[s])
                r = np.int64(0)
        reward[i] = total
        discount[i] = 0.0 if flag & TERMINATED else factor
        next_slot[i] = s
        if s == slot[i] and r == row[i]:
            next_first[i] = first[i]
            next_frame[i] = frame[i] + 1
        else:
            newest, next_first[i] = _frame_of(memory, flags_offset[s], context[s], r)
            next_frame[i] = newest + 1


@njit(nogil=True, cache=True)
def _gather_item(
    memory: Bytes,
    words: npt.NDArray[np.uint32],
    begin: int,
    codec: int,
    count: int,
    reference: Bytes,
    line: int,
    zeros: bool,
    newest: int,
    first: int,
    out: Bytes,
) -> int:
    """Decode the window of W rows that ends with ``newest`` of the column at ``begin`` into ``out`` uint8 [W, size].

    Rows before ``first`` are padded: with that row, or with zeros. Returns 1 for a zstd column, which is left out.
    """
    window, size = out.shape
    if codec == RAW:
        for j in range(window):
            wanted = newest - window + 1 + j
            if wanted < first and zeros:
                out[j, :] = 0
            else:
                start = begin + max(wanted, first) * size
                source, target = memory[start : start + size], out[j]
                for k in range(size):  # over slices: an index with an offset may be negative, and is not vectorised
                    target[k] = source[k]
        return 0
    if codec == ZSTD:
        return 1
    table = begin >> 2
    packed = begin + 4 * (count + 2)
    background = out[0]
    for k in range(size):
        background[k] = reference[k]
    paint(memory, packed, packed + int(words[table + 1]), line, background)
    for j in range(window - 1, -1, -1):
        wanted = newest - window + 1 + j
        target = out[j]
        if wanted < first and zeros:
            target[:] = 0
            continue
        if j > 0:
            for k in range(size):
                target[k] = background[k]
        entry = table + 1 + max(wanted, first)
        paint(memory, packed + int(words[entry]), packed + int(words[entry + 1]), line, target)
    return 0


@njit(nogil=True, cache=True)
def gather_items(
    memory: Bytes,
    words: npt.NDArray[np.uint32],
    offset: Ints,
    codec: Bytes,
    dictionary: Int32s,
    counts: Int32s,
    references: Bytes,
    line: int,
    zeros: bool,
    slot: Ints,
    newest: Ints,
    first: Ints,
    out: Bytes,
) -> int:
    """:func:`_gather_item` for every item of ``out`` uint8 [B, W, size].

    Args:
        words: ``memory`` as uint32 (offset tables).
        offset, codec, dictionary, counts: the column's arrays of the index; counts are the column's rows by slot.
        references: uint8 [places, size], delta's reference rows.
        slot, newest, first: int64 [B], where each window lies.

    Returns how many items lie in zstd columns, which are left out. Cost: raw and delta 0.5 to 0.7 us a row of 7 KB
    (benchmarks/codecs.py).
    """
    left_out = 0
    for i in range(slot.size):
        s = slot[i]
        left_out += _gather_item(
            memory, words, offset[s], codec[s], int(counts[s]), references[dictionary[s]], line, zeros,
            newest[i], first[i], out[i],
        )  # fmt: skip
    return left_out


def gather(
    memory: Bytes,
    words: npt.NDArray[np.uint32],
    column: tuple[Ints, Bytes, Int32s],
    counts: Int32s,
    table: DictionaryTable,
    line: int,
    zeros: bool,
    slot: Ints,
    newest: Ints,
    first: Ints,
    out: Bytes,
) -> None:
    """Decode a field's windows into ``out``, a large batch on several threads. ``column``: (offset, codec, dictionary).

    The threads are Python's, each in a kernel that has let the interpreter go: numba's ``prange`` would change torch's
    number of threads (both use OpenMP) and keeps the other cores spinning after each batch.
    """

    def part(begin: int, end: int) -> int:
        items = slice(begin, end)
        return gather_items(
            memory, words, *column, counts, table.references, line, zeros,
            slot[items], newest[items], first[items], out[items],
        )  # fmt: skip

    count = len(slot)
    threads = min(THREADS, out.nbytes // THREAD_BYTES, count)
    if threads < 2:
        left_out = part(0, count)
    else:
        bounds = [count * i // threads for i in range(threads + 1)]
        others = [_pool().submit(part, *pair) for pair in pairwise(bounds[1:])]
        left_out = part(0, bounds[1]) + sum(other.result() for other in others)
    if left_out:
        _gather_zstd(memory, words, column, counts, table, zeros, slot, newest, first, out)


def _gather_zstd(
    memory: Bytes,
    words: npt.NDArray[np.uint32],
    column: tuple[Ints, Bytes, Int32s],
    counts: Int32s,
    table: DictionaryTable,
    zeros: bool,
    slot: Ints,
    newest: Ints,
    first: Ints,
    out: Bytes,
) -> None:
    """The items of a batch that lie in zstd columns. Cost: 2.5 us a row of 7 KB, and 1 us of Python."""
    offset, codec, dictionary = column
    window, size = out.shape[1:]
    items = np.flatnonzero(codec[slot] == ZSTD)
    wanted = newest[items, None] - np.arange(window - 1, -1, -1)
    row = np.maximum(wanted, first[items, None])
    places = dictionary[slot[items]]
    for place in np.unique(places):
        mine = places == place
        begins = offset[slot[items[mine]]]
        entries = (begins >> 2)[:, None] + row[mine]
        packed = begins + 4 * (counts[slot[items[mine]]].astype(np.int64) + 1)
        ranges = np.empty((entries.size, 2), np.uint64)
        ranges[:, 0] = (packed[:, None] + words[entries]).reshape(-1)
        ranges[:, 1] = (words[entries + 1] - words[entries]).reshape(-1)
        sizes = np.full(entries.size, size, np.uint64)
        unpacked: Any = table.decompressor(int(place)).multi_decompress_to_buffer(
            zstandard.BufferWithSegments(memory.data, ranges.tobytes()), decompressed_sizes=sizes.tobytes(), threads=-1
        )
        for i, item in enumerate(items[mine]):
            for j in range(window):
                out[item, j] = np.frombuffer(unpacked[i * window + j], np.uint8)
    if zeros:
        for i, item in enumerate(items):
            out[item, wanted[i] < first[item]] = 0
