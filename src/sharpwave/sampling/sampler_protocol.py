"""Protocol of samplers: a sampler chooses items by their numbers, and knows neither steps nor frames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sharpwave.arguments import is_number
from sharpwave.arrays import Floats, Ints
from sharpwave.native.untouched import zeros

MAX_TD_ERROR = float(np.finfo(np.float32).max)
"""Largest ``|td_error|``: a sum of as many priorities as there can be items stays within float64."""


@dataclass
class Draw:
    """Arrays of one draw, reused by the next.

    Attributes:
        items: int64 [n].
        probabilities: float64 [n].  weights: float32 [n].
        rest, uniforms: float64 [n], the sampler's working memory.
    """

    items: Ints
    probabilities: Floats
    weights: npt.NDArray[np.float32]
    rest: Floats
    uniforms: Floats

    @classmethod
    def of(cls, n: int) -> Draw:
        """Allocate memory for ``n`` items."""
        probabilities, rest, uniforms = np.empty(n), np.empty(n), np.empty(n)
        return cls(np.empty(n, np.int64), probabilities, np.empty(n, np.float32), rest, uniforms)

    def part(self, begin: int, end: int) -> Draw:
        """Return the items ``begin <= i < end``, in the same memory."""
        some = slice(begin, end)
        return Draw(
            self.items[some], self.probabilities[some], self.weights[some], self.rest[some], self.uniforms[some]
        )


class Sampler(Protocol):
    """Strategy that chooses the items of one view.

    Items are integers in groups of equal size: item k of group g is ``g * group_size + k``. Their meaning is the view's
    concern. A group's items are inserted in order, from the first on, and removed together; some may be
    excluded before. A sampler is constructed with its settings, and given its size by ``bind``.
    Arrays are C-contiguous.

    Two further methods are optional. ``readmit(items) -> bool`` adds distinct excluded items, whose groups were not
    removed since, which a stream has drawn ahead and not returned: at their old places where there is an order, else as
    new ones; it returns whether it can. ``tree() -> core.Leaves`` returns the tree over groups or items by which the
    core can make the draws, with those of other parts of a batch, to the same results. It stays the same until ``grow``
    is called; over items the sampler has the attributes ``alpha``, ``eps`` and ``max_priority`` of ``Prioritized``.

    Attributes:
        beta: exponent of the importance weights if ``sample(beta=)`` gives none; 0: all weights are 1.
        in_order: whether the order of insertions matters; if so, the view follows the store with every step appended.
        keeps_order: whether the order of drawn items matters. Otherwise the view shuffles them, so that every part of a
            batch is distributed like a smaller batch.
    """

    @property
    def beta(self) -> float: ...

    @property
    def in_order(self) -> bool: ...

    @property
    def keeps_order(self) -> bool: ...

    def bind(self, groups: int, group_size: int) -> None:
        """Allocate memory for ``groups`` groups, all empty.  Raises: ValueError: bound already."""

    def grow(self, groups: int) -> None:
        """Enlarge to ``groups`` groups, more than before; items and priorities stay."""

    def insert(self, groups: Ints, begins: Ints, ends: Ints) -> None:
        """Insert the items ``begins[i] <= k < ends[i]`` of ``groups[i]``."""

    def remove(self, group: int) -> None:
        """Remove all items of a group, excluded ones included; the group may be empty."""

    def exclude(self, items: Ints) -> Callable[[], None]:
        """Remove distinct items, all present, ahead of their group.

        Returns a function that undoes this, provided that only ``draw`` was called in between and further calls of
        ``exclude``, undone in reverse.
        """

    def draw(self, draw: Draw, rng: np.random.Generator) -> None:
        """Fill ``draw.items`` and ``draw.probabilities``. At least one item is present."""

    def probabilities(self, items: Ints) -> Floats:
        """Return the probability with which the last ``draw`` drew each of ``items``, all present: float64 [n]."""

    def update(self, items: Ints, td_error: Floats) -> None:
        """Update the priorities of items, all present; of repeated items the last wins."""

    def settings(self) -> dict[str, Any]:
        """Return the JSON values that ``state`` depends on; only a sampler of the same class and settings restores
        it."""

    def state(self) -> dict[str, Any]:
        """Return the state for ``restore``: copies of arrays, numbers, strings, lists and dicts of them."""

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the ``state`` of a sampler of the same class and settings.

        Items present both then and now are drawn as that sampler would draw them; items present only now are as newly
        inserted; items present only then are ignored. Raises: ValueError: not such a state.
        """

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""


