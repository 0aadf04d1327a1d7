"""Kernels that find the transitions that can be sampled, and the rows of each.

They trust the index and the arena, which only ``sharpwave.log.step_log`` writes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sharpwave.format.segment import FLAGS, REWARD
from sharpwave.native.jit import njit
from sharpwave.native.memory_ops import load_word, prefetch
from sharpwave.spec import MAX_REWARD, START, TERMINATED, TRUNCATED
from sharpwave.views.log_arrays import read_arrays

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

ENDED = TERMINATED | TRUNCATED
EACH = np.uint64(0x0101010101010101)
"""A flag's factor, for that of each of eight steps."""
EVENTS, ENDS, NO_EVENT = np.uint64(START | ENDED) * EACH, np.uint64(ENDED) * EACH, np.uint64(0)
"""Flags that begin and end episodes, in each of eight steps."""


@njit(nogil=True, cache=True, inner=True)
def find_last_end(memory: Bytes, flags: int, begin: int, end: int) -> int:
    """Return the last row of ``begin <= r < end`` with which an episode ends, by either way; -1 if there is none."""
    row = end - 1
    while row >= begin:
        if row - begin >= 7 and load_word(memory, flags + row - 7) & ENDS == NO_EVENT:
            row -= 8
        elif memory[flags + row] & ENDED:
            return row
        else:
            row -= 1
    return -1


@njit(nogil=True, cache=True, inner=True)
def next_flagged(memory: Bytes, flags: int, begin: int, end: int, wanted: int) -> int:
    """Return the first row of ``begin <= r < end`` with any of the ``wanted`` flags; ``end`` if there is none."""
    every, row = np.uint64(wanted) * EACH, begin
    while row < end:
        if end - row >= 8 and load_word(memory, flags + row) & every == NO_EVENT:
            row += 8
        elif memory[flags + row] & wanted:
            return row
        else:
            row += 1
    return end


@njit(nogil=True, cache=True)
def sync(words: Ints, successor_known: Bytes, cursor: Int32s, spans: Int32s, n_step: int, runs: Ints) -> int:
    """Find the steps whose n-step successor has become known since the last call.

    A step can be sampled when an episode's end lies within the n steps that begin with it, or when the observation n
    steps later is known: that step has been appended, or the one before it came with its ``next_obs``. Such steps are a
    prefix of their segment, because steps arrive in order. Where steps in between were evicted, a return may reach up
    to the last step before them, whose successor frame its segment holds.

    Args:
        words: from ``log_arrays.write_arrays``, as in all kernels here.
        successor_known: uint8 [lanes], whether the frame after the last one of each lane is known to be the next
            observation.
        cursor: int32 [lanes], the slot up to which each lane has been followed; advanced.
        spans: int32 [slots, 2]; the second is the number of a slot's rows found so far; raised.
        runs: int64 [3, n], receives the new runs: slot, begin and end of rows ``begin <= r < end``.

    Returns the number of runs, at most as many as fit: call again while it equals their size. Cost: 20 ns a lane, and
    0.2 for each of the next ``n_step`` steps.
    """
    log = read_arrays(words)
    memory, flags_offset, rows, following, gap = log.memory, log.offset[FLAGS], log.rows, log.next, log.gap
    slots, begins, ends = runs[0], runs[1], runs[2]
    found = 0
    for lane in range(cursor.size):
        slot = cursor[lane]
        while slot >= 0 and found < slots.size:
            count = int(rows[slot])
            last_end = find_last_end(memory, flags_offset[slot], int(spans[slot, 1]), count)
            total = count
            at = slot
            while last_end < count and following[at] >= 0 and not gap[at] and total < count + n_step:
                at = following[at]
                reach, length = count + n_step - total, int(rows[at])
                end = find_last_end(memory, flags_offset[at], 0, length if length < reach else reach)
                if end >= 0:
                    last_end = total + end
                total += length
            cut = gap[at] and total < count + n_step
            foreseen = following[at] < 0 and successor_known[lane]
            total += 1 if cut or foreseen else 0
            prefix = total - n_step if total - n_step > last_end else last_end + 1
            prefix = prefix if prefix < count else count
            if prefix > spans[slot, 1]:
                slots[found] = slot
                begins[found] = spans[slot, 1]
                ends[found] = prefix
                found += 1
                spans[slot, 1] = prefix
            if (prefix < count and not cut) or not log.sealed[slot] or following[slot] < 0:
                break
            slot = following[slot]
        cursor[lane] = slot
    return found


