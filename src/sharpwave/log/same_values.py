"""Comparison of observations by value: which differ, and which by more than rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

TOLERANCE = 1e-6
"""Differences that are rounding: some eight units in the last place of float32, of the largest magnitude near by."""


def compare(some: npt.NDArray[Any], others: npt.NDArray[Any]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Compare rows [n, *shape]; return which differ, and which by more than rounding, bool [n] each.

    NaN equals itself, and -0.0 equals 0.0. Rounding is at most ``TOLERANCE`` of the largest magnitude that the
    component has in ``others``.
    """
    one, other = (x.reshape(len(x), -1) for x in (some, others))
    rows: npt.NDArray[np.bool_] = (one != other).any(axis=1)
    if one.dtype.kind != "f" or not rows.any():
        return rows, rows
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.where(np.isfinite(other), np.abs(other), 0).max(axis=0)  # by component
        one, other = one[rows], other[rows]
        differ = (one != other) & ~((one != one) & (other != other))
        beyond = np.zeros_like(rows)
        beyond[rows] = (differ & ~(np.abs(one - other) <= TOLERANCE * size)).any(axis=1)
        rows[rows] = differ.any(axis=1)
    return rows, beyond
