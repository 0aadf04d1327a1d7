"""Observations as arrays or dicts of arrays, from Tianshou's batches and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tianshou.data import Batch

from sharpwave.arrays import Array
from sharpwave.integrations.any_length import rows_of, shape_of

Obs = Any
"""Array, or dict of arrays by the names of an observation's parts; texts and rows of any length are objects [n]."""

BELOW = "/"
"""Separator between the names of a part and its sub-part."""


def split(value: Any, alone: bool) -> Obs:
    """Convert an array or a ``Batch`` to an array [n, ...], or a dict of those. ``alone``: the value lacks axis n."""
    if isinstance(value, Batch):
        return dict(_leaves(value, "", alone))
    array = np.asarray(value, object if isinstance(value, (str, bytes)) else None)
    if array.dtype.kind in "SU":
        array = array.astype(object)
    return array[None] if alone else array


def _leaves(value: Batch, above: str, alone: bool) -> Iterator[tuple[str, Array]]:
    for name in value.get_keys():
        if isinstance(value[name], Batch):
            yield from _leaves(value[name], f"{above}{name}{BELOW}", alone)
        else:
            yield above + name, split(value[name], alone)


def joined(obs: Obs, index: Array) -> Any:
    """Return observations [n, ...] as Tianshou does for an array of n indices of any shape."""
    if not isinstance(obs, dict):
        if obs.dtype == object and index.ndim == 0:
            return obs[0]
        return obs if index.ndim == 1 else obs.reshape((*index.shape, *obs.shape[1:]))
    nested = Batch()
    for name, one in obs.items():
        *above, last = name.split(BELOW)
        part = nested
        for step in above:
            part = part.__dict__.setdefault(step, Batch())
        part.__dict__[last] = joined(one, index)  # as it is: a Batch makes arrays of texts, which end before zeros
    return nested


def each(obs: Obs, function: Callable[[Array], Any]) -> Any:
    """Return observations with ``function`` applied to each array."""
    return {name: function(one) for name, one in obs.items()} if isinstance(obs, dict) else function(obs)


def together(parts: Sequence[Obs], axis: int = 0) -> Obs:
    """Concatenate observations."""
    if isinstance(parts[0], dict):
        return {name: np.concatenate([part[name] for part in parts], axis) for name in parts[0]}
    return np.concatenate(parts, axis)


def where(rows: npt.NDArray[np.bool_], one: Obs, other: Obs) -> Obs:
    """Return observations [n, ...]: ``one`` in some rows, ``other`` in the rest."""
    if isinstance(one, dict):
        return {name: where(rows, values, other[name]) for name, values in one.items()}
    return np.where(rows.reshape(-1, *[1] * (one.ndim - 1)), one, other)


def checked(obs: Obs, name: str) -> Obs:
    """Return observations: numbers as they are, and copies of objects.  Raises: TypeError: a store holds no such."""
    if isinstance(obs, dict):
        return {part: checked(one, f"{name}{BELOW}{part}") for part, one in obs.items()}
    if obs.dtype.kind in "biuf":
        return obs
    try:
        rows = rows_of(f"add: {name}", obs)
        shape_of(f"add: {name}", rows)
    except TypeError as error:
        raise TypeError(f"{error}; have the environment return those, or use Tianshou's own buffer") from error
    return rows


def stand_in(action: Obs, rows: int) -> Array:
    """Return actions [n, ...] for a store: zeros [n] for dicts and objects, which only Tianshou's arrays hold."""
    return np.zeros(rows, np.uint8) if isinstance(action, dict) or action.dtype == object else action


def null_rows(value: Any, rows: int) -> npt.NDArray[np.bool_]:
    """Return which rows of an array, or of a dict or ``Batch`` of arrays, have a NaN or None: bool [rows]."""
    found = np.zeros(rows, np.bool_)
    if isinstance(value, (dict, Batch)):
        for one in value.values():
            found |= null_rows(one, rows)
        return found
    array = np.asarray(value)
    if array.dtype.kind == "f":
        found |= np.isnan(array).any(axis=tuple(range(1, array.ndim)))
    elif array.dtype.kind == "O":
        nulls = [one is None or (isinstance(one, float) and one != one) for one in array.flat]
        found |= np.array(nulls, np.bool_).reshape(array.shape).any(axis=tuple(range(1, array.ndim)))
    return found
