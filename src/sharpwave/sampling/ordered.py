"""Samplers that draw steps in the order in which they came: the oldest first, or the newest."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sharpwave.native.jit import njit
from sharpwave.sampling.samplers import Draw, Floats, Ints, check_unbound, checked_array, extended

SLACK = 1024
"""Entries that have gone may outnumber those that are there by this many before the order is closed up."""


@njit(nogil=True, cache=True)
def _append(order: Ints, place: Ints, tail: int, stride: int, slots: Ints, begins: Ints, ends: Ints) -> int:
    for i in range(slots.size):
        for leaf in range(slots[i] * stride + begins[i], slots[i] * stride + ends[i]):
            order[tail] = leaf
            tail += 1
            place[leaf] = tail
    return tail


@njit(nogil=True, cache=True)
def _drop(order: Ints, place: Ints, begin: int, end: int) -> int:
    """The leaves ``begin <= i < end`` go; how many of them were there."""
    count = 0
    for leaf in range(begin, end):
        if place[leaf] > 0:
            order[place[leaf] - 1] = -1
            place[leaf] = 0
            count += 1
    return count


@njit(nogil=True, cache=True)
def _close_up(order: Ints, place: Ints, head: int, tail: int) -> int:
    """Move what is there to the front; the new tail."""
    count = 0
    for at in range(head, tail):
        leaf = order[at]
        if leaf >= 0:
            order[count] = leaf
            count += 1
            place[leaf] = count
    return count


@njit(nogil=True, cache=True)
def _ends(order: Ints, head: int, tail: int) -> tuple[int, int]:
    """The same without what is not there at either end."""
    while head < tail and order[head] < 0:
        head += 1
    while head < tail and order[tail - 1] < 0:
        tail -= 1
    return head, tail


@njit(nogil=True, cache=True)
def _take(order: Ints, at: int, end: int, step: int, leaves: Ints) -> None:
    """The first leaves that are there from ``at`` on to before ``end``; from the first again where there are fewer."""
    found = 0
    while found < leaves.size and at != end:
        if order[at] >= 0:
            leaves[found] = order[at]
            found += 1
        at += step
    for i in range(found, leaves.size):
        leaves[i] = leaves[i - found]


@dataclass
class _InOrder:
    beta: ClassVar[float] = 0.0
    in_order: ClassVar[bool] = True
    keeps_order: ClassVar[bool] = True
    threshold: ClassVar[float] = 1.0
    _order: Ints | None = field(default=None, init=False, repr=False)

    def bind(self, slots: int, stride: int) -> None:
        """Two arrays of leaves, which take memory as they fill: in order, and each leaf's place there, from 1."""
        check_unbound(self, self._order)
        self._order = np.zeros(2 * slots * stride + SLACK, np.int64)
        self._place = np.zeros(slots * stride, np.int64)
        self._stride = stride
        self._head = self._tail = self._count = self._highest = 0
        self._drawn = np.empty(0, np.int64)

    def grow(self, slots: int) -> None:
        """Cost: O(leaves)."""
        assert self._order is not None
        self._order = extended(self._order, 2 * slots * self._stride + SLACK)
        self._place = extended(self._place, slots * self._stride)

    def insert(self, slots: Ints, begins: Ints, ends: Ints) -> None:
        """Cost: O(steps), spread over the calls."""
        assert self._order is not None
        coming = int((ends - begins).sum())
        if self._tail - self._head > 2 * self._count + SLACK or self._tail + coming > len(self._order):
            self._tail = _close_up(self._order, self._place, self._head, self._tail)
            self._head = 0
        self._tail = _append(self._order, self._place, self._tail, self._stride, slots, begins, ends)
        self._count += coming
        self._highest = max(self._highest, self._tail)

    def remove(self, slot: int) -> None:
        """Cost: O(stride)."""
        assert self._order is not None
        self._count -= _drop(self._order, self._place, slot * self._stride, (slot + 1) * self._stride)

    def exclude(self, leaves: Ints) -> Callable[[], None]:
        """Cost: O(n)."""
        assert self._order is not None
        order, leaves, places, ends = self._order, leaves.copy(), self._place[leaves], (self._head, self._tail)
        order[places - 1] = -1
        self._place[leaves] = 0
        self._count -= len(leaves)

        def undo() -> None:
            order[places - 1] = leaves
            self._place[leaves] = places
            self._count += len(leaves)
            self._head, self._tail = ends

        return undo

    def _take(self, draw: Draw, newest: bool) -> None:
        assert self._order is not None
        order = self._order
        self._head, self._tail = _ends(order, self._head, self._tail)
        if newest:
            _take(order, self._tail - 1, self._head - 1, -1, draw.leaves)
        else:
            _take(order, self._head, self._tail, 1, draw.leaves)
        self._drawn = draw.leaves[: self._count]  # as long as the draw's memory is not used again
        draw.probabilities.fill(1.0 / len(self._drawn))

    def probabilities(self, leaves: Ints) -> Floats:
        """1/n for what the last draw of n took, 0 for the rest."""
        return np.isin(leaves, self._drawn) / len(self._drawn)

    def update(self, leaves: Ints, td_error: Floats) -> None:
        """Priorities mean nothing here: nothing happens."""

    def state(self) -> dict[str, Any]:
        """``order`` int64 [count], leaves as they came."""
        assert self._order is not None
        order = self._order[self._head : self._tail]
        return {"order": order[order >= 0]}

    def recall(self, state: dict[str, Any]) -> None:
        """Cost: O(leaves)."""
        assert self._order is not None
        before, there = checked_array(state, "order", np.int64), self.state()["order"]
        before = before[np.isin(before, there)]
        if len(np.unique(before)) < len(before):
            raise ValueError(f"{type(self).__name__}: a leaf that comes twice")
        order = np.concatenate([before, there[~np.isin(there, before)]])
        self._order[: len(order)] = order
        self._place[order] = np.arange(1, len(order) + 1)
        self._head, self._tail = 0, len(order)

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""
        return 0 if self._order is None else 8 * (self._highest + min(self._highest, len(self._place)))


