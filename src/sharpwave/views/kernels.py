"""Kernels that find a transition's frames in the log and decode them straight into the batch.

They trust the index and the arena, which only hold what :mod:`sharpwave.log.step_log` put there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sharpwave.codecs.delta_kernels import paint
from sharpwave.codecs.registry import DELTA, RAW, ZSTD
from sharpwave.memory.segment_index import LEAF_BITS
from sharpwave.native.jit import njit
from sharpwave.native.memory_ops import fetch_add, load_word, prefetch
from sharpwave.spec import START, TERMINATED, TRUNCATED

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

ENDED = TERMINATED | TRUNCATED
EVENTS, NO_EVENT = np.uint64((START | ENDED) * 0x0101010101010101), np.uint64(0)
"""The flags that begin and end episodes, in each of eight steps."""
TAKEN, LEFT_OUT, ENDS = 0, 8, 16
"""Places in ``turns`` int64 [32], in a cache line each: items that some thread took, items that none can decode, and at
ENDS and ENDS + 8 the items taken from the first on and from the last back."""


@njit(nogil=True, cache=True)
def sync(
    memory: Bytes,
    flags_offset: Ints,
    rows: Int32s,
    following: Int32s,
    gap: Bytes,
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
    been appended. In a segment such steps are a prefix, because steps come in order. Where steps have left in between,
    a return may reach up to the last step before them, whose successor frame its segment holds.

    Args:
        gap: uint8 [slots], whether steps between a segment and the following one have left.
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
            at = slot
            while following[at] >= 0 and not gap[at] and total < count + n_step:
                after = following[at]
                base = flags_offset[after]
                for r in range(min(int(rows[after]), count + n_step - total)):
                    if memory[base + r] & ENDED:
                        last_end = total + r
                total += int(rows[after])
                at = after
            cut = gap[at] and total < count + n_step
            total += 1 if cut else 0
            prefix = min(count, max(total - n_step, last_end + 1))
            if prefix > known[slot]:
                slots[found] = slot
                begins[found] = known[slot]
                ends[found] = prefix
                found += 1
                known[slot] = prefix
            if (prefix < count and not cut) or not sealed[slot] or following[slot] < 0:
                break
            slot = following[slot]
        cursor[lane] = slot
    return found


@njit(nogil=True, cache=True)
def cut(
    memory: Bytes,
    flags_offset: Ints,
    rows: Int32s,
    previous: Int32s,
    gap: Bytes,
    slot: int,
    stride: int,
    known: Int32s,
    leaves: Ints,
) -> int:
    """The segment in ``slot`` goes: the steps before it whose returns reach into it cannot be sampled any more.

    Args:
        known: int32 [slots], rows of each slot that can be sampled; lowered.
        leaves: int64 [n_step - 1], receives such steps that could.

    Returns how many those are.
    """
    found = walked = 0
    at = previous[slot]
    while at >= 0 and not gap[at]:
        for r in range(rows[at] - 1, -1, -1):
            if walked == leaves.size or memory[flags_offset[at] + r] & ENDED:
                return found
            walked += 1
            if r < known[at]:
                known[at] = r
                leaves[found] = at * stride + r
                found += 1
        at = previous[at]
    return found


@njit(nogil=True, cache=True)
def _frame_of(memory: Bytes, flags: int, context: int, row: int) -> tuple[int, int]:
    """Frame of the step in ``row``, and the first frame of its episode (0 where that lies before the segment)."""
    ends = 0
    first = 0
    r = 0
    while r < row:
        if r + 8 <= row and load_word(memory, flags + r) & EVENTS == NO_EVENT:
            r += 8
            continue
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
    generation: Ints,
    leaves: Ints,
    stride: int,
    n_step: int,
    gamma: float,
    reward: Floats,
    discount: Floats,
    places: Ints,
    ids: Ints,
) -> None:
    """N-step returns and where the frames lie, for each of ``leaves`` [B].

    ``reward`` and ``discount`` receive ``sum_i gamma^i r_i`` over the n_used steps up to the episode's end, and
    ``gamma^n_used * (1 - terminated)`` (Sutton & Barto 2018, eq. 7.1). ``frame`` and ``next_frame`` are the newest
    frames of the stacks, in the columns of ``slot`` and ``next_slot``; ``first`` and ``next_first`` the frames below
    which the stacks are padded; these are rows of ``places`` int64 [7, B], one array because each costs a call time.
    Cost: 0.1 us an item.
    """
    slot, row, frame, first = places[0], places[1], places[2], places[3]
    next_slot, next_frame, next_first = places[4], places[5], places[6]
    count = leaves.size
    for i in range(count):
        slot[i] = leaves[i] // stride
    for i in range(count):
        # What lies at random in memory is asked for ahead of its use: first the index, then what it points to.
        if i + 8 < count:
            s = slot[i + 8]
            prefetch(flags_offset, s)
            prefetch(reward_offset, s)
            prefetch(rows, s)
            prefetch(context, s)
            prefetch(generation, s)
        if i + 4 < count:
            s = slot[i + 4]
            r = leaves[i + 4] - s * stride
            prefetch(memory, flags_offset[s])
            prefetch(memory, flags_offset[s] + r)
            prefetch(floats, (reward_offset[s] >> 2) + r)
        s = slot[i]
        r = leaves[i] - s * stride
        row[i] = r
        ids[i] = generation[s] << LEAF_BITS | leaves[i]
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
def _prefetch_entries(
    memory: Bytes, words: npt.NDArray[np.uint32], begin: int, count: int, window: int, newest: int, first: int
) -> None:
    """Ask for the patches of a delta column's window; its offsets must be in cache by now, or this waits for them."""
    entries = (begin >> 2) + 1
    packed = begin + 4 * (count + 2)
    for at in range(packed, packed + int(words[entries]), 64):
        prefetch(memory, at)
    lowest = max(newest - window + 1, first)
    for at in range(packed + int(words[entries + lowest]), packed + int(words[entries + newest + 1]), 64):
        prefetch(memory, at)


