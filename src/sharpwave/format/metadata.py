"""A segment's metadata, as JSON: annotations of the episodes in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sharpwave.errors import DamagedError
from sharpwave.json_values import MAX_DEPTH, is_plain

MAX_METADATA_BYTES = 1 << 14
"""Limit for one segment, as JSON."""

Episodes = Sequence[tuple[int, Mapping[str, Any]]]
"""Annotations of the episodes in a segment, each with the row of the episode's first step there."""


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
        DamagedError: naming what is wrong. No input raises anything else, or takes more than 100 times its bytes of
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
