"""Header of a segment: whose steps it holds, how many, and where its columns lie."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Placed:
    """Column's location in a segment's bytes."""

    codec: int
    rows: int
    offset: int
    nbytes: int
    dictionary: int


@dataclass(frozen=True)
class Header:
    """Parsed header of a segment.

    Attributes:
        schema: ``Spec.schema_hash`` of the store that wrote it.
        lane, first_step: the lane of the steps, and the lane's number of the first of them, counted from 0.
        steps: number of steps, and rows of every column but those of observations and of sparse fields.
        frames: rows of the observation's columns: ``context`` frames before the first step, one frame a step, the final
            observation after each step that ended an episode, and the successor's frame after the last step if it
            did not.
        nbytes: of the whole segment, checksum included.
        placed: the columns.
        episode_step: number of the first step in its episode, counted from 0.
        features: see ``sharpwave.format.features``.
        metadata: JSON; see ``sharpwave.format.metadata``.
    """

    schema: int
    lane: int
    first_step: int
    steps: int
    frames: int
    context: int
    nbytes: int
    placed: tuple[Placed, ...]
    episode_step: int
    features: int = 0
    metadata: bytes = b""