@njit(nogil=True, cache=True)
def gather_items(
    end: int,
    turns: Ints,
    chunk: int,
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
) -> None:
    """:func:`_gather_item` for the items of ``out`` uint8 [B, W, size], ``chunk`` at a time, shared by several threads.

    Args:
        end: 0 to take from the first item on, 1 from the last back.
        turns: zeros at first; items in zstd columns are left out and counted.
        words: ``memory`` as uint32 (offset tables).
        offset, codec, dictionary, counts: the column's arrays of the index; counts are the column's rows by slot.
        references: uint8 [places, size], delta's reference rows.
        slot, newest, first: int64 [B], where each window lies.

    Cost: raw and delta 0.5 to 0.7 us a row of 7 KB (benchmarks/codecs.py).
    """
    count = slot.size
    # Items between a prefetch and its use, on each of three levels: as many as take a tenth of a microsecond, or two.
    ahead = 16 if out.shape[1] * out.shape[2] < 1024 else 2
    few = out.shape[1] == 1 and out.shape[2] <= 64  # so few bytes that slicing arrays costs more than copying them
    while True:
        taken = fetch_add(turns, TAKEN, chunk)
        if taken >= count:
            break
        # How many is settled; which: the next from this end, so that a core decodes into what lies in its own cache.
        size = min(chunk, count - taken)
        begin = fetch_add(turns, ENDS + 8 * end, size)
        if end == 1:
            begin = count - begin - size
        left_out = 0
        for i in range(begin, begin + size):
            # What lies at random in memory is asked for ahead of its use: the index, then the offsets, the patches.
            if i + 3 * ahead < count:
                s = slot[i + 3 * ahead]
                prefetch(offset, s)
                prefetch(codec, s)
                prefetch(counts, s)
                prefetch(dictionary, s)
            if i + 2 * ahead < count:
                s = slot[i + 2 * ahead]
                prefetch(words, offset[s] >> 2)
                prefetch(words, (offset[s] >> 2) + newest[i + 2 * ahead])
            if i + ahead < count:
                s = slot[i + ahead]
                if codec[s] == RAW:
                    prefetch(memory, offset[s] + newest[i + ahead] * out.shape[2])
                elif codec[s] == DELTA:
                    _prefetch_entries(
                        memory, words, offset[s], int(counts[s]), out.shape[1], newest[i + ahead], first[i + ahead]
                    )
            s = slot[i]
            if few and codec[s] == RAW:
                start = offset[s] + newest[i] * out.shape[2]
                for k in range(out.shape[2]):
                    out[i, 0, k] = memory[start + k]
                continue
            left_out += _gather_item(
                memory, words, offset[s], codec[s], int(counts[s]), references[dictionary[s]], line, zeros,
                newest[i], first[i], out[i],
            )  # fmt: skip
        fetch_add(turns, LEFT_OUT, left_out)


@njit(nogil=True, cache=True)
def gather_alone(
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
    """:func:`gather_items` by one thread; returns how many items are left out.

    To make and read ``turns`` outside took .6 us a field.
    """
    turns = np.zeros(32, np.int64)
    gather_items(
        0, turns, slot.size, memory, words, offset, codec, dictionary, counts, references, line, zeros,
        slot, newest, first, out,
    )  # fmt: skip
    return int(turns[LEFT_OUT])
