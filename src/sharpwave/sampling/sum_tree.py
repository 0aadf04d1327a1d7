"""A sum tree of eight children a node, in float64: draws and updates touch one cache line a level.

Parents are always recomputed from their children, never corrected by differences, so no rounding error builds up
(Schaul et al. 2016, appendix B.2.1 describes the binary form).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sharpwave.native.jit import njit
from sharpwave.native.memory_ops import prefetch
from sharpwave.native.untouched import zeros

FANOUT = 8

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@njit(nogil=True, cache=True, inner=True)
def _refresh(nodes: Floats, starts: Ints, touched: Ints) -> None:
    """Recompute every ancestor of the leaves ``touched``, in ascending order, level by level. Overwrites them."""
    levels = starts.size
    count = touched.size
    for level in range(levels - 1, 0, -1):
        kept = 0
        previous = np.int64(-1)
        for i in range(count):
            parent = touched[i] >> 3
            if parent == previous:
                continue
            previous = parent
            first = starts[level] + parent * 8
            total = 0.0
            for k in range(8):
                total += nodes[first + k]
            nodes[starts[level - 1] + parent] = total
            touched[kept] = parent
            kept += 1
        count = kept


@njit(nogil=True, cache=True)
def _set_leaves(nodes: Floats, starts: Ints, leaves: Ints, values: Floats, ascending: Ints) -> None:
    base = starts[starts.size - 1]
    for i in range(leaves.size):
        nodes[base + leaves[i]] = values[i]
    _refresh(nodes, starts, ascending)


@njit(nogil=True, cache=True)
def _set_run(nodes: Floats, starts: Ints, begin: int, end: int, value: float) -> None:
    """Set leaves ``begin <= i < end`` to ``value``."""
    base = starts[starts.size - 1]
    nodes[base + begin : base + end] = value
    for level in range(starts.size - 1, 0, -1):
        begin >>= 3
        end = ((end - 1) >> 3) + 1
        for parent in range(begin, end):
            first = starts[level] + parent * 8
            total = 0.0
            for k in range(8):
                total += nodes[first + k]
            nodes[starts[level - 1] + parent] = total


@njit(nogil=True, cache=True)
def _draw(nodes: Floats, starts: Ints, uniforms: Floats, leaves: Ints, values: Floats, rest: Floats) -> None:
    """Draw n leaves: leaf i is where the running sum passes ``(i + uniforms[i]) / n`` of the total.

    ``values`` receives the leaves' values, ``rest`` how far the drawn sum reaches into the leaf, in [0, value).
    All items descend one level before any descends the next, whose cache lines are prefetched meanwhile.
    """
    count = leaves.size
    total = nodes[0]
    for i in range(count):
        rest[i] = (i + uniforms[i]) / count * total
        leaves[i] = 0
    for level in range(1, starts.size):
        start = starts[level]
        for i in range(count):
            first = start + leaves[i] * 8
            left = rest[i]
            last = 0
            chosen = -1
            for k in range(8):
                value = nodes[first + k]
                if value > 0.0:
                    last = k
                    if left < value:
                        chosen = k
                        break
                    left -= value
            if chosen < 0:  # rounding pushed it past the last child: take the last that can be drawn, at its very end
                chosen = last
                left = np.nextafter(nodes[first + chosen], 0.0)
            leaves[i] = leaves[i] * 8 + chosen
            rest[i] = left
            if level + 1 < starts.size:
                prefetch(nodes, starts[level + 1] + leaves[i] * 8)
    base = starts[starts.size - 1]
    for i in range(count):
        values[i] = nodes[base + leaves[i]]


class SumTree:
    """Non-negative float64 values at leaves ``0..size-1``, drawn in proportion to them.

    Memory: 9.2 bytes a leaf, and only for leaves below the highest one ever set (untouched pages stay uncommitted).
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
        self._highest = 0

    @property
    def total(self) -> float:
        """Sum of all leaves."""
        return float(self.nodes[0])

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use (touched)."""
        inner = int(self.starts[-1])
        return 8 * (inner * self._highest // max(1, self.size) + self._highest) + self.starts.nbytes

    def set(self, leaves: Ints, values: Floats) -> None:
        """Set leaves; of repeated ones the last wins. Cost: O(n log8 size)."""
        if leaves.size:
            ascending = np.sort(leaves)
            highest = int(ascending[-1])
            _set_leaves(self.nodes, self.starts, leaves, values, ascending)
            self.touch(highest + 1)

    def swap(self, leaves: Ints, values: Floats) -> Callable[[], None]:
        """Set distinct leaves as ``set`` does; returns what undoes that, and takes no memory."""
        if not leaves.size:
            return lambda: None
        leaves, before = leaves.copy(), self.get(leaves)
        ascending = np.sort(leaves)
        again, highest = ascending.copy(), int(ascending[-1])
        _set_leaves(self.nodes, self.starts, leaves, values, ascending)
        self.touch(highest + 1)
        return lambda: _set_leaves(self.nodes, self.starts, leaves, before, again)

    def set_run(self, begin: int, end: int, value: float) -> None:
        """Set the leaves ``begin <= i < end`` to ``value``. Cost: O(end - begin + log8 size)."""
        if end > begin:
            _set_run(self.nodes, self.starts, begin, end, value)
            self.touch(end)

    def touch(self, highest: int) -> None:
        """Count leaves below ``highest`` as in memory."""
        self._highest = max(self._highest, highest)

    def get(self, leaves: Ints) -> Floats:
        """Return the values of ``leaves``."""
        values: Floats = self.nodes[self.starts[-1] + leaves]
        return values

    def grown(self, size: int) -> SumTree:
        """Return a larger tree with the same values."""
        larger = SumTree(size)
        larger.set(np.arange(self._highest), self.leaves)
        return larger

    @property
    def leaves(self) -> Floats:
        """Values of all leaves up to the highest one ever set: a view."""
        return self.nodes[self.starts[-1] : self.starts[-1] + self._highest]

    def sums(self, runs: Ints, length: int) -> Floats:
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

    def draw(self, uniforms: Floats, leaves: Ints, values: Floats, rest: Floats) -> None:
        """Draw one leaf from each of n equal ranges of the total (stratified), in leaf order.

        Args:
            uniforms: float64 [n] in [0, 1), one a range.
            leaves, values, rest: [n], receive the drawn leaf, its value, and the point drawn inside it, in [0, value).

        A leaf of value 0 is never drawn. The total must be positive. Cost: O(n log8 size).
        """
        _draw(self.nodes, self.starts, uniforms, leaves, values, rest)
