"""Values of fields, converted to their dtypes: integers exactly, floats rounded; rows of any length one by one."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arguments import as_array
from sharpwave.arrays import Bytes
from sharpwave.ragged import Ragged, Text


def converted(name: str, array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the values in another dtype.  Raises: ValueError: one does not fit.  TypeError: another kind of dtype."""
    kinds = (array.dtype.kind, dtype.kind)
    if kinds == ("f", "f"):
        with np.errstate(over="ignore"):
            converted = array.astype(dtype)
        wrong = np.isinf(converted) & np.isfinite(array)
        if wrong.any():
            raise ValueError(f"{name}: value {array[wrong].flat[0]} does not fit into {dtype}; declare a wider dtype")
        return converted
    if kinds[0] in "iu" and kinds[1] == "f":
        return integers_as_floats(name, array, dtype)
    if kinds[0] in "iu" and kinds[1] in "iu":
        converted = array.astype(dtype)
        wrong = converted != array
        if wrong.any():
            raise ValueError(f"{name}: value {array[wrong].flat[0]} does not fit into {dtype}; declare a wider dtype")
        return converted
    raise TypeError(f"{name}: got dtype {array.dtype}, expected {dtype}; convert it, or declare the field with it")


def integers_as_floats(name: str, array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Convert integers to floats.  Raises: ValueError: one is not exactly a float of that width."""
    bits = 8 * array.dtype.itemsize - (array.dtype.kind == "i")
    with np.errstate(over="ignore", invalid="ignore"):
        converted = array.astype(dtype)
        if bits <= np.finfo(dtype).nmant + 1:
            return converted
        beyond = 2.0**bits  # converted back it would be any integer
        wrong = (converted.astype(array.dtype) != array) | (converted.astype(np.float64) >= beyond)
    if wrong.any():
        raise ValueError(
            f"{name}: integer {array[wrong].flat[0]} is not exact in {dtype}; declare a wider dtype, or pass floats, "
            "which are rounded"
        )
    return converted


def ragged_rows(
    name: str, value: Any, count: int | None, inner: tuple[int, ...], dtype: np.dtype[Any], text: Text | None, most: int
) -> npt.NDArray[Any]:
    """Check ``value`` as ``count`` rows of any length; return an array of arrays [count], uint8 where it is text.

    Args:
        count: ``None``: ``value`` is one row.
        inner: shape of an item. ``most``: limit of a row's items.

    Raises:
        ValueError, TypeError: naming what does not fit.

    Cost: some 1 us a row.
    """
    if count is None:
        given: Sequence[Any] = [value]
    else:
        what = text or "array"
        if isinstance(value, (str, bytes, bytearray)) or not hasattr(value, "__len__"):
            raise ValueError(f"{name}: got {value!r:.60}, expected {count} rows, a sequence of one {what} each")
        given = [value.row(i) for i in range(len(value.offsets) - 1)] if isinstance(value, Ragged) else list(value)
        if len(given) != count:
            raise ValueError(f"{name}: got {len(given)} rows, expected {count}, a sequence of one {what} each")
    rows = np.empty(len(given), object)
    for i, one in enumerate(given):
        if text is None and type(one) is np.ndarray and one.dtype == dtype and one.flags.c_contiguous:
            row: npt.NDArray[Any] = one
        else:
            row = _numbers(name, one, inner, dtype) if text is None else _text(name, one, text)
        if row.ndim != 1 + len(inner) or row.shape[1:] != inner:
            expected = ", ".join(map(str, ("any length", *inner)))
            raise ValueError(f"{name}: row {i} has shape {row.shape} {row.dtype}, expected ({expected}) {dtype}")
        if len(row) > most:
            unit = "items" if text is None else "bytes"
            raise ValueError(
                f"{name}: row {i} has {len(row):,} {unit}, expected at most {most:,}; give the field, or the buffer "
                "that declares it, a greater max_length=, or cut the row"
            )
        rows[i] = row
    return rows


def _numbers(name: str, value: Any, inner: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    array = as_array(name, value)
    if array.size == 0 and array.ndim == 1:  # [] has no dtype of its own
        return np.empty((0, *inner), dtype)
    if array.ndim == 0:
        return array
    return np.ascontiguousarray(array if array.dtype == dtype else converted(name, array, dtype))


def _text(name: str, value: Any, text: Text) -> Bytes:
    if text == "str":
        if not isinstance(value, str):
            raise TypeError(f"{name}: got {value!r:.60}, expected a str")
        try:
            return np.frombuffer(value.encode(), np.uint8)
        except UnicodeEncodeError as error:
            raise ValueError(f"{name}: got {value!r:.60}, which has no UTF-8 ({error.reason})") from error
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"{name}: got {value!r:.60}, expected bytes")
    return np.frombuffer(bytes(value), np.uint8)


def copied_rows(what: str, values: Any) -> npt.NDArray[np.object_]:
    """Copy rows of any length, one a lane, into an array that lanes can be chosen from.

    Raises: ValueError: one text or value, instead of a sequence; ``what`` names it.
    """
    if isinstance(values, (str, bytes, bytearray)) or not hasattr(values, "__len__"):
        raise ValueError(f"{what} is {values!r:.60}, expected a sequence with a row for each lane")
    rows = np.empty(len(values), object)
    for place, value in enumerate(values):
        rows[place] = copy.deepcopy(value)
    return rows
