"""Columns of open segments, read: as arrays, and what a lane's next segment carries over from them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sharpwave.format.segment import FLAGS
from sharpwave.log.marks import ENDED
from sharpwave.log.sparse_columns import SparseColumns
from sharpwave.memory.arena import Arena
from sharpwave.memory.segment_index import SegmentIndex
from sharpwave.memory.segment_layout import Layout
from sharpwave.spec import START

Bytes = npt.NDArray[np.uint8]


class OpenColumns:
    """Columns of the open segments in slots, views of the arena. ``sparse``: those of sparse fields."""

    def __init__(self, layout: Layout, arena: Arena, index: SegmentIndex, sparse: SparseColumns) -> None:
        self._layout, self._arena, self._index, self._sparse = layout, arena, index, sparse

    def of(self, c: int, slot: int, rows: int | None = None) -> Bytes:
        """Return a column's first ``rows`` (``None``: all that there is room for) as uint8 [rows, size]."""
        limit, size = self._layout.limits[c], int(self._layout.sizes[c])
        begin = int(self._index.offset[c, slot])
        return self._arena.memory[begin : begin + limit * size].reshape(limit, size)[:rows]

    def so_far(self, slot: int, c: int) -> Bytes:
        """Return the rows written so far of a field's column that is not sparse, as ``of`` does."""
        rows = self._index.frames if c in self._layout.obs_columns else self._index.rows
        return self.of(c, slot, int(rows[slot]))

    def all_so_far(self, slot: int) -> list[Bytes]:
        """Return the rows written so far of every column, as ``of`` does."""
        counts = dict.fromkeys(range(len(self._layout.names)), int(self._index.rows[slot]))
        counts |= dict.fromkeys(self._layout.obs_columns, int(self._index.frames[slot]))
        counts |= self._sparse.rows(slot)
        return [self.of(c, slot, rows) for c, rows in counts.items()]

    def next_episode_step(self, slot: int) -> int:
        """Return the episode step of the step after the segment's last one, if the episode goes on."""
        index, rows = self._index, int(self._index.rows[slot])
        begin = int(index.offset[FLAGS, slot])
        starts = np.flatnonzero(self._arena.memory[begin : begin + rows] & START)
        return rows - int(starts[-1]) if starts.size else int(index.episode_step[slot]) + rows

    def context_behind(self, slot: int) -> dict[int, Bytes]:
        """Return copies of what the lane's next segment carries over from the episode under way, by column: its newest
        frames, as many as a stack reaches back, and a sparse field's last value, unless the next step's is kept.
        """
        layout, index = self._layout, self._index
        frames = int(index.frames[slot])
        flags = self.of(FLAGS, slot, int(index.rows[slot]))[:, 0]
        starts = np.flatnonzero(flags & START)
        first = 0
        if starts.size:
            first = int(index.context[slot] + starts[-1] + np.count_nonzero(flags[: starts[-1]] & ENDED))
        keep = min(layout.spec.context, frames - first)
        found = {c: self.of(c, slot, frames)[frames - keep :].copy() for c in layout.obs_columns}
        for c, counts, every in self._sparse.columns():
            if self.next_episode_step(slot) % every:
                found[c] = self.of(c, slot, counts[slot])[-1:].copy()
        return found
