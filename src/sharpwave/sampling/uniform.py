"""Uniform sampling: every item equally often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

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
        self._tree = SumTree(groups)
        self._group_size = group_size
        self._excluded = zeros(groups * group_size, np.uint8)  # untouched, it takes no memory
        self._any_excluded = False

    def grow(self, groups: int) -> None:
        """Enlarge the tree. Cost: O(groups)."""
        assert self._tree is not None
        self._tree, self._excluded = self._tree.grown(groups), extended(self._excluded, groups * self._group_size)

    def insert(self, groups: Ints, begins: Ints, ends: Ints) -> None:
        """Add to the groups' counts. Cost: O(runs log8 groups)."""
        assert self._tree is not None
        self._tree.set(groups, self._tree.get(groups) + (ends - begins))

    def remove(self, group: int) -> None:
        """Set a group's count to 0. Cost: O(log8 groups)."""
        assert self._tree is not None
        self._tree.set_run(group, group + 1, 0.0)
        if self._any_excluded:
            self._excluded[group * self._group_size : (group + 1) * self._group_size] = 0

    def exclude(self, items: Ints) -> Callable[[], None]:
        """Mark items excluded and lower their groups' counts. Cost: O(n log8 groups)."""
        assert self._tree is not None
        items, self._any_excluded = items.copy(), True
        excluded, left = np.ones(len(items), np.uint8), np.zeros(len(items), np.uint8)
        groups, counts = np.unique(items // self._group_size, return_counts=True)
        undo_counts = self._tree.swap(groups, self._tree.get(groups) - counts)
        self._excluded[items] = excluded

        def undo() -> None:
            self._excluded[items] = left
            undo_counts()

        return undo

    def readmit(self, items: Ints) -> bool:
        """Take excluded items back. Cost: O(n log8 groups)."""
        assert self._tree is not None
        self._excluded[items] = 0
        groups, counts = np.unique(items // self._group_size, return_counts=True)
        self._tree.swap(groups, self._tree.get(groups) + counts)
        return True

    def draw(self, draw: Draw, rng: np.random.Generator) -> None:
        """Draw items equally often, stratified. Cost: O(n log8 groups), and 0.1 us an item once items were excluded."""
        rng.random(out=draw.uniforms)
        self._draw(draw)

    def tree(self) -> tuple[core.SumTree, int, npt.NDArray[np.uint8] | None]:
        """Return the tree over groups."""
        assert self._tree is not None
        return self._tree.sums, self._group_size, self._excluded if self._any_excluded else None

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
        core.draw_alike(*self.tree(), draw.items, draw.probabilities, draw.rest, draw.uniforms)

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
        return self._tree.nbytes + (len(self._tree.leaves) * self._group_size if self._any_excluded else 0)
