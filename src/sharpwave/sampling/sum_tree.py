"""A sum tree of eight children a node, in float64: draws and updates touch one cache line a level.

Parents are always recomputed from their children, never corrected by differences, so no rounding error builds up
(Schaul et al. 2016, appendix B.2.1 describes the binary form).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from sharpwave.arrays import Floats, Ints
from sharpwave.native import core
from sharpwave.native.untouched import zeros
from sharpwave.sampling.sampler_protocol import Draw

FANOUT = 8


class SumTree:
    """Non-negative float64 values at leaves ``0..size-1``, drawn in proportion to them.

    Memory: 9.2 bytes a leaf, and only for leaves below the highest one ever set (untouched pages stay uncommitted).

    Attributes:
        sums: the core's tree, in this one's memory: its ``total`` and draws, and changes of leaves.
    """

    def __init__(self, size: int) -> None:
        counts = [max(1, size)]
        while counts[0] > 1:
            counts.insert(0, -(-counts[0] // FANOUT))
        if len(counts) == 1:
            counts.insert(0, 1)
        rounded = [-(-count // FANOUT) * FANOUT for count in counts]
        self.size = size
        self.starts = np.concatenate([[0], np.cumsum(rounded[:-1])]).astype(np.int64)
        memory = zeros(sum(rounded) + FANOUT, np.float64, huge_pages=True)
        shift = -(memory.ctypes.data // 8) % FANOUT  # a node's eight children share one cache line
        self.nodes = memory[shift : shift + sum(rounded)]
        self.sums = core.SumTree(self.nodes, self.starts)

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use (touched)."""
        inner = int(self.starts[-1])
        return 8 * (inner * self.sums.highest // max(1, self.size) + self.sums.highest) + self.starts.nbytes

    def swap(self, leaves: Ints, values: Floats) -> Callable[[], None]:
        """Set distinct leaves like ``sums.set``; return a function that undoes it, and takes no memory."""
        leaves, before = leaves.copy(), self.get(leaves)
        self.sums.set(leaves, values)
        return lambda: self.sums.set(leaves, before)

    def get(self, leaves: Ints) -> Floats:
        values: Floats = self.nodes[self.starts[-1] + leaves]
        return values

    def grown(self, size: int) -> SumTree:
        """Return a larger tree with the same values."""
        larger = SumTree(size)
        larger.sums.set(np.arange(self.sums.highest), self.leaves)
        return larger

    @property
    def leaves(self) -> Floats:
        """Values of all leaves up to the highest one ever set: a view."""
        return self.nodes[self.starts[-1] : self.starts[-1] + self.sums.highest]

    def run_sums(self, runs: Ints, length: int) -> Floats:
        """Return the sums of the leaves ``run * length <= i < (run + 1) * length``.

        Cost: O(runs * length / 8^k), where 8^k divides ``length``.
        """
        level = self.starts.size - 1
        while length % FANOUT == 0 and level > 0:
            length //= FANOUT
            level -= 1
        nodes = self.starts[level] + runs[:, None] * length + np.arange(length)
        sums: Floats = self.nodes[nodes].sum(axis=1)
        return sums


class TreeSampler:
    """Base of samplers that draw in proportion to a sum tree, over items or over groups."""

    in_order: ClassVar[bool] = False
    keeps_order: ClassVar[bool] = False
    _tree: SumTree | None = None
    _leaves: core.Leaves
    _group_size: int

    @property
    def _bound(self) -> SumTree:
        assert self._tree is not None
        return self._tree

    @property
    def mass(self) -> float:
        return self._bound.sums.total

    def remove(self, group: int) -> None:
        """Remove a group's items. Cost: O(group_size + log8 leaves)."""
        self._leaves.remove(group)

    def draw(self, draw: Draw, rng: np.random.Generator) -> None:
        """Draw in proportion to the tree, stratified. Cost: O(n log8 leaves)."""
        rng.random(out=draw.uniforms)
        core.draw(self._leaves, draw.items, draw.probabilities, draw.rest, draw.uniforms)

    def draw_at(self, draw: Draw, points: Floats) -> None:
        """Draw the items at ``points`` of the sum. Cost: O(n log8 leaves)."""
        core.stratify(points, draw.uniforms)
        core.draw(self._leaves, draw.items, draw.probabilities, draw.rest, draw.uniforms)