@njit(nogil=True, cache=True)
def cut(words: Ints, slot: int, stride: int, spans: Int32s, leaves: Ints) -> int:
    """Find the steps before the segment in ``slot`` whose returns reach into it; they cannot be sampled without it.

    Args:
        spans: int32 [slots, 2]; the second is the number of a slot's rows that can be sampled; lowered.
        leaves: int64 [n_step - 1], receives those steps that could be sampled.

    Returns the number of those.
    """
    log = read_arrays(words)
    memory, flags_offset, rows, previous, gap = log.memory, log.offset[FLAGS], log.rows, log.previous, log.gap
    found = walked = 0
    at = previous[slot]
    while at >= 0 and not gap[at]:
        for r in range(rows[at] - 1, -1, -1):
            if walked == leaves.size or memory[flags_offset[at] + r] & ENDED:
                return found
            walked += 1
            if r < spans[at, 1]:
                spans[at, 1] = r
                leaves[found] = at * stride + r
                found += 1
        at = previous[at]
    return found


@njit(nogil=True, cache=True, inner=True)
def frame_of(memory: Bytes, flags: int, context: int, row: int) -> tuple[int, int]:
    """Return the frame of the step in ``row``, and its episode's first (0 if that lies before the segment)."""
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
def frames_of(words: Ints, slots: Ints, rows: Ints, newest: Ints, first: Ints) -> None:
    """Find each step's newest frame, and the frame below which its stack is padded."""
    log = read_arrays(words)
    for i in range(slots.size):
        s = slots[i]
        newest[i], first[i] = frame_of(log.memory, log.offset[FLAGS, s], log.context[s], rows[i])


@njit(nogil=True, cache=True)
def locate(
    words: Ints,
    leaves: Ints,
    stride: int,
    n_step: int,
    gamma: float,
    reward: Floats,
    discount: Floats,
    terminated: Bools,
    truncated: Bools,
    n: Ints,
    lane: Ints,
    step: Ints,
    located: Ints,
) -> None:
    """Compute n-step returns, the rows of frames, and where in the log each of ``leaves`` [B] is.

    ``reward`` and ``discount`` receive ``sum_i gamma^i r_i`` over the n_used steps up to the episode's end, and
    ``gamma^n_used * (1 - terminated)`` (Sutton & Barto 2018, eq. 7.1); ``terminated`` and ``truncated``, how the last
    of those ended the episode; ``n``, their number; ``lane`` and ``step``, the lane and the step's number in it.
    ``frame`` and ``next_frame`` are the newest
    frames of the stacks, in the columns of ``slot`` and ``next_slot``; ``first`` and ``next_first`` the frames below
    which the stacks are padded; these are rows of ``located`` int64 [7, B], one array because each costs a call time.
    Cost: 0.1 us an item.
    """
    log = read_arrays(words)
    memory, floats, flags_offset, reward_offset = log.memory, log.floats, log.offset[FLAGS], log.offset[REWARD]
    rows, context = log.rows, log.context
    slot, row, frame, first = located[0], located[1], located[2], located[3]
    next_slot, next_frame, next_first = located[4], located[5], located[6]
    count = leaves.size
    for i in range(count):
        slot[i] = leaves[i] // stride
    for i in range(count):
        # Memory at random addresses is prefetched: first the index, then the arena.
        if i + 24 < count:
            s = slot[i + 24]
            prefetch(flags_offset, s)
            prefetch(reward_offset, s)
            prefetch(rows, s)
            prefetch(context, s)
        if i + 12 < count:
            s = slot[i + 12]
            r = leaves[i + 12] - s * stride
            prefetch(memory, flags_offset[s])
            prefetch(memory, flags_offset[s] + r)
            prefetch(floats, (reward_offset[s] >> 2) + r)
        s = slot[i]
        r = leaves[i] - s * stride
        row[i] = r
        frame[i], first[i] = frame_of(memory, flags_offset[s], context[s], r)
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
                s = np.int64(log.next[s])
                r = np.int64(0)
        reward[i] = min(max(total, -MAX_REWARD), MAX_REWARD)  # float64 so far
        discount[i] = 0.0 if flag & TERMINATED else factor
        terminated[i], truncated[i], n[i] = flag & TERMINATED != 0, flag & TRUNCATED != 0, used
        lane[i], step[i] = log.lane[slot[i]], log.first_step[slot[i]] + row[i]
        next_slot[i] = s
        if s == slot[i] and r == row[i]:
            next_first[i] = first[i]
            next_frame[i] = frame[i] + 1
        else:
            newest, next_first[i] = frame_of(memory, flags_offset[s], context[s], r)
            next_frame[i] = newest + 1
