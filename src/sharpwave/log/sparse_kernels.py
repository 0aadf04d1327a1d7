"""Kernels for the columns of sparse fields, which keep the values of steps 0, k, 2k, ... of each episode.

The row of a step follows from the segment's flags and from its first step's number in its episode:
``sharpwave.format.row_counts`` counts the rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sharpwave.native.jit import njit
from sharpwave.native.memory_ops import load_word
from sharpwave.spec import START, TERMINATED, TRUNCATED

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

ENDED = TERMINATED | TRUNCATED
STARTS, NO_START = np.uint64(START * 0x0101010101010101), np.uint64(0)
"""Flags that begin episodes, in each of eight steps."""


@njit(nogil=True, cache=True)
def step_number(memory: Bytes, flags: int, first: int, row: int) -> int:
    """Return the number in its episode of the step in ``row``.

    Args:
        flags: offset of the segment's flags. ``first``: the number of its first step in its episode.

    Cost: 20 ns for 128 steps.
    """
    r = row
    while r >= 0:
        if r >= 8 and load_word(memory, flags + r - 7) & STARTS == NO_START:
            r -= 8
            continue
        if memory[flags + r] & START:
            return row - r
        r -= 1
    return first + row


@njit(nogil=True, cache=True)
def sparse_row(memory: Bytes, flags: int, first: int, row: int, every: int) -> int:
    """Return the row of the step in ``row`` in a column that keeps every ``every``-th step of each episode: of its own
    value, or else of the last one kept before it. Arguments as ``step_number``.
    """
    before = begin = 0  # rows of earlier episodes, and the row of the last episode's first step
    number = first
    r = 1
    while r <= row:
        if r + 7 <= row and load_word(memory, flags + r) & STARTS == NO_START:
            r += 8
            continue
        if memory[flags + r] & START:
            before += (number + r - begin - 1) // every - number // every + 1
            begin, number = r, 0
        r += 1
    return before + (number + row - begin) // every - number // every


@njit(nogil=True, cache=True)
def locate_sparse(
    memory: Bytes, flags_offset: Ints, episode_step: Ints, slots: Ints, rows: Ints, every: int, positions: Ints
) -> None:
    """Compute the rows of a sparse column for the steps in ``rows`` [n] of ``slots`` [n], into ``positions``.

    Args:
        flags_offset, episode_step: by slot.
    """
    for i in range(slots.size):
        slot = slots[i]
        positions[i] = sparse_row(memory, flags_offset[slot], episode_step[slot], rows[i], every)


@njit(nogil=True, cache=True)
def write_sparse_rows(
    memory: Bytes,
    offset: Ints,
    flags_offset: Ints,
    rows: Int32s,
    begins: Bytes,
    episode_step: Ints,
    counts: Int32s,
    slots: Int32s,
    data: Bytes,
    every: int,
) -> None:
    """Append row i of ``data`` [n, size] to the ``counts`` rows of slot i's column, if the period keeps its step.

    The steps are the coming ones; counts stay as they are (``count_sparse_rows``).
    """
    size = data.shape[1]
    for i in range(slots.size):
        slot = slots[i]
        row, flags = int(rows[slot]), flags_offset[slot]
        if row == 0:
            number = np.int64(0) if begins[slot] else episode_step[slot]
        elif memory[flags + row - 1] & ENDED:
            number = np.int64(0)
        else:
            number = np.int64(step_number(memory, flags, episode_step[slot], row - 1) + 1)
        if number % every == 0:
            start = offset[slot] + np.int64(counts[slot]) * size
            target, source = memory[start : start + size], data[i]
            for k in range(size):  # over slices: an index with an offset may be negative, and is not vectorised
                target[k] = source[k]


@njit(nogil=True, cache=True)
def count_sparse_rows(
    memory: Bytes, flags_offset: Ints, rows: Int32s, episode_step: Ints, counts: Int32s, slots: Int32s, every: int
) -> None:
    """Count the rows of the columns of ``slots`` after their steps."""
    for slot in slots:
        if rows[slot] == 0:
            counts[slot] = episode_step[slot] % every != 0
        else:
            last = int(rows[slot]) - 1
            counts[slot] = sparse_row(memory, flags_offset[slot], episode_step[slot], last, every) + 1
