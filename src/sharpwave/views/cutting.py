"""Remote batches: the shard extracts encoded rows, the learner decodes them.

Fields of small rows are decoded at once: they are not encoded, and their references would be larger than their rows. So
are shared values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharpwave.arrays import Bytes, Int32s, Ints
from sharpwave.codecs.codec_registry import MIN_AUTO_BYTES, by_number
from sharpwave.codecs.dictionaries import PLACES, DictionaryTable
from sharpwave.errors import DamagedError
from sharpwave.log.step_log import StepLog
from sharpwave.native import core
from sharpwave.spec import Field
from sharpwave.views.gather import PIECE_ROWS, FieldColumn, FieldReader, LogArrays, Read, RowReader, SharedReader
from sharpwave.views.layout import BatchTarget
from sharpwave.views.step_views import StepView

FIRST_ROOM = 1 << 16
ALIGNMENT = 8
"""Bytes of which windows of cut rows begin at a multiple."""
MAX_MISSING = (1 << 16) - 1


@dataclass
class CutRows:
    """Encoded rows of one column of a batch.

    Attributes:
        field: number of the field. ``nbytes``: size of the rows, in ``memory``.
        used: uint8 [places], which of the field's dictionaries they need.
        grow: as in ``RowCutter``.
        pieces: for windows of different lengths, int64 [2, n]: the length of each, and the column's row for its first
            one; of each part of the batch, in order.
    """

    field: int
    memory: Bytes
    grow: Callable[[int], None] = lambda nbytes: None
    nbytes: int = 0
    used: Bytes = dataclasses.field(default_factory=lambda: np.zeros(PLACES, np.uint8))
    pieces: list[Ints] = dataclasses.field(default_factory=list)

    @property
    def rows(self) -> Bytes:
        """The windows (``src/core/cut.hpp``)."""
        return self.memory[: self.nbytes]

    def add(self, reader: FieldReader, slot: Ints, newest: Ints, first: Ints, length: Ints) -> None:
        """Cut the rows of n windows, by ``length`` [n]; more memory is taken where there is too little.

        Raises:
            UndecodableError: naming the segments that hold no rows.
        """
        assert int((length - 1 - newest + first).max(initial=0)) <= MAX_MISSING
        left = np.empty(len(slot), np.int64)
        while True:
            room = self.memory[self.nbytes :]
            nbytes = core.cut_windows(reader.arrays, slot, newest, first, length, room, self.used, left)
            if nbytes >= 0:
                break
            self.grow(len(self.memory))
            larger = np.empty(2 * len(self.memory), np.uint8)
            larger[: self.nbytes] = self.rows
            self.memory = larger
        if left.any():
            _write_decoded(reader, slot, newest, first, length, room, left)
        self.nbytes += nbytes

    @property
    def all_pieces(self) -> Ints | None:
        """The pieces of the whole batch; ``None``: it has windows of one length."""
        return np.concatenate(self.pieces, axis=1) if self.pieces else None


class RowCutter:
    """Cutter of the rows that batches of one log need. Its memory is used again by the next batch.

    Args:
        grow: called before so many bytes more are taken; its errors end the batch.

    Attributes:
        columns: the latest batch's, by name. ``shared``: names of its other columns that are of shared fields.
    """

    def __init__(self, log: StepLog, grow: Callable[[int], None] = lambda nbytes: None) -> None:
        self._grow = grow
        self._fields = list(log.spec.fields.values())
        self._arrays = LogArrays(log)
        self._memory: dict[str, Bytes] = {}
        self.columns: dict[str, CutRows] = {}
        self.shared = set[str]()
        self._places: list[Ints] = []

    @property
    def places(self) -> Ints | None:
        """Numbers that ``View.decode`` reads beside rows, int64 [decode rows, n]; ``None``: it reads none."""
        if not self._places:
            return None
        return np.concatenate(self._places, axis=1)

    def clear(self) -> None:
        """Begin a batch."""
        self._memory |= {name: column.memory for name, column in self.columns.items()}
        self.columns, self.shared, self._places = {}, set(), []

    def add(self, view: StepView[Any], target: BatchTarget, begin: int) -> None:
        """Cut the rows of ``target``, which begins with the batch's item ``begin``; fill its other columns.

        Raises:
            UndecodableError: naming the segments that hold no rows.
        """
        reads, readers = view.locate(target), self._arrays.readers()
        at_once = [field.shared or field.row_bytes < MIN_AUTO_BYTES for field in self._fields]
        at_once += [True] * (len(readers) - len(at_once))  # columns added later
        small = [read for read in reads if at_once[read.field]]
        self.shared.update(read.column for read in small if isinstance(readers[read.field], SharedReader))
        view.decode(target, small, [readers[read.field] for read in small])
        for read in reads:
            if not at_once[read.field]:
                reader = readers[read.field]
                assert isinstance(reader, FieldReader)
                self._cut(reader, read, target.columns[read.column].shape[1], begin)
        view.fill_apart(target)  # sent as it is
        if view.decode_rows:
            self._places.append(target.scratch[: view.decode_rows].copy())

    def _cut(self, reader: FieldReader, read: Read, rows: int, begin: int) -> None:
        """Cut the rows of a column that has so many for an item."""
        if read.column not in self.columns:
            if read.column not in self._memory:
                self._grow(FIRST_ROOM)
                self._memory[read.column] = np.empty(FIRST_ROOM, np.uint8)
            self.columns[read.column] = CutRows(read.field, self._memory[read.column], self._grow)
        column = self.columns[read.column]
        if read.pieces is None:
            column.add(reader, read.slot, read.newest, read.first, np.full(len(read.slot), rows))
        else:
            slot, newest, first, length, target = read.pieces
            column.pieces.append(np.stack([length, target + begin * rows]))
            column.add(reader, slot, newest, first, length)


def _write_decoded(
    reader: FieldReader, slot: Ints, newest: Ints, first: Ints, length: Ints, out: Bytes, left: Ints
) -> None:
    """Decode the rows of the windows ``left`` to their places in ``out``, which has room for them.

    Raises: UndecodableError.
    """
    some = np.flatnonzero(left)
    size = reader.column().references.shape[1]
    rows = newest[some] - np.maximum(newest[some] - length[some] + 1, first[some]) + 1
    pieces = np.empty((PIECE_ROWS, len(some)), np.int64)
    begins = np.cumsum(rows) - rows
    pieces[:] = slot[some], newest[some], first[some], rows, begins
    decoded = np.empty((int(rows.sum()), size), np.uint8)
    reader.read_pieces(pieces, decoded)
    for at, begin, count in zip(left[some].tolist(), begins.tolist(), rows.tolist(), strict=True):
        out[at : at + count * size] = decoded[begin : begin + count].reshape(-1)


class CutReader(RowReader):
    """Decoder of rows that another process cut.

    Args:
        rows: the bytes received, at a multiple of 8 bytes; they are checked here.
        length: int64 [n], of each window.

    Raises:
        DamagedError: the rows are no such windows.
        UnknownCodecError: the codec is not registered in this process.
    """

    def __init__(self, rows: Bytes, length: Ints, table: DictionaryTable, known: Bytes, field: Field) -> None:
        assert rows.ctypes.data % ALIGNMENT == 0
        count = len(length)
        self._memory = rows
        self._offset, self._end = np.empty((2, count), np.int64)
        self._codec, self._dictionary = np.zeros(count, np.uint8), np.empty(count, np.int32)
        self._counts, self._references = np.empty(count, np.int32), table.references
        checked = core.index_cut_rows(
            rows, length, field.row_bytes, field.line_bytes, known, self._offset, self._end, self._codec,
            self._dictionary, self._counts,
        )  # fmt: skip
        if checked < 0:
            raise DamagedError(f"cut rows: bytes follow the last of {count} windows")
        if checked < count:
            by_number(int(self._codec[checked]))  # raises if the codec is unknown here
            raise DamagedError(f"cut rows: window {checked} of {count} is none, or of no codec that is cut")
        super().__init__(table, field)

    @property
    def counts(self) -> Int32s:
        """Number of existing rows of each window."""
        return self._counts

    def column(self) -> FieldColumn:
        return FieldColumn(
            self._memory,
            self._offset,
            self._codec,
            self._dictionary,
            self._counts,
            self._references,
            self._field.line_bytes,
            self._field.pad == "zeros",
        )

    def _ends(self, slots: Ints) -> Ints:
        return self._end[slots]
