"""Values of columns added later for the items of a batch, read apart from its columns, for learners elsewhere.

Layouts of learners in other processes are those of the spec, so a column that is added or dropped meanwhile never
changes the memory that a batch was requested with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from sharpwave.log.late_columns import LateColumn

Ints = npt.NDArray[np.int64]


class LateRows:
    """Values of a log's late columns for ``count`` items of a batch, from its item ``begin`` on.

    Args:
        columns: those that are read, by name.

    The store's lock is held from when it is made until ``rows`` was read: all values are of one moment.

    Attributes:
        begin: as given.
        rows: for each column, by name: the column, its bytes uint8 [rows, row bytes], and which rows were written:
            bool [rows]; an item has one row, or one for each step of its window. Empty before anything was read.
    """

    def __init__(self, columns: Mapping[str, LateColumn], begin: int, count: int) -> None:
        self._columns, self.begin, self._count = columns, begin, count
        self.rows: dict[str, tuple[LateColumn, npt.NDArray[np.uint8], npt.NDArray[np.bool_]]] = {}

    def read(self, begin: int, steps: Ints, places: Ints | None, each: int) -> None:
        """Read the values of the batch's items from ``begin`` on.

        Args:
            steps: int64 [n], leaves of the log. ``places``: rows of these items that they are; ``None``: in order.
            each: rows of an item.
        """
        first = (begin - self.begin) * each
        rows = first + (np.arange(len(steps)) if places is None else places)
        for name, column in self._columns.items():
            (values, row_bytes), (written, _) = column.parts
            if name not in self.rows:
                count = self._count * each
                self.rows[name] = column, np.zeros((count, row_bytes), np.uint8), np.zeros(count, np.bool_)
            self.rows[name][1][rows] = values.reshape(-1, row_bytes)[steps]
            self.rows[name][2][rows] = written.view(np.bool_)[steps]


def late_bytes(columns: Mapping[str, LateColumn]) -> int:
    """Return the bytes that a row of all ``columns`` takes."""
    return sum(column.field.row_bytes + 1 for column in columns.values())
