"""Proportional prioritized replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sharpwave.arguments import is_number
from sharpwave.arrays import Bools, Floats, Ints
from sharpwave.native import core
from sharpwave.sampling.sampler_protocol import MAX_TD_ERROR, check_exponents, check_unbound, checked_array
from sharpwave.sampling.starts_by_column import StartsByColumn
from sharpwave.sampling.sum_tree import SumTree, TreeSampler

MIN_EPS, MAX_EPS = 1e-100, 1e30
"""Smallest ``eps``: the share of the smallest priority in a sum of all stays above 0."""


@dataclass
class Prioritized(TreeSampler, StartsByColumn):
    """Sampler by proportional priorities (Schaul et al. 2016): ``p = |td_error| + eps``, ``P = p^alpha / sum``.

    New items get the largest priority so far (at first 1). ``weights = (N P)^-beta``, divided by the batch's largest.
    Draws are stratified: one item from each of n equal ranges of the sum, in any order.

    Args:
        alpha: how much priorities count, 0 (uniform) to 1; paper .6.
        beta: how much of the bias weights undo, 0 to 1; paper .4 at first. ``sample(beta=)`` overrides it (annealing).
        eps: keeps every item's priority positive.
        by: column that priorities start from: ``"reward"``, a further field or a column added later, of one number a
            step. A new item gets ``|value| + eps``, a window its steps' values mixed by ``eta`` as TD errors are. An
            item with a value that is missing, NaN or beyond float32 starts as without. It is read once, at the first
            draw after the item can be sampled; from then on, and from ``update_priorities`` on, only that changes the
            priority. Like ``beta`` it may change when a view is restored.

    Raises:
        ValueError: naming the argument out of range.
    """

    alpha: float = 0.6
    beta: float = 0.4
    eps: float = 1e-6
    by: str | None = None
    unstarted: Bools | None = field(default=None, init=False, repr=False, compare=False)
    unstarted_groups: set[int] = field(default_factory=set, init=False, repr=False, compare=False)
    max_priority: float = field(default=1.0, init=False)

    def __post_init__(self) -> None:
        check_exponents(self, alpha=self.alpha, beta=self.beta)
        if not (is_number(self.eps) and MIN_EPS <= self.eps <= MAX_EPS):
            raise ValueError(
                f"Prioritized: eps={self.eps!r}, expected a number from {MIN_EPS:g} to {MAX_EPS:g}; with 0 an item of "
                "TD error 0 would never be sampled again"
            )

    def bind(self, groups: int, group_size: int) -> None:
        """Allocate a tree over items."""
        check_unbound(self, self._tree)
        self._group_size = group_size
        self._place(SumTree(groups * group_size))
        self._begin_starts(groups * group_size)

    def _place(self, tree: SumTree) -> None:
        self._tree, self._leaves = tree, core.Leaves(tree.sums, self._group_size, None)

    def grow(self, groups: int) -> None:
        """Enlarge the tree. Cost: O(items)."""
        larger = self._bound.grown(groups * self._group_size)
        self._grow_starts(groups * self._group_size)
        self._place(larger)

    def insert(self, groups: Ints, begins: Ints, ends: Ints) -> None:
        """Add items with the largest priority so far. Cost: O(items + runs log8 leaves)."""
        self._leaves.insert(groups, begins, ends, self.max_priority**self.alpha)
        self._note_new(groups, begins, ends)

    def exclude(self, items: Ints) -> Callable[[], None]:
        """Set the items' priorities to 0. Cost: O(n log8 leaves)."""
        return self._bound.swap(items, np.zeros(len(items)))

    def readmit(self, items: Ints) -> bool:
        """Take excluded items back, with the largest priority so far. Cost: O(n log8 leaves)."""
        self._bound.swap(items, np.full(len(items), self.max_priority**self.alpha))
        return True

    def tree(self) -> core.Leaves:
        return self._leaves

    def probabilities(self, items: Ints) -> Floats:
        """Return ``p^alpha / sum``. Cost: O(n)."""
        return self._bound.get(items) / self.mass

    def masses(self, groups: Ints) -> Floats:
        """Return sums of ``p^alpha`` over the items of ``groups``: float64 [n]."""
        return self._bound.run_sums(groups, self._group_size)

    def update(self, items: Ints, td_error: Floats) -> None:
        """Set the items' priorities. Cost: O(n log8 leaves)."""
        largest = core.set_priorities(self._bound.sums, items, td_error, self.eps, self.alpha)
        self.max_priority = max(self.max_priority, largest)
        self._note_updated(items)

    def settings(self) -> dict[str, Any]:
        """Return ``alpha`` and ``eps``; ``beta`` may change at any time."""
        return {"alpha": float(self.alpha), "eps": float(self.eps)}

    def state(self) -> dict[str, Any]:
        """Return ``values`` float64 [items], p^alpha or 0 for absent and unstarted items, and ``max_priority``."""
        values = self._bound.leaves.copy()
        if self.unstarted_groups and self.unstarted is not None:
            values[self.unstarted[: len(values)]] = 0
        return {"max_priority": self.max_priority, "values": values}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore priorities. Cost: O(items)."""
        values, largest = checked_array(state, "values", np.float64), state.get("max_priority")
        max_value = MAX_TD_ERROR + MAX_EPS
        if not isinstance(largest, float) or not MIN_EPS <= largest <= max_value:
            raise ValueError(
                f"Prioritized: max_priority {largest!r}, expected a number from {MIN_EPS:g} to {max_value:g}"
            )
        if not ((values == 0) | (values >= MIN_EPS) & (values <= max_value)).all():
            raise ValueError(f"Prioritized: state: values, expected each 0, or from {MIN_EPS:g} to {max_value:g}")
        there = self.present()
        before = np.zeros(len(self._bound.leaves))
        before[: len(values)] = values[: len(before)]
        self._bound.sums.set(there, np.where(before[there] > 0, before[there], largest**self.alpha))
        self.max_priority = largest
        self._restore_starts(there[before[there] == 0])

    def present(self) -> Ints:
        """Return the items that can be drawn: int64 [n], ascending. Cost: O(items)."""
        return np.flatnonzero(self._bound.leaves)

    @property
    def nbytes(self) -> int:
        if self._tree is None:
            return 0
        return self._tree.nbytes + (0 if self.unstarted is None else self._tree.sums.highest)
