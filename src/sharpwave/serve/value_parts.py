"""Parts of a message with shared values: all in one, beside their keys and lengths, however many there are."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from sharpwave.codecs.shared import HEAD, IS_SHARED, KEY_BYTES, bytes_of, number_of
from sharpwave.serve.wire import Part, WireError, array_in

VALUES, KEYS, LENGTHS = "values", "value_keys", "value_bytes"
"""Names of the parts: bytes, uint8 [n, 16], and int64 [n]."""
MAX_VALUES = 1 << 20
"""Limit of the values of a message."""


def parts_of(dictionaries: Mapping[int, bytes]) -> dict[str, Part]:
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


def values_of(parts: Mapping[str, Any]) -> dict[int, bytes]:
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
