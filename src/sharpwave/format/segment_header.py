"""Header of a segment: the lane and number of its steps, the places of its columns, their numbers of rows, features.

Features are requirements for readers beyond the format's version, and properties that readers may ignore. A header has
a word of 64 bits: a reader refuses a segment with an unknown bit among the lower 32, and ignores the upper 32.
``store.json`` names the required features under ``requires``, so that the refusal can name them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharpwave.arrays import Bytes
from sharpwave.errors import DamagedError, NewerVersionError
from sharpwave.spec import START, TERMINATED, TRUNCATED, Spec

REQUIRED = (1 << 32) - 1
"""Bits of features without which a segment would be misread."""
SPARSE_FIELDS = 1 << 0
"""Some columns have fewer rows than steps."""
NESTED = 1 << 1
"""Names of columns are paths through nested dicts and tuples."""
RAGGED_FIELDS = 1 << 2
"""Some columns have rows of any length."""
PACKED_STEPS = 1 << 3
"""Flags, rewards or both are packed."""
SHARED_VALUES = 1 << 4
"""Some columns have keys of values that are stored beside the segments."""
COLUMN_CHECKSUMS = 1 << 32
"""The part before the fields' columns, and each field's column, ends with a checksum of its own."""
NAMES = {
    SPARSE_FIELDS: "sparse fields",
    NESTED: "nested observations",
    RAGGED_FIELDS: "ragged fields",
    PACKED_STEPS: "packed steps",
    SHARED_VALUES: "shared values",
    COLUMN_CHECKSUMS: "column checksums",
}
"""Names in ``store.json``."""
DELETED_STEPS = "deleted steps"
"""Another name there, of no segment's feature: steps were deleted that segments still have."""


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
        lane, first_step: the steps' lane, and the lane's number of the first step, counted from 0.
        steps: number of steps, and rows of every column except columns of observations and of sparse fields.
        frames: rows of the observation's columns: ``context`` frames before the first step, one frame a step, the final
            observation after each step that ended an episode, and the successor's frame after the last step if it
            did not.
        nbytes: size of the whole segment, checksum included.
        placed: the columns.
        episode_step: number of the first step in its episode, counted from 0.
        features: bits, of ``NAMES`` and later ones.
        metadata: JSON; see ``sharpwave.format.annotations``.
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


def sparse_rows(flags: Bytes, episode_step: int, every: int) -> int:
    """Return the rows of a column that keeps every ``every``-th step of each episode.

    Beside the segment's own kept steps it has the last one kept before its first step, unless that step is kept itself.
    So the row of a step is the last one up to it, and no step needs another segment.

    Args:
        flags: uint8 [steps].
        episode_step: number of its first step in its episode.
    """
    if not len(flags):
        return int(episode_step % every != 0)
    begins = np.flatnonzero(flags & START)
    begins = begins if begins.size and begins[0] == 0 else np.concatenate([[0], begins])
    first = np.zeros(len(begins), np.int64)
    first[0] = 0 if flags[0] & START else episode_step
    lengths = np.diff(np.concatenate([begins, [len(flags)]]))
    return int(((first + lengths - 1) // every - first // every + 1).sum())


def check_rows(header: Header, spec: Spec, flags: Bytes, *, sealed: bool) -> None:
    """Refuse columns with a row too few or too many: frames of a step, of an episode's end or of the last successor;
    values of a sparse field.  Raises: DamagedError."""
    for column, field in zip(header.placed[-len(spec.fields) :], spec.fields.values(), strict=True):
        if field.every is None:
            continue
        expected = sparse_rows(flags, header.episode_step, field.every)
        if column.rows != expected:
            raise DamagedError(f"segment: {column.rows:,} rows of a sparse field, expected {expected:,}")
    if not header.steps:
        if sealed:
            raise DamagedError("segment: 0 steps, expected at least 1")
        if header.frames - header.context not in (0, 1):
            raise DamagedError(
                f"{header.frames:,} frames, expected {header.context:,} of context, and at most one more"
            )
        return
    ended = flags & (TERMINATED | TRUNCATED) != 0
    goes_on = not ended[-1]
    expected = header.context + header.steps + int(ended.sum()) + goes_on
    # The successor of an open segment's last step may not be known yet.
    if header.frames != expected and (sealed or header.frames != expected - goes_on):
        raise DamagedError(f"{header.frames:,} frames, expected {expected:,} for its steps and ends of episodes")


def features_of(spec: Spec) -> int:
    """Return the features that every segment of a store with this schema has."""
    sparse, ragged = SPARSE_FIELDS if spec.sparse_names else 0, RAGGED_FIELDS if spec.ragged_names else 0
    return sparse | ragged | (NESTED if spec.nested else 0) | (SHARED_VALUES if spec.shared_names else 0)


def required_names(spec: Spec, on_disk: bool) -> list[str]:
    """Return the names of the features that a reader of such a store must support."""
    word = features_of(spec) | (PACKED_STEPS if on_disk else 0)
    return [name for bit, name in NAMES.items() if bit & REQUIRED and word & bit]


def requiring(manifest: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the content of ``store.json`` that requires a further feature."""
    names = manifest.get("requires", [])
    return {**manifest, "requires": names if name in names else [*names, name]}


def check_required(word: int, what: str) -> None:
    """Refuse a word with a required feature unknown to this release.  Raises: NewerVersionError."""
    unknown = word & REQUIRED & ~sum(NAMES)
    if unknown:
        bits = ", ".join(str(bit) for bit in range(32) if unknown >> bit & 1)
        raise NewerVersionError(
            f"{what}: requires the feature of bit {bits}, which this release does not know; read it with a newer one"
        )


def check_names(names: Iterable[str], what: str) -> None:
    """Refuse a name unknown to this release.  Raises: NewerVersionError."""
    unknown = [name for name in names if name not in (*NAMES.values(), DELETED_STEPS)]
    if unknown:
        raise NewerVersionError(
            f"{what}: requires {unknown[0]!r}, which this release does not know; read it with a newer one"
        )
