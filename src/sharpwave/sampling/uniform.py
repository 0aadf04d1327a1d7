"""Uniform sampling: every item equally often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sharpwave.native import core
from sharpwave.native.untouched import zeros
from sharpwave.sampling.protocol import Draw, Floats, Ints, check_unbound, extended
from sharpwave.sampling.sum_tree import SumTree


@dataclass
class Uniform:
    """Sampler that draws every item equally often: ``probabilities`` 1/N, ``weights`` 1.

    Draws are stratified: one item from each of n equal ranges, in any order, so a batch spreads over the whole memory.
    """

    beta: ClassVar[float] = 0.0
    in_order: ClassVar[bool] = False
    keeps_order: ClassVar[bool] = False
    _tree: SumTree | None = field(default=None, init=False, repr=False)

    def bind(self, groups: int, group_size: int) -> None:
        """Allocate a tree over groups, whose values count their items: far smaller than a tree over items."""
        check_unbound(self, self._tree)
        self._tree, self._marks = SumTree(groups), zeros(groups * group_size, np.uint8)  # untouched, no memory
        self._group_size, self._leaves = group_size, core.Leaves(self._tree.sums, group_size, self._marks)

    def grow(self, groups: int) -> None:
        """Enlarge the tree. Cost: O(groups)."""
        assert self._tree is not None
        tree, marks = self._tree.grown(groups), extended(self._marks, groups * self._group_size)
        leaves = core.Leaves(tree.sums, self._group_size, marks)
        leaves.any_excluded = self._leaves.any_excluded
        self._tree, self._marks, self._leaves = tree, marks, leaves

    def insert(self, groups: Ints, begins: Ints, ends: Ints) -> None:
        """Add to the groups' counts. Cost: O(runs log8 groups)."""
        self._leaves.insert(groups, begins, ends)

    def remove(self, group: int) -> None:
        """Set a group's count to 0. Cost: O(log8 groups)."""
        self._leaves.remove(group)

    def exclude(self, items: Ints) -> Callable[[], None]:
        """Mark items excluded and lower their groups' counts. Cost: O(n log8 groups)."""
        items = items.copy()
        self._leaves.exclude(items)
        return lambda: self._leaves.readmit(items)

    def readmit(self, items: Ints) -> bool:
        """Take excluded items back. Cost: O(n log8 groups)."""
        self._leaves.readmit(items)
        return True

    def draw(self, draw: Draw, rng: np.random.Generator) -> None:
        """Draw items equally often, stratified. Cost: O(n log8 groups), and 0.1 us an item once items were excluded."""
        rng.random(out=draw.uniforms)
        self._draw(draw)

    def tree(self) -> core.Leaves:
        """Return the tree over groups."""
        return self._leaves

    @property
    def mass(self) -> float:
        """Number of items."""
        assert self._tree is not None
        return self._tree.total

    def draw_at(self, draw: Draw, points: Floats) -> None:
        """Draw the items at ``points``. Cost: as ``draw``."""
        core.stratify(points, draw.uniforms)
        self._draw(draw)

    def _draw(self, draw: Draw) -> None:
        core.draw(self._leaves, draw.items, draw.probabilities, draw.rest, draw.uniforms)

    def probabilities(self, items: Ints) -> Floats:
        """Return 1/N for every item."""
        assert self._tree is not None
        return np.full(len(items), 1.0 / self._tree.total)

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
        """Bytes of memory in use."""
        if self._tree is None:
            return 0
        return self._tree.nbytes + (len(self._tree.leaves) * self._group_size if self._leaves.any_excluded else 0)
