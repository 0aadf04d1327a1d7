"""Spaces of observations and actions as JSON, for policies that are loaded where their environment is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

MAX_SPACE_BYTES = 1 << 26
"""Size limit of a value of a space that a file describes: its bounds take as many, however short their text is."""
MAX_PARTS = 1 << 10
"""Limit of the spaces that a file describes in one: an agent has a network for each part."""
_INFINITE = {"inf": math.inf, "-inf": -math.inf}


def space_table(space: Space[Any]) -> dict[str, Any]:
    """Return a space as plain values for JSON; ``space_of`` makes it again.

    Bounds that all elements share are one number, others a list in the order of the elements; an infinite one is the
    text "inf" or "-inf".

    Raises:
        ValueError: a space of another kind than Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these.
    """
    if isinstance(space, Dict):
        return {"kind": "Dict", "spaces": {name: space_table(part) for name, part in space.spaces.items()}}
    if isinstance(space, Tuple):
        return {"kind": "Tuple", "spaces": [space_table(part) for part in space.spaces]}
    dtype = str(space.dtype)
    if isinstance(space, Box):
        shape = [int(size) for size in space.shape]
        return {"kind": "Box", "shape": shape, "dtype": dtype, "low": _bounds(space.low), "high": _bounds(space.high)}
    if isinstance(space, Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": dtype}
    if isinstance(space, MultiDiscrete):
        return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist(), "dtype": dtype}
    if isinstance(space, MultiBinary):
        return {"kind": "MultiBinary", "shape": [int(size) for size in space.shape]}
    raise ValueError(
        f"space: got {space}, expected Box, Discrete, MultiDiscrete, MultiBinary, or Dict or Tuple of these"
    )


def space_of(table: Any) -> Space[Any]:
    """Make the space of a ``space_table``.

    Raises:
        ValueError: the table describes none, or one of more than ``MAX_PARTS`` parts, or whose values take more than
            ``MAX_SPACE_BYTES``.
    """
    parts = _parts(table)
    if parts > MAX_PARTS:
        raise ValueError(f"space: {parts:,} parts, expected at most {MAX_PARTS:,}")
    made, size = _made(table)
    if size > MAX_SPACE_BYTES:
        raise ValueError(f"space: its values take {size:,} bytes, expected at most {MAX_SPACE_BYTES:,}")
    return made()


def _parts(table: Any) -> int:
    """Return how many spaces a table describes, with those in others."""
    inner = table.get("spaces") if isinstance(table, Mapping) else None
    inner = inner.values() if isinstance(inner, Mapping) else inner if isinstance(inner, list) else ()
    return 1 + sum(map(_parts, inner))


def _made(table: Any) -> tuple[Callable[[], Space[Any]], int]:
    """Return what makes a table's space, and the bytes of its values: nothing large is made before these are known."""
    kind = table.get("kind") if isinstance(table, Mapping) else None
    try:
        if kind == "Dict":
            named = {name: _made(part) for name, part in table["spaces"].items()}
            total = sum(size for _, size in named.values())
            return lambda: Dict({name: make() for name, (make, _) in named.items()}), total
        if kind == "Tuple":
            found = [_made(part) for part in table["spaces"]]
            return lambda: Tuple([make() for make, _ in found]), sum(size for _, size in found)
        if kind == "Box":
            shape, dtype = _shape(table["shape"]), _dtype(table["dtype"])
            low, high = (_array(table[name], shape, dtype) for name in ("low", "high"))
            return lambda: Box(low(), high(), shape, dtype.type), math.prod(shape) * dtype.itemsize
        if kind == "Discrete":
            n, start, dtype = _integer(table["n"]), _integer(table["start"]), _dtype(table["dtype"])
            further: dict[str, Any] = {} if dtype == np.int64 else {"dtype": dtype.type}
            return lambda: Discrete(n, start=start, **further), dtype.itemsize
        if kind == "MultiDiscrete":
            dtype = _dtype(table["dtype"])
            nvec, starts = (np.array(table[name], np.int64) for name in ("nvec", "start"))
            return lambda: MultiDiscrete(nvec, dtype=dtype.type, start=starts), nvec.nbytes
        if kind == "MultiBinary":
            shape = _shape(table["shape"])
            return lambda: MultiBinary(shape if len(shape) > 1 else shape[0]), math.prod(shape)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"space: {str(table)[:200]} describes no {kind}: {error!r}") from error
    raise ValueError(
        f"space: got kind {str(kind)[:40]!r}, expected Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple (other "
        "versions may have others)"
    )


def _bounds(values: np.ndarray[Any, Any]) -> Any:
    """Return an array of bounds as one number where all are equal, else as a list."""
    flat = [str(one) if math.isinf(one) else one for one in values.reshape(-1).tolist()]
    flat = [int(one) if isinstance(one, bool) else one for one in flat]
    return flat[0] if len(set(flat)) == 1 else flat


def _array(bounds: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Return what makes the array of ``_bounds``."""
    many = isinstance(bounds, list)
    numbers = [_INFINITE[one] if isinstance(one, str) else one for one in (bounds if many else [bounds])]
    if any(isinstance(one, bool) or not isinstance(one, (int, float)) for one in numbers):
        raise ValueError("bounds that are no numbers")
    if many and len(numbers) != math.prod(shape):
        raise ValueError(f"{len(numbers):,} bounds for the shape {shape}")
    values = np.array(numbers, dtype)
    return lambda: values.reshape(shape) if many else np.broadcast_to(values[0], shape)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(_integer(size, 0) for size in value)


def _integer(value: Any, least: int = -(1 << 62)) -> int:
    if type(value) is not int or not least <= value < 1 << 62:
        raise ValueError(f"{str(value)[:40]!r}, expected an integer")
    return value


def _dtype(value: Any) -> np.dtype[Any]:
    dtype = np.dtype(_text(value))
    if dtype.kind not in "buif":
        raise ValueError(f"dtype {dtype}, expected numbers")
    return dtype


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]!r}, expected text")
    return value
