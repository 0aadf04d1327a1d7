"""Blocks of steps: many steps of one or several lanes, which a log takes in parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Bools, Bytes, Ints
from sharpwave.log.same_values import compare
from sharpwave.log.step_log import StepLog
from sharpwave.spec import ENDED, TRUNCATED

Rows = Mapping[str, npt.NDArray[Any]]

COMPARED_BYTES = 1 << 22
"""Bytes of observations compared at a time."""


@dataclass
class StepBlock:
    """Steps of N lanes over T times, appended in parts.

    Attributes:
        lanes: int64 [N], all different.
        flags: uint8 [T, N]. ``rows``: [T, N, *shape] by field, and ``reward``, float32.
        finals: [T, N, *shape] by field: the observations after steps that end an episode; ``None``: observations are
            repeated.
        nexts: [N, *shape] by field: the observations after the last steps; ``None``: unknown.
        broken: bool [T, N]: the step's episode was broken off after it; ``flags`` and ``finals`` include this.
        one_episode: they are an episode of one lane, which has none under way. ``whole``: appended all or not at all,
            in segments of their own, so that a part of them can be evicted.
        done: int64 [N], number of appended steps of each lane so far. ``ids``: int64 [T, N], their ids.
    """

    lanes: Ints
    flags: Bytes
    rows: Rows
    finals: Rows | None
    nexts: Rows | None
    broken: Bools
    one_episode: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        self.done = np.zeros(len(self.lanes), np.int64)
        self._first_step = 0  # of a whole episode, in its lane
        self.ids = np.empty(self.flags.shape, np.int64)

    @property
    def over(self) -> bool:
        """Whether all steps are appended."""
        return not self.ids.size or bool((self.done == len(self.flags)).all())

    def part(self, most: int) -> int:
        """Return how many steps ``write`` will append at least, counted over all lanes."""
        return self._until(most) * len(self.lanes) - int(self.done.sum())

    def write(self, log: StepLog, most: int) -> None:
        """Append the next steps of every lane: ``most`` times, and more if they fill a segment.

        An error leaves the steps that ``done`` counts; the call can be repeated.  Cost: as ``StepLog.write_run``.
        """
        until, last = self._until(most), len(self.flags) - (self.nexts is not None)
        log.open_lanes(int(self.lanes.max()) + 1, self.lanes)
        if self.whole and not self.done[0]:
            self._first_step = int(log.opened.steps[self.lanes[0]])
            _begin_apart(log, int(self.lanes[0]), len(self.flags), at_once=until == len(self.flags))
        if not self.one_episode and not self.done.any() and len(self.flags) > 1:
            log.boundaries.look_within(self.lanes, self.flags, self.rows, self.finals, self.broken)
        if until - self.done.min() == 1 and (self.done == self.done[0]).all():
            self._write_row(log, int(self.done[0]))
            return
        for j in range(len(self.lanes)):
            ends = np.append(np.flatnonzero(self.flags[:last, j] & ENDED) + 1, last)
            while (begin := int(self.done[j])) < until:
                self._write_run(log, j, begin, int(ends[np.searchsorted(ends, begin, "right")]))

    def end_unfinished(self, log: StepLog) -> None:
        """Truncate, after an error, the episodes of which not all steps are appended; drop one that should be
        whole."""
        if self.whole:
            if 0 < self.done[0] < len(self.flags):
                drop_steps(log, int(self.lanes[0]), self._first_step, self._first_step + int(self.done[0]))
            return
        for j, lane in enumerate(self.lanes.tolist()):
            done = int(self.done[j])
            if 0 < done < len(self.flags) and not self.flags[done - 1, j] & ENDED:
                log.end_episode(lane, {name: values[done, j : j + 1] for name, values in self.rows.items()})

    def _until(self, most: int) -> int:
        """Return the end of the next part, as a time.

        The first time is its own part, as lanes may have to be ended for it; so is the last time, if its next
        observation is known.
        """
        begin, times = int(self.done.min(initial=len(self.flags))), len(self.flags)
        if begin == 0 and not self.one_episode:
            return min(1, times)
        return times if begin == times - 1 else min(times - (self.nexts is not None), begin + most)

    def _write_row(self, log: StepLog, at: int) -> None:
        finals = None if self.finals is None else {name: values[at] for name, values in self.finals.items()}
        nexts = self.nexts if at == len(self.flags) - 1 else None
        log.write(self.lanes, self.flags[at], {name: values[at] for name, values in self.rows.items()}, finals, nexts)
        log.write_last_ids(self.lanes, self.ids[at])
        self.done += 1
        log.boundaries.counted["broken_episodes"] += int(self.broken[at].sum())

    def _write_run(self, log: StepLog, j: int, begin: int, end: int) -> None:
        """Append one lane's steps from ``begin`` up to before ``end``, all of one episode, or the first ones."""
        rows = {name: np.ascontiguousarray(values[begin:end, j]) for name, values in self.rows.items()}
        source = self.rows if self.finals is None else self.finals
        final = {name: values[end - 1, j : j + 1] for name, values in source.items()}
        flags = np.ascontiguousarray(self.flags[begin:end, j])
        count = log.write_run(int(self.lanes[j]), flags, rows, final if flags[-1] & ENDED else None)
        last = np.empty(1, np.int64)
        log.write_last_ids(self.lanes[j : j + 1], last)
        self.ids[begin : begin + count, j] = last[0] - count + 1 + np.arange(count)
        self.done[j] += count
        log.boundaries.counted["broken_episodes"] += int(self.broken[begin : begin + count, j].sum())


