"""Kernels that find which windows there are, and what each is put together from.

A window is named by the step that is trained first in it, whose number in its episode is a multiple of ``stride``: item
k of a segment is the k-th such step in it, from 0. Kernels trust the index and the arena, which only hold what
:mod:`sharpwave.log.step_log` put there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sharpwave.format.segment import FLAGS, REWARD
from sharpwave.log.sparse_kernels import step_number
from sharpwave.native.jit import njit
from sharpwave.spec import MAX_REWARD, START, TERMINATED, TRUNCATED
from sharpwave.views.log_arrays import LogArrays, read_arrays
from sharpwave.views.transition_kernels import frame_of, next_flagged

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

ENDED = TERMINATED | TRUNCATED
RUN_ROWS = 5
"""Rows of ``runs`` in :func:`locate`: item, slot, first row, number of steps, and the column of the first."""


@njit(nogil=True, cache=True)
def count_windows(log: LogArrays, slot: int, rows: int, stride: int) -> int:
    """Count the steps in the first ``rows`` rows of a segment whose numbers in their episodes are multiples of
    ``stride``.  Cost: 20 ns for 128 steps.
    """
    memory, flags = log.memory, log.offset[FLAGS, slot]
    number, begin, count = log.episode_step[slot], 0, 0
    while begin < rows:
        end = next_flagged(memory, flags, begin + 1, rows, START)
        if memory[flags + begin] & START:
            number = 0
        count += (number + end - begin + stride - 1) // stride - (number + stride - 1) // stride
        begin = end
    return count


@njit(nogil=True, cache=True)
def _window_row(log: LogArrays, slot: int, k: int, stride: int) -> tuple[int, int]:
    """Return the row of the k-th window's first trained step, and its number in its episode."""
    memory, flags, rows = log.memory, log.offset[FLAGS, slot], int(log.rows[slot])
    number, begin = log.episode_step[slot], 0
    while True:
        end = next_flagged(memory, flags, begin + 1, rows, START)
        if memory[flags + begin] & START:
            number = 0
        first = (number + stride - 1) // stride
        count = (number + end - begin + stride - 1) // stride - first
        if k < count or end >= rows:
            found = (first + k) * stride
            return begin + found - number, found
        k -= count
        begin = end


@njit(nogil=True, cache=True)
def _burn_in_missing(log: LogArrays, slot: int, burn_in: int) -> int:
    """Return how many of a segment's first rows have no whole burn-in, as steps before the segment were evicted."""
    rows = int(log.rows[slot])
    before, at = 0, slot
    while before < burn_in:
        if rows > 0 and log.memory[log.offset[FLAGS, at]] & START:
            return 0  # at the beginning of a segment an episode begins
        at = log.previous[at]
        if at < 0 or log.gap[at] or log.memory[log.offset[FLAGS, at] + log.rows[at] - 1] & ENDED:
            break  # an end that no start follows was made where segments from elsewhere were lost
        for r in range(log.rows[at] - 1, 0, -1):
            if log.memory[log.offset[FLAGS, at] + r] & START:
                return 0
        before += int(log.rows[at])
    if before >= burn_in:
        return 0
    return min(burn_in - before, next_flagged(log.memory, log.offset[FLAGS, slot], 0, rows, START))


@njit(nogil=True, cache=True)
def windows_of_steps(words: Ints, steps: Ints, stride: int, burn_in: int, spans: Int32s, runs: Ints, keep: bool) -> int:
    """Turn runs of steps that became known into runs of windows that begin with them.

    Args:
        steps, runs: int64 [3, n], slot, begin and end.
        spans: int32 [slots, 2], which windows there are; ends are raised, and begins where a burn-in was evicted.
        keep: also runs without any window.

    Returns how many runs there are.  Cost: counting the windows of each run's segment two or three times.
    """
    log = read_arrays(words)
    found = 0
    for i in range(steps.shape[1]):
        slot, begin, end = steps[0, i], steps[1, i], steps[2, i]
        first, last = count_windows(log, slot, begin, stride), count_windows(log, slot, end, stride)
        if begin < burn_in and last > first:
            missing = _burn_in_missing(log, slot, burn_in)
            if missing:
                lost = min(last, count_windows(log, slot, missing, stride))
                spans[slot, 0] = max(int(spans[slot, 0]), lost)
        spans[slot, 1] = last
        if last > first or keep:
            runs[0, found], runs[1, found], runs[2, found] = slot, first, last
            found += 1
    return found


