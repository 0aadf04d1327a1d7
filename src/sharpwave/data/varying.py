"""Texts and rows of any length in data of others: the fields that they become, and their checked values.

An importer holds such rows as an array of objects [n]: strings, bytes, or arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.data.episode import Array, TextType, usable_name
from sharpwave.log.same_values import compare
from sharpwave.nesting import name_path
from sharpwave.spec import Field, Spec

Objects = npt.NDArray[np.object_]
PART_BYTES = 1 << 22
"""Bytes of texts of a fixed size, or of the references to others, that are read at a time to find their type."""
MAX_CHARACTER, SURROGATES = 0x10FFFF, (0xD800, 0xDFFF)
"""Largest number of a character, and the range of numbers that are none."""
Kind = tuple[tuple[int | None, ...], np.dtype[Any] | TextType]
"""Shape and dtype of a row, as for ``field_of``."""


def objects(rows: Sequence[Any]) -> Objects:
    """Return rows as an array of objects."""
    found = np.empty(len(rows), object)
    for row, one in enumerate(rows):
        found[row] = one
    return found


def row_kind(array: Any) -> Kind | None:
    """Return the kind of an array's rows: numbers, a text or numbers of any length each; ``None``: no field holds them.

    Of texts it is ``str``, also where they are no UTF-8 (``text_type_of``). Numbers of any length in the other byte
    order have none: h5py reads them without swapping their bytes.
    """
    inner, dtype = array.shape[1:], array.dtype
    if dtype.kind in "buif":
        return inner, dtype
    metadata: Mapping[str, Any] = dtype.metadata or {}
    of_any_length = metadata.get("vlen")  # as h5py describes it
    if inner or not array.shape:
        return None
    if (dtype.kind in "SU" and dtype.itemsize) or of_any_length in (str, bytes):
        return (), str
    if isinstance(of_any_length, np.dtype) and of_any_length.kind in "buif" and of_any_length.isnative:
        return (None,), of_any_length
    return None


def why_none(array: Any) -> str:
    """Return why an array with a value for each step has no kind of rows."""
    if array.dtype.kind in "SU" and not array.dtype.itemsize:
        return "texts of 0 characters"
    if isinstance(numbers := (array.dtype.metadata or {}).get("vlen"), np.dtype) and not numbers.isnative:
        return f"numbers {numbers} of any length, which h5py reads only in this machine's byte order"
    return "not one value a step"


def read_rows(what: str, array: Array, begin: int, end: int, field: Field) -> npt.NDArray[Any]:
    """Read an array's rows as those of a field.  Raises: ValueError."""
    found = array.rows(begin, end)
    if field.text is not None:
        return text_rows(what, found, str if field.text == "str" else bytes)
    return objects([np.ascontiguousarray(one, field.np_dtype) for one in found]) if field.ragged else found


def text_type_of(array: Array) -> TextType | None:
    """Return ``str`` if all texts of an array are UTF-8, else ``bytes``; ``None``: some have numbers of no characters.

    Cost: it is read.
    """
    each = max(1, PART_BYTES // array.dtype.itemsize)
    for begin in range(0, array.shape[0], each):
        part = array.rows(begin, min(begin + each, array.shape[0]))
        if part.dtype.kind == "U":
            codes = np.ascontiguousarray(part).view(np.uint32)
            if (codes > MAX_CHARACTER).any() or ((codes >= SURROGATES[0]) & (codes <= SURROGATES[1])).any():
                return None
        elif text_type(part) is bytes:
            return bytes
    return str


def text_type(values: Iterable[Any]) -> TextType:
    """Return ``str`` if all texts are strings or UTF-8, else ``bytes``."""
    try:
        for one in values:
            _ = one.decode() if isinstance(one, bytes) else one
    except UnicodeDecodeError:
        return bytes
    return str


def text_rows(what: str, values: Sequence[Any] | Objects, kind: TextType) -> Objects:
    """Return texts as rows of a field.  Raises: ValueError: one is missing, or is no UTF-8."""
    rows: list[str | bytes] = []
    for row, one in enumerate(values):
        if not isinstance(one, (str, bytes)):
            raise ValueError(f"{what}: row {row} is {one!r:.40}, expected a text; write an empty one where none is")
        try:
            if kind is bytes:
                rows.append(one.encode() if isinstance(one, str) else bytes(one))
            else:
                rows.append(one.decode() if isinstance(one, bytes) else str(one))
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{what}: row {row} is {one[:40]!r}, which is no UTF-8 ({error.reason} at byte {error.start:,}); write "
                "it as UTF-8"
            ) from error
    return objects(rows)


def cut_rows(what: str, values: npt.NDArray[Any], lengths: npt.NDArray[np.int64], rows: int) -> Objects:
    """Cut values, one behind the other, into ``rows`` rows.  Raises: ValueError: the lengths do not fit."""
    if len(lengths) != rows:
        raise ValueError(f"{what}: the lengths of {len(lengths):,} rows, expected {rows:,}; write the data set anew")
    if (lengths < 0).any() or (lengths > len(values)).any() or int(lengths.sum()) != len(values):
        raise ValueError(
            f"{what}: {len(values):,} items, expected the {int(lengths.sum()):,} of its lengths, the least of which is "
            f"{int(lengths.min(initial=0)):,}; write the data set anew"
        )
    return objects(np.split(values, np.cumsum(lengths)[:-1]) if rows else [])


def differing(
    some: npt.NDArray[Any], others: npt.NDArray[Any], dtype: np.dtype[Any] | None = None
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which rows differ, and which by more than rounding, as ``compare``; texts must be equal.

    Args:
        dtype: of the comparison of numbers of any length; default: their own.
    """
    if some.dtype.kind != "O":
        return compare(some, others)
    unlike, beyond = np.zeros((2, len(some)), np.bool_)
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for row, (one, other) in enumerate(zip(some, others, strict=True)):
        if isinstance(one, np.ndarray) and one.shape == np.shape(other):
            by_shape.setdefault(one.shape, []).append(row)
        else:
            unlike[row] = beyond[row] = isinstance(one, np.ndarray) or one != other
    for at in by_shape.values():  # as rows of a fixed size
        one, other = (np.stack([values[row] for row in at]) for values in (some, others))
        if dtype is not None:
            with np.errstate(over="ignore"):
                one, other = one.astype(dtype), other.astype(dtype)
        unlike[at], beyond[at] = compare(one, other)
    return unlike, beyond


def empty_texts(field: Field, rows: int) -> Objects:
    """Return as many rows of a text field, in the place of a text that an episode lacks."""
    return objects(["" if field.text == "str" else b""] * rows)


def whole_texts(spec: Spec, obs: Any, action: Any, fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts that are UTF-8, not empty, and the same in all rows of an episode, by field."""
    rows: dict[str, Sequence[Any]] = {**spec.split_obs(obs), **spec.split_action(action), **fields}
    texts = [name for name, field in spec.fields.items() if field.text is not None]
    whole = {name: rows[name][0] for name in texts if len(set(rows[name])) == 1 and rows[name][0]}
    return {name: text_rows(name, [one], str)[0] for name, one in whole.items() if text_type([one]) is str}


def annotation_of(spec: Spec, name: str) -> str:
    """Return the annotation's name for the text of a field: ``observation.mission`` for ``obs.mission``."""
    if name in spec.obs_names:
        return ".".join(("observation", *name_path("obs", name)))
    kept = name.removeprefix("info.")
    return kept if usable_name(kept) == name else name
