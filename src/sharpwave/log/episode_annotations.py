"""Annotations of episodes: kept beside open segments until they are sealed, and read out of sealed ones."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.format.annotations import MAX_EPISODE_BYTES, merge
from sharpwave.format.metadata import MAX_METADATA_BYTES, pack_metadata, read_metadata
from sharpwave.format.segment_header import Header
from sharpwave.json_values import encode
from sharpwave.spec import START

Values = dict[str, Any]

_ENTRY_BYTES = 24
"""What an entry of the metadata takes beside its values, at most."""
CROWDED_BYTES = MAX_METADATA_BYTES - 2 * (MAX_EPISODE_BYTES + _ENTRY_BYTES)
"""An open segment with more is sealed before its lane's next step, so that an episode that begins there has room."""


class EpisodeAnnotations:
    """Annotations of episodes with steps in open segments, and of those that begin next, by lane and first step.

    Attributes:
        nbytes: of all of them, as JSON.
    """

    def __init__(self) -> None:
        self._lanes: dict[int, dict[int, tuple[Values, int]]] = {}  # with the bytes that each takes
        self.nbytes = 0

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def has(self, lane: int) -> bool:
        """Return whether there are any of the lane's episodes."""
        return lane in self._lanes

    def update(self, lane: int, first: int, values: Any) -> None:
        """Add to, or replace by key, what was said of the episode whose first step is the lane's step ``first``.

        Raises:
            TypeError, ValueError: as :func:`~sharpwave.json_values.encode`, or there is too much of it; then
                nothing changed.
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
            self._lanes.setdefault(lane, {})[first] = merged, nbytes + _ENTRY_BYTES
            self.nbytes += nbytes + _ENTRY_BYTES

    def of(self, lane: int, first: int) -> Values:
        """Return what was said of that episode, encoded."""
        return self._lanes.get(lane, {}).get(first, ({}, 0))[0]

    def crowded(self, lane: int, end: int) -> bool:
        """Return whether the lane's open segment, which ends before step ``end``, is to be sealed for them."""
        return sum(size for first, (_, size) in self._lanes.get(lane, {}).items() if first < end) > CROWDED_BYTES

    def keep_from(self, lane: int, first: int) -> None:
        """Drop those of episodes that began before the lane's step ``first``: their segments have them."""
        self._drop(lane, lambda one: one < first)

    def drop(self, lane: int, first: int) -> None:
        """Drop that of an episode which has lost all its steps."""
        self._drop(lane, lambda one: one == first)

    def move(self, lane: int, before: int, now: int) -> None:
        """Let the episode that is to begin with the lane's step ``before`` begin with ``now``."""
        if self._lanes and (values := self.of(lane, before)):
            self._drop(lane, lambda one: one == before)
            self.update_encoded(lane, now, values)

    def update_encoded(self, lane: int, first: int, values: Values) -> None:
        """Put back what a file said of an episode."""
        nbytes = len(json.dumps(values, separators=(",", ":"))) + _ENTRY_BYTES
        self._lanes.setdefault(lane, {})[first] = values, nbytes
        self.nbytes += nbytes

    def _drop(self, lane: int, chosen: Any) -> None:
        episodes = self._lanes.get(lane)
        if episodes is None:
            return
        for first in [one for one in episodes if chosen(one)]:
            self.nbytes -= episodes.pop(first)[1]
        if not episodes:
            del self._lanes[lane]

    def pack(self, lane: int, first_step: int, rows: int, *, with_next: bool = False) -> bytes:
        """Return the metadata of the lane's open segment, with ``rows`` steps from ``first_step`` on.

        Args:
            with_next: also of the episode that begins behind it.
        """
        episodes = self._lanes.get(lane)
        if episodes is None:
            return b""
        end = first_step + rows
        here = [(max(0, first - first_step), episodes[first][0]) for first in sorted(episodes) if first < end]
        return pack_metadata(here, following=self.of(lane, end) if with_next else {})

    def load(self, lane: int, header: Header, flags: npt.NDArray[np.uint8]) -> None:
        """Put back what :meth:`pack` gave of the lane's open segment."""
        said = read_metadata(header.metadata, header.steps)
        for row, values in said.episodes:
            began_before = not row and not (header.steps and flags[0] & START)
            first = header.first_step - header.known_episode_step if began_before else header.first_step + row
            self.update_encoded(lane, first, values)
        if said.following:
            self.update_encoded(lane, header.first_step + header.steps, dict(said.following))
