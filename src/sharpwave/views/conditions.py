"""Conditions of views: items that do not match are never drawn. They are judged once, when their episode has ended."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from sharpwave.arrays import Bools, Ints
from sharpwave.log.step_log import StepLog
from sharpwave.native.untouched import zeros
from sharpwave.sampling.sampler_protocol import extended
from sharpwave.spec import ENDED, START
from sharpwave.views.episodes import EpisodeReader, Table, find_in, joined
from sharpwave.views.steps import Steps
from sharpwave.views.view_protocol import View

UNJUDGED, MATCHES, REFUSED = range(3)
"""Values of ``Judge.judged``; the core compares with the second."""


class Condition(Protocol):
    """Condition on episodes, or on single steps of theirs.

    Attributes:
        text: the condition as a setting of a view.
    """

    text: str

    def matches(self, table: Table, reader: EpisodeReader, place: Ints, step: Ints) -> Bools:
        """Return whether it holds for some steps: bool [n].

        Args:
            table: ended episodes, of each lane in order. ``reader``: of their steps and annotations.
            place, step: int64 [n], the steps' episodes, by their places in ``table``, and their numbers in their lanes.

        Raises: MemoryError: no room to read a segment.
        """


class Judge:
    """Judgements of one view's items. The store's lock is held throughout.

    Attributes:
        condition: the question about an item; ``None``: that its episode was not deleted.
        judged: uint8 [items]: ``UNJUDGED`` where an item's episode has not ended, or there is no item.
    """

    def __init__(self, log: StepLog, lock: Any, view: View[Any], condition: Condition | None = None) -> None:
        self.condition = condition
        self.judged = zeros(log.index.leaves, np.uint8)
        self._log, self._view = log, view
        self._reader = EpisodeReader(log, lock, None)  # no life: the keeper of a dropped view keeps no store open

    def judge(self, items: Ints) -> None:
        """Judge those of ``items``, all of ended episodes, that were not judged yet.  Raises: MemoryError."""
        self.judged[self.deleted_of(items)] = REFUSED
        items = items[self.judged[items] == UNJUDGED]
        if self.condition is None:
            self.judged[items] = MATCHES
            return
        if not len(items):
            return
        log, index = self._log, self._log.index
        firsts = self._view.first_steps(items)
        slots = firsts // log.stride
        steps, lanes = index.first_step[slots] + firsts % log.stride, index.lane[slots]
        tables, place, begin = list[Table](), np.empty(len(items), np.int64), 0
        for lane in np.unique(lanes).tolist():
            here = np.flatnonzero(lanes == lane)
            ends = here[[np.argmin(steps[here]), np.argmax(steps[here])]]
            table = find_in(log, self._segments(*firsts[ends].tolist()))
            assert table is not None
            place[here] = begin + np.searchsorted(table.first_step, steps[here], side="right") - 1
            tables.append(table)
            begin += len(table.lane)
        used, place = np.unique(place, return_inverse=True)
        found = self.condition.matches(joined(tables).some(used), self._reader, place, steps)
        self.judged[items] = np.where(found, MATCHES, REFUSED)

    def deleted_of(self, items: Ints) -> Ints:
        """Return those of ``items`` whose episodes were deleted."""
        if self._log.late.deleted is None or not len(items):
            return items[:0]
        gone: Ints = items[self._log.late.is_deleted(self._view.first_steps(items))]
        return gone

    def _segments(self, first: int, last: int) -> list[int]:
        """Return the segments from the beginning of the episode with the step ``first`` to the end of that of ``last``,
        as far as they are held."""
        index, stride, steps = self._log.index, self._log.stride, Steps(self._log)
        begin, row = divmod(first, stride)
        flags = steps.flags(begin)[: row + 1]
        while not (flags & START).any():
            before = int(index.previous[begin])
            if before < 0 or index.gap[before] or (flags := steps.flags(before))[-1] & ENDED:
                break
            begin = before
        end, row = divmod(last, stride)
        found = [begin]
        while found[-1] != end:
            found.append(int(index.next[found[-1]]))
        while not (steps.flags(end)[row:] & ENDED).any() and not index.gap[end] and index.next[end] >= 0:
            end, row = int(index.next[end]), 0
            found.append(end)
        return found

    def grow(self, items: int) -> None:
        """Enlarge for ``items`` items.  Raises: MemoryError."""
        self.judged = extended(self.judged, items)
