"""Layout of segments, from the spec: the places of an open segment's columns, and their memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from sharpwave.arrays import Ints
from sharpwave.codecs.ragged_rows import OVERHEAD_BYTES
from sharpwave.format import segment
from sharpwave.format.annotations import MAX_METADATA_BYTES
from sharpwave.format.segment import FIRST_FIELD
from sharpwave.memory.address_space import PAGE
from sharpwave.memory.arena import ALIGNMENT, rounded
from sharpwave.memory.segment_index import LEAF_MASK
from sharpwave.spec import Field, Spec

DEFAULT_STRIDE, SHORT_STRIDE = 128, 64
"""Steps in a segment: the default, and the number for a store on disk or for large steps. Sampling an item from disk
reads its whole segment for a few frames of it. A lane's open segment of large steps takes half the memory; games'
frames take at most 15 % more, mostly 5 (``benchmarks/codec_sizes.py --segments``)."""
MAX_RAGGED_RESERVE = 1 << 40
"""Limit of the address space that is reserved because rows may have their greatest lengths."""
LARGE_STEP_BYTES = 4 << 10
MIN_CHUNK_BYTES = 64 * 1024
"""Small segments fill a chunk but for part of one."""


def default_stride(step_bytes: int, on_disk: bool) -> int:
    """Return the steps in a segment of steps of ``step_bytes``."""
    return SHORT_STRIDE if on_disk or step_bytes >= LARGE_STEP_BYTES else DEFAULT_STRIDE


class SegmentLayout:
    """Geometry of a store's segments, with or without a disk.

    Attributes:
        spec: schema of a step.
        stride: limit of steps in a segment. ``max_frames``: limit of rows of an observation's column.
        names: of the columns: flags, reward and the fields.
        sizes: int64 [columns], bytes of a row.
        limits: limit of rows, by column.
        obs_columns, step_columns, sparse_columns: numbers of the columns with a row a frame, of the fields with a row a
            step, and of sparse fields. ``every``: of the latter.
        ragged_columns: of ragged fields. ``rooms``: limits of the bytes of their values in a segment.
        shared_columns: of shared values' keys.
        column_starts: int64 [columns], offsets of an open segment's columns in its range of the arena.
        open_bytes: of an open segment. ``chunk_bytes``: of a chunk of the arena, and of the largest sealed segment.
        spine_bytes: of flags and rewards, which stay in memory while the segment is uncached; 0 without a disk.
    """

    def __init__(self, spec: Spec, stride: int, on_disk: bool) -> None:
        self.spec, self.stride, self.max_frames = spec, stride, max_rows(spec, stride)
        self.names = names = ("flags", "reward", *spec.fields)
        self.sizes: Ints = np.array([1, 4, *(field.row_bytes for field in spec.columns.values())], np.int64)
        self.limits = limits = column_limits(spec, stride)
        self.obs_columns = self._columns(spec.obs_names)
        self.step_columns = self._columns(name for name in spec.step_names if name not in spec.sparse_names)
        self.sparse_columns = self._columns(spec.sparse_names)
        self.every = tuple(spec.fields[name].every or 1 for name in spec.sparse_names)
        self.ragged_columns = ragged = self._columns(spec.kinds)
        self.shared_columns = self._columns(spec.shared_names)
        self.rooms = tuple(value_room(spec, names[c], limits[c]) for c in ragged)
        starts = np.cumsum([0, *(rounded(n * int(size), 64) for n, size in zip(limits, self.sizes, strict=True))])
        self.column_starts, self.open_bytes = starts[:-1].astype(np.int64), int(starts[-1])
        overhead = segment.HEADER.size + 64 * len(names) + MAX_METADATA_BYTES
        ragged_bytes = sum(self.rooms) + sum(OVERHEAD_BYTES + 16 * limits[c] for c in ragged)
        self.chunk_bytes = max(MIN_CHUNK_BYTES, rounded(self.open_bytes + overhead + ragged_bytes, PAGE))
        # With a disk, flags and rewards of all segments precede the chunks: sampleable steps, and their returns, are
        # known without reading.
        self.spine_bytes = rounded(5 * stride, ALIGNMENT) if on_disk else 0

    def _columns(self, names: Iterable[str]) -> list[int]:
        return [self.names.index(name) for name in names]

    @property
    def transition_bytes(self) -> int:
        """Upper bound of a batch's bytes for each transition: two observations, the step's fields, numbers."""
        fields = self.spec.fields
        return 108 + sum(
            field.typical_bytes * (2 * field.frames if name in self.spec.obs_names else 1)
            for name, field in fields.items()
        )

    @property
    def remedy(self) -> str:
        """Words of a memory error: how segments would take less."""
        fields = [name for name in self.spec.kinds if self.spec.fields[name].max_length is None]
        longest = f", or declare {', '.join(map(repr, fields))} with max_length=" if fields else ""
        return f"lower segment_steps= (now {self.stride}){longest}"

    def room(
        self, capacity: int | None, ram: int | None, disk_limit: int | None, lanes: int = 0, rows: int | None = None
    ) -> tuple[int, int]:
        """Return the bytes of address space and the slots that the limits (``None``: none) and ``lanes`` lanes require.

        Args:
            rows: steps at which their segments are sealed; ``None``: the stride.
        """
        limit = disk_limit if self.spine_bytes else ram
        columns = len(self.names) - len(self.sparse_columns)
        steps = LEAF_MASK if limit is None else limit // (columns * 4 + 16)  # the least that a step takes
        steps = steps if capacity is None else min(capacity, steps)
        reserve = ram
        if reserve is None:
            chunks = max(1024, 2 * self.open_chunks(lanes, self.chunk_bytes))
            fixed = int(2.2 * steps * self.spec.max_step_bytes)
            longest = int(2.2 * steps * sum(row_room(field) for field in self.spec.columns.values()))
            reserve = max(fixed, min(fixed + longest, MAX_RAGGED_RESERVE)) + chunks * self.chunk_bytes
        slots = 2 * -(-steps // (rows or self.stride)) + max(1024, 2 * lanes)
        return reserve, min(slots, LEAF_MASK // self.stride)

    def bits(self, names: Collection[str]) -> int:
        """Return a bit for each of these fields' columns, by its number; 0: of none, or of more than there are bits."""
        found = sum(1 << c for c, name in enumerate(self.names) if name in names and name in self.spec.fields)
        return found if found < 1 << 62 else 0

    def open_chunks(self, lanes: int, chunk_bytes: int) -> int:
        """Return the number of chunks of ``chunk_bytes`` that the open segments of ``lanes`` lanes fill."""
        return -(-lanes // (chunk_bytes // self.open_bytes))


def max_rows(spec: Spec, stride: int) -> int:
    """Return the limit of rows of an observation's column in a segment of ``stride`` steps: its frames."""
    return spec.context + stride + max(3, stride // 8)


def max_sparse_rows(stride: int, every: int) -> int:
    """Return the row at which a sparse field's column seals its segment, of ``stride`` steps.

    Room for the context, for the steps of a long episode, and for some ends of episodes: each row takes memory in an
    open segment.
    """
    return 2 + -(-stride // every) + max(3, stride // 8)


def column_limits(spec: Spec, stride: int) -> tuple[int, ...]:
    """Return the limit of rows of each column in a segment of ``stride`` steps: of flags, rewards and the fields."""
    frames = max_rows(spec, stride)
    limits = [
        frames if name in spec.obs_names else stride if field.every is None else max_sparse_rows(stride, field.every)
        for name, field in spec.fields.items()
    ]
    return stride, stride, *limits


def row_room(field: Field) -> int:
    """Return the bytes of a ragged field's longest row; 0 for other fields."""
    return field.most_items * field.item_bytes if field.ragged else 0


def value_room(spec: Spec, name: str, rows: int) -> int:
    """Return the limit of the bytes of a ragged field's values in a segment, whose column has so many rows."""
    return min(spec.kinds[name].room_bytes, rows * row_room(spec.fields[name]))


def max_segment_bytes(spec: Spec, stride: int) -> int:
    """Return the limit of a segment's bytes, decoded, with the shared values that it refers to."""
    sizes = (1, 4, *(field.row_bytes for field in spec.columns.values()))
    limits = column_limits(spec, stride)
    values = sum(
        value_room(spec, name, limits[c]) for c, name in enumerate(spec.fields, FIRST_FIELD) if name in spec.kinds
    )
    values += stride * sum(spec.fields[name].kind.most_bytes for name in spec.shared_names)
    return values + sum(rows * size for rows, size in zip(limits, sizes, strict=True))
