"""Decoding of windows of rows into a batch, on one thread or several."""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Bools, Bytes, Int32s, Ints
from sharpwave.codecs import ragged_rows
from sharpwave.codecs.codec_registry import name_of
from sharpwave.codecs.dictionaries import DictionaryTable
from sharpwave.codecs.raw import RAW
from sharpwave.codecs.shared import KEY_BYTES, number_of, text_of
from sharpwave.errors import DamagedError
from sharpwave.format.segment import FIRST_FIELD, FLAGS, payload_ends
from sharpwave.log.step_log import StepLog
from sharpwave.memory.arena import Arena
from sharpwave.memory.segment_index import SegmentIndex
from sharpwave.native import core
from sharpwave.ragged import copy_rows
from sharpwave.spec import Field

THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
THREAD_BYTES = 2 << 20
"""Bytes to decode that are worth waking another thread for (some 0.15 ms)."""
CHUNK_BYTES = 1 << 18
"""Bytes that a thread decodes at a time."""
PIECE_ROWS = 5
"""Rows of ``Read.pieces``."""
DECODED = np.frombuffer(core.decoded_codecs(), np.uint8)
"""By codec number, whether the core decodes its rows; other codecs have their own decoders."""


def limits() -> tuple[int, int, int]:
    """Return the limits of threads, as fillers of the core take them."""
    return THREADS, THREAD_BYTES, CHUNK_BYTES


if hasattr(os, "register_at_fork"):  # threads do not survive a fork: a child starts its own
    os.register_at_fork(after_in_child=core.forget_helpers)


class FieldColumn(NamedTuple):
    """Column of one field in every segment.

    Attributes:
        memory: the arena, or rows that were cut elsewhere.
        offset, codec, dictionary, counts: the column's arrays of the index; counts are the column's rows by slot.
        references: uint8 [places, size], dictionaries as long as a row.
        line: bytes from a pixel to the one below, 0 for none.
        zeros: whether rows before an episode's first are zeros; otherwise they repeat the first.
    """

    memory: Bytes
    offset: Ints
    codec: Bytes
    dictionary: Int32s
    counts: Int32s
    references: Bytes
    line: int
    zeros: bool


class UndecodableError(DamagedError):
    """Error of segments in memory whose payloads do not hold their rows, found while decoding.

    Attributes:
        slots: their slots.
    """

    def __init__(self, slots: list[int], why: str) -> None:
        super().__init__(f"sample: columns cannot be decoded ({why}); run `sharpwave verify` on the folder")
        self.slots = slots

    def set_aside(self, log: StepLog) -> None:
        """Note the segments as damaged."""
        for slot in self.slots:
            log.inventory.changes += 1
            log.sealed.damaged[slot] = f"segment {log.index.segment_id(slot)}: {self}"


class _Payloads(NamedTuple):
    """Payloads to decode for some items of a batch: arrays of n, ``rows`` [n, W]."""

    slots: Ints
    begins: Ints
    ends: Ints
    counts: Ints
    rows: Ints
    items: Ints

    def some(self, chosen: Bools) -> _Payloads:
        return _Payloads(*(array[chosen] for array in self))


class Read(NamedTuple):
    """Rows of one field that a batch needs, and their places.

    Attributes:
        column: of the batch, uint8 [B, rows, size]. ``field``: number of the field.
        slot, newest, first: int64 [B], windows of as many rows as the column has: the segments, and the rows with which
            windows end and episodes begin.
        pieces: int64 [5, n], C-contiguous, for windows of different lengths: each one's segment, newest row, the row
            with which its episode begins, its length, and the row of the column, as [B * rows, size], for its first
            one.
    """

    column: str
    field: int
    slot: Ints
    newest: Ints
    first: Ints
    pieces: Ints | None = None


