"""Annotations: what a user records about a store, a lane or an episode, as JSON.

Values are strings, numbers, booleans, ``None``, bytes, and lists and dicts of those. JSON has no bytes: they are stored
as ``{"$bytes": BASE64}``; other keys that begin with ``$`` are reserved.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sharpwave.validation import MAX_LANES

MAX_EPISODE_BYTES = 1 << 12
"""Limit for one episode's annotations, as JSON."""
MAX_STORE_BYTES = 1 << 19
"""Limit for the annotations of the store and of all its lanes together, as in ``store.json``."""
MAX_DEPTH = 8
"""Levels of nested lists and dicts."""
_BYTES = "$bytes"
_INTEGERS = range(-(1 << 63), 1 << 64)


def encode(values: Any) -> dict[str, Any]:
    """Return a user's dict as plain JSON values.

    Raises:
        TypeError, ValueError: naming the key whose value does not fit.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"annotate: got {type(values).__name__}, expected a dict such as {{'env': 'ALE/Pong-v5'}}")
    found: dict[str, Any] = _encode("", values, MAX_DEPTH)
    return found


def _encode(where: str, value: Any, depth: int) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        if value not in _INTEGERS:
            raise ValueError(f"annotate: {where} is an integer of more than 64 bits; give it as a string")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"annotate: {where} is {value}, expected a finite number, or a string")
        return value
    if isinstance(value, (bytes, bytearray)):
        return {_BYTES: base64.b64encode(value).decode()}
    if not isinstance(value, (Mapping, list, tuple)):
        raise TypeError(
            f"annotate: {where} is {type(value).__name__}, expected a string, a number, a boolean, None, bytes, or a "
            "list or dict of those"
        )
    if not depth:
        raise ValueError(f"annotate: {where} is nested deeper than {MAX_DEPTH} levels")
    if not isinstance(value, Mapping):
        return [_encode(f"{where}[{i}]", one, depth - 1) for i, one in enumerate(value)]
    for key in value:
        if not isinstance(key, str) or key.startswith("$"):
            inside = f" in {where}" if where else ""
            raise ValueError(f"annotate: got key {key!r}{inside}, expected a string that does not begin with '$'")
    return {key: _encode(f"{where}.{key}".lstrip("."), one, depth - 1) for key, one in value.items()}


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


def merge(before: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``before`` updated by ``values``; ``None`` removes a key."""
    return {key: value for key, value in {**before, **values}.items() if value is not None}


def is_plain(value: Any, depth: int) -> bool:
    """Return whether parsed JSON is nested in at most ``depth`` levels, and all its numbers are finite."""
    if isinstance(value, float):
        return math.isfinite(value)
    if not isinstance(value, (list, dict)):
        return True
    parts = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(is_plain(one, depth - 1) for one in parts)


class Annotations:
    """Annotations of a store and of its lanes.

    Attributes:
        store: the store's own. ``lanes``: by lane, where there are any.
        changed: whether they changed since they were last saved; whoever saves them resets it.
        nbytes: size of all of them in ``store.json``.
    """

    def __init__(self, said: Any = None) -> None:
        """Read what :meth:`manifest` returned; ``None``: no annotations.  Raises: ValueError: it is something else."""
        self.store: dict[str, Any] = {}
        self.lanes: dict[int, dict[str, Any]] = {}
        self.changed, self.nbytes = False, 0
        if said is None:
            return
        if not isinstance(said, dict) or said.keys() != {"store", "lanes"} or not is_plain(said, MAX_DEPTH + 2):
            raise ValueError("annotations: expected an object with 'store' and 'lanes', of plain values")
        store, lanes = said["store"], said["lanes"]
        if not isinstance(store, dict) or not isinstance(lanes, dict):
            raise ValueError("annotations: expected an object for 'store' and one for 'lanes'")
        for number, values in lanes.items():
            if not (number.isdecimal() and number == str(int(number)) and int(number) < MAX_LANES):
                raise ValueError(f"annotations of lane {number[:20]!r}, expected a number below {MAX_LANES}")
            if not isinstance(values, dict):
                raise ValueError(f"annotations of lane {number}: {type(values).__name__}, expected an object")
        self.store, self.lanes = store, {int(number): values for number, values in lanes.items()}
        self.nbytes = sum(map(_size, (store, *lanes.values())))

    def update(self, lane: int | None, values: Any) -> None:
        """Add to, or replace by key, the annotations of a lane, or (``None``) of the store.

        Raises:
            TypeError, ValueError: as :func:`encode`, or beyond the limit; nothing changed.
        """
        before = self.of(lane)
        merged = merge(before, encode(values))
        nbytes = self.nbytes + _size(merged) - _size(before)
        if nbytes > max(MAX_STORE_BYTES, self.nbytes):
            raise ValueError(
                f"annotate: {nbytes:,} bytes for the store and its lanes, expected at most {MAX_STORE_BYTES:,} in all; "
                "keep large texts in a file, and its name here"
            )
        if merged == before:
            return
        if lane is None:
            self.store = merged
        elif merged:
            self.lanes[lane] = merged
        else:
            del self.lanes[lane]
        self.nbytes, self.changed = nbytes, True

    def of(self, lane: int | None) -> dict[str, Any]:
        """Return the annotations of a lane, or (``None``) of the store, encoded."""
        return self.store if lane is None else self.lanes.get(lane, {})

    def manifest(self) -> dict[str, Any]:
        """Return the entry of ``store.json``; an empty dict without annotations."""
        if not self.store and not self.lanes:
            return {}
        lanes = {str(lane): self.lanes[lane] for lane in sorted(self.lanes)}
        return {"annotations": {"store": self.store, "lanes": lanes}}


def _size(values: dict[str, Any]) -> int:
    """Return the bytes that values take in ``store.json``, indented three levels; 0 for an empty dict."""
    text = json.dumps(values, indent=1) if values else ""
    return len(text) + 4 * (text.count("\n") + 1) + 16 if values else 0