@njit(nogil=True, cache=True)
def lose_ahead(words: Ints, steps: Ints, group: int, stride: int, spans: Int32s, lost: Ints) -> int:
    """Find the windows that begin with ``steps`` [n], of one lane, the last first; lower the ends of ``spans``.

    Args:
        group: steps that a segment has at most: a step's number is ``slot * group + row``, an item's
            ``slot * group + k``.
        lost: int64 [n], receives the items.

    Returns how many there are.
    """
    log = read_arrays(words)
    found = 0
    for i in range(steps.size):
        slot = steps[i] // group
        row = steps[i] - slot * group
        if step_number(log.memory, log.offset[FLAGS, slot], log.episode_step[slot], row) % stride == 0:
            k = count_windows(log, slot, row, stride)
            if spans[slot, 0] <= k < spans[slot, 1]:
                lost[found] = slot * group + k
                found += 1
                spans[slot, 1] = k
    return found


@njit(nogil=True, cache=True)
def lose_behind(words: Ints, slot: int, burn_in: int, group: int, stride: int, spans: Int32s, lost: Ints) -> int:
    """Find the windows whose burn-in reaches back into the segment in ``slot``; raise the begins of ``spans``.

    Args:
        lost: int64 [burn_in], receives the items.

    Returns how many there are.
    """
    log = read_arrays(words)
    found, left, at = 0, burn_in, slot
    while left > 0 and log.next[at] >= 0 and not log.gap[at]:
        at = int(log.next[at])
        rows = int(log.rows[at])
        start = next_flagged(log.memory, log.offset[FLAGS, at], 0, rows, START)
        end = min(int(spans[at, 1]), count_windows(log, at, min(left, start), stride))
        for k in range(spans[at, 0], end):
            lost[found] = at * group + k
            found += 1
        spans[at, 0] = max(int(spans[at, 0]), end)
        if start < rows:
            break
        left -= rows
    return found


@njit(nogil=True, cache=True)
def locate(
    words: Ints,
    items: Ints,
    group: int,
    stride: int,
    burn_in: int,
    n_step: int,
    gamma: float,
    step_reward: Floats,
    reward: Floats,
    discount: Floats,
    bootstrap: Ints,
    mask: Bools,
    first: Bools,
    terminated: Bools,
    truncated: Bools,
    n: Ints,
    lane: Ints,
    step: Ints,
    places: Ints,
    runs: Ints,
) -> int:
    """Compute all of a batch that is made of flags and rewards, and where the rest lies, for ``items`` [B].

    Column j of ``step_reward`` ... ``n`` [B, T] is a step, column ``burn_in`` the one that names the window; ``lane``
    and ``step`` [B] say where that is in the log. For
    each step ``reward`` receives ``sum_i gamma^i r_i`` over the n_used <= n_step steps up to its episode's end, and
    ``discount`` ``gamma^n_used * (1 - terminated)`` (Sutton & Barto 2018, eq. 7.1), ``bootstrap`` the column of the
    observation behind them; columns without a step get zeros, and their own number.

    Args:
        group: steps that a segment has at most.
        places: int64 [2, B], receives each window's first column that is a step, and the one behind its last, counted
            up to ``T + n_step - 1``; there is an observation in that one too.
        runs: int64 [RUN_ROWS, n], receives steps that lie one behind the other in a segment; each window has as many as
            it touches segments.

    Returns the number of runs; where that is more than n, only so many were written.
    Cost: 5 ns a column, and 0.5 more for each further step of its return (52 us for 64 windows of 120, n_step 5).
    """
    log = read_arrays(words)
    columns = mask.shape[1]
    reach = columns + n_step - 1
    rewards, flags = np.empty(reach, np.float32), np.empty(reach, np.uint8)
    found = 0
    for i in range(items.size):
        slot = items[i] // group
        row, number = _window_row(log, slot, items[i] - slot * group, stride)
        lane[i], step[i] = log.lane[slot], log.first_step[slot] + row
        left = min(burn_in, number)
        column = burn_in - left
        while row < left:
            left -= row
            slot = int(log.previous[slot])
            row = int(log.rows[slot])
        row -= left
        begin = end = column
        ended = False
        while end < reach and not ended:
            run_row, run_column = row, end
            base, base_reward = log.offset[FLAGS, slot], log.offset[REWARD, slot] >> 2
            rows = int(log.rows[slot])
            while row < rows and end < reach and not ended:
                flag = log.memory[base + row]
                flags[end], rewards[end] = flag, log.floats[base_reward + row]
                ended = flag & ENDED != 0
                row += 1
                end += 1
            if found < runs.shape[1]:
                runs[0, found], runs[1, found], runs[2, found] = i, slot, run_row
                runs[3, found], runs[4, found] = end - run_column, run_column
            found += 1
            if row == rows and end < reach and not ended:
                slot, row = int(log.next[slot]), 0
        places[0, i], places[1, i] = begin, end
        for j in range(columns):
            if j < begin or j >= end:
                step_reward[i, j] = reward[i, j] = discount[i, j] = 0.0
                bootstrap[i, j], n[i, j] = j, 0
                mask[i, j] = first[i, j] = terminated[i, j] = truncated[i, j] = False
                continue
            total, factor, behind = 0.0, 1.0, j
            while True:
                total += factor * rewards[behind]
                factor *= gamma
                flag = flags[behind]
                behind += 1
                if flag & ENDED or behind == j + n_step:
                    break
            step_reward[i, j], reward[i, j] = rewards[j], min(max(total, -MAX_REWARD), MAX_REWARD)
            discount[i, j] = 0.0 if flag & TERMINATED else factor
            bootstrap[i, j], n[i, j] = behind, behind - j
            mask[i, j], first[i, j] = True, flags[j] & START != 0
            terminated[i, j], truncated[i, j] = flags[j] & TERMINATED != 0, flags[j] & TRUNCATED != 0
    return found


