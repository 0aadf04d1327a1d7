"""Where the columns of an open segment lie, and how much room segments take: what follows from the spec alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sharpwave.format import segment
from sharpwave.format.metadata import MAX_METADATA_BYTES
from sharpwave.memory.arena import ALIGNMENT, PAGE, rounded
from sharpwave.memory.segment_index import LEAF_MASK
from sharpwave.spec import Spec

Ints = npt.NDArray[np.int64]

DEFAULT_STRIDE, DISK_STRIDE = 128, 64
"""Steps in a segment. An item sampled from disk is a read of its segment, of which it uses a few frames; shorter ones
take more memory for the index."""


@dataclass(frozen=True, eq=False)
class Layout:
    """The geometry of a store's segments; made by :func:`layout_of`.

    Attributes:
        spec: what a step is.
        stride: most steps in a segment. ``most_frames``: most rows of an observation's column.
        names: of the columns: flags, reward and the fields.
        sizes: int64 [columns], bytes of a row.
        limits: most rows, by column.
        obs_columns, step_columns: numbers of those with a row a frame, and of the fields with a row a step.
        column_starts: int64 [columns], where an open segment's columns begin in its part of the arena.
        open_bytes: of an open segment. ``chunk_bytes``: of a chunk of the arena; no sealed segment takes more.
        spine_bytes: of flags and rewards that stay in memory where the segment leaves it; 0 without a disk.
    """

    spec: Spec
    stride: int
    most_frames: int
    names: tuple[str, ...]
    sizes: Ints
    limits: tuple[int, ...]
    obs_columns: list[int]
    step_columns: list[int]
    column_starts: Ints
    open_bytes: int
    chunk_bytes: int
    spine_bytes: int

    @property
    def transition_bytes(self) -> int:
        """Bytes that a batch takes for each transition, at most: two observations, the step's fields, numbers."""
        fields = self.spec.fields
        return 108 + sum(
            field.row_bytes * (2 * field.frames if name in self.spec.obs_names else 1) for name, field in fields.items()
        )

    def room(
        self, capacity: int | None, ram: int | None, disk_limit: int | None, lanes: int = 0, rows: int | None = None
    ) -> tuple[int, int]:
        """Bytes of address space and slots that the limits (``None``: none) and so many lanes call for.

        Args:
            rows: steps at which their segments are sealed; ``None``: the stride.
        """
        limit = disk_limit if self.spine_bytes else ram
        steps = LEAF_MASK if limit is None else limit // (len(self.names) * 4 + 16)  # no step takes less
        steps = steps if capacity is None else min(capacity, steps)
        reserve = ram
        if reserve is None:
            chunks = max(1024, 2 * self.open_chunks(lanes, self.chunk_bytes))
            reserve = int(2.2 * steps * self.spec.step_bytes) + chunks * self.chunk_bytes
        slots = 2 * -(-steps // (rows or self.stride)) + max(1024, 2 * lanes)
        return reserve, min(slots, LEAF_MASK // self.stride)

    def open_chunks(self, lanes: int, chunk_bytes: int) -> int:
        """Chunks of ``chunk_bytes`` that the open segments of so many lanes fill."""
        return -(-lanes // (chunk_bytes // self.open_bytes))


def most_rows(spec: Spec, stride: int) -> int:
    """Most rows of an observation's column in a segment of ``stride`` steps: its frames."""
    return spec.context + stride + max(3, stride // 8)


def layout_of(spec: Spec, stride: int, on_disk: bool) -> Layout:
    """The layout of segments of ``stride`` steps, in a store with a disk or without."""
    names = ("flags", "reward", *spec.fields)
    sizes = np.array([1, 4, *(field.row_bytes for field in spec.fields.values())], np.int64)
    obs_columns = [names.index(name) for name in spec.obs_names]
    most_frames = most_rows(spec, stride)
    limits = tuple(most_frames if c in obs_columns else stride for c in range(len(names)))
    starts = np.cumsum([0, *(rounded(n * int(size), 64) for n, size in zip(limits, sizes, strict=True))])
    overhead = segment.HEADER.size + 64 * len(names) + MAX_METADATA_BYTES
    return Layout(
        spec=spec,
        stride=stride,
        most_frames=most_frames,
        names=names,
        sizes=sizes,
        limits=limits,
        obs_columns=obs_columns,
        step_columns=[names.index(name) for name in spec.step_names],
        column_starts=starts[:-1].astype(np.int64),
        open_bytes=int(starts[-1]),
        chunk_bytes=rounded(int(starts[-1]) + overhead, max(PAGE, 64 * 1024)),
        # With a disk, flags and rewards of all segments lie before the chunks: which steps can be sampled, and their
        # returns, are known without reading.
        spine_bytes=rounded(5 * stride, ALIGNMENT) if on_disk else 0,
    )
