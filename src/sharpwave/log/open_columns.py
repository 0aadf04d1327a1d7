"""Columns of open segments, read: as arrays, and the values that a lane's next segment carries over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from sharpwave.arrays import Bools, Bytes, Int32s
from sharpwave.codecs.ragged import RaggedRows
from sharpwave.codecs.raw import RAW
from sharpwave.codecs.registry import MIN_AUTO_BYTES, RAGGED
from sharpwave.codecs.shared import keys_of
from sharpwave.codecs.zstd import Zstd
from sharpwave.format.segment import FLAGS, SegmentColumn
from sharpwave.log.open_values import OpenValues
from sharpwave.memory.arena import Arena
from sharpwave.memory.segment_index import SegmentIndex
from sharpwave.memory.segment_layout import SegmentLayout
from sharpwave.spec import ENDED, START


class OpenColumns:
    """Columns of the open segments in slots, views of the arena.

    Attributes:
        values: of ragged fields, beside it.
    """

    def __init__(self, layout: SegmentLayout, arena: Arena, index: SegmentIndex) -> None:
        self._layout, self._arena, self._index = layout, arena, index
        self.values = OpenValues(layout, arena, index)
        self._sparse_limits = np.array([layout.limits[c] for c in layout.sparse_columns], np.int32).reshape(-1, 1)

    def of(self, c: int, slot: int, rows: int | None = None) -> Bytes:
        """Return a column's first ``rows`` (``None``: all that there is room for) as uint8 [rows, size]."""
        limit, size = self._layout.limits[c], int(self._layout.sizes[c])
        begin = int(self._index.offset[c, slot])
        return self._arena.memory[begin : begin + limit * size].reshape(limit, size)[:rows]

    def all_so_far(self, slot: int) -> list[Any]:
        """Return the rows written so far of every column, as ``of`` does; of ragged ones ``RaggedRows``."""
        counts = dict.fromkeys(range(len(self._layout.names)), int(self._index.rows[slot]))
        counts |= dict.fromkeys(self._layout.obs_columns, int(self._index.frames[slot]))
        counts |= {c: int(rows[slot]) for c, rows, _ in self._sparse()}
        ragged = self._layout.ragged_columns
        return [self.values.rows(c, slot, n) if c in ragged else self.of(c, slot, n) for c, n in counts.items()]

    def shared_keys(self, slot: int) -> set[tuple[int, int]]:
        """Return the columns and keys of the shared values that a segment refers to."""
        rows = int(self._index.rows[slot])
        return {(c, key) for c in self._layout.shared_columns for key in keys_of(self.of(c, slot, rows))}

    def _sparse(self) -> Iterable[tuple[int, Int32s, int]]:
        """Return each sparse field's column, its row counts by slot, and the period of its values."""
        return zip(self._layout.sparse_columns, self._index.sparse, self._layout.every, strict=True)

    def sparse_full(self, slots: Int32s) -> Bools:
        """Return which of ``slots`` [n] have a sparse field's column without room for another value."""
        return np.asarray((self._index.sparse[:, slots] >= self._sparse_limits).any(axis=0))

    def next_episode_step(self, slot: int) -> int:
        """Return the episode step of the step after the segment's last one, if the episode goes on."""
        index, rows = self._index, int(self._index.rows[slot])
        begin = int(index.offset[FLAGS, slot])
        starts = np.flatnonzero(self._arena.memory[begin : begin + rows] & START)
        return rows - int(starts[-1]) if starts.size else int(index.episode_step[slot]) + rows

    def context_behind(self, slot: int) -> dict[int, Bytes]:
        """Return copies of the values that the lane's next segment carries over from the current episode, by column.

        These are its newest frames, as many as a stack reaches back, and a sparse field's last value, unless the next
        step's value is kept.
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
        for c in found.keys() & set(layout.ragged_columns):
            found[c][:] = 0  # no row: there is no stack of them
        for c, rows, every in self._sparse():
            if self.next_episode_step(slot) % every:
                found[c] = self.of(c, slot, rows[slot])[-1:].copy()
        return found


def ragged_column(rows: RaggedRows) -> SegmentColumn:
    return SegmentColumn(RAGGED, len(rows), rows.pack())


def unshared_column(rows: Bytes | RaggedRows) -> SegmentColumn:
    """Return a column of ``rows`` uint8 [n, bytes of a row], or of any length, encoded without a dictionary."""
    if isinstance(rows, RaggedRows):
        return ragged_column(rows)
    packed = Zstd().encode(rows) if len(rows) and rows[0].nbytes >= MIN_AUTO_BYTES else None
    return SegmentColumn(RAW if packed is None else Zstd.number, len(rows), packed or rows.tobytes())
