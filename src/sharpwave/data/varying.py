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

    Of texts it is ``str``, also where they are no UTF-8 (``text_type_of``).
    """
    inner, dtype = array.shape[1:], array.dtype
    if dtype.kind in "buif":
        return inner, dtype
    metadata: Mapping[str, Any] = dtype.metadata or {}
    of_any_length = metadata.get("vlen")  # as h5py describes it
    if inner or not array.shape:
        return None
    if dtype.kind in "SU" or of_any_length in (str, bytes):
        return (), str
    if isinstance(of_any_length, np.dtype) and of_any_length.kind in "buif":
        return (None,), of_any_length
    return None


def read_rows(what: str, array: Array, begin: int, end: int, field: Field) -> npt.NDArray[Any]:
    """Read an array's rows as those of a field.  Raises: ValueError."""
    found = array.rows(begin, end)
    if field.text is not None:
        return text_rows(what, found, str if field.text == "str" else bytes)
    return objects([np.ascontiguousarray(one, field.np_dtype) for one in found]) if field.ragged else found


def text_type_of(array: Array) -> TextType:
    """Return ``str`` if all texts of an array are UTF-8, else ``bytes``. Cost: it is read."""
    each = max(1, PART_BYTES // array.dtype.itemsize)
    parts = (array.rows(begin, min(begin + each, array.shape[0])) for begin in range(0, array.shape[0], each))
    return text_type(one for part in parts for one in part)


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


def differing(some: npt.NDArray[Any], others: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return which rows differ, and which by more than rounding, as ``compare``; rows of objects must be equal."""
    if some.dtype.kind != "O":
        return compare(some, others)
    unlike = np.array([not np.array_equal(a, b) for a, b in zip(some, others, strict=True)], np.bool_)
    return unlike, unlike


def whole_texts(spec: Spec, obs: Any, action: Any, fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the strings that are the same in all rows of an episode, by field."""
    rows: dict[str, Sequence[Any]] = {**spec.split_obs(obs), **spec.split_action(action), **fields}
    strings = [name for name, field in spec.fields.items() if field.text == "str"]
    return {name: rows[name][0] for name in strings if len(set(rows[name])) == 1}


def annotation_of(spec: Spec, name: str) -> str:
    """Return the annotation's name for the text of a field: ``observation.mission`` for ``obs.mission``."""
    if name in spec.obs_names:
        return ".".join(("observation", *name_path("obs", name)))
    kept = name.removeprefix("info.")
    return kept if usable_name(kept) == name else name