def block_of(
    lanes: Ints, times: int, rows: Rows, flags: Bytes, finals: Rows | None, nexts: Rows | None, obs_names: Iterable[str]
) -> StepBlock:
    """Return a block of rows by field [T * N, *shape], its episodes ended where the next observation is another.

    Args:
        nexts: observations after the steps by field [T * N, *shape].

    Cost: with ``nexts``, comparing them with the observations.
    """

    def over_time(values: Rows) -> dict[str, npt.NDArray[Any]]:
        return {name: array.reshape(times, len(lanes), *array.shape[1:]) for name, array in values.items()}

    there, marked = over_time(rows), flags.reshape(times, len(lanes))
    broken = np.zeros(marked.shape, np.bool_)
    ends, after = None if finals is None else over_time(finals), None if nexts is None else over_time(nexts)
    if after is None or not marked.size:
        return StepBlock(lanes, marked, there, ends, None, broken)
    for name in obs_names:
        broken[:-1] |= different(there[name][1:], after[name][:-1])
    broken &= marked & ENDED == 0
    if ends is None:
        ends = after
    elif broken.any():
        ends = {name: _replaced(values, after[name], broken) for name, values in ends.items()}
    marked = marked | np.where(broken, TRUNCATED, 0).astype(np.uint8)
    return StepBlock(lanes, marked, there, ends, {name: values[-1] for name, values in after.items()}, broken)


def _replaced(values: npt.NDArray[Any], others: npt.NDArray[Any], where: Bools) -> npt.NDArray[Any]:
    result = values.copy()
    result[where] = others[where]
    return result


def different(some: npt.NDArray[Any], others: npt.NDArray[Any]) -> Bools:
    """Return where rows [T, N, *shape] differ by value, bool [T, N].

    Cost: a pass over the bits of both, and over the values that differ.
    """
    times, lanes = some.shape[:2]
    found = np.zeros((times, lanes), np.bool_)
    if not some.size:
        return found
    if some.dtype == object:  # rows of any length
        return compare(some.reshape(-1), others.reshape(-1))[0].reshape(times, lanes)
    at_a_time = max(1, COMPARED_BYTES * times // some.nbytes)
    for begin in range(0, times, at_a_time):
        a, b = (np.ascontiguousarray(x[begin : begin + at_a_time]) for x in (some, others))
        unlike = a.reshape(len(a), lanes, -1).view(np.uint8) != b.reshape(len(b), lanes, -1).view(np.uint8)
        part = unlike.any(axis=2)
        if some.dtype.kind == "f" and part.any():
            part[part] = compare(a[part], b[part])[0]
        found[begin : begin + at_a_time] = part
    return found


def _begin_apart(log: StepLog, lane: int, steps: int, at_once: bool) -> None:
    """Seal the lane's open segment, which ends an episode, unless the next episode fits into it and is written at once.

    Args:
        steps: of the next episode.
        at_once: whether its steps are written in one call, as far as a segment has room.

    Raises:
        MemoryError, OSError: there is no room; nothing changed.
    """
    if not log.index.rows[log.opened.slots[lane]]:
        return
    capacity = log.admission.capacity
    any_size = log.opened.sparse or log.opened.columns.values
    at_once = at_once and not any_size and (capacity is None or steps <= max(1, capacity // 2))
    if not at_once or log.room(lane) < steps:
        log.sealing.seal_open(lane)


def drop_steps(log: StepLog, lane: int, first: int, end: int) -> int:
    """Evict the lane's steps ``first`` to ``end - 1``, which lie in segments of their own.

    If the lane's last step is among them, its next begins an episode.

    Returns the number of steps that were held.

    Raises:
        ValueError: they share a segment with others; nothing changed.
        OSError: the eviction could not be written to disk: steps may be back when the store is opened after a crash.

    Cost: O(segments of the lane).
    """
    index, opened = log.index, int(log.opened.slots[lane])
    slots: list[int] = []
    slot = int(log.inventory.oldest[lane])
    while slot >= 0:
        begins, ends = int(index.first_step[slot]), int(index.first_step[slot] + index.rows[slot])
        if begins < end and ends > first and ends > begins:
            if begins < first or ends > end:
                raise ValueError(
                    f"drop_steps: steps {begins} to {ends - 1} of lane {lane} share a segment; expected first and end "
                    "of an episode that add_episode(whole=True) appended"
                )
            slots.append(slot)
        slot = int(index.next[slot])
    steps = sum(int(index.rows[slot]) for slot in slots)
    if opened in slots:
        slots.remove(opened)
        log.sealing.abandon(lane)
    if first < log.opened.steps[lane] <= end and not log.opened.ended(lane):
        log.opened.begin_episode(lane)  # not where another is under way, which this would empty
    for slot in slots:
        log.admission.evict_one(slot)
    if log.disk is not None:
        log.disk.note()
    return steps
