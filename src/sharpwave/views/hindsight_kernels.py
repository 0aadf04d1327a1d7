"""Kernels that find the steps whose episodes have ended, and the steps that a transition's new goal is from.

They trust the index and the arena, which only ``sharpwave.log.step_log`` writes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sharpwave.format.segment import FLAGS
from sharpwave.log.sparse_kernels import NO_START, STARTS
from sharpwave.native.jit import njit
from sharpwave.native.memory_ops import load_word
from sharpwave.spec import START
from sharpwave.views.log_arrays import LogArrays, read_arrays
from sharpwave.views.transition_kernels import ENDED, find_last_end, frame_of, next_flagged

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

FUTURE, FINAL, EPISODE = 0, 1, 2
"""Strategies of :func:`choose_goals`."""


@njit(nogil=True, cache=True)
def find_ended(words: Ints, cursor: Int32s, tail: Int32s, spans: Int32s, runs: Ints) -> int:
    """Find the steps whose episode's end has become known since the last call.

    An episode ends with a step that ended it, or where the steps that follow were evicted.

    Args:
        words: from ``log_arrays.write_arrays``.
        cursor: int32 [lanes], the slot with each lane's first step whose episode may still go on; advanced.
        tail: int32 [lanes], the slot from which on each lane was not searched yet, or has to be again; advanced.
        spans: int32 [slots, 2]; the second is the number of a slot's rows found so far; raised.
        runs: int64 [3, n], receives the new runs: slot, begin and end of rows ``begin <= r < end``.

    Returns the number of runs, at most as many as fit: call again while it equals their size. Cost: 20 ns a lane, and
    20 ns for each segment with new steps.
    """
    log = read_arrays(words)
    memory, flags, rows, following, gap = log.memory, log.offset[FLAGS], log.rows, log.next, log.gap
    found, limit = 0, runs.shape[1]
    for lane in range(cursor.size):
        if cursor[lane] < 0:
            continue
        at = int(tail[lane])
        end_slot, end_row = -1, 0
        while True:
            if gap[at]:
                end_slot, end_row = at, int(rows[at])
            else:
                row = find_last_end(memory, flags[at], spans[at, 1], int(rows[at]))
                if row >= 0:
                    end_slot, end_row = at, int(row + 1)
            if following[at] < 0 or rows[following[at]] == 0:
                break
            at = int(following[at])
        tail[lane] = at  # its last step may yet be broken off, and is looked at again
        if end_slot < 0:
            continue
        slot = int(cursor[lane])
        while found < limit:
            end = end_row if slot == end_slot else int(rows[slot])
            if end > spans[slot, 1]:
                runs[0, found], runs[1, found], runs[2, found] = slot, spans[slot, 1], end
                found += 1
                spans[slot, 1] = end
            if slot == end_slot:
                break
            slot = int(following[slot])
        whole = slot == end_slot and spans[slot, 1] >= rows[slot] and log.sealed[slot] and following[slot] >= 0
        if whole and tail[lane] == slot:
            tail[lane] = following[slot]
        cursor[lane] = following[slot] if whole else slot
        if found == limit:
            tail[lane] = cursor[lane]
            break
    return found


@njit(nogil=True, cache=True)
def _episode_begin(log: LogArrays, slot: int, row: int) -> tuple[int, int]:
    """Return the slot and row of the first step that is held of a step's episode, before any evicted step."""
    while True:
        flags = log.offset[FLAGS, slot]
        while row > 0 and not log.memory[flags + row] & START:
            row -= 8 if row >= 8 and load_word(log.memory, flags + row - 7) & STARTS == NO_START else 1
        before = int(log.previous[slot])
        if log.memory[flags + row] & START or before < 0 or log.gap[before]:
            return slot, row
        if log.memory[log.offset[FLAGS, before] + log.rows[before] - 1] & ENDED:
            return slot, row  # an end that no start follows was made where segments from elsewhere were lost
        slot, row = before, int(log.rows[before] - 1)


@njit(nogil=True, cache=True)
def _walk(log: LogArrays, spans: Int32s, slot: int, row: int, number: int) -> tuple[int, int, int]:
    """Follow an episode from a step on, past steps that cannot be read.

    Returns the slot and row of step ``number``, counted from 0, and how many steps were counted: ``number`` + 1, or
    all up to the episode's end, of which the last one is returned.
    """
    counted, last_slot, last_row = 0, slot, row
    while True:
        rows = int(log.rows[slot])
        end = int(next_flagged(log.memory, log.offset[FLAGS, slot], row, rows, ENDED))
        known = min(end + 1, rows, int(spans[slot, 1]))  # none of a segment that was found damaged
        if known > row:
            if counted + known - row > number:
                return slot, row + number - counted, number + 1
            counted += known - row
            last_slot, last_row = slot, known - 1
        following = int(log.next[slot])
        if end < rows or log.gap[slot] or following < 0 or log.rows[following] == 0:
            return last_slot, last_row, counted
        slot, row = following, 0


@njit(nogil=True, cache=True)
def choose_goals(
    words: Ints, items: Ints, uniforms: Floats, share: float, strategy: int, stride: int, spans: Int32s, slot: Ints,
    frame: Ints,
) -> None:  # fmt: skip
    """Choose the steps whose achieved goals are the new goals of ``items`` [B], steps whose episodes have ended.

    An item is relabelled where its random number, uniform over 0 to 1, is below ``share``; the number divided by
    ``share``, which is uniform again, chooses the step.

    Args:
        spans: int32 [slots, 2]; the second is the number of a slot's rows that may be read.
        slot, frame: int64 [B], receive the segment, and the row of its observations' columns, with the observation
            after the chosen step; the slot is -1 where an item is not relabelled.

    Cost: 0.15 us an item of a short episode, 1.5 us in one of 27,000 steps: the segments up to its end are walked
    twice. ``EPISODE`` walks those before as well.
    """
    log = read_arrays(words)
    every = np.iinfo(np.int64).max - 1
    for i in range(items.size):
        slot[i], frame[i] = -1, 0
        if uniforms[i] >= share:
            continue
        at = items[i] // stride
        row = items[i] - at * stride
        if strategy == EPISODE:
            at, row = _episode_begin(log, at, row)
        chosen, goal_row, count = _walk(log, spans, at, row, every)
        if strategy != FINAL:
            number = min(int(uniforms[i] / share * count), count - 1)
            chosen, goal_row, _ = _walk(log, spans, at, row, number)
        slot[i] = chosen
        newest, _ = frame_of(log.memory, log.offset[FLAGS, chosen], log.context[chosen], goal_row)
        frame[i] = newest + 1
