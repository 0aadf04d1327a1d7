"""Kernel that appends staged steps: all that is checked of them, written and counted, in one call.

A signal handler of Python never runs inside it, so a step is appended whole or not at all, without deferring any.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.log.inventory import CHANGES, HELD, TOTAL
from sharpwave.log.row_kernels import ENDED, JUST_ENDED, LEFT_ALONE, MET, WHOLE
from sharpwave.native.jit import njit
from sharpwave.native.memory_ops import array_at, copy, load_word, prefetch
from sharpwave.spec import MAX_REWARD, START, TERMINATED, TRUNCATED

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

OTHERWISE, FULL = -1, -2
"""Results of ``append_staged``: the steps need what it does not do; or a segment is to be sealed, or one evicted,
first."""
AHEAD = 6
"""Steps between a prefetch and its use."""

FIRST_COLUMN = 21
"""Words before the columns'. Of each column there are two: whether it has a row a frame, and the bytes of a row."""
BY_ADDRESS = (
    ("memory", np.uint8), ("offset", np.int64), ("rows", np.int32), ("frames", np.int32), ("begins", np.uint8),
    ("generation", np.int64), ("slots", np.int32), ("steps", np.int64), ("shares", np.int32),
    ("successor_known", np.uint8), ("counts", np.int64), ("staging", np.int64),
    ("watch", np.uint8), ("fresh", np.int64),
)  # fmt: skip
"""Arrays whose addresses are the first words, in this order."""
MEMORY_BYTES, SLOTS, LANES, STRIDE, MAX_ROWS, MAX_FRAMES, CAPACITY = range(14, 21)

COUNT, TERMINATED_AT, TRUNCATED_AT, REWARD_AT, LANES_AT, FIRST_PLACE = 0, 1, 2, 3, 4, 5
"""Places of a plan: number of steps, and offsets in the staged bytes. Then, of each column, those of the steps' rows,
of final and of next observations."""


def write_words(
    arrays: dict[str, npt.NDArray[Any]],
    columns: list[tuple[bool, int]],
    *,
    stride: int,
    max_rows: int,
    max_frames: int,
    capacity: int | None,
) -> Ints:
    """Return the words that ``append_staged`` reads. The arrays must outlive them.

    Args:
        arrays: by the names of ``BY_ADDRESS``.
        columns: of the spec's fields: whether a column has a row a frame, and the bytes of a row.
        max_rows, max_frames: at which a segment is full.
    """
    addresses = []
    for name, kind in BY_ADDRESS:
        assert arrays[name].dtype == kind and arrays[name].flags.c_contiguous, name
        addresses.append(arrays[name].ctypes.data)
    sizes = len(arrays["memory"]), arrays["offset"].shape[1], len(arrays["slots"])
    limits = stride, max_rows, max_frames, -1 if capacity is None else capacity
    return np.array([*addresses, *sizes, *limits, *(word for column in columns for word in column)], np.int64)


@njit(nogil=True, cache=True, inner=True)
def _differ(memory: Bytes, at: int, other: Bytes, begin: int, size: int) -> bool:
    """Return whether two rows of ``size`` bytes differ."""
    k = 0
    while k + 8 <= size:
        if load_word(memory, at + k) != load_word(other, begin + k):
            return True
        k += 8
    while k < size:
        if memory[at + k] != other[begin + k]:
            return True
        k += 1
    return False


