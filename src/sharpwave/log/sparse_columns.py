"""The columns of sparse fields in open segments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.format.segment import FLAGS
from sharpwave.log.row_kernels import as_bytes
from sharpwave.log.sparse_kernels import count_sparse_rows, write_sparse_rows
from sharpwave.memory.arena import Arena
from sharpwave.memory.segment_index import SegmentIndex
from sharpwave.memory.segment_layout import Layout

Int32s = npt.NDArray[np.int32]


class SparseColumns:
    """Writer of the rows of sparse fields; false in a store without any."""

    def __init__(self, layout: Layout, arena: Arena, index: SegmentIndex) -> None:
        self._layout, self._arena, self._index = layout, arena, index
        self._limits = np.array([layout.limits[c] for c in layout.sparse_columns], np.int32).reshape(-1, 1)

    def __bool__(self) -> bool:
        return bool(self._layout.sparse_columns)

    def columns(self) -> Iterable[tuple[int, Int32s, int]]:
        """Return each column's number, its row counts by slot, and the period of its values."""
        return zip(self._layout.sparse_columns, self._index.sparse, self._layout.every, strict=True)

    def rows(self, slot: int) -> dict[int, int]:
        """Return the row counts in ``slot``, by column."""
        return {c: int(counts[slot]) for c, counts, _ in self.columns()}

    def full(self, slots: Int32s) -> npt.NDArray[np.bool_]:
        """Return which of ``slots`` [n] have a column without room for another value."""
        return np.asarray((self._index.sparse[:, slots] >= self._limits).any(axis=0))

    def write(self, slots: Int32s, rows: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write the values of the coming steps of ``slots`` [n], by field [n, *shape], where the period keeps them."""
        index = self._index
        for c, counts, every in self.columns():
            data = as_bytes(rows[self._layout.names[c]], len(slots))
            write_sparse_rows(
                self._arena.memory, index.offset[c], index.offset[FLAGS], index.rows, index.begins, index.episode_step,
                counts, slots, data, every,
            )  # fmt: skip

    def count(self, slots: Int32s) -> None:
        """Count the rows that ``slots`` [n] have after their steps."""
        index, memory = self._index, self._arena.memory
        for _, counts, every in self.columns():
            count_sparse_rows(memory, index.offset[FLAGS], index.rows, index.episode_step, counts, slots, every)
