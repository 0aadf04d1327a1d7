"""Values of ragged fields in open segments: a growing buffer of each column and segment, beside the arena.

In the arena a row of such a column is a reference, uint32 begin and length in items of the buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.codecs.ragged import REFERENCE_BYTES, RaggedRows
from sharpwave.memory.arena import Arena
from sharpwave.memory.segment_index import SegmentIndex
from sharpwave.memory.segment_layout import SegmentLayout

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Rows = Mapping[str, npt.NDArray[Any]]

FIRST_BYTES = 1 << 12
MIN_SHARE_BYTES = 1 << 16
"""Bytes of a buffer from which on a segment may be sealed early for the sake of ``ram``."""


class OpenValues:
    """Buffers of ragged fields' values, by column and slot.

    Attributes:
        addresses: int64 [slots] by column: of the buffer's memory in each slot, for the core; 0 for none.
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

    def __bool__(self) -> bool:
        return bool(self._names)

    def addresses(self, c: int) -> Ints:
        """Return the addresses of a column's buffers, int64 [slots]."""
        slots = self._index.slots
        if len(self._addresses[c]) < slots:
            longer = np.zeros(slots, np.int64)
            longer[: len(self._addresses[c])] = self._addresses[c]
            self._addresses[c] = longer
        return self._addresses[c]

    def _filled(self, c: int, slot: int) -> int:
        """Return the bytes used of a buffer: none in a segment without steps."""
        return self._used.get((c, slot), 0) if self._index.rows[slot] else 0

    def fits(self, slot: int, rows: Rows) -> int:
        """Return how many of the first ``rows`` [n], by field, the segment in ``slot`` has room for; 1 if it is empty.

        Cost: O(n).
        """
        count = len(next(iter(rows.values())))
        for c, name in self._names.items():
            most = min(self._rooms[c], max(MIN_SHARE_BYTES, self.share()))
            ends = self._filled(c, slot) + np.cumsum([row.nbytes for row in rows[name][:count]])
            count = int(np.searchsorted(ends, most, side="right"))
        return count if self._index.rows[slot] else max(1, count)

    def reserve(self, slots: npt.NDArray[np.int32], rows: Rows) -> bool:
        """Make room for one row of each of ``slots`` [n] and field; return whether memory was taken.

        Raises: MemoryError: nothing changed but for room.
        """
        before = self.nbytes
        for c, name in self._names.items():
            for slot, row in zip(slots.tolist(), rows[name], strict=True):
                self._grow(c, slot, self._filled(c, slot) + row.nbytes)
        return self.nbytes > before

    def reserve_run(self, slot: int, rows: Rows) -> bool:
        """Make room for all ``rows`` in one segment, as ``reserve`` does."""
        before = self.nbytes
        for c, name in self._names.items():
            self._grow(c, slot, self._filled(c, slot) + sum(row.nbytes for row in rows[name]))
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
        self, slots: npt.NDArray[Any], rows: Rows
    ) -> tuple[dict[str, npt.NDArray[Any]], dict[tuple[int, int], int]]:
        """Append rows to the buffers of ``slots`` [n], which have room; of several rows of a slot in order.

        Returns the rows by field with references, uint64 [n], in the place of ragged ones; and for ``take_back``. Of a
        row that equals the one before the place is shared.
        """
        found, before = dict(rows), dict[tuple[int, int], int]()
        for c, name in self._names.items():
            size = self._fields[c].item_bytes
            references = np.empty(len(slots), np.uint64)
            last: dict[int, tuple[int, int]] = {}
            for i, (slot, row) in enumerate(zip(slots.tolist(), rows[name], strict=True)):
                key = c, slot
                if slot not in last:
                    used = before[key] = self._filled(c, slot)
                    last[slot] = self._last(c, slot) if used else (0, 0)
                else:
                    used = self._used[key]
                content, buffer = row.reshape(-1).view(np.uint8), self._buffers[key]
                begin, nbytes = last[slot]
                if nbytes != len(content) or not np.array_equal(buffer[begin : begin + nbytes], content):
                    begin, nbytes = used, len(content)
                    buffer[begin : begin + nbytes] = content
                    used += nbytes
                    last[slot] = begin, nbytes
                self._used[key] = used
                references[i] = begin // size | nbytes // size << 32
            found[name] = references
        return found, before

    def _last(self, c: int, slot: int) -> tuple[int, int]:
        rows = self.rows(c, slot, int(self._index.rows[slot]))
        size = rows.kind.item_bytes
        return int(rows.begins[-1]) * size, int(rows.lengths[-1]) * size

    def take_back(self, before: Mapping[tuple[int, int], int]) -> None:
        """Undo ``put``."""
        self._used.update(before)

    def rows(self, c: int, slot: int, count: int) -> RaggedRows:
        """Return a column's first ``count`` rows."""
        begin = int(self._index.offset[c, slot])
        references = self._arena.memory[begin : begin + REFERENCE_BYTES * count].view(np.uint32).astype(np.int64)
        buffer = self._buffers.get((c, slot), np.empty(0, np.uint8))
        return RaggedRows(self._fields[c].kind, buffer, references[::2], references[1::2])

    def release(self, slot: int) -> None:
        """Free the buffers of a segment that is no longer open."""
        for c in self._names:
            buffer = self._buffers.pop((c, slot), None)
            if buffer is not None:
                self.nbytes -= len(buffer)
                self.addresses(c)[slot] = 0
            self._used.pop((c, slot), None)