class RowReader(ABC):
    """Decoder of one field's rows, wherever they are.

    Args:
        table: the field's dictionaries.

    Attributes:
        arrays: the field's columns as the core reads them.
    """

    def __init__(self, table: DictionaryTable, field: Field) -> None:
        self._table, self._field = table, field
        self._decoded = DECODED
        self.arrays = make_arrays(self.column(), self._decoded)

    @abstractmethod
    def column(self) -> FieldColumn:
        """Return the field's columns."""

    @abstractmethod
    def _ends(self, slots: Ints) -> Ints:
        """Return where in memory the columns of ``slots`` end."""

    def decode(self, read: Read, out: Bytes) -> None:
        """Decode the rows of a batch into its column.

        Raises:
            UndecodableError: naming the segments that hold no rows.
        """
        if read.pieces is None:
            self.read(read.slot, read.newest, read.first, out)
        else:
            self.read_pieces(read.pieces, out.reshape(-1, out.shape[-1]))

    def read(self, slot: Ints, newest: Ints, first: Ints, out: Bytes) -> None:
        """Decode windows into ``out`` uint8 [B, W, size], a large batch on several threads.

        Args:
            slot, newest, first: int64 [B]; the segments, and the rows with which windows end and episodes begin.
            out: C-contiguous; or of a ``Column`` with parts that are apart.

        Raises:
            UndecodableError: naming the segments that hold no rows.
        """
        if core.gather_windows(self.arrays, slot, newest, first, out, THREADS, THREAD_BYTES, CHUNK_BYTES):
            self.read_left_out(slot, newest, first, out)

    def read_left_out(self, slot: Ints, newest: Ints, first: Ints, out: Bytes) -> None:
        """Decode the windows of ``read`` that the core leaves out.  Raises: UndecodableError."""
        if out.flags.c_contiguous:
            self._read_left_out(slot, newest, first, out)
        else:
            self._read_left_out(slot, newest - 1, first, out[:, :1])
            self._read_left_out(slot, newest, first, out[:, 1:])

    def read_pieces(self, pieces: Ints, out: Bytes) -> None:
        """Decode windows of different lengths into ``out`` uint8 [R, size], many bytes on several threads.

        Args:
            pieces: int64 [5, n], C-contiguous: each window's segment, newest row, the row with which its episode
                begins, its length, and the row of ``out`` for its first one.

        Raises:
            UndecodableError: naming the segments that hold no rows.

        Cost: some 0.9 us a row of 7 KB of Pong (benchmarks/sequences.py, returns included); a background of patches
        is painted once a window.
        """
        left_out = core.gather_pieces(self.arrays, pieces, out, THREADS, THREAD_BYTES, CHUNK_BYTES)
        if left_out:  # row by row: a codec in Python decodes no faster in groups
            slot, newest, first, length, target = pieces
            rows = np.repeat(np.arange(len(slot)), length)
            back = length[rows] - 1 - (np.arange(len(rows)) - np.repeat(np.cumsum(length) - length, length))
            self._read_left_out(
                slot[rows], newest[rows] - back, first[rows], out[:, None], (target + length - 1)[rows] - back
            )

    def read_steps(self, slot: Ints, row: Ints, out: Bytes) -> None:
        """Decode the values of steps into ``out`` uint8 [B, 1, size]; of a sparse field the last kept values.

        Args:
            slot, row: int64 [B], locations of the steps.

        Raises:
            UndecodableError: naming the segments that hold no rows.
        """
        row = self.rows(slot, row)
        self.read(slot, row, row, out)

    def rows(self, slot: Ints, row: Ints) -> Ints:
        """Return the rows of the field's column with the values of steps: of a sparse field the last kept ones."""
        return row

    def _read_left_out(self, slot: Ints, newest: Ints, first: Ints, out: Bytes, places: Ints | None = None) -> None:
        """Decode the windows that the core left out, by codec and dictionary.

        Args:
            places: each window's place in ``out``; ``None``: in order.
        """
        column = self.column()
        codecs = column.codec[slot]
        left = np.flatnonzero((codecs != RAW) & (self._decoded[codecs] == 0))
        slots = slot[left]
        wanted = newest[left, None] - np.arange(out.shape[1] - 1, -1, -1)
        rows = np.maximum(wanted, first[left, None])
        counts = column.counts[slots].astype(np.int64)
        items = left if places is None else places[left]
        payloads = _Payloads(slots, column.offset[slots], self._ends(slots), counts, rows, items)
        kinds = codecs[left].astype(np.int64) << 32 | column.dictionary[slots]
        for kind in np.unique(kinds).tolist():
            self._decode(column.memory, kind >> 32, kind & 0xFFFFFFFF, payloads.some(kinds == kind), out)
        if self._field.pad == "zeros":
            for i, item in enumerate(items):
                out[item, wanted[i] < first[left[i]]] = 0

    def _decode(self, memory: Bytes, codec: int, place: int, payloads: _Payloads, out: Bytes) -> None:
        """Decode rows of columns that share a codec and a dictionary."""
        try:
            decoder = self._table.decoder(codec, place, self._field.line_bytes)
        except DamagedError as error:
            raise UndecodableError(np.unique(payloads.slots).tolist(), f"{name_of(codec)}: {error}") from error
        try:
            decoder.decode_rows(memory, *payloads[1:-1], out, payloads.items)
        except DamagedError as error:
            broken = []
            for slot in np.unique(payloads.slots).tolist():
                mine = payloads.some(payloads.slots == slot)
                try:
                    decoder.decode_rows(memory, *mine[1:-1], out, mine.items)
                except DamagedError:
                    broken.append(slot)
            raise UndecodableError(broken, str(error)) from error


