"""Annotations of a store, a lane or an episode, as JSON: in ``store.json``, and in the metadata of segments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sharpwave.errors import DamagedError
from sharpwave.json_values import MAX_DEPTH, encode, is_plain
from sharpwave.validation import MAX_LANES

MAX_EPISODE_BYTES = 1 << 12
"""Limit for one episode's annotations, as JSON."""
MAX_STORE_BYTES = 1 << 19
"""Limit for the annotations of the store and of all its lanes together, as in ``store.json``."""
MAX_METADATA_BYTES = 1 << 14
"""Limit for the metadata of one segment, as JSON."""

Episodes = Sequence[tuple[int, Mapping[str, Any]]]
"""Annotations of the episodes in a segment, each with the row of the episode's first step there."""

BROKEN_OFF = "broken_off"
"""Annotation of an episode that its program ended early, as runs do at a checkpoint, or that an error of the
environment ended: true. The store has it as truncated, but what its rewards sum to is no return of the environment."""


def merge(before: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``before`` updated by ``values``; ``None`` removes a key."""
    return {key: value for key, value in {**before, **values}.items() if value is not None}


class Annotations:
    """Annotations of a store and of its lanes.

    Attributes:
        store: the store's own. ``lanes``: annotations by lane, if any.
        changed: whether they changed since they were last saved; saving resets it.
        nbytes: size of all annotations in ``store.json``.
    """

    def __init__(self, said: Any = None) -> None:
        """Read the result of ``manifest``; ``None``: no annotations.  Raises: ValueError: invalid value."""
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
            TypeError, ValueError: as ``encode``, or beyond the limit; nothing changed.
        """
        before = self.of(lane)
        merged = merge(before, encode(values, "annotate"))
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


class Metadata(NamedTuple):
    """Contents of a segment's metadata: annotations of episodes; and, in an open segment, of the episode that begins
    after it."""

    episodes: tuple[tuple[int, dict[str, Any]], ...] = ()
    following: Mapping[str, Any] = {}


def pack_metadata(episodes: Episodes, following: Mapping[str, Any] | None = None) -> bytes:
    """Return the JSON that ``read_metadata`` reads; no bytes where there is no metadata."""
    said: dict[str, Any] = {}
    if episodes:
        said["episodes"] = [[row, dict(values)] for row, values in episodes]
    if following:
        said["following"] = dict(following)
    return json.dumps(said, separators=(",", ":")).encode() if said else b""


def read_metadata(packed: bytes, steps: int) -> Metadata:
    """Parse the metadata of a segment of ``steps`` steps. Unknown keys are ignored.

    Raises:
        DamagedError: naming the damage. No input raises another error, or takes more than 100 times its bytes of
        memory.
    """
    if not packed:
        return Metadata()
    try:
        said = json.loads(packed)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"segment: metadata: {error or 'nested too deep'}") from error
    if not isinstance(said, dict) or not is_plain(said, MAX_DEPTH + 3):
        raise DamagedError("segment: metadata: expected an object of plain values, not nested too deep")
    episodes, following = said.get("episodes", []), said.get("following", {})
    if not isinstance(following, dict):
        raise DamagedError("segment: metadata: following, expected an object")
    if not isinstance(episodes, list) or not all(map(_is_episode, episodes)):
        raise DamagedError("segment: metadata: episodes, expected a row and an object for each")
    rows: list[int] = [row for row, _ in episodes]
    if rows != sorted(set(rows)) or (rows and not 0 <= rows[0] <= rows[-1] < max(1, steps)):
        raise DamagedError(f"segment: metadata: episodes of rows {rows[:8]}, expected rising numbers below {steps}")
    return Metadata(tuple((row, values) for row, values in episodes), following)


def _is_episode(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and type(value[0]) is int and isinstance(value[1], dict)
