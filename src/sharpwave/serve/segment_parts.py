"""Segments as parts of a message, with the dictionaries and the shared values that they refer to.

Part ``segment:K`` is the K-th of the head's number of ``segments``; its ``keys`` name their dictionaries, each a part
``dictionary:KEY`` of the first message that needs it. Shared values are in one part, beside their keys and lengths,
however many there are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from sharpwave.codecs.shared import HEAD, IS_SHARED, KEY_BYTES, bytes_of, number_of
from sharpwave.log.remote_segments import Copy
from sharpwave.segment_writer import SealedSegment
from sharpwave.serve.wire import Part, WireError, array_in

PREFIX = "dictionary:"
VALUES, KEYS, LENGTHS = "values", "value_keys", "value_bytes"
"""Names of the parts: bytes, uint8 [n, 16], and int64 [n]."""
MAX_VALUES = 1 << 20
"""Limit of the values of a message."""


def parts_of(
    segments: Sequence[Copy | SealedSegment], sent: Collection[int] = ()
) -> tuple[dict[str, Any], dict[str, Part]]:
    """Return the head and the parts of a message of segments.

    Args:
        sent: keys of the dictionaries that the receiver has.

    Raises: ValueError: too many shared values.
    """
    parts: dict[str, Part] = {f"segment:{k}": one.packed for k, one in enumerate(segments)}
    tables = {id(one.dictionaries): one.dictionaries for one in segments}  # segments of a message have the same one
    needed = {key: data for table in tables.values() for key, data in table.items()}
    own = {key: data for key, data in needed.items() if not key & IS_SHARED}
    parts |= {f"{PREFIX}{key:x}": data for key, data in own.items() if key not in sent}
    parts |= value_parts(needed)
    return {"segments": len(segments), "keys": [f"{key:x}" for key in own]}, parts


def dictionaries_in(parts: Mapping[str, Any]) -> dict[int, bytes]:
    """Return the dictionaries of a message, by key."""
    return {int(name[len(PREFIX) :], 16): bytes(part) for name, part in parts.items() if name.startswith(PREFIX)}


def segments_in(head: Mapping[str, Any], parts: Mapping[str, Any], dictionaries: Mapping[int, bytes]) -> list[Copy]:
    """Return the segments of a message. They have one table of their ``dictionaries`` and shared values: both may be
    many.

    Raises: LookupError, ValueError: one is missing, or its key is none.  WireError: a malformed head; as ``values_in``.
    """
    segments, keys = head.get("segments", 0), head.get("keys", [])
    if type(segments) is not int or not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise WireError(f"{segments!r:.100} segments with dictionaries {keys!r:.100}, expected a number and a list")
    table = values_in(parts)
    table |= {key: dictionaries[key] for key in (int(one, 16) for one in keys)}
    return [Copy(bytes(parts[f"segment:{k}"]), table) for k in range(segments)]


def value_parts(dictionaries: Mapping[int, bytes]) -> dict[str, Part]:
    """Return the parts with the shared values among a message's ``dictionaries``, by key.

    Raises: ValueError: too many.
    """
    values = {key: data for key, data in dictionaries.items() if key & IS_SHARED}
    if len(values) > MAX_VALUES:
        raise ValueError(
            f"a message of {len(values):,} shared values, expected at most {MAX_VALUES:,}; lower segment_steps="
        )
    if not values:
        return {}
    keys = np.frombuffer(b"".join(map(bytes_of, values)), np.uint8).reshape(-1, KEY_BYTES)
    lengths = np.array([len(data) for data in values.values()], np.int64)
    return {KEYS: keys, LENGTHS: lengths, VALUES: b"".join(values.values())}


def values_in(parts: Mapping[str, Any]) -> dict[int, bytes]:
    """Return the shared values of a message, by key; their content is not checked.  Raises: WireError."""
    if KEYS not in parts:
        return {}
    keys, content = array_in(parts, KEYS, np.uint8, -1, KEY_BYTES), parts.get(VALUES)
    if len(keys) > MAX_VALUES:
        raise WireError(f"{KEYS}: {len(keys):,} shared values, expected at most {MAX_VALUES:,}")
    lengths = array_in(parts, LENGTHS, np.int64, len(keys))
    if not isinstance(content, memoryview):
        raise WireError(f"{VALUES}: expected bytes")
    if lengths.size and not HEAD.size <= lengths.min() <= lengths.max() <= len(content):
        raise WireError(f"{LENGTHS}: from {lengths.min()} to {lengths.max()}, expected {HEAD.size} to {len(content)}")
    if int(lengths.sum()) != len(content):
        raise WireError(f"{VALUES}: {len(content):,} bytes, expected {int(lengths.sum()):,}")
    numbers = [number_of(key.tobytes()) for key in keys]
    bounds = pairwise(accumulate(lengths.tolist(), initial=0))
    return {number: bytes(content[begin:end]) for number, (begin, end) in zip(numbers, bounds, strict=True)}