def make_arrays(column: FieldColumn, decoded: Bytes) -> core.Column:
    """Return the column for the core, which decodes the codecs ``decoded``. The arrays must outlive it."""
    memory, offset, codec, dictionary, counts, references, line, zeros = column
    return core.Column(memory, offset, codec, dictionary, counts, references, decoded, line, zeros)


class FieldReader(RowReader):
    """Decoder of one field's rows in memory.

    It keeps addresses of the index's and the arena's arrays: after the store has grown, a new reader is needed.

    Args:
        number: of the field's column in a segment.
        counts: name of the index's array with the column's rows, by slot.
        table: the field's dictionaries.
        sparse: number of the column among the sparse fields' columns, if it is one.
    """

    def __init__(
        self,
        index: SegmentIndex,
        arena: Arena,
        number: int,
        counts: Literal["rows", "frames", "sparse"],
        table: DictionaryTable,
        field: Field,
        sparse: int = 0,
    ) -> None:
        self._index, self._arena, self._number = index, arena, number
        self._counted_by, self._sparse = counts, sparse
        super().__init__(table, field)

    def _counts(self) -> Int32s:
        """Return the column's row counts, by slot."""
        counts: Int32s = getattr(self._index, self._counted_by)
        return counts[self._sparse] if self._counted_by == "sparse" else counts

    def rows(self, slot: Ints, row: Ints) -> Ints:
        """Return the rows of the last kept values of a sparse field."""
        if self._field.every is None:
            return row
        index, rows = self._index, np.empty(len(row), np.int64)
        flags = index.offset[FLAGS]
        core.locate_sparse(self._arena.memory, flags, index.episode_step, slot, row, self._field.every, rows)
        return rows

    def column(self) -> FieldColumn:
        index, arena, c = self._index, self._arena, self._number
        return FieldColumn(
            arena.memory,
            index.offset[c],
            index.codec[c],
            index.dictionary[c],
            self._counts(),
            self._table.references,
            self._field.line_bytes,
            self._field.pad == "zeros",
        )

    def _ends(self, slots: Ints) -> Ints:
        memory, bases = self._arena.memory, self._index.base[slots]
        return bases + payload_ends(memory, bases, self._number)


