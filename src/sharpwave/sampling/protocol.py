"""What a sampler is: it chooses items by their numbers, and knows neither steps nor frames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sharpwave.native.jit import njit

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MAX_TD_ERROR = float(np.finfo(np.float32).max)
"""Sums of as many priorities as there can be items stay far from what float64 can hold."""


@dataclass
class Draw:
    """Memory of one draw, used again for the next.

    Attributes:
        items: int64 [n].
        probabilities: float64 [n].  weights: float32 [n].
        rest, uniforms: float64 [n], for the sampler to work in.
    """

    items: Ints
    probabilities: Floats
    weights: npt.NDArray[np.float32]
    rest: Floats
    uniforms: Floats

    @classmethod
    def of(cls, n: int) -> Draw:
        """Allocate memory for ``n`` items."""
        floats = [np.empty(n, np.float64) for _ in range(3)]
        return cls(np.empty(n, np.int64), floats[0], np.ones(n, np.float32), floats[1], floats[2])

    def part(self, begin: int, end: int) -> Draw:
        """Return the items ``begin <= i < end``, in the same memory."""
        some = slice(begin, end)
        return Draw(
            self.items[some], self.probabilities[some], self.weights[some], self.rest[some], self.uniforms[some]
        )


class Sampler(Protocol):
    """Chooses items for one view.

    Items are integers in groups of equal size: item k of group g is ``g * group_size + k``. What an item is, is the
    view's matter. Those of a group are inserted in order, from its first on, and removed with it; some may be excluded
    before. A sampler is constructed with its settings, and given its size by ``bind``.

    Attributes:
        beta: exponent of the importance weights where ``sample(beta=)`` gives none; 0: all weights are 1.
        in_order: whether the order of insertions counts: then the view follows the store with every step appended.
        keeps_order: whether the order of drawn items means something. Otherwise the view shuffles them, so that each
            part of a batch is like a smaller batch.
    """

    @property
    def beta(self) -> float: ...

    @property
    def in_order(self) -> bool: ...

    @property
    def keeps_order(self) -> bool: ...

    def bind(self, groups: int, group_size: int) -> None:
        """Make room for so many groups, all empty.  Raises: ValueError: bound already."""

    def grow(self, groups: int) -> None:
        """Make room for so many groups, more than before; nothing else changes."""

    def insert(self, groups: Ints, begins: Ints, ends: Ints) -> None:
        """Add items ``begins[i] <= k < ends[i]`` of ``groups[i]``."""

    def remove(self, group: int) -> None:
        """Remove all items of a group, excluded ones included; it may be empty."""

    def exclude(self, items: Ints) -> Callable[[], None]:
        """Remove distinct items, which are there, before their group.

        Returns what undoes just that, as long as nothing else was called meanwhile but ``draw`` and further calls
        of this, undone in reverse.
        """

    def draw(self, draw: Draw, rng: np.random.Generator) -> None:
        """Fill ``draw.items`` and ``draw.probabilities``. At least one item is there."""

    def probabilities(self, items: Ints) -> Floats:
        """Return with which the last ``draw`` drew each of ``items``, which are there: float64 [n]."""

    def update(self, items: Ints, td_error: Floats) -> None:
        """Change the priorities of items that are there; of repeated ones the last wins."""

    def settings(self) -> dict[str, Any]:
        """Return what ``state`` depends on, as JSON has it: only a sampler of the same class and settings takes
        it."""

    def state(self) -> dict[str, Any]:
        """Return what ``restore`` needs: copies of arrays, numbers, strings, lists and dicts of those."""

    def restore(self, state: dict[str, Any]) -> None:
        """Take the ``state`` of another of the same class and settings.

        Items that were there then and are there now are drawn as that one would draw them; those that are there now
        alone are as just inserted; those of then alone are ignored. Raises: ValueError: no such state.
        """

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""


METHODS = tuple(name for name in vars(Sampler) if not name.startswith("_"))


def check_sampler(argument: str, sampler: Any) -> None:
    """Raises: TypeError: naming what it lacks."""
    there = dir(sampler)  # which calls no property of one that has no memory yet
    missing = [name for name in METHODS if name not in there]
    if isinstance(sampler, type) or len(missing) == len(METHODS):
        raise TypeError(f"{argument}={sampler!r}, expected a sampler such as sharpwave.Uniform() or Prioritized(...)")
    if missing:
        raise TypeError(f"{argument}={sampler!r} lacks {', '.join(missing)}; see sharpwave.sampling.protocol.Sampler")


def check_unbound(sampler: object, bound: object) -> None:
    """Raises: ValueError where ``bound``, the sampler's memory, is there already."""
    if bound is not None:
        name = type(sampler).__name__
        raise ValueError(f"sampler: this {name}() serves a view already; make a new one for each view")


def check_exponents(sampler: object, **values: float) -> None:
    """Raises: ValueError naming the value that is no number from 0 to 1."""
    for name, value in values.items():
        if not (isinstance(value, (int, float, np.floating)) and 0 <= value <= 1):
            raise ValueError(f"{type(sampler).__name__}: {name}={value!r}, expected a number from 0 to 1")


def described(sampler: Sampler) -> dict[str, Any]:
    """Return a sampler's class and settings, as JSON has them."""
    return {"kind": type(sampler).__name__, **sampler.settings()}


def checked_array(state: Any, name: str, dtype: type) -> npt.NDArray[Any]:
    """Return the one-dimensional array of that name.  Raises: ValueError if there is none."""
    array = state.get(name) if isinstance(state, dict) else None
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype != dtype:
        raise ValueError(f"state: {name} is {type(array).__name__}, expected an array of {np.dtype(dtype)}")
    return array


def extended(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """Return a copy with zeros behind it, which take no memory until they are written to."""
    longer = np.zeros(size, array.dtype)
    used = np.flatnonzero(array)
    end = int(used[-1]) + 1 if used.size else 0
    longer[:end] = array[:end]
    return longer


@njit(nogil=True, cache=True)
def shuffle(uniforms: Floats, items: Ints, probabilities: Floats) -> None:
    """Put a draw's items into an order that ``uniforms`` [n] choose, each equally likely (Fisher and Yates)."""
    for i in range(items.size - 1, 0, -1):
        k = int(uniforms[i] * (i + 1))
        items[i], items[k] = items[k], items[i]
        probabilities[i], probabilities[k] = probabilities[k], probabilities[i]


@njit(nogil=True, cache=True)
def importance_weights(probabilities: Floats, beta: float, weights: npt.NDArray[np.float32]) -> None:
    """Compute ``(N P_i)^-beta`` over the batch's largest, into ``weights`` [n] (Schaul et al. 2016, section 3.4)."""
    lowest = probabilities.min()
    for i in range(weights.size):  # (N P_i)^-beta / max_j (N P_j)^-beta = (min_j P_j / P_i)^beta
        weights[i] = (lowest / probabilities[i]) ** beta
