"""Rank-based prioritized replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sharpwave.native.jit import njit
from sharpwave.sampling.samplers import (
    MAX_TD_ERROR,
    Draw,
    Floats,
    Ints,
    check_exponents,
    check_unbound,
    checked_array,
    extended,
)


@njit(nogil=True, cache=True)
def _put(heap: Ints, place: Ints, at: int, leaf: int) -> None:
    heap[at] = leaf
    place[leaf] = at + 1


@njit(nogil=True, cache=True)
def _settle(heap: Ints, place: Ints, priority: Floats, count: int, at: int) -> None:
    """Move the leaf at ``at`` up or down to where it belongs; above others of its priority."""
    leaf = heap[at]
    value = priority[leaf]
    while at > 0 and priority[heap[(at - 1) >> 1]] <= value:
        _put(heap, place, at, heap[(at - 1) >> 1])
        at = (at - 1) >> 1
    while True:
        child = 2 * at + 1
        if child + 1 < count and priority[heap[child + 1]] > priority[heap[child]]:
            child += 1
        if child >= count or priority[heap[child]] <= value:
            break
        _put(heap, place, at, heap[child])
        at = child
    _put(heap, place, at, leaf)


@njit(nogil=True, cache=True)
def _add(
    heap: Ints,
    place: Ints,
    priority: Floats,
    count: int,
    stride: int,
    slots: Ints,
    begins: Ints,
    ends: Ints,
    value: float,
) -> int:
    """The leaves of the runs come, with priority ``value``; the new count."""
    for i in range(slots.size):
        for leaf in range(slots[i] * stride + begins[i], slots[i] * stride + ends[i]):
            priority[leaf] = value
            _put(heap, place, count, leaf)
            count += 1
            _settle(heap, place, priority, count, count - 1)
    return count


@njit(nogil=True, cache=True)
def _drop(heap: Ints, place: Ints, priority: Floats, count: int, leaves: Ints) -> int:
    """Those of ``leaves`` that are there go; the new count."""
    for leaf in leaves:
        at = place[leaf] - 1
        if at < 0:
            continue
        place[leaf] = 0
        count -= 1
        if at < count:  # the last takes its place
            _put(heap, place, at, heap[count])
            _settle(heap, place, priority, count, at)
    return count


@njit(nogil=True, cache=True)
def _change(heap: Ints, place: Ints, priority: Floats, count: int, leaves: Ints, values: Floats) -> None:
    for i in range(leaves.size):
        priority[leaves[i]] = values[i]
        _settle(heap, place, priority, count, place[leaves[i]] - 1)


@njit(nogil=True, cache=True)
def _draw(heap: Ints, mass: Floats, count: int, uniforms: Floats, leaves: Ints, probabilities: Floats) -> None:
    """Item i is where the running mass of the ranks passes ``(i + uniforms[i]) / n`` of the total."""
    total = mass[count]
    for i in range(leaves.size):
        wanted = (i + uniforms[i]) / leaves.size * total
        low, high = 0, count - 1
        while low < high:
            middle = (low + high) >> 1
            if mass[middle + 1] > wanted:
                high = middle
            else:
                low = middle + 1
        leaves[i] = heap[low]
        probabilities[i] = (mass[low + 1] - mass[low]) / total


@dataclass
class RankPrioritized:
    """Rank-based prioritized replay (Schaul et al. 2016, section 3.3): ``P = (1 / rank)^alpha / sum``.

    A step's rank is its place in a heap by ``|td_error|``, the largest first, which is sorted anew once as many steps
    were added, updated or removed as there are: until then ranks are approximate, as in the paper (appendix B.2.1),
    while the largest is always first. New steps get the largest priority so far and come before others of the same.
    Drawn stratified, from n equal ranges of the sum, in any order; the weights are of the probabilities that were drawn
    with.

    Args:
        alpha: how much the rank counts, 0 (uniform) to 1; paper .7.
        beta: how much of the bias weights undo, 0 to 1; paper .5 at first. ``sample(beta=)`` overrides it (annealing).

    Raises:
        ValueError: naming the argument out of range.
    """

    alpha: float = 0.7
    beta: float = 0.5
    max_priority: float = field(default=1.0, init=False)
    in_order: ClassVar[bool] = False
    keeps_order: ClassVar[bool] = False
    _heap: Ints | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_exponents(self, alpha=self.alpha, beta=self.beta)

    def bind(self, slots: int, stride: int) -> None:
        """A heap of leaves, and each leaf's place there, from 1."""
        check_unbound(self, self._heap)
        self._heap = np.zeros(slots * stride, np.int64)
        self._place = np.zeros(slots * stride, np.int64)
        self._priority = np.zeros(slots * stride, np.float64)
        self._mass = np.zeros(1, np.float64)  # of the first k ranks
        self._stride = stride
        self._count = self._changes = self._highest = 0

    def grow(self, slots: int) -> None:
        """Cost: O(leaves)."""
        assert self._heap is not None
        for name in ("_heap", "_place", "_priority"):
            setattr(self, name, extended(getattr(self, name), slots * self._stride))

    def insert(self, slots: Ints, begins: Ints, ends: Ints) -> None:
        """Cost: O(steps log2 count)."""
        assert self._heap is not None
        before, stride = self._count, self._stride
        self._count = _add(
            self._heap, self._place, self._priority, before, stride, slots, begins, ends, self.max_priority
        )
        self._changes += self._count - before
        self._highest = max(self._highest, int(slots.max() + 1) * stride)
        if self._count >= len(self._mass):
            ranks = np.arange(1, min(2 * self._count, len(self._heap)) + 1)
            self._mass = np.concatenate([[0.0], np.cumsum(ranks**-self.alpha)])

    def remove(self, slot: int) -> None:
        """Cost: O(stride log2 count)."""
        self._drop(np.arange(slot * self._stride, (slot + 1) * self._stride))

    def exclude(self, leaves: Ints) -> Callable[[], None]:
        """Cost: O(n log2 count)."""
        leaves, priorities = leaves.copy(), self._priority[leaves]
        self._drop(leaves)

        def undo() -> None:
            assert self._heap is not None
            for leaf, priority in zip(leaves.tolist(), priorities.tolist(), strict=True):
                slot, row = np.array([leaf // self._stride]), np.array([leaf % self._stride])
                self._count = _add(
                    self._heap, self._place, self._priority, self._count, self._stride, slot, row, row + 1, priority
                )

        return undo

    def _drop(self, leaves: Ints) -> None:
        assert self._heap is not None
        before = self._count
        self._count = _drop(self._heap, self._place, self._priority, before, leaves)
        self._changes += before - self._count

    def draw(self, draw: Draw, rng: np.random.Generator) -> None:
        """Cost: O(n log2 count), and O(log2 count) for every change since, to sort."""
        assert self._heap is not None
        if self._changes >= self._count:
            there = self._heap[: self._count]
            there[:] = there[np.argsort(-self._priority[there], kind="stable")]
            self._place[there] = np.arange(1, self._count + 1)
            self._changes = 0
        rng.random(out=draw.uniforms)
        _draw(self._heap, self._mass, self._count, draw.uniforms, draw.leaves, draw.probabilities)

    def probabilities(self, leaves: Ints) -> Floats:
        """``(1 / rank)^alpha / sum``. Cost: O(n)."""
        places = self._place[leaves]
        masses: Floats = (self._mass[places] - self._mass[places - 1]) / self._mass[self._count]
        return masses

    def update(self, leaves: Ints, td_error: Floats) -> None:
        """Cost: O(n log2 count)."""
        assert self._heap is not None
        if leaves.size:
            priorities = np.abs(td_error)
            self.max_priority = max(self.max_priority, float(priorities.max()))
            _change(self._heap, self._place, self._priority, self._count, leaves, priorities)
            self._changes += len(leaves)

    def state(self) -> dict[str, Any]:
        """``heap`` int64 [count], leaves by rank; ``priorities`` float64 [count]; ``changes`` since it was sorted."""
        assert self._heap is not None
        heap = self._heap[: self._count].copy()
        priorities = self._priority[heap]
        return {"max_priority": self.max_priority, "changes": self._changes, "heap": heap, "priorities": priorities}

    def recall(self, state: dict[str, Any]) -> None:
        """Cost: O(leaves), and O(leaves log2 leaves) if some are not the same."""
        assert self._heap is not None
        heap, priorities = checked_array(state, "heap", np.int64), checked_array(state, "priorities", np.float64)
        largest, changes = state.get("max_priority"), state.get("changes")
        sound = (priorities >= 0) & (priorities <= MAX_TD_ERROR)
        if len(heap) != len(priorities) or len(np.unique(heap)) < len(heap) or not sound.all():
            raise ValueError("RankPrioritized: no heap of leaves and their priorities")
        if not isinstance(largest, float) or not 0 < largest <= MAX_TD_ERROR:
            raise ValueError(f"RankPrioritized: max_priority {largest!r}, expected a number up to {MAX_TD_ERROR:g}")
        if not isinstance(changes, int) or changes < 0:
            raise ValueError(f"RankPrioritized: changes {changes!r}, expected an integer of at least 0")
        now = self._heap[: self._count]
        same = np.isin(heap, now)
        self._priority[heap[same]] = priorities[same]
        self.max_priority = largest
        if same.all() and len(heap) == len(now):
            now[:] = heap
            self._changes = changes
        else:  # to be sorted anew
            now[:] = np.concatenate([now[~np.isin(now, heap)], heap[same]])
            now[:] = now[np.argsort(-self._priority[now], kind="stable")]
            self._changes = 0
        self._place[now] = np.arange(1, len(now) + 1)

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""
        return 0 if self._heap is None else 24 * self._highest + self._mass.nbytes
