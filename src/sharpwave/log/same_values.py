"""Comparison of observations by value: which differ, and which by more than rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Bools

TOLERANCE = 1e-6
"""Differences that are rounding: some eight units in the last place of float32, of a value's own magnitude, or of one
that is ordinary for its component."""
MEDIANS = 16
"""Limit of ordinary values, in medians; a component whose values are large may be computed from larger ones."""
MAX_SAMPLED = 1024
"""Limit of rows by which the typical magnitude is found."""


def compare(some: npt.NDArray[Any], others: npt.NDArray[Any]) -> tuple[Bools, Bools]:
    """Compare rows [n, *shape]; return which rows differ, and which differ by more than rounding, bool [n] each.

    NaN equals itself, and -0.0 equals 0.0. Rounding is at most ``TOLERANCE`` of the larger of both values, or of 16
    times the component's median in ``others``: small values computed from larger ones are off by as much.
    """
    if some.dtype == object:  # rows of any length
        pairs = np.array([equal_rows(*pair) for pair in zip(some, others, strict=True)], np.bool_).reshape(-1, 2)
        return ~pairs[:, 0], ~pairs[:, 1]
    one, other = (x.reshape(len(x), -1) for x in (some, others))
    rows: Bools = (one != other).any(axis=1)
    if one.dtype.kind != "f" or not rows.any():
        return rows, rows
    with np.errstate(invalid="ignore", over="ignore"):
        typical = _typical(other)
        one, other = one[rows], other[rows]
        differ = (one != other) & ~((one != one) & (other != other))
        size = np.maximum(np.maximum(np.abs(one), np.abs(other)), typical)
        within = np.isfinite(size) & (np.abs(one - other) <= TOLERANCE * size)
        beyond = np.zeros_like(rows)
        beyond[rows] = (differ & ~within).any(axis=1)
        rows[rows] = differ.any(axis=1)
    return rows, beyond


def equal_rows(some: npt.NDArray[Any], other: npt.NDArray[Any]) -> tuple[bool, bool]:
    """Return whether two rows of any length are equal, and whether they are up to rounding. ``some`` may be bytes."""
    one, two = (x.reshape(-1).view(other.dtype) for x in (some, other))
    if len(one) != len(two):
        return False, False
    unlike, beyond = compare(one[None], two[None])
    return not unlike[0], not beyond[0]


def _typical(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the largest ordinary magnitude in each component of rows [n, m]: ``MEDIANS`` medians, or the maximum if
    that is less.

    The median is over finite magnitudes above 0. Unlike the maximum it ignores one diverged row, beside which any
    difference is small.

    >>> _typical(np.array([[0.0, 1e7], [-3.0, 1.0], [2.0, 2.0], [np.inf, 3.0]])).tolist()
    [3.0, 32.0]
    """
    sampled = np.abs(values[:: -(-len(values) // MAX_SAMPLED)])
    ordered = np.sort(np.where(np.isfinite(sampled), sampled, 0), axis=0)
    count = np.count_nonzero(ordered, axis=0)
    place = len(ordered) - count + (count - 1) // 2  # the last one, a 0, where there are none
    median = np.take_along_axis(ordered, place[None], axis=0)[0]
    typical: npt.NDArray[Any] = np.minimum(MEDIANS * median, ordered[-1])
    return typical