class RaggedReader(FieldReader):
    """Reader of a ragged field's rows in memory; as ``FieldReader``, whose rows are the references of open segments.

    Args:
        log: whose batches' memory it takes.
    """

    def __init__(self, log: StepLog, number: int, field: Field) -> None:
        super().__init__(log.index, log.arena, number, "rows", log.tables[number], field)
        self._log = log

    def lend(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return uninitialized memory of batches.  Raises: MemoryError: ``ram`` has no room for it."""
        return self._log.batches.lend_more(shape, dtype)

    def take(self, slot: Ints, row: Ints) -> tuple[npt.NDArray[Any], Ints]:
        """Return the values of steps, [total, *inner] in order, and the length of each, int64 [n].

        Raises:
            UndecodableError: naming the segments that hold no rows.  MemoryError.
        """
        index, memory, field, c = self._index, self._arena.memory, self._field, self._number
        begins, lengths = np.empty((2, len(slot)), np.int64)
        slot = np.ascontiguousarray(slot)
        where = memory, index.offset[c], index.codec[c]
        core.locate_ragged(*where, slot, np.ascontiguousarray(row), begins, lengths)
        values = self.lend((int(lengths.sum()), *field.inner), field.np_dtype)
        flat, left = values.reshape(-1).view(np.uint8), np.empty((2, len(slot)), np.int64)
        addresses = self._log.opened.columns.values.addresses(c)
        if core.read_ragged(*where, addresses, slot, begins, lengths, field.item_bytes, flat, left):
            self._unpack(slot, lengths, left, flat)
        return values, lengths

    def _unpack(self, slot: Ints, lengths: Ints, left: Ints, out: Bytes) -> None:
        """Decompress the rows that are zstd frames."""
        some = np.flatnonzero(left[0] >= 0)
        places = (np.cumsum(lengths) - lengths)[some].tolist()
        memory = self._arena.memory
        try:
            rows = ragged_rows.unpack_frames(memory, left[0, some], left[1, some], lengths[some])
            for k, (place, size) in enumerate(zip(places, lengths[some].tolist(), strict=True)):
                out[place : place + size] = np.frombuffer(rows[k], np.uint8)
                if self._field.text == "str":
                    ragged_rows.check_text(out[place : place + size].data, k)
        except DamagedError as error:
            broken = [int(slot[i]) for i in some.tolist() if not self._is_sound(left[:, i], int(lengths[i]))]
            raise UndecodableError(sorted(set(broken)), str(error)) from error

    def _is_sound(self, frame: Ints, size: int) -> bool:
        """Return whether a frame, by its begin and its bytes, holds a row."""
        try:
            row = ragged_rows.unpack_frames(self._arena.memory, frame[:1], frame[1:], np.array([size]))[0]
            if self._field.text == "str":
                ragged_rows.check_text(bytes(row), 0)
        except DamagedError:
            return False
        return True


class SharedReader(RaggedReader):
    """Reader of a shared field's values in memory, whose rows are keys."""

    def __init__(self, log: StepLog, number: int, field: Field) -> None:
        super().__init__(log, number, field.column)
        self._of_values = field

    def read(self, slot: Ints, newest: Ints, first: Ints, out: Bytes) -> None:
        keys = np.empty((len(slot), 1, KEY_BYTES), np.uint8)
        super().read(slot, newest, first, keys)
        which, contents = self._contents(slot, keys[:, 0])
        np.take(_stacked(contents, out.shape[-1]), which, axis=0, out=out[:, 0], mode="clip")

    def read_pieces(self, pieces: Ints, out: Bytes) -> None:
        slot, _, _, length, to = pieces
        keys = np.empty((len(out), KEY_BYTES), np.uint8)
        super().read_pieces(pieces, keys)
        places = np.repeat(to - np.cumsum(length) + length, length) + np.arange(int(length.sum()))
        which, contents = self._contents(np.repeat(slot, length), keys[places])
        out[places] = _stacked(contents, out.shape[-1])[which]

    def take(self, slot: Ints, row: Ints) -> tuple[npt.NDArray[Any], Ints]:
        field, keys = self._of_values, np.empty((len(slot), 1, KEY_BYTES), np.uint8)
        super().read(slot, row, row, keys)
        which, contents = self._contents(slot, keys[:, 0])
        sizes = np.array([len(one) for one in contents], np.int64) // field.item_bytes
        source = np.frombuffer(b"".join(contents), np.uint8).view(field.np_dtype).reshape(-1, *field.inner)
        lengths = sizes[which]
        values = self.lend((int(lengths.sum()), *field.inner), field.np_dtype)
        copy_rows(source, (np.cumsum(sizes) - sizes)[which], lengths, values, np.cumsum(lengths) - lengths)
        return values, lengths

    def _contents(self, slot: Ints, keys: Bytes) -> tuple[Ints, list[bytes]]:
        """Return which distinct value each of ``keys`` [n, 16], of segments in ``slot`` [n], is, and these.

        Raises: UndecodableError.
        """
        whole, found, contents = keys.tobytes(), dict[bytes, int](), list[bytes]()
        places = (whole[i : i + KEY_BYTES] for i in range(0, len(whole), KEY_BYTES))
        which = np.fromiter((found.setdefault(key, len(found)) for key in places), np.int64, len(keys))
        self._log.shared.expect(self._number, found)
        for k, number in enumerate(map(number_of, found)):
            try:
                contents.append(self._log.shared.content(self._number, number))
            except (KeyError, DamagedError) as error:
                why = f"shared value {text_of(number)} is missing" if isinstance(error, KeyError) else str(error)
                raise UndecodableError(np.unique(slot[which == k]).tolist(), why) from error
        return which, contents


def _stacked(contents: list[bytes], size: int) -> Bytes:
    return np.frombuffer(b"".join(contents), np.uint8).reshape(-1, size)


class LateReader(RowReader):
    """Reader of one late column, which lies beside the segments; as for ``FieldReader``."""

    def __init__(self, field: Field, arrays: dict[str, Any], table: DictionaryTable) -> None:
        self._columns = FieldColumn(**arrays, line=0, zeros=False)
        super().__init__(table, field)

    def column(self) -> FieldColumn:
        return self._columns

    def _ends(self, slots: Ints) -> Ints:
        return self._columns.offset[slots] + self._columns.counts[slots] * self._field.row_bytes


class LogArrays:
    """Arrays of a log for the core, and readers of its fields: made anew after the log has grown."""

    def __init__(self, log: StepLog) -> None:
        self._log = log
        self._readers: list[RowReader] | None = None
        self._version = -1  # of the late columns
        # Arrays that a store replaces when it grows, which outdates addresses; weak, so that they can be freed.
        self._memory: Callable[[], Any] = lambda: None
        self._offset: Callable[[], Any] = lambda: None

    def current(self) -> core.Log:
        """Return the arrays, valid until the log grows."""
        index, arena = self._log.index, self._log.arena
        moved = self._memory() is not arena.memory or self._offset() is not index.offset
        if moved or self._version != self._log.late.version:
            self._version = self._log.late.version
            self._readers = None  # old ones hold addresses of freed memory
            self._arrays = core.Log(
                arena.memory, index.offset, index.rows, index.next, index.previous, index.gap, index.sealed,
                index.context, index.episode_step, index.lane, index.first_step, index.frames, index.stride,
            )  # fmt: skip
            self._memory, self._offset = weakref.ref(arena.memory), weakref.ref(index.offset)
        return self._arrays

    def readers(self) -> list[RowReader]:
        """Return a reader of each field of ``log.late.spec``, in the fields' order, valid until the log grows."""
        self.current()
        if self._readers is None:
            log, readers = self._log, list[RowReader]()
            for c, (name, field) in enumerate(log.spec.fields.items(), FIRST_FIELD):
                counts: Any = "frames" if name in log.spec.obs_names else "rows" if field.every is None else "sparse"
                if field.ragged or field.shared:
                    readers.append((SharedReader if field.shared else RaggedReader)(log, c, field))
                    continue
                sparse = log.spec.sparse_names.index(name) if counts == "sparse" else 0
                readers.append(FieldReader(log.index, log.arena, c, counts, log.tables[c], field, sparse))
            readers += [LateReader(field, arrays, log.tables[FLAGS]) for field, arrays in log.late.arrays()]
            self._readers = readers
        return self._readers