METHODS = tuple(name for name in vars(Sampler) if not name.startswith("_"))


class DrawsByMass(Protocol):
    """Sampler whose draws can be divided among several stores: each item has a mass, and is drawn in proportion to it.

    Attributes:
        mass: sum of the items' masses.
    """

    @property
    def mass(self) -> float: ...

    def draw_at(self, draw: Draw, points: Floats) -> None:
        """Fill ``draw.items`` and ``draw.probabilities``: an item's probability for a uniformly drawn point.

        Args:
            points: float64 [n] from 0 to below 1, in any order: shares of the mass, in the order of its items.
        """


def draws_by_mass(sampler: Any) -> bool:
    """Return whether a sampler is a ``DrawsByMass``."""
    return hasattr(type(sampler), "draw_at") and hasattr(type(sampler), "mass")


def draws_by_tree(sampler: Any) -> bool:
    """Return whether the core can draw for a sampler: no class derived from the one with ``tree`` draws or changes
    items in another way."""
    kinds = type(sampler).__mro__
    own = next((k for k, kind in enumerate(kinds) if "tree" in vars(kind)), None)
    changes = {"draw", "insert", "update", "remove", "exclude"}
    return own is not None and not any(changes & vars(kind).keys() for kind in kinds[:own])


def check_sampler(argument: str, sampler: Any) -> None:
    """Refuse an object that lacks an attribute of a sampler.  Raises: TypeError: naming it."""
    there = dir(sampler)  # evaluates no property: an unbound sampler has no memory yet
    missing = [name for name in METHODS if name not in there]
    if isinstance(sampler, type) or len(missing) == len(METHODS):
        raise TypeError(f"{argument}={sampler!r}, expected a sampler such as sharpwave.Uniform() or Prioritized(...)")
    if missing:
        raise TypeError(
            f"{argument}={sampler!r} lacks {', '.join(missing)}; see sharpwave.sampling.sampler_protocol.Sampler"
        )


def check_unbound(sampler: object, bound: object) -> None:
    """Refuse a sampler whose memory, ``bound``, is allocated already.  Raises: ValueError."""
    if bound is not None:
        name = type(sampler).__name__
        raise ValueError(f"sampler: this {name}() serves a view already; make a new one for each view")


def check_exponents(sampler: object, **values: float) -> None:
    """Refuse a value that is not a number from 0 to 1.  Raises: ValueError: naming it."""
    for name, value in values.items():
        if not (is_number(value) and 0 <= value <= 1):
            raise ValueError(f"{type(sampler).__name__}: {name}={value!r}, expected a number from 0 to 1")


def described(sampler: Sampler) -> dict[str, Any]:
    """Return a sampler's class and settings as JSON values."""
    return {"kind": type(sampler).__name__, **as_json(sampler.settings())}


def as_json(value: Any) -> Any:
    """Return settings as a checkpoint gives them back: lists for tuples, and Python's numbers for numpy's."""
    if isinstance(value, dict):
        return {name: as_json(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value


def checked_array(state: Any, name: str, dtype: type) -> npt.NDArray[Any]:
    """Return the one-dimensional array ``name`` of a state.  Raises: ValueError: there is none."""
    array = state.get(name) if isinstance(state, dict) else None
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype != dtype:
        raise ValueError(f"state: {name} is {type(array).__name__}, expected an array of {np.dtype(dtype)}")
    return array


def extended(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """Return a copy, extended with zeros that take no memory until they are written to."""
    longer = zeros(size, array.dtype)
    used = np.flatnonzero(array)
    end = int(used[-1]) + 1 if used.size else 0
    longer[:end] = array[:end]
    return longer
