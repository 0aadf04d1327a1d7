"""Which steps are learned from. Samplers know leaves (places in the index) and priorities, never frames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from sharpwave.native.jit import njit
from sharpwave.sampling.sum_tree import SumTree, _refresh, _set_run

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MAX_TD_ERROR = float(np.finfo(np.float32).max)
"""Sums of as many priorities as there can be steps stay far from what float64 can hold."""
MIN_EPS, MAX_EPS = 1e-100, 1e30
"""And the share of the smallest priority in such a sum stays above 0."""


@dataclass
class Draw:
    """Reused memory of one draw: ``leaves`` int64 [n], ``probabilities`` float64 [n], ``weights`` float32 [n]."""

    leaves: Ints
    probabilities: Floats
    weights: npt.NDArray[np.float32]
    rest: Floats
    uniforms: Floats

    @classmethod
    def of(cls, n: int) -> Draw:
        """Memory for ``n`` items."""
        floats = [np.empty(n, np.float64) for _ in range(3)]
        return cls(np.empty(n, np.int64), floats[0], np.ones(n, np.float32), floats[1], floats[2])

    def part(self, begin: int, end: int) -> Draw:
        """The items ``begin <= i < end``, in the same memory."""
        some = slice(begin, end)
        return Draw(
            self.leaves[some], self.probabilities[some], self.weights[some], self.rest[some], self.uniforms[some]
        )

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(a.nbytes for a in (self.leaves, self.probabilities, self.weights, self.rest, self.uniforms))


class Sampler(Protocol):
    """Chooses leaves. Bound to one view: a run of leaves is inserted when its steps can be sampled, and removed with
    its slot. Implementations are constructed with their settings and given their size by :meth:`bind`."""

    @property
    def beta(self) -> float:
        """Exponent of the importance weights where ``sample(beta=)`` gives none; 0: all weights are 1."""

    @property
    def in_order(self) -> bool:
        """Whether the order of the insertions counts: then the view follows the log with every step appended."""

    @property
    def keeps_order(self) -> bool:
        """Whether the order of what is drawn means something. Otherwise the view shuffles it, so that each part of a
        batch is like a smaller batch."""

    def bind(self, slots: int, stride: int) -> None:
        """Make room for ``slots * stride`` leaves, all absent. Raises: ValueError if bound already."""

    def grow(self, slots: int) -> None:
        """Make room for so many slots, more than before; nothing else changes."""

    def insert(self, slots: Ints, begins: Ints, ends: Ints) -> None:
        """Rows ``begins[i] <= r < ends[i]`` of ``slots[i]`` can be sampled from now on; rows come in order, from 0."""

    def remove(self, slot: int) -> None:
        """All rows of ``slot`` go."""

    def exclude(self, leaves: Ints) -> Callable[[], None]:
        """Distinct leaves that are there go one by one, before their slot. Returns what undoes just that, as long as
        nothing else was called meanwhile but :meth:`draw` and further calls of this, undone in reverse."""

    def draw(self, draw: Draw, rng: np.random.Generator) -> None:
        """Fill ``draw.leaves`` and ``draw.probabilities``. At least one leaf is there."""

    def probabilities(self, leaves: Ints) -> Floats:
        """With which the last :meth:`draw` drew each of ``leaves``, which are there: float64 [n]."""

    def update(self, leaves: Ints, td_error: Floats) -> None:
        """New priorities for leaves that are there; of repeated ones the last wins."""

    def state(self) -> dict[str, Any]:
        """What :meth:`recall` needs: copies of arrays, numbers, lists and dicts of those."""

    def recall(self, state: dict[str, Any]) -> None:
        """Take what another of its kind remembered, for the leaves that are there now: those that were there then are
        drawn as that one would draw them, others are as just inserted. Raises: ValueError if it is no such state."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""


def check_unbound(sampler: object, bound: object) -> None:
    """Raises: ValueError where ``bound``, the sampler's memory, is there already."""
    if bound is not None:
        name = type(sampler).__name__
        raise ValueError(f"sampler: this {name}() serves a view already; make a new one for each view")


