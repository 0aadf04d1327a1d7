"""Rank-based prioritized replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sharpwave.arrays import Bools, Floats, Ints
from sharpwave.native import core
from sharpwave.native.untouched import zeros
from sharpwave.sampling.sampler_protocol import (
    MAX_TD_ERROR,
    Draw,
    check_exponents,
    check_unbound,
    checked_array,
    extended,
)
from sharpwave.sampling.starts_by_column import StartsByColumn


@dataclass
class RankPrioritized(StartsByColumn):
    """Sampler by ranked priorities (Schaul et al. 2016, section 3.3): ``P = (1 / rank)^alpha / sum``.

    An item's rank is its position in a heap by ``|td_error|``, the largest first. The heap is sorted again once as many
    items were added, updated or removed as it holds: until then ranks are approximate, as in the paper (appendix
        B.2.1), but the largest is always first. New items get the largest priority so far and rank before others of the
        same priority. Draws are stratified: one item from each of n equal ranges of the sum, in any order; the weights
        follow from the probabilities of the draw.

    Args:
        alpha: how much the rank counts, 0 (uniform) to 1; paper .7.
        beta: how much of the bias weights undo, 0 to 1; paper .5 at first. ``sample(beta=)`` overrides it (annealing).
        by: column that priorities start from, as for ``Prioritized``: a new item's is ``|value|``.

    Raises:
        ValueError: naming the argument out of range.
    """

    alpha: float = 0.7
    beta: float = 0.5
    by: str | None = None
    unstarted: Bools | None = field(default=None, init=False, repr=False, compare=False)
    unstarted_groups: set[int] = field(default_factory=set, init=False, repr=False, compare=False)
    max_priority: float = field(default=1.0, init=False)
    in_order: ClassVar[bool] = False
    keeps_order: ClassVar[bool] = False
    _heap: Any = field(default=None, init=False, repr=False)  # Ints, once it is bound

    def __post_init__(self) -> None:
        check_exponents(self, alpha=self.alpha, beta=self.beta)

    def bind(self, groups: int, group_size: int) -> None:
        """Allocate a heap of items, and an array of each item's position there, from 1."""
        check_unbound(self, self._heap)
        self._heap = zeros(groups * group_size, np.int64)
        self._place = zeros(groups * group_size, np.int64)
        self._priority = zeros(groups * group_size, np.float64)
        self._mass = np.zeros(1, np.float64)  # of the first k ranks
        self._group_size = group_size
        self._count = self._changes = self._highest = 0
        self._begin_starts(groups * group_size)

    def grow(self, groups: int) -> None:
        """Enlarge the arrays. Cost: O(items)."""
        for name in ("_heap", "_place", "_priority"):
            setattr(self, name, extended(getattr(self, name), groups * self._group_size))
        self._grow_starts(groups * self._group_size)

    def insert(self, groups: Ints, begins: Ints, ends: Ints) -> None:
        """Add items with the largest priority so far. Cost: O(items log2 count)."""
        before, group_size = self._count, self._group_size
        count = before + int((ends - begins).sum())
        self._weigh(count)
        self._count = core.heap_add(
            self._heap, self._place, self._priority, before, group_size, groups, begins, ends, self.max_priority
        )
        self._changes += self._count - before
        self._highest = max(self._highest, int(groups.max() + 1) * group_size)
        self._note_new(groups, begins, ends)

    def _weigh(self, count: int) -> None:
        """Have the masses of ``count`` ranks, before there are as many items."""
        if count >= len(self._mass):
            ranks = np.arange(1, min(2 * count, len(self._heap)) + 1)
            self._mass = np.concatenate([[0.0], np.cumsum(ranks**-self.alpha)])

    def remove(self, group: int) -> None:
        """Remove a group's items. Cost: O(group_size log2 count)."""
        self._drop(np.arange(group * self._group_size, (group + 1) * self._group_size))

    def exclude(self, items: Ints) -> Callable[[], None]:
        """Remove items from the heap. Cost: O(n log2 count)."""
        items, priorities = items.copy(), self._priority[items]
        self._drop(items)

        def undo() -> None:
            self._count = core.heap_put_back(self._heap, self._place, self._priority, self._count, items, priorities)

        return undo

    def readmit(self, items: Ints) -> bool:
        """Take excluded items back, with the largest priority so far. Cost: O(n log2 count)."""
        self._weigh(self._count + len(items))  # items may have been added while these were excluded
        values = np.full(len(items), self.max_priority)
        self._count = core.heap_put_back(self._heap, self._place, self._priority, self._count, items, values)
        self._changes += len(items)
        return True

    def _drop(self, items: Ints) -> None:
        before = self._count
        self._count = core.heap_drop(self._heap, self._place, self._priority, before, items)
        self._changes += before - self._count

    def draw(self, draw: Draw, rng: np.random.Generator) -> None:
        """Draw by rank, stratified. Cost: O(n log2 count), and O(log2 count) a change since the last sort."""
        if self._changes >= self._count:
            there, places = self._heap[: self._count], np.arange(1, self._count + 1)
            there[:] = there[np.argsort(-self._priority[there], kind="stable")]
            self._place[there] = places
            self._changes = 0
        rng.random(out=draw.uniforms)
        core.draw_by_rank(self._heap, self._mass, self._count, draw.uniforms, draw.items, draw.probabilities)

    def probabilities(self, items: Ints) -> Floats:
        """Return ``(1 / rank)^alpha / sum``. Cost: O(n)."""
        places = self._place[items]
        masses: Floats = (self._mass[places] - self._mass[places - 1]) / self._mass[self._count]
        return masses

    def update(self, items: Ints, td_error: Floats) -> None:
        """Set the items' priorities. Cost: O(n log2 count)."""
        if items.size:
            priorities = np.abs(td_error)
            self.max_priority = max(self.max_priority, float(priorities.max()))
            core.heap_change(self._heap, self._place, self._priority, self._count, items, priorities)
            self._changes += len(items)
            self._note_updated(items)

    def settings(self) -> dict[str, Any]:
        """Return ``alpha``; ``beta`` may change at any time."""
        return {"alpha": float(self.alpha)}

    def state(self) -> dict[str, Any]:
        """Return ``heap`` int64 [count], by rank, without unstarted items, ``priorities`` float64 [count], and
        ``changes`` since it was sorted."""
        heap = self._heap[: self._count].copy()
        if self.unstarted_groups and self.unstarted is not None:
            heap = heap[~self.unstarted[heap]]
        priorities = self._priority[heap]
        return {"max_priority": self.max_priority, "changes": self._changes, "heap": heap, "priorities": priorities}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the heap. Cost: O(items); O(items log2 items) where items differ."""
        heap, priorities = checked_array(state, "heap", np.int64), checked_array(state, "priorities", np.float64)
        largest, changes = state.get("max_priority"), state.get("changes")
        sound = (priorities >= 0) & (priorities <= MAX_TD_ERROR)
        if len(heap) != len(priorities) or len(np.unique(heap)) < len(heap) or not sound.all():
            raise ValueError(
                f"RankPrioritized: state: heap of {len(heap)} items, {len(priorities)} priorities; "
                f"expected distinct items, each with a priority from 0 to {MAX_TD_ERROR:g}"
            )
        if not isinstance(largest, float) or not 0 < largest <= MAX_TD_ERROR:
            raise ValueError(f"RankPrioritized: max_priority {largest!r}, expected a number up to {MAX_TD_ERROR:g}")
        if not isinstance(changes, int) or changes < 0:
            raise ValueError(f"RankPrioritized: changes {changes!r}, expected an integer of at least 0")
        now = self._heap[: self._count]
        same = np.isin(heap, now)
        self._priority[now] = largest
        self._priority[heap[same]] = priorities[same]
        self.max_priority = largest
        if same.all() and len(heap) == len(now):
            now[:] = heap
            self._changes = changes
        else:  # sorted again
            now[:] = np.concatenate([now[~np.isin(now, heap)], heap[same]])
            now[:] = now[np.argsort(-self._priority[now], kind="stable")]
            self._changes = 0
        self._place[now] = np.arange(1, len(now) + 1)
        self._restore_starts(now[~np.isin(now, heap)])

    @property
    def nbytes(self) -> int:
        item_bytes = 24 if self.unstarted is None else 25
        return 0 if self._heap is None else item_bytes * self._highest + self._mass.nbytes
