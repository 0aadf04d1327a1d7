"""Uniform sampling: every item equally often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sharpwave.arrays import Floats, Ints
from sharpwave.native import core
from sharpwave.native.untouched import zeros
from sharpwave.sampling.sampler_protocol import check_unbound, extended
from sharpwave.sampling.sum_tree import SumTree, TreeSampler


@dataclass
class Uniform(TreeSampler):
    """Sampler that draws every item equally often: ``probabilities`` 1/N, ``weights`` 1.

    Draws are stratified: one item from each of n equal ranges, in any order, so a batch spreads over the whole memory.
    """

    beta: ClassVar[float] = 0.0

    def bind(self, groups: int, group_size: int) -> None:
        """Allocate a tree over groups, whose values count their items: far smaller than a tree over items."""
        check_unbound(self, self._tree)
        self._tree, self._marks = SumTree(groups), zeros(groups * group_size, np.uint8)  # untouched, no memory
        self._group_size, self._leaves = group_size, core.Leaves(self._tree.sums, group_size, self._marks)

    def grow(self, groups: int) -> None:
        """Enlarge the tree. Cost: O(groups)."""
        tree, marks = self._bound.grown(groups), extended(self._marks, groups * self._group_size)
        leaves = core.Leaves(tree.sums, self._group_size, marks)
        leaves.any_excluded = self._leaves.any_excluded
        self._tree, self._marks, self._leaves = tree, marks, leaves

    def tree(self) -> core.Leaves:
        return self._leaves

    def insert(self, groups: Ints, begins: Ints, ends: Ints) -> None:
        """Add to the groups' counts. Cost: O(runs log8 groups)."""
        self._leaves.insert(groups, begins, ends)

    def exclude(self, items: Ints) -> Callable[[], None]:
        """Mark items excluded and lower their groups' counts. Cost: O(n log8 groups)."""
        items = items.copy()
        self._leaves.exclude(items)
        return lambda: self._leaves.readmit(items)

    def readmit(self, items: Ints) -> bool:
        """Take excluded items back. Cost: O(n log8 groups)."""
        self._leaves.readmit(items)
        return True

    def probabilities(self, items: Ints) -> Floats:
        return np.full(len(items), 1.0 / self.mass)

    def update(self, items: Ints, td_error: Floats) -> None:
        """Do nothing: there are no priorities."""

    def settings(self) -> dict[str, Any]:
        """Return an empty dict: there are no settings."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return an empty dict: all items are alike."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Do nothing: there is no state."""

    @property
    def nbytes(self) -> int:
        if self._tree is None:
            return 0
        return self._tree.nbytes + (len(self._tree.leaves) * self._group_size if self._leaves.any_excluded else 0)
