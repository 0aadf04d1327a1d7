"""Annotations of episodes: held beside open segments until they are sealed, and read out of sealed ones."""

from __future__ import annotations

import json
from typing import Any

from sharpwave.arrays import Bytes
from sharpwave.format.annotations import MAX_EPISODE_BYTES, MAX_METADATA_BYTES, merge, pack_metadata, read_metadata
from sharpwave.format.segment_header import Header
from sharpwave.json_values import encode
from sharpwave.spec import START

Values = dict[str, Any]

_ENTRY_BYTES = 24
"""Upper bound of the bytes of a metadata entry beside its values."""
CROWDED_BYTES = MAX_METADATA_BYTES - 2 * (MAX_EPISODE_BYTES + _ENTRY_BYTES)
"""An open segment with more is sealed before its lane's next step, so that an episode that begins there has room."""


class EpisodeAnnotations:
    """Annotations of episodes with steps in open segments, and of the episodes that begin next, by lane and first step.

    Attributes:
        nbytes: size of all annotations, as JSON.
        heavy: lanes with so many annotations that their open segments may lack room.
    """

    def __init__(self) -> None:
        self._lanes: dict[int, dict[int, tuple[Values, int]]] = {}  # with the bytes that each takes
        self.nbytes = 0
        self.heavy: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def has(self, lane: int) -> bool:
        """Return whether any of the lane's episodes has annotations."""
        return lane in self._lanes

    def update(self, lane: int, first: int, values: Any) -> None:
        """Add to, or replace by key, the annotations of the episode whose first step is the lane's step ``first``.

        Raises:
            TypeError, ValueError: as ``encode``, or the annotations are too large; then nothing changed.
        """
        merged = merge(self.of(lane, first), encode(values, "annotate"))
        nbytes = len(json.dumps(merged, separators=(",", ":")))
        if nbytes > MAX_EPISODE_BYTES:
            raise ValueError(
                f"annotate: {nbytes:,} bytes for one episode, expected at most {MAX_EPISODE_BYTES:,}; keep large texts "
                "in a file, and its name here"
            )
        self._drop(lane, lambda one: one == first)
        if merged:
            self._add(lane, first, merged, nbytes + _ENTRY_BYTES)

    def of(self, lane: int, first: int) -> Values:
        """Return the annotations of an episode, encoded."""
        return self._lanes.get(lane, {}).get(first, ({}, 0))[0]

    def crowded(self, lane: int, end: int) -> bool:
        """Return whether the lane's open segment, which ends before step ``end``, should be sealed for their size."""
        return sum(size for first, (_, size) in self._lanes.get(lane, {}).items() if first < end) > CROWDED_BYTES

    def keep_from(self, lane: int, first: int) -> None:
        """Drop annotations of episodes that began before the lane's step ``first``: sealed segments have them."""
        self._drop(lane, lambda one: one < first)

    def drop(self, lane: int, first: int) -> None:
        """Drop the annotations of an episode that has lost all its steps."""
        self._drop(lane, lambda one: one == first)

    def update_encoded(self, lane: int, first: int, values: Values) -> None:
        """Restore the annotations of an episode from a file."""
        self._add(lane, first, values, len(json.dumps(values, separators=(",", ":"))) + _ENTRY_BYTES)

    def _add(self, lane: int, first: int, values: Values, nbytes: int) -> None:
        self._lanes.setdefault(lane, {})[first] = values, nbytes
        self.nbytes += nbytes
        self._weigh(lane)

    def _weigh(self, lane: int) -> None:
        if sum(size for _, size in self._lanes.get(lane, {}).values()) > CROWDED_BYTES:
            self.heavy.add(lane)
        else:
            self.heavy.discard(lane)

    def _drop(self, lane: int, chosen: Any) -> None:
        episodes = self._lanes.get(lane)
        if episodes is None:
            return
        for first in [one for one in episodes if chosen(one)]:
            self.nbytes -= episodes.pop(first)[1]
        if not episodes:
            del self._lanes[lane]
        self._weigh(lane)

    def pack(self, lane: int, first_step: int, rows: int, *, with_next: bool = False) -> bytes:
        """Return the metadata of the lane's open segment, with ``rows`` steps from ``first_step`` on.

        Args:
            with_next: include the episode that begins after it.
        """
        if lane not in self._lanes:
            return b""
        here = self.here(lane, first_step, rows)
        return pack_metadata(here, following=self.of(lane, first_step + rows) if with_next else {})

    def here(self, lane: int, first_step: int, rows: int) -> list[tuple[int, Values]]:
        """Return the annotations of the episodes with some of ``rows`` steps from the lane's step ``first_step`` on,
        each with the row of the episode's first step among them."""
        episodes = self._lanes.get(lane, {})
        return [
            (max(0, first - first_step), episodes[first][0]) for first in sorted(episodes) if first < first_step + rows
        ]

    def load(self, lane: int, header: Header, flags: Bytes) -> None:
        """Restore the result of ``pack`` for the lane's open segment."""
        said = read_metadata(header.metadata, header.steps)
        for row, values in said.episodes:
            began_before = not row and not (header.steps and flags[0] & START)
            first = header.first_step - header.episode_step if began_before else header.first_step + row
            self.update_encoded(lane, first, values)
        if said.following:
            self.update_encoded(lane, header.first_step + header.steps, dict(said.following))
