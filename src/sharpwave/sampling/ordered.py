"""Samplers that draw items in the order in which they were inserted: the oldest first, or the newest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sharpwave.arrays import Floats, Ints
from sharpwave.native import core
from sharpwave.native.untouched import zeros
from sharpwave.sampling.retention import Newcomer, Priorities
from sharpwave.sampling.sampler_protocol import Draw, check_unbound, checked_array, extended

SLACK = 1024
"""Limit of removed entries beyond the remaining ones; then the order is compacted."""


@dataclass
class _InOrder:
    beta: ClassVar[float] = 0.0
    in_order: ClassVar[bool] = True
    keeps_order: ClassVar[bool] = True
    threshold: ClassVar[float] = 1.0
    _order: Any = field(default=None, init=False, repr=False)  # Ints, once it is bound

    def bind(self, groups: int, group_size: int) -> None:
        """Allocate items in order, and each item's position there, from 1, and its rank, which stays its own when it is
        excluded. Pages take memory as they fill."""
        check_unbound(self, self._order)
        self._order = zeros(2 * groups * group_size + SLACK, np.int64)
        self._place, self._rank = zeros(groups * group_size, np.int64), zeros(groups * group_size, np.int64)
        self._group_size = group_size
        self._head = self._tail = self._count = self._highest = self._last = 0
        self._any_excluded = False
        self._drawn = np.empty(0, np.int64)

    def grow(self, groups: int) -> None:
        """Enlarge the arrays. Cost: O(items)."""
        self._order = extended(self._order, 2 * groups * self._group_size + SLACK)
        self._place = extended(self._place, groups * self._group_size)
        self._rank = extended(self._rank, groups * self._group_size)

    def insert(self, groups: Ints, begins: Ints, ends: Ints) -> None:
        """Append items to the order. Cost: O(items), spread over the calls."""
        coming = int((ends - begins).sum())
        if self._tail - self._head > 2 * self._count + SLACK or self._tail + coming > len(self._order):
            self._tail = core.order_close_up(self._order, self._place, self._head, self._tail)
            self._head = 0
        arrays = self._order, self._place, self._rank
        self._tail = core.order_append(*arrays, self._tail, self._last, self._group_size, groups, begins, ends)
        self._count, self._last = self._count + coming, self._last + coming
        self._highest = max(self._highest, self._tail)

    def remove(self, group: int) -> None:
        """Remove a group's items. Cost: O(group_size)."""
        begin = group * self._group_size
        self._count -= core.order_drop(self._order, self._place, begin, begin + self._group_size)
        self._rank[begin : begin + self._group_size] = 0

    def exclude(self, items: Ints) -> Callable[[], None]:
        """Remove items from the order. Cost: O(n)."""
        order, items, places, ends = self._order, items.copy(), self._place[items], (self._head, self._tail)
        at, gone, nowhere = places - 1, np.full(len(items), -1), np.zeros(len(items), np.int64)
        self._any_excluded = True
        order[at], self._place[items] = gone, nowhere
        self._count -= len(items)

        def undo() -> None:
            order[at] = items
            self._place[items] = places
            self._count += len(items)
            self._head, self._tail = ends

        return undo

    def readmit(self, items: Ints) -> bool:
        """Put excluded items back to where they were in the order. Cost: O(count log count)."""
        order = np.concatenate([items, self.state()["order"]])
        self._arrange(order[np.argsort(self._rank[order], kind="stable")])
        self._count += len(items)
        return True

    def _arrange(self, order: Ints) -> None:
        """Make ``order`` the items in order."""
        self._order[: len(order)] = order
        self._place[order] = np.arange(1, len(order) + 1)
        self._head, self._tail = 0, len(order)
        self._highest = max(self._highest, self._tail)

    def _take(self, draw: Draw, newest: bool) -> None:
        order = self._order
        self._head, self._tail = core.order_ends(order, self._head, self._tail)
        if newest:
            core.order_take(order, self._tail - 1, self._head - 1, -1, draw.items)
        else:
            core.order_take(order, self._head, self._tail, 1, draw.items)
        self._drawn = draw.items[: self._count]  # valid until the draw's memory is reused
        draw.probabilities.fill(1.0 / len(self._drawn))

    def probabilities(self, items: Ints) -> Floats:
        """Return 1/n for the n items of the last draw, 0 for the rest."""
        return np.isin(items, self._drawn) / len(self._drawn)

    def update(self, items: Ints, td_error: Floats) -> None:
        """Do nothing: there are no priorities."""

    def settings(self) -> dict[str, Any]:
        """Return an empty dict: there are no settings."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return ``order`` int64 [count], items in order of insertion; and ``excluded`` [n], items that a stream may
        give back, with ``before`` [n], how many of ``order`` were inserted before each."""
        order = self._order[self._head : self._tail]
        order = order[order >= 0]
        excluded = self._excluded()
        before = np.searchsorted(self._rank[order], self._rank[excluded])
        return {"order": order, "excluded": excluded, "before": before}

    def _excluded(self) -> Ints:
        """Return excluded items of groups that are held, in order of insertion."""
        items = np.flatnonzero((self._rank > 0) & (self._place == 0)) if self._any_excluded else np.zeros(0, np.int64)
        return items[np.argsort(self._rank[items])]

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the order, that of items which are excluded then and now too. Cost: O(items)."""
        order, there, now_excluded = checked_array(state, "order", np.int64), self.state()["order"], self._excluded()
        given = state if "excluded" in state else {"excluded": now_excluded, "before": np.zeros_like(now_excluded)}
        excluded, before = (checked_array(given, name, np.int64) for name in ("excluded", "before"))
        if len(excluded) != len(before) or ((before < 0) | (before > len(order))).any():
            raise ValueError(f"{type(self).__name__}: state: before, expected a place in order for each excluded item")
        same = np.isin(order, there), np.isin(excluded, now_excluded)
        ranked = np.insert(order, before, excluded)[np.insert(same[0], before, same[1])]
        if len(np.unique(ranked)) < len(ranked):
            raise ValueError(f"{type(self).__name__}: state: order names an item twice, expected each at most once")
        new = [items[~np.isin(items, ranked)] for items in (now_excluded, there)]
        ranked = np.concatenate([new[0], ranked, new[1]])
        self._arrange(ranked[self._place[ranked] > 0])
        self._rank[ranked] = np.arange(self._last + 1, self._last + len(ranked) + 1)
        self._last += len(ranked)

    @property
    def nbytes(self) -> int:
        return 0 if self._order is None else 8 * (self._highest + 2 * min(self._highest, len(self._place)))


@dataclass
class Fifo(_InOrder):
    """First in, first out: as a sampler the oldest items, as a retention the oldest segment.

    ``transitions(sampler=Fifo())``: a batch of n is the n steps that became sampleable first, oldest first; if there
    are fewer, it starts again at the oldest. The sampler keeps no record of its draws: the next batch is the same,
    unless ``max_times_sampled`` retired the steps. ``probabilities`` 1/n, ``weights`` 1.

    ``Store(retention=Fifo())``: evicts the segment that was sealed first.

    Steps are in the order in which they became sampleable: by call, and by lane within a call; steps held when the view
    was made precede, lane by lane.
    """

    _segments: core.SlotQueue = field(default_factory=core.SlotQueue, init=False, repr=False, compare=False)

    def draw(self, draw: Draw, rng: np.random.Generator) -> None:
        """Draw the oldest items. Cost: O(n + items removed since)."""
        self._take(draw, newest=False)

    # as a retention

    def admits(self, id_: int) -> bool:
        """Return True: others are older."""
        return True

    def add(self, slot: int, id_: int) -> None:
        """Append a segment. Cost: O(1)."""
        self._segments.add(slot)

    def choose(self, newcomer: Newcomer | None, priorities: Priorities) -> int:
        """Choose the oldest. Cost: O(1)."""
        return self._segments.take()

    def discard(self, slot: int) -> None:
        """Remove a segment. Cost: O(1)."""
        self._segments.discard(slot)

    def clear(self) -> None:
        self._segments.fill(np.zeros(0, np.int64))

    def order(self) -> dict[str, Any]:
        """Return ``slots``, oldest first."""
        return {"slots": np.array(self._segments.slots(0, len(self._segments)), np.int64)}

    def oldest(self) -> Iterator[int]:
        """Iterate over the segments held, oldest first. Cost: O(1) each."""
        for i in range(len(self._segments)):
            yield from self._segments.slots(i, i + 1)

    @property
    def queue(self) -> core.SlotQueue:
        return self._segments

    def restore_order(self, order: dict[str, Any]) -> None:
        """Restore the order. Cost: O(segments)."""
        self._segments.fill(checked_array(order, "slots", np.int64))

    def __len__(self) -> int:
        return len(self._segments)


@dataclass
class Lifo(_InOrder):
    """Last in, first out: a batch of n is the n steps that became sampleable last, newest first; else as ``Fifo``."""

    def draw(self, draw: Draw, rng: np.random.Generator) -> None:
        """Draw the newest items. Cost: O(n + items removed since)."""
        self._take(draw, newest=True)