@njit(nogil=True, cache=True, inner=True)
def _repeats(
    words: Ints, places: Ints, memory: Bytes, offset: Ints, slot: Any, frame: Any, staged: Bytes, i: int
) -> bool:
    """Return whether staged step ``i`` observes what frame ``frame`` of a slot is."""
    for c in range((words.size - FIRST_COLUMN) // 2):
        size = words[FIRST_COLUMN + 2 * c + 1]
        if words[FIRST_COLUMN + 2 * c] and _differ(
            memory, offset[c + 2, slot] + frame * size, staged, places[FIRST_PLACE + 3 * c] + i * size, size
        ):
            return False
    return True


@njit(nogil=True, cache=True)
def append_staged(
    words: Ints, places: Ints, staged: Bytes, has_final: bool, has_next: bool, changes: int, ids: Ints
) -> int:
    """Append one staged step to each of several lanes, or change nothing.

    Args:
        words: from ``write_words``. ``places``: int64, of a plan (``FIRST_PLACE``), in ``staged``.
        has_final, has_next: whether final observations, and next ones, are staged.
        changes: the inventory's number of changes when ``words`` was made: with any since, addresses may be outdated.
        ids: int64 [n], receives the steps' ids.

    Returns the last id; ``OTHERWISE`` or ``FULL``.

    Cost: 0.3 us, and 0.1 a lane.
    """
    memory = array_at(words[0], (words[MEMORY_BYTES],), np.uint8)
    floats = array_at(words[0], (words[MEMORY_BYTES] >> 2,), np.float32)
    slot_count, lane_count = words[SLOTS], words[LANES]
    column_count = (words.size - FIRST_COLUMN) // 2
    offset = array_at(words[1], (column_count + 2, slot_count), np.int64)
    rows = array_at(words[2], (slot_count,), np.int32)
    frames = array_at(words[3], (slot_count,), np.int32)
    begins = array_at(words[4], (slot_count,), np.uint8)
    generation = array_at(words[5], (slot_count,), np.int64)
    slots = array_at(words[6], (lane_count,), np.int32)
    steps = array_at(words[7], (lane_count,), np.int64)
    shares = array_at(words[8], (lane_count,), np.int32)
    successor_known = array_at(words[9], (lane_count,), np.uint8)
    counts = array_at(words[10], (3,), np.int64)
    staging = array_at(words[11], (lane_count,), np.int64)
    watch = array_at(words[12], (lane_count,), np.uint8)
    fresh = array_at(words[13], (lane_count,), np.int64)
    if counts[CHANGES] != changes:
        return OTHERWISE
    count = places[COUNT]
    terminated, truncated = places[TERMINATED_AT], places[TRUNCATED_AT]
    start = staged.ctypes.data
    reward = array_at(start + places[REWARD_AT], (count,), np.float32)
    lanes = array_at(start + places[LANES_AT], (count,), np.int64)
    full = words[CAPACITY] >= 0 and counts[HELD] + count > words[CAPACITY]
    last = np.int64(-1)
    for i in range(count):
        lane = lanes[i]
        if lane <= last or lane >= lane_count or staging[lane] < 0 or not abs(reward[i]) <= MAX_REWARD:
            return OTHERWISE
        last = lane
        if staged[truncated + i] and not staged[terminated + i] and not has_final and not has_next:
            return OTHERWISE
        slot = np.int64(slots[lane])
        full |= rows[slot] * WHOLE >= words[MAX_ROWS] * np.int64(shares[lane]) or frames[slot] > words[MAX_FRAMES]
        if successor_known[lane]:
            for c in range(column_count):
                size = words[FIRST_COLUMN + 2 * c + 1]
                if words[FIRST_COLUMN + 2 * c] and _differ(
                    memory,
                    offset[c + 2, slot] + frames[slot] * size,
                    staged,
                    places[FIRST_PLACE + 3 * c] + i * size,
                    size,
                ):
                    return OTHERWISE
        elif watch[lane] != MET:  # an episode has just ended, among others: seldom
            if not watch[lane] & MET:
                return OTHERWISE
            if not watch[lane] & LEFT_ALONE and _repeats(
                words, places, memory, offset, slot, np.int64(frames[slot]) - 1, staged, i
            ):
                return OTHERWISE
    if full:
        return FULL
    id_ = np.int64(-1)
    for i in range(count):
        if i + AHEAD < count:
            slot = np.int64(slots[lanes[i + AHEAD]])
            prefetch(memory, offset[0, slot] + rows[slot])
            prefetch(memory, offset[1, slot] + 4 * rows[slot])
            for c in range(column_count):
                at = frames[slot] if words[FIRST_COLUMN + 2 * c] else rows[slot]
                prefetch(memory, offset[c + 2, slot] + at * words[FIRST_COLUMN + 2 * c + 1])
        lane = lanes[i]
        slot = np.int64(slots[lane])
        row, frame = np.int64(rows[slot]), np.int64(frames[slot])
        flag = (TERMINATED if staged[terminated + i] else 0) | (TRUNCATED if staged[truncated + i] else 0)
        after = 0  # which rows are the frame after the step
        if flag:
            after = 1 if has_final else 2 if has_next else 0
        elif has_next:
            after = 2
        for c in range(column_count):
            size = words[FIRST_COLUMN + 2 * c + 1]
            place = places[FIRST_PLACE + 3 * c] + i * size
            if not words[FIRST_COLUMN + 2 * c]:
                copy(memory, offset[c + 2, slot] + row * size, staged, place, size)
                continue
            target = offset[c + 2, slot] + frame * size
            if not successor_known[lane]:
                copy(memory, target, staged, place, size)
            if flag or has_next:
                copy(memory, target + size, staged, places[FIRST_PLACE + 3 * c + after] + i * size, size)
        at = offset[0, slot] + row
        starts = memory[at - 1] & ENDED if row > 0 else begins[slot]
        memory[at] = flag | (START if starts else 0)
        floats[(offset[1, slot] >> 2) + row] = reward[i]
        successor_known[lane] = has_next and not flag
        if watch[lane] != MET or flag:
            fresh[lane] += watch[lane] & JUST_ENDED
            watch[lane] = (watch[lane] & (LEFT_ALONE | MET)) | (JUST_ENDED if flag and after else 0)
        rows[slot] = row + 1
        frames[slot] = frame + (2 if flag else 1)
        steps[lane] += 1
        id_ = generation[slot] << 32 | slot * words[STRIDE] + row
        ids[i] = id_
    counts[HELD] += count
    counts[TOTAL] += count
    counts[CHANGES] += 1
    return int(id_)


@njit(nogil=True, cache=True)
def narrow(staged: Bytes, wide: int, place: int, count: int) -> bool:
    """Convert ``count`` float64 at ``wide`` to float32 at ``place``; return whether none became infinite."""
    source = array_at(staged.ctypes.data + wide, (count,), np.float64)
    target = array_at(staged.ctypes.data + place, (count,), np.float32)
    sound = True
    for k in range(count):
        value = source[k]
        target[k] = value
        sound &= not abs(target[k]) > MAX_REWARD or abs(value) == np.inf
    return sound


@njit(nogil=True, cache=True)
def any_set(staged: Bytes, place: int, count: int) -> bool:
    """Return whether any of ``count`` bytes is not 0."""
    found = False
    for k in range(place, place + count):
        found |= staged[k] != 0
    return found
