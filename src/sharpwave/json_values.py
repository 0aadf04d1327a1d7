"""Plain values that users attach to stored data, as JSON.

They are strings, numbers, booleans, ``None``, bytes, and lists and dicts of these. JSON has no bytes: they are stored
as ``{"$bytes": BASE64}``; other keys that begin with ``$`` are reserved.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

MAX_DEPTH = 8
"""Levels of nested lists and dicts."""
_BYTES = "$bytes"
_INTEGERS = range(-(1 << 63), 1 << 64)


def sealed(values: Mapping[str, Any], indent: int) -> bytes:
    """Return the only bytes in which a file has ``values`` as JSON, with their ``checksum`` as the last entry."""
    said = {name: value for name, value in values.items() if name != "checksum"}
    checksum = zlib.crc32(json.dumps(said, separators=(",", ":")).encode())
    return json.dumps({**said, "checksum": f"{checksum:08x}"}, indent=indent).encode() + b"\n"


def encode(values: Any, what: str) -> dict[str, Any]:
    """Return a user's dict as plain JSON values; ``what`` begins the message of an error.

    Raises:
        TypeError, ValueError: naming the key whose value does not fit.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"{what}: got {type(values).__name__}, expected a dict such as {{'env': 'ALE/Pong-v5'}}")
    found: dict[str, Any] = _encode(what, "", values, MAX_DEPTH)
    return found


def _encode(what: str, where: str, value: Any, depth: int) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        if value not in _INTEGERS:
            raise ValueError(f"{what}: {where} is an integer of more than 64 bits; give it as a string")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{what}: {where} is {value}, expected a finite number, or a string")
        return value
    if isinstance(value, (bytes, bytearray)):
        return {_BYTES: base64.b64encode(value).decode()}
    if not isinstance(value, (Mapping, list, tuple)):
        raise TypeError(
            f"{what}: {where} is {type(value).__name__}, expected a string, a number, a boolean, None, bytes, or a "
            "list or dict of those"
        )
    if not depth:
        raise ValueError(f"{what}: {where} is nested deeper than {MAX_DEPTH} levels")
    if not isinstance(value, Mapping):
        return [_encode(what, f"{where}[{i}]", one, depth - 1) for i, one in enumerate(value)]
    for key in value:
        if not isinstance(key, str) or key.startswith("$"):
            inside = f" in {where}" if where else ""
            raise ValueError(f"{what}: got key {key!r}{inside}, expected a string that does not begin with '$'")
    return {key: _encode(what, f"{where}.{key}".lstrip("."), one, depth - 1) for key, one in value.items()}


def decode(value: Any) -> Any:
    """Return the values that :func:`encode` encoded. A ``$bytes`` value that is not base64 stays as it is."""
    if isinstance(value, list):
        return [decode(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_BYTES} and isinstance(value[_BYTES], str):
        try:
            return base64.b64decode(value[_BYTES], validate=True)
        except ValueError:
            return value
    return {key: decode(one) for key, one in value.items()}


def is_plain(value: Any, depth: int) -> bool:
    """Return whether parsed JSON is nested in at most ``depth`` levels, and all its numbers are finite."""
    if isinstance(value, float):
        return math.isfinite(value)
    if not isinstance(value, (list, dict)):
        return True
    parts = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(is_plain(one, depth - 1) for one in parts)
