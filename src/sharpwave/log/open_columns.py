"""Columns of open segments, read: as arrays, and the values that a lane's next segment carries over.

Values of ragged fields lie beside the arena, in a growing buffer of each column and segment. In the arena a row of such
a column is a reference, uint32 begin and length in items of the buffer. A segment's frames before its first step have
no rows of any length, as no stack reaches back to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Bools, Bytes, Int32s, Ints
from sharpwave.codecs.codec_registry import MIN_AUTO_BYTES, RAGGED
from sharpwave.codecs.ragged_rows import REFERENCE_BYTES, RaggedRows
from sharpwave.codecs.raw import RAW
from sharpwave.codecs.shared import keys_of
from sharpwave.codecs.zstd import Zstd
from sharpwave.format.segment import FLAGS, SegmentColumn
from sharpwave.memory.arena import Arena
from sharpwave.memory.segment_index import SegmentIndex
from sharpwave.memory.segment_layout import SegmentLayout
from sharpwave.spec import ENDED, START, Spec

Rows = Mapping[str, npt.NDArray[Any]]

FIRST_BYTES = 1 << 12
MIN_SHARE_BYTES = 1 << 16
"""Bytes of a buffer from which on a segment may be sealed early for the sake of ``ram``."""


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


def unshared_columns(spec: Spec, arrays: Rows) -> list[SegmentColumn]:
    """Return columns of decoded rows [n, *shape] by name, in that order, encoded without dictionaries."""
    return [
        ragged_column(RaggedRows.of(spec.kinds[name], rows))
        if name in spec.kinds
        else unshared_column(np.ascontiguousarray(rows).reshape(len(rows), prod(rows.shape[1:])).view(np.uint8))
        for name, rows in arrays.items()
    ]


class OpenValues:
    """Buffers of ragged fields' values, by column and slot.

    Attributes:
        names: of the fields.
        share: returns the bytes of memory that a buffer may take, unless it holds one row.
        nbytes: bytes of memory.
    """

    def __init__(self, layout: SegmentLayout, arena: Arena, index: SegmentIndex) -> None:
        self._arena, self._index = arena, index
        self._names = {c: layout.names[c] for c in layout.ragged_columns}
        self.names = tuple(self._names.values())
        self._fields = {c: layout.spec.fields[name] for c, name in self._names.items()}
        self._rooms = dict(zip(layout.ragged_columns, layout.rooms, strict=True))
        self._buffers: dict[tuple[int, int], Bytes] = {}
        self._used: dict[tuple[int, int], int] = {}
        self._addresses = {c: np.zeros(0, np.int64) for c in self._names}
        self.share: Callable[[], float] = lambda: float("inf")
        self.nbytes = 0
        self._framed = {c for c, name in self._names.items() if name in layout.spec.obs_names}
        self._kinds = {c: layout.spec.kinds[name] for c, name in self._names.items()}

    def __bool__(self) -> bool:
        return bool(self._names)

    def addresses(self, c: int) -> Ints:
        """Return the address of a column's buffer in each slot, for the core, int64 [slots]; 0: there is none."""
        slots = self._index.slots
        if len(self._addresses[c]) < slots:
            longer = np.zeros(slots, np.int64)
            longer[: len(self._addresses[c])] = self._addresses[c]
            self._addresses[c] = longer
        return self._addresses[c]

    def _filled(self, c: int, slot: int) -> int:
        """Return the bytes used of a buffer: none in a segment without steps, but of observations, one of which may be
        the known successor of the step before."""
        return self._used.get((c, slot), 0) if self._index.rows[slot] or c in self._framed else 0

    def forget(self, slot: int) -> None:
        """Count the values of a segment without steps, and without a known successor, as none."""
        for c in self._framed:
            self._used.pop((c, slot), None)

    def fits(self, slot: int, rows: Rows) -> int:
        """Return how many of the first ``rows`` [n], by field, the segment in ``slot`` has room for; 1 if it is empty.

        Cost: O(n).
        """
        count = len(next(iter(rows.values())))
        for c, name in self._names.items():
            room = self._rooms[c]
            if c in self._framed:  # an observation after the last step follows
                room -= self._fields[c].most_items * self._fields[c].item_bytes
            most = min(room, max(MIN_SHARE_BYTES, self.share()))
            ends = self._filled(c, slot) + np.cumsum([row.nbytes for row in rows[name][:count]])
            count = int(np.searchsorted(ends, most, side="right"))
        return count if self._index.rows[slot] else max(1, count)

    def reserve(self, i: int, slot: int, rows: Rows, after: Rows) -> None:
        """Make room in a segment for one row of each field, those of number ``i``.

        Args:
            after: as for ``put``.

        Raises: MemoryError: nothing changed but for room.
        """
        for c, name in self._names.items():
            one = after[name][i] if name in after else None
            self._grow(c, slot, self._filled(c, slot) + rows[name][i].nbytes + (0 if one is None else one.nbytes))

    def reserve_run(self, slot: int, *all_rows: Rows) -> bool:
        """Make room for all rows in one segment; return whether memory was taken.

        Raises: MemoryError: nothing changed but for room.
        """
        before = self.nbytes
        for c, name in self._names.items():
            given = [row.nbytes for rows in all_rows for row in rows.get(name, ()) if row is not None]
            self._grow(c, slot, self._filled(c, slot) + sum(given))
        return self.nbytes > before

    def _grow(self, c: int, slot: int, need: int) -> None:
        old = self._buffers.get((c, slot))
        if old is not None and need <= len(old):
            return
        buffer = np.empty(max(FIRST_BYTES, need + need // 2), np.uint8)
        used = self._filled(c, slot)
        if old is not None:
            buffer[:used] = old[:used]
        self.addresses(c)[slot] = buffer.ctypes.data
        self._buffers[c, slot] = buffer
        self.nbytes += len(buffer) - (0 if old is None else len(old))

    def put(
        self, slots: npt.NDArray[Any], rows: Rows, after: Rows | None = None, known: Bytes | None = None
    ) -> tuple[dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[Any]], dict[tuple[int, int], int]]:
        """Append rows to the buffers of ``slots`` [n], which have room; of several rows of a slot in order.

        Args:
            after: observations after the steps by field [n], ``None`` where there is none.
            known: uint8 [n], whether a slot's next frame is there, as a known successor, and equals the row.

        Returns the rows by field with references, uint64 [n], in the place of ragged ones; those after them; and for
        ``take_back``. Of a row that equals the one before the place is shared.
        """
        found, following, before = dict(rows), dict[str, npt.NDArray[Any]](), dict[tuple[int, int], int]()
        for c, name in self._names.items():
            if name not in rows:
                continue
            ends = None if after is None else after.get(name)
            references = np.zeros((2, len(slots)), np.uint64)
            last: dict[int, tuple[int, int]] = {}
            for i, (slot, row) in enumerate(zip(slots.tolist(), rows[name], strict=True)):
                key = c, slot
                if slot not in last:
                    before[key] = self._used[key] = self._filled(c, slot)
                    frame = int(self._index.frames[slot]) - 1 + (0 if known is None else int(known[i]))
                    at = frame if c in self._framed else int(self._index.rows[slot]) - 1
                    last[slot] = self._place(c, slot, at) if before[key] and at >= 0 else (0, 0)
                last[slot] = self._append(key, row, last[slot])
                references[0, i] = self._reference(c, *last[slot])
                if ends is not None and ends[i] is not None:
                    last[slot] = self._append(key, ends[i], last[slot])
                    references[1, i] = self._reference(c, *last[slot])
            found[name] = references[0]
            if ends is not None:
                following[name] = references[1]
        return found, following, before

    def _append(self, key: tuple[int, int], row: npt.NDArray[Any], last: tuple[int, int]) -> tuple[int, int]:
        """Append a row to a buffer, unless it equals the last one; return its begin and its bytes there."""
        content, buffer = row.reshape(-1).view(np.uint8), self._buffers[key]
        begin, nbytes = last
        if nbytes == len(content) and np.array_equal(buffer[begin : begin + nbytes], content):
            return last
        begin, nbytes = self._used[key], len(content)
        buffer[begin : begin + nbytes] = content
        self._used[key] = begin + nbytes
        return begin, nbytes

    def _reference(self, c: int, begin: int, nbytes: int) -> int:
        size = self._fields[c].item_bytes
        return begin // size | nbytes // size << 32

    def _place(self, c: int, slot: int, row: int) -> tuple[int, int]:
        """Return the begin and the bytes in a buffer of the row to which a row of the arena refers."""
        begin, size = int(self._index.offset[c, slot]) + REFERENCE_BYTES * row, self._fields[c].item_bytes
        first, length = self._arena.memory[begin : begin + REFERENCE_BYTES].view(np.uint32).tolist()
        return first * size, length * size

    def row(self, c: int, slot: int, row: int) -> Bytes:
        """Return a copy of one row's bytes."""
        begin, nbytes = self._place(c, slot, row)
        return self._buffers[c, slot][begin : begin + nbytes].copy() if nbytes else np.empty(0, np.uint8)

    def add(self, c: int, slot: int, row: npt.NDArray[Any], frame: int) -> npt.NDArray[np.uint64]:
        """Append an observation's row, for the frame of that number; return the reference to it, uint64 [1].

        Raises: MemoryError: nothing changed.
        """
        self._grow(c, slot, self._filled(c, slot) + row.nbytes)
        used = self._used[c, slot] = self._filled(c, slot)
        last = self._place(c, slot, frame - 1) if used and frame else (0, 0)
        return np.array([self._reference(c, *self._append((c, slot), row, last))], np.uint64)

    def carry(self, slot: int, successor: Mapping[int, Bytes]) -> dict[int, Bytes]:
        """Return the observation that a segment without steps begins with, [size] by column, its rows of any length,
        which are written, as references.

        Raises: MemoryError.
        """
        found = dict(successor)
        for c in self._framed & successor.keys():
            found[c] = self.add(c, slot, successor[c], 0).view(np.uint8)
        return found

    def used(self, slot: int) -> dict[tuple[int, int], int]:
        """Return how much of a segment's buffers is used, for ``take_back``."""
        return {(c, slot): self._filled(c, slot) for c in self._framed if (c, slot) in self._buffers}

    def take_back(self, before: Mapping[tuple[int, int], int]) -> None:
        """Undo ``put``."""
        self._used.update(before)

    def rows(self, c: int, slot: int, count: int) -> RaggedRows:
        """Return a column's first ``count`` rows."""
        begin = int(self._index.offset[c, slot])
        references = self._arena.memory[begin : begin + REFERENCE_BYTES * count].view(np.uint32).astype(np.int64)
        buffer = self._buffers.get((c, slot), np.empty(0, np.uint8))
        return RaggedRows(self._kinds[c], buffer, references[::2], references[1::2])

    def release(self, slot: int) -> None:
        """Free the buffers of a segment that is no longer open."""
        for c in self._names:
            buffer = self._buffers.pop((c, slot), None)
            if buffer is not None:
                self.nbytes -= len(buffer)
                self.addresses(c)[slot] = 0
            self._used.pop((c, slot), None)
