"""Rows of any length - texts, and arrays of any length - in other frameworks' data: arrays of objects, one a row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.data.varying import Objects, objects
from sharpwave.ragged import Ragged

Shaped = tuple[tuple[int | None, ...], str]
"""Shape and name of the dtype of a row, as a ``Field`` takes them."""


def rows_of(what: str, values: Iterable[Any]) -> Objects:
    """Return copies of texts, or of arrays or lists of numbers, as an array of objects.

    Raises: TypeError: one is something else; ``what`` names it. ``shape_of`` tells whether their kinds differ.
    """
    rows: list[Any] = []
    for one in values:
        if isinstance(one, (str, bytes)):
            rows.append(str(one) if isinstance(one, str) else bytes(one))
            continue
        try:
            given = np.array(one)
            row = np.array(given.tolist()) if given.dtype == object else given
        except (TypeError, ValueError):
            row = np.empty((), object)
        if row.ndim == 0 or row.dtype.kind not in "biuf":
            raise TypeError(
                f"{what}: row {len(rows)} is {one!r:.60}, expected a text, or an array of numbers in each row; a store "
                "holds no other objects"
            )
        rows.append(row)
    return objects(rows)


def shape_of(what: str, values: npt.NDArray[Any]) -> Shaped:
    """Return the shape and dtype of the rows of an array, in which objects have any length.

    Raises: TypeError: objects of several kinds or dtypes; ``what`` names them.
    """
    if values.dtype != object:
        return values.shape[1:], values.dtype.name
    kinds = {type(one) if isinstance(one, (str, bytes)) else one.shape[1:] for one in values if not _is_nothing(one)}
    if len(kinds) > 1:
        raise TypeError(
            f"{what}: rows of several kinds ({values[0]!r:.30}, ...), expected texts, or arrays of one shape"
        )
    kind = kinds.pop() if kinds else ()
    if isinstance(kind, type):
        return (None,), kind.__name__
    found = {one.dtype for one in values if not _is_nothing(one)} or {one.dtype for one in values}
    dtypes = {one.newbyteorder("=") for one in found}
    if len(dtypes) > 1 and all(_is_nothing(one) for one in values):
        dtypes.discard(np.dtype(float))  # that of []
    if len(dtypes) > 1:
        raise TypeError(
            f"{what}: rows of {' and '.join(sorted(one.name for one in dtypes))}, expected one dtype, which a store "
            "keeps; convert the others"
        )
    return (None, *kind), next(iter(dtypes), np.dtype(float)).name


def fitting(what: str, values: npt.NDArray[Any], shaped: Shaped) -> npt.NDArray[Any]:
    """Return an array whose rows are of any length as objects, if they have a shape and dtype; others unchanged.

    Empty rows of numbers may have another dtype.

    Raises: ValueError: objects where rows have one shape. TypeError: other rows; ``what`` names them.
    """
    expected, name = shaped
    if None not in expected:
        if values.dtype == object:
            raise ValueError(
                f"{what}: got {values[0]!r:.60}, expected {name} of shape {expected} as in the first transitions; if "
                "lengths differ, give arrays of objects from the first on"
            )
        return values
    rows = values if values.dtype == object else objects([one.copy() for one in values])
    shape, dtype = shape_of(what, rows)
    if (shape, dtype) != shaped and (name in ("str", "bytes") or not all(_is_nothing(one) for one in rows)):
        raise TypeError(
            f"{what}: got rows of {dtype} {shape}, expected {name} {expected} as in the first transitions; convert "
            "them, or if the first rows were empty, give those the dtype of the others"
        )
    return rows


def _is_nothing(row: Any) -> bool:
    """Return whether a row is an empty list, which has no dtype of its own."""
    return isinstance(row, np.ndarray) and row.shape == (0,)


def plain_rows(values: Any) -> Any:
    """Return an array of objects for a batch's rows of any length; other arrays unchanged."""
    if not isinstance(values, Ragged):
        return values
    if values.text is not None:
        rows = values.strings() if values.text == "str" else values.bytes()
        return objects(rows)
    return objects([row.copy() for row in values])