@njit(nogil=True, cache=True)
def first_steps(words: Ints, items: Ints, group: int, stride: int, steps: Ints) -> None:
    """Find the number of the first trained step of each of ``items`` [n], ``steps``: slot * group + row."""
    log = read_arrays(words)
    for i in range(items.size):
        slot = items[i] // group
        row, _ = _window_row(log, slot, items[i] - slot * group, stride)
        steps[i] = slot * group + row


@njit(nogil=True, cache=True)
def trained_steps(words: Ints, items: Ints, group: int, stride: int, length: int, begins: Ints, counts: Ints) -> None:
    """Find which steps are trained in each of ``items`` [n]: the first's row, and ``length`` steps or fewer, where the
    episode ends."""
    log = read_arrays(words)
    for i in range(items.size):
        slot = items[i] // group
        row, _ = _window_row(log, slot, items[i] - slot * group, stride)
        count, ended = 0, False
        begins[i] = row
        while count < length and not ended:
            if row == log.rows[slot]:
                slot, row = int(log.next[slot]), 0
            ended = log.memory[log.offset[FLAGS, slot] + row] & ENDED != 0
            row += 1
            count += 1
        counts[i] = count


@njit(nogil=True, cache=True)
def frame_pieces(words: Ints, runs: Ints, places: Ints, stack: int, rows: int, begin: int, pieces: Ints) -> None:
    """Say which frames the observations of the first n ``runs`` need, and where they go.

    A window has ``rows`` rows; the frame of column c goes to row ``begin + c + stack - 1``, and ``stack - 1`` frames
    before that of the first step. The last one is the observation behind the last step.

    Args:
        runs, places: of :func:`locate`.
        pieces: int64 [PIECE_ROWS, n] (:func:`.gather_kernels.gather_pieces`).
    """
    log = read_arrays(words)
    for i in range(pieces.shape[1]):
        item, slot, row, count, column = runs[0, i], runs[1, i], runs[2, i], runs[3, i], runs[4, i]
        frame, first = frame_of(log.memory, log.offset[FLAGS, slot], log.context[slot], row)
        count += column + count == places[1, item]
        more = stack - 1 if column == places[0, item] else 0
        pieces[0, i], pieces[1, i] = slot, frame + count - 1
        pieces[2, i], pieces[3, i] = first if more else 0, count + more
        pieces[4, i] = item * rows + begin + column + stack - 1 - more


@njit(nogil=True, cache=True)
def step_pieces(runs: Ints, count: int, columns: int, pieces: Ints) -> int:
    """Say which rows of a field that has one a step the columns of a batch [B, columns] need, of ``count`` runs.

    Returns how many there are.
    """
    found = 0
    for i in range(count):
        item, slot, row, column = runs[0, i], runs[1, i], runs[2, i], runs[4, i]
        steps = min(runs[3, i], columns - column)
        if steps > 0:
            pieces[0, found], pieces[1, found] = slot, row + steps - 1
            pieces[2, found], pieces[3, found], pieces[4, found] = 0, steps, item * columns + column
            found += 1
    return found


@njit(nogil=True, cache=True)
def clear_padding(out: Bytes, places: Ints, behind: int) -> None:
    """Zero the columns of ``out`` uint8 [B, columns, size] before each window's first step, and from ``behind`` columns
    after its last step's on."""
    columns = out.shape[1]
    for i in range(out.shape[0]):
        out[i, : places[0, i]] = 0
        out[i, min(columns, places[1, i] + behind) :] = 0


@njit(nogil=True, cache=True)
def spread_stacks(out: Bytes, places: Ints, stack: int) -> None:
    """Make stacks of the frames that are at the end of each window's part of ``out`` uint8 [B, columns * stack, size].

    Column c's stack is frames c ... c + stack - 1 of ``columns + stack - 1``. It is written before those that later
    columns need; columns without an observation are left as they are.
    """
    columns = out.shape[1] // stack
    begin = out.shape[1] - columns - stack + 1
    for i in range(out.shape[0]):
        for c in range(places[0, i], min(columns, places[1, i] + 1)):
            for j in range(stack):
                if c * stack + j != begin + c + j:
                    source, target = out[i, begin + c + j], out[i, c * stack + j]
                    for k in range(target.size):  # over slices: an index with an offset is not vectorised
                        target[k] = source[k]