@dataclass
class Fifo(_InOrder):
    """The oldest first: as a sampler the steps, as a retention the segments.

    ``transitions(sampler=Fifo())``: a batch of n is the n steps that could be sampled first, oldest first, and from the
    oldest again where there are fewer. It does not remember what it gave out: the next batch is the same, unless
    ``max_times_sampled`` took the steps away. ``probabilities`` 1/n, ``weights`` 1.

    ``Store(retention=Fifo())``: the segment that was sealed first leaves first.

    Steps are in the order in which they became known to the view: with every call that appends, by lane within it; what
    was there when the view was made comes first, lane by lane.
    """

    _segments: deque[int] = field(default_factory=deque, init=False, repr=False)

    def draw(self, draw: Draw, rng: np.random.Generator) -> None:
        """Cost: O(n), and what has left in between."""
        self._take(draw, newest=False)

    # as a retention

    def add(self, slot: int, id_: int) -> bool:
        """Cost: O(1)."""
        self._segments.append(slot)
        return True

    def choose(self) -> int:
        """Cost: O(1)."""
        return self._segments.popleft()

    def discard(self, slot: int) -> None:
        """Cost: O(1)."""
        self._segments.remove(slot)

    def order(self) -> dict[str, Any]:
        """Oldest first."""
        return {"slots": np.array(self._segments, np.int64)}

    def restore(self, order: dict[str, Any]) -> None:
        """Cost: O(segments)."""
        self._segments = deque(checked_array(order, "slots", np.int64).tolist())

    def __len__(self) -> int:
        return len(self._segments)


@dataclass
class Lifo(_InOrder):
    """The newest first: a batch of n is the n steps that could be sampled last, newest first; else as :class:`Fifo`."""

    def draw(self, draw: Draw, rng: np.random.Generator) -> None:
        """Cost: O(n), and what has left in between."""
        self._take(draw, newest=True)
