"""Kernels that write rows into open segments."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from ..spec import START, TERMINATED, TRUNCATED

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

ENDED = TERMINATED | TRUNCATED


@njit(nogil=True, cache=True)
def write_rows(
    memory: Bytes, offset: Ints, position: npt.NDArray[np.int32], slots: npt.NDArray[np.int32], rows: Bytes
) -> None:
    """Copy row i of ``rows`` [n, size] to place ``position[slots[i]]`` of slot i's column."""
    count, size = rows.shape
    for i in range(count):
        start = offset[slots[i]] + np.int64(position[slots[i]]) * size
        target, source = memory[start : start + size], rows[i]
        for k in range(size):  # over slices: an index with an offset may be negative, and is not vectorised
            target[k] = source[k]


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
) -> bool:
    """Write flags, with START where an episode begins, and rewards; count the rows. Whether any of them ended."""
    any_ended = False
    for i in range(slots.size):
        slot, row = slots[i], rows[slots[i]]
        place = flags_offset[slot] + row
        starts = memory[place - 1] & ENDED if row > 0 else begins[slot]
        memory[place] = flags[i] | (START if starts else 0)
        floats[(reward_offset[slot] >> 2) + row] = reward[i]
        rows[slot] += 1
        frames[slot] += 1
        steps[lanes[i]] += 1
        any_ended |= flags[i] & ENDED != 0
    return any_ended


@njit(nogil=True, cache=True)
def any_full(
    rows: npt.NDArray[np.int32],
    frames: npt.NDArray[np.int32],
    slots: npt.NDArray[np.int32],
    most: int,
    most_frames: int,
) -> bool:
    for slot in slots:  # noqa: SIM110 - numba compiles no generators
        if rows[slot] >= most or frames[slot] > most_frames:
            return True
    return False
