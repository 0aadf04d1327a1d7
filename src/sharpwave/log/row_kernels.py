"""Kernels that write rows into open segments."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.native.jit import njit
from sharpwave.native.memory_ops import load_word
from sharpwave.spec import START, TERMINATED, TRUNCATED

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

ENDED = TERMINATED | TRUNCATED
WHOLE = 1 << 16
"""Share of a segment's steps after which it is sealed, but for a lane's first: all of them."""
JUST_ENDED, LEFT_ALONE, MET = 1, 2, 4
"""Bits of ``Lanes.watch``: the last frame of the lane's open segment is an observation after an episode's end that was
given; the lane is no longer watched; its first observation is known."""
SEALED_NEXT = 1
"""Share of a segment that is sealed before its lane's next step, however few steps it has, unless it has none."""


def as_bytes(rows: npt.NDArray[Any], count: int) -> Bytes:
    """Return C-contiguous rows [count, *shape] as uint8 [count, size], without a copy."""
    data: Bytes = rows.reshape(count, -1).view(np.uint8)
    return data


@njit(nogil=True, cache=True)
def write_rows(
    memory: Bytes, offset: Ints, position: npt.NDArray[np.int32], slots: npt.NDArray[np.int32], rows: Bytes
) -> None:
    """Copy row i of ``rows`` [n, size] to row ``position[slots[i]]`` of slot i's column."""
    count, size = rows.shape
    for i in range(count):
        start = offset[slots[i]] + np.int64(position[slots[i]]) * size
        target, source = memory[start : start + size], rows[i]
        for k in range(size):  # over slices: an index with an offset may be negative, and is not vectorised
            target[k] = source[k]


@njit(nogil=True, cache=True)
def write_other_rows(
    memory: Bytes,
    offset: Ints,
    position: npt.NDArray[np.int32],
    slots: npt.NDArray[np.int32],
    rows: Bytes,
    skip: Bytes,
) -> None:
    """Copy rows as ``write_rows``, except those where ``skip[i]`` is not 0."""
    count, size = rows.shape
    for i in range(count):
        if not skip[i]:
            start = offset[slots[i]] + np.int64(position[slots[i]]) * size
            target, source = memory[start : start + size], rows[i]
            for k in range(size):
                target[k] = source[k]


@njit(nogil=True, cache=True)
def mark_different(
    memory: Bytes,
    offset: Ints,
    position: npt.NDArray[np.int32],
    slots: npt.NDArray[np.int32],
    rows: Bytes,
    compared: Bytes,
    different: Bytes,
) -> None:
    """Set ``different[i]`` where row i of ``rows`` [n, size] differs, bit by bit, from row ``position[slots[i]]`` of
    slot i's column; only where ``compared[i]`` is not 0."""
    count, size = rows.shape
    for i in range(count):
        if compared[i] and not different[i]:
            start = offset[slots[i]] + np.int64(position[slots[i]]) * size
            target, source = memory[start : start + size], rows[i]
            for begin in range(0, size & -8, 512):  # blocks without a branch inside are vectorised
                unlike = np.uint64(0)
                for k in range(begin, min(begin + 512, size & -8), 8):
                    unlike |= load_word(target, k) ^ load_word(source, k)
                if unlike:
                    different[i] = 1
                    break
            for k in range(size & -8, size):
                different[i] |= target[k] != source[k]


@njit(nogil=True, cache=True)
def commit_rows(
    memory: Bytes,
    floats: npt.NDArray[np.float32],
    flags_offset: Ints,
    reward_offset: Ints,
    rows: npt.NDArray[np.int32],
    frames: npt.NDArray[np.int32],
    begins: Bytes,
    steps: Ints,
    slots: npt.NDArray[np.int32],
    lanes: Ints,
    flags: Bytes,
    reward: npt.NDArray[np.float32],
) -> None:
    """Write flags, with START where an episode begins, and rewards; count the rows."""
    for i in range(slots.size):
        slot, row = slots[i], rows[slots[i]]
        at = flags_offset[slot] + row
        starts = memory[at - 1] & ENDED if row > 0 else begins[slot]
        memory[at] = flags[i] | (START if starts else 0)
        floats[(reward_offset[slot] >> 2) + row] = reward[i]
        rows[slot] += 1
        frames[slot] += 1
        steps[lanes[i]] += 1


@njit(nogil=True, cache=True)
def any_ended(flags: Bytes) -> bool:
    """Return whether any of the steps ended its episode. Cost: 0.2 us; ``(flags & ENDED).any()`` takes 2 us."""
    ended = False
    for flag in flags:
        ended |= flag & ENDED != 0
    return ended


@njit(nogil=True, cache=True)
def any_to_look_at(watch: Bytes, lanes: Ints) -> bool:
    """Return whether the next steps of any of ``lanes`` [n] are to be looked at (``Boundaries.look``). Cost: 0.3 us."""
    found = False
    for lane in lanes:
        found |= watch[lane] & (JUST_ENDED | LEFT_ALONE) == JUST_ENDED or not watch[lane] & MET
    return found


@njit(nogil=True, cache=True)
def note_ends(watch: Bytes, lanes: Ints, flags: Bytes, given: bool) -> None:
    """Set ``JUST_ENDED`` of those of ``lanes`` [n] whose step ended its episode, if the observation after it was
    ``given``; clear it of the others."""
    for i in range(lanes.size):
        ended = given and flags[i] & ENDED != 0
        watch[lanes[i]] = (watch[lanes[i]] & (LEFT_ALONE | MET)) | (JUST_ENDED if ended else 0)


@njit(nogil=True, cache=True)
def count_frames(frames: npt.NDArray[np.int32], slots: npt.NDArray[np.int32]) -> None:
    """Increment the count of each of ``slots``, which are distinct."""
    for slot in slots:
        frames[slot] += 1


@njit(nogil=True, cache=True)
def find_full(
    rows: npt.NDArray[np.int32],
    frames: npt.NDArray[np.int32],
    slots: npt.NDArray[np.int32],
    lanes: Ints,
    shares: npt.NDArray[np.int32],
    max_rows: int,
    max_frames: int,
    positions: Ints,
) -> int:
    """Write to ``positions`` [n] which of ``lanes`` [n] must be sealed in their ``slots`` [n], by lane, before another
    step (see ``Lanes.full``); return how many."""
    found = 0
    for i in range(lanes.size):
        slot = slots[lanes[i]]
        if rows[slot] * WHOLE >= max_rows * np.int64(shares[lanes[i]]) or frames[slot] > max_frames:
            positions[found] = i
            found += 1
    return found