def extended(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """The same with zeros behind it, which take no memory until they are written to."""
    longer = np.zeros(size, array.dtype)
    used = np.flatnonzero(array)
    end = int(used[-1]) + 1 if used.size else 0
    longer[:end] = array[:end]
    return longer


def checked_array(state: Any, name: str, dtype: type) -> npt.NDArray[Any]:
    """The one-dimensional array of that name.  Raises: ValueError if there is none."""
    array = state.get(name) if isinstance(state, dict) else None
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype != dtype:
        raise ValueError(f"state: {name} is {type(array).__name__}, expected an array of {np.dtype(dtype)}")
    return array


def check_exponents(sampler: object, **values: float) -> None:
    """Raises: ValueError naming the value that is no number from 0 to 1."""
    for name, value in values.items():
        if not (isinstance(value, (int, float, np.floating)) and 0 <= value <= 1):
            raise ValueError(f"{type(sampler).__name__}: {name}={value!r}, expected a number from 0 to 1")


@njit(nogil=True, cache=True)
def _rows(slots: Ints, counts: Floats, rest: Floats, stride: int) -> None:
    """Slots become leaves: the counts are whole numbers, so what is left inside a slot tells the row."""
    for i in range(slots.size):
        slots[i] = slots[i] * stride + np.int64(min(rest[i], counts[i] - 1.0))


@njit(nogil=True, cache=True)
def _rows_left(leaves: Ints, gone: npt.NDArray[np.uint8], stride: int) -> None:
    """A leaf whose row counts what is left of its slot becomes the leaf that it stands for."""
    for i in range(leaves.size):
        leaf = leaves[i] // stride * stride
        before = leaves[i] - leaf
        while gone[leaf] or before > 0:
            before -= not gone[leaf]
            leaf += 1
        leaves[i] = leaf


@njit(nogil=True, cache=True)
def shuffle(uniforms: Floats, leaves: Ints, probabilities: Floats) -> None:
    """Put a draw's items into an order that ``uniforms`` [n] choose, each equally likely (Fisher and Yates)."""
    for i in range(leaves.size - 1, 0, -1):
        k = int(uniforms[i] * (i + 1))
        leaves[i], leaves[k] = leaves[k], leaves[i]
        probabilities[i], probabilities[k] = probabilities[k], probabilities[i]


@dataclass
class Uniform:
    """Every step equally often: ``probabilities`` 1/N, ``weights`` 1.

    Drawn stratified: one step from each of n equal ranges, in any order, so a batch spreads over the whole memory.
    """

    beta: ClassVar[float] = 0.0
    in_order: ClassVar[bool] = False
    keeps_order: ClassVar[bool] = False
    _tree: SumTree | None = field(default=None, init=False, repr=False)

    def bind(self, slots: int, stride: int) -> None:
        """A tree over slots, whose values count their rows: it takes a stride-th of a tree over steps."""
        check_unbound(self, self._tree)
        self._tree = SumTree(slots)
        self._stride = stride
        self._gone = np.zeros(slots * stride, np.uint8)  # untouched, it takes no memory
        self._any_gone = False

    def grow(self, slots: int) -> None:
        """Cost: O(slots)."""
        assert self._tree is not None
        self._tree, self._gone = self._tree.grown(slots), extended(self._gone, slots * self._stride)

    def insert(self, slots: Ints, begins: Ints, ends: Ints) -> None:
        """Cost: O(runs log8 slots)."""
        assert self._tree is not None
        self._tree.set(slots, self._tree.get(slots) + (ends - begins))

    def remove(self, slot: int) -> None:
        """Cost: O(log8 slots)."""
        assert self._tree is not None
        self._tree.set_run(slot, slot + 1, 0.0)
        if self._any_gone:
            self._gone[slot * self._stride : (slot + 1) * self._stride] = 0

    def exclude(self, leaves: Ints) -> Callable[[], None]:
        """Cost: O(n log8 slots)."""
        leaves, self._any_gone = leaves.copy(), True
        self._count(leaves, gone=True)
        return lambda: self._count(leaves, gone=False)

    def _count(self, leaves: Ints, gone: bool) -> None:
        assert self._tree is not None
        self._gone[leaves] = gone
        slots, counts = np.unique(leaves // self._stride, return_counts=True)
        self._tree.set(slots, self._tree.get(slots) + (-counts if gone else counts))

    def draw(self, draw: Draw, rng: np.random.Generator) -> None:
        """Cost: O(n log8 slots), and 0.1 us an item once steps were excluded."""
        assert self._tree is not None
        rng.random(out=draw.uniforms)
        self._tree.draw(draw.uniforms, draw.leaves, draw.probabilities, draw.rest)
        _rows(draw.leaves, draw.probabilities, draw.rest, self._stride)
        if self._any_gone:
            _rows_left(draw.leaves, self._gone, self._stride)
        draw.probabilities.fill(1.0 / self._tree.total)

    def probabilities(self, leaves: Ints) -> Floats:
        """1/N for each."""
        assert self._tree is not None
        return np.full(len(leaves), 1.0 / self._tree.total)

    def update(self, leaves: Ints, td_error: Floats) -> None:
        """Priorities mean nothing here: nothing happens."""

    def state(self) -> dict[str, Any]:
        """Nothing: all that are there are alike."""
        return {}

    def recall(self, state: dict[str, Any]) -> None:
        """Nothing to take."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""
        if self._tree is None:
            return 0
        return self._tree.nbytes + (len(self._tree.leaves) * self._stride if self._any_gone else 0)


@njit(nogil=True, cache=True)
def _set_runs(nodes: Floats, starts: Ints, stride: int, slots: Ints, begins: Ints, ends: Ints, value: float) -> None:
    for i in range(slots.size):
        _set_run(nodes, starts, slots[i] * stride + begins[i], slots[i] * stride + ends[i], value)


@njit(nogil=True, cache=True)
def _set_priorities(
    nodes: Floats, starts: Ints, leaves: Ints, td_error: Floats, eps: float, alpha: float, ascending: Ints
) -> float:
    """Set ``leaves`` [n] to ``p^alpha`` where ``p = |td_error| + eps``; returns the largest p.

    Args:
        ascending: the same leaves, sorted; overwritten.

    Cost: 2.6 us for 32 leaves with the sorting; the same by numpy and :meth:`SumTree.set` takes 6.0 us.
    """
    base = starts[starts.size - 1]
    largest = 0.0
    for i in range(leaves.size):
        priority = abs(td_error[i]) + eps
        largest = max(largest, priority)
        nodes[base + leaves[i]] = priority**alpha
    _refresh(nodes, starts, ascending)
    return largest


@njit(nogil=True, cache=True)
def importance_weights(probabilities: Floats, beta: float, weights: npt.NDArray[np.float32]) -> None:
    """``(N P_i)^-beta`` over the batch's largest, into ``weights`` float32 [n] (Schaul et al. 2016, section 3.4)."""
    lowest = probabilities.min()
    for i in range(weights.size):  # (N P_i)^-beta / max_j (N P_j)^-beta = (min_j P_j / P_i)^beta
        weights[i] = (lowest / probabilities[i]) ** beta


@dataclass
class Prioritized:
    """Proportional prioritized replay (Schaul et al. 2016): ``p = |td_error| + eps``, drawn with ``P = p^alpha / sum``.

    New steps get the largest priority so far (at first 1). ``weights = (N P)^-beta``, divided by the batch's largest.
    Drawn stratified, from n equal ranges of the sum, in any order.

    Args:
        alpha: how much priorities count, 0 (uniform) to 1; paper .6.
        beta: how much of the bias weights undo, 0 to 1; paper .4 at first. ``sample(beta=)`` overrides it (annealing).
        eps: keeps every step's priority positive.

    Raises:
        ValueError: naming the argument out of range.
    """

    alpha: float = 0.6
    beta: float = 0.4
    eps: float = 1e-6
    max_priority: float = field(default=1.0, init=False)
    in_order: ClassVar[bool] = False
    keeps_order: ClassVar[bool] = False
    _tree: SumTree | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_exponents(self, alpha=self.alpha, beta=self.beta)
        if not (isinstance(self.eps, (int, float, np.floating)) and MIN_EPS <= self.eps <= MAX_EPS):
            raise ValueError(
                f"Prioritized: eps={self.eps!r}, expected a number from {MIN_EPS:g} to {MAX_EPS:g}; with 0 a step of "
                "TD error 0 would never be drawn again"
            )

    def bind(self, slots: int, stride: int) -> None:
        """A tree over steps."""
        check_unbound(self, self._tree)
        self._tree = SumTree(slots * stride)
        self._stride = stride

    def grow(self, slots: int) -> None:
        """Cost: O(leaves)."""
        assert self._tree is not None
        self._tree = self._tree.grown(slots * self._stride)

    def insert(self, slots: Ints, begins: Ints, ends: Ints) -> None:
        """Cost: O(steps + runs log8 leaves)."""
        assert self._tree is not None
        tree, value = self._tree, self.max_priority**self.alpha
        _set_runs(tree.nodes, tree.starts, self._stride, slots, begins, ends, value)
        tree.touch(int(slots.max() + 1) * self._stride)

    def remove(self, slot: int) -> None:
        """Cost: O(stride + log8 leaves)."""
        assert self._tree is not None
        self._tree.set_run(slot * self._stride, (slot + 1) * self._stride, 0.0)

    def exclude(self, leaves: Ints) -> Callable[[], None]:
        """Cost: O(n log8 leaves)."""
        assert self._tree is not None
        tree, leaves = self._tree, leaves.copy()
        values = tree.get(leaves)
        tree.set(leaves, np.zeros(len(leaves)))
        return lambda: tree.set(leaves, values)

    def draw(self, draw: Draw, rng: np.random.Generator) -> None:
        """Cost: O(n log8 leaves)."""
        assert self._tree is not None
        rng.random(out=draw.uniforms)
        self._tree.draw(draw.uniforms, draw.leaves, draw.probabilities, draw.rest)
        draw.probabilities /= self._tree.total

    def probabilities(self, leaves: Ints) -> Floats:
        """``p^alpha / sum``. Cost: O(n)."""
        assert self._tree is not None
        return self._tree.get(leaves) / self._tree.total

    def masses(self, slots: Ints) -> Floats:
        """Sums of ``p^alpha`` of the steps in ``slots``: float64 [n]."""
        assert self._tree is not None
        return self._tree.sums(slots, self._stride)

    def update(self, leaves: Ints, td_error: Floats) -> None:
        """Cost: O(n log8 leaves)."""
        assert self._tree is not None
        if leaves.size:
            tree, ascending = self._tree, np.sort(leaves)
            highest = int(ascending[-1])
            largest = _set_priorities(tree.nodes, tree.starts, leaves, td_error, self.eps, self.alpha, ascending)
            self.max_priority = max(self.max_priority, largest)
            tree.touch(highest + 1)

    def state(self) -> dict[str, Any]:
        """``values`` float64 [leaves]: p^alpha, 0 for those that are absent."""
        assert self._tree is not None
        return {"max_priority": self.max_priority, "values": self._tree.leaves.copy()}

    def recall(self, state: dict[str, Any]) -> None:
        """Cost: O(leaves)."""
        assert self._tree is not None
        values, largest = checked_array(state, "values", np.float64), state.get("max_priority")
        most = MAX_TD_ERROR + MAX_EPS
        if not isinstance(largest, float) or not MIN_EPS <= largest <= most:
            raise ValueError(f"Prioritized: max_priority {largest!r}, expected a number from {MIN_EPS:g} to {most:g}")
        if not ((values == 0) | (values >= MIN_EPS) & (values <= most)).all():
            raise ValueError(f"Prioritized: a priority that is neither 0 nor from {MIN_EPS:g} to {most:g}")
        there = np.flatnonzero(self._tree.leaves[: len(values)])
        there = there[values[there] > 0]
        self._tree.set(there, values[there])
        self.max_priority = largest

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""
        return self._tree.nbytes if self._tree else 0
