"""The columns of sparse fields in open segments."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from sharpwave.memory.segment_index import SegmentIndex
from sharpwave.memory.segment_layout import Layout

Int32s = npt.NDArray[np.int32]


class SparseColumns:
    """Counts of the rows of sparse fields; false in a store without any."""

    def __init__(self, layout: Layout, index: SegmentIndex) -> None:
        self._layout, self._index = layout, index
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
