"""Values of shared fields: each is held once, as long as a segment refers to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.codecs import shared
from sharpwave.codecs.ragged import Kind
from sharpwave.codecs.shared import KEY_BYTES, RECORD_BYTES
from sharpwave.memory.segment_layout import SegmentLayout
from sharpwave.native import core

Ints = npt.NDArray[Any]
Rows = Mapping[str, npt.NDArray[Any]]
Key = tuple[int, int]
"""A column, and the key of a value there."""

VALUE_BYTES = 180
"""Bytes of memory of a packed value beside its own, and beside the index of values, roughly."""
BEFORE, BY_OTHERS, BY_NONE = 0, 1, 2
"""Outcomes of ``SharedIndex.hold``: who referred to the value before."""


class SharedValues:
    """Counted values of shared fields, by column and key, and the segments that refer to them.

    A segment holds a value from the first step that has it until the segment is evicted.

    Args:
        index: of values, in which region files note their copies; ``None``: there are none.

    Attributes:
        kinds: of the values, by column.
        share: returns the bytes of new values from which on an open segment is sealed early, for the sake of ``ram``.
    """

    def __init__(self, layout: SegmentLayout, index: core.SharedIndex | None = None) -> None:
        fields = layout.spec.fields
        self._names = {c: layout.names[c] for c in layout.shared_columns}
        self.kinds: dict[int, Kind] = {c: fields[name].kind for c, name in self._names.items()}
        self._index = core.SharedIndex() if index is None else index
        self._packed: dict[int, bytes] = {}  # by number in the index
        self._packed_bytes = 0
        self._new: dict[int, int] = {}  # bytes of the values that the segment in a slot was the first to have
        self.share: Callable[[], float] = lambda: float("inf")

    def __bool__(self) -> bool:
        return bool(self.kinds)

    def __len__(self) -> int:
        return len(self._index)

    def __iter__(self) -> Iterator[Key]:
        return map(self._key, self._index.numbers())

    def __contains__(self, key: Key) -> bool:
        return self._number(*key) >= 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._index.nbytes + self._packed_bytes + VALUE_BYTES * len(self._packed)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return by field how many values there are, and their bytes.  Cost: O(values)."""
        found = {}
        for c, name in self._names.items():
            values, nbytes = self._index.counts(c)
            found[name] = {"values": values, "bytes": nbytes - RECORD_BYTES * values}
        return found

    def full(self, slots: Ints) -> list[int]:
        """Return the positions in ``slots`` [n] of segments with so many new values that they are sealed early."""
        share = self.share()
        return [i for i, slot in enumerate(slots.tolist()) if self._new.get(slot, 0) >= share]

    def fits(self, slot: int, rows: Rows) -> int:
        """Return how many of the first ``rows`` [n], by field, keep the segment in ``slot`` within its share, if all
        values are new; 1 at least.  Cost: O(n) where there is a share."""
        share, count = self.share(), len(next(iter(rows.values())))
        if share == float("inf"):
            return count
        sizes = np.zeros(count, np.int64)
        for name in self._names.values():
            before: Any = None
            for i, row in enumerate(rows[name]):
                sizes[i] += 0 if row is before else row.nbytes
                before = row
        room = share - self._new.get(slot, 0)
        return max(1, int(np.searchsorted(np.cumsum(sizes), room, side="right")))

    def put(self, slots: Ints, rows: Rows) -> tuple[dict[str, npt.NDArray[Any]], list[tuple[int, int]]]:
        """Hold the values of steps that are about to be written to segments in ``slots`` [n].

        Returns the rows by field with keys, uint64 [n, 2], in the place of values; and for ``take_back``.

        Cost: a hash of each value; each new value is packed, which takes some 25 us for 400 bytes.
        """
        found, taken = dict(rows), list[tuple[int, int]]()
        try:
            for c, name in self._names.items():
                keys = np.empty((len(slots), KEY_BYTES), np.uint8)
                row: Any = None
                key, content = b"", np.zeros(0, np.uint8)
                for i, (slot, next_row) in enumerate(zip(slots.tolist(), rows[name], strict=True)):
                    if next_row is not row:
                        row, content = next_row, np.ascontiguousarray(next_row).reshape(-1).view(np.uint8)
                        key = shared.digest_of(content.data, self.kinds[c])
                    keys[i] = np.frombuffer(key, np.uint8)
                    number, held = self._index.hold(slot, c, key)
                    if held != BEFORE:
                        taken.append((slot, number))
                    if held == BY_NONE:
                        self._add(slot, number, shared.pack(content.tobytes(), self.kinds[c]))
                found[name] = keys.view("<u8")
        except BaseException:
            self.take_back(taken)
            raise
        return found, taken

    def take_back(self, taken: Iterable[tuple[int, int]]) -> None:
        """Undo ``put``."""
        for slot, number in reversed(list(taken)):
            self._free(slot, self._index.release(slot, [number]))

    def hold(self, slot: int, values: Mapping[Key, bytes]) -> None:
        """Hold the packed values, which were checked, that a segment refers to."""
        for (c, key), packed in values.items():
            number, held = self._index.hold(slot, c, shared.bytes_of(key))
            if held == BY_NONE:
                self._add(slot, number, packed)
        self._index.settle(slot)

    def hold_only(self, slot: int, keys: Collection[Key]) -> None:
        """Release the values that a segment refers to no more."""
        gone = [number for number in self._index.of(slot) if self._key(number) not in keys]
        self._free(slot, self._index.release(slot, gone))

    def settle(self, slot: int) -> None:
        """Free memory that a segment needs only while it is open."""
        self._index.settle(slot)
        self._new.pop(slot, None)

    def release(self, slot: int) -> None:
        """Release the values of a segment."""
        self._free(slot, self._index.release_all(slot))
        self._new.pop(slot, None)

    def _add(self, slot: int, number: int, packed: bytes) -> None:
        """Keep a new value in memory."""
        self._packed[number] = packed
        self._packed_bytes += len(packed)
        self._index.expect(number, RECORD_BYTES + len(packed))
        self._new[slot] = self._new.get(slot, 0) + VALUE_BYTES + len(packed)

    def _free(self, slot: int, numbers: list[int]) -> None:
        """Free values that nothing refers to now, the segment in ``slot`` last."""
        for number in numbers:
            if (packed := self._packed.pop(number, None)) is not None:
                self._packed_bytes -= len(packed)
                if slot in self._new:  # another may have had it first
                    self._new[slot] = max(0, self._new[slot] - VALUE_BYTES - len(packed))

    def _key(self, number: int) -> Key:
        return self._index.column(number), shared.number_of(self._index.key(number))

    def _number(self, c: int, key: int) -> int:
        """Return the number of a value; -1: it is not held."""
        return self._index.find(c, shared.bytes_of(key))

    def of(self, slot: int) -> dict[Key, bytes]:
        """Return the values that a segment refers to, packed."""
        return {self._key(number): self._packed[number] for number in self._index.of(slot)}

    def packed(self, key: Key) -> bytes | None:
        """Return a value, packed; ``None``: it is not held."""
        return self._packed.get(self._number(*key))

    def content(self, c: int, key: int) -> bytes:
        """Return a value.  Raises: KeyError, DamagedError."""
        return shared.content(self._packed[self._number(c, key)], self.kinds[c])
