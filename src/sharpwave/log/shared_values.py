"""Values of shared fields: each is held once, as long as a segment refers to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.codecs import shared
from sharpwave.codecs.ragged import Kind
from sharpwave.codecs.shared import KEY_BYTES
from sharpwave.memory.segment_layout import SegmentLayout

Ints = npt.NDArray[Any]
Rows = Mapping[str, npt.NDArray[Any]]
Key = tuple[int, int]
"""A column, and the key of a value there."""

VALUE_BYTES, SEGMENT_BYTES, REFERENCE_BYTES = 320, 216, 9
"""Bytes of memory of a value beside its own, of a segment that refers to some, and of each reference, roughly."""


class _Value:
    """A packed value, and how many segments refer to it."""

    __slots__ = ("key", "packed", "uses")

    def __init__(self, key: Key, packed: bytes) -> None:
        self.key, self.packed, self.uses = key, packed, 0


class _Segment:
    """Values that a segment refers to, and the bytes of the values that it was the first to have."""

    __slots__ = ("new", "values")

    def __init__(self) -> None:
        self.values: list[_Value] = []
        self.new = 0


class SharedValues:
    """Counted values of shared fields, by column and key, and the segments that refer to them.

    A segment holds a value from the first step that has it until the segment is evicted.

    Attributes:
        kinds: of the values, by column. ``freed``: called with the column and the key of a value that is freed.
        share: returns the bytes of new values from which on an open segment is sealed early, for the sake of ``ram``.
        nbytes: bytes of memory.
    """

    def __init__(self, layout: SegmentLayout) -> None:
        fields = layout.spec.fields
        self._names = {c: layout.names[c] for c in layout.shared_columns}
        self.kinds: dict[int, Kind] = {c: fields[name].kind for c, name in self._names.items()}
        self._values: dict[Key, _Value] = {}
        self._held: dict[int, _Segment] = {}  # by slot
        self.share: Callable[[], float] = lambda: float("inf")
        self.nbytes = 0
        self.freed: Callable[[int, int], None] = lambda column, key: None

    def __bool__(self) -> bool:
        return bool(self.kinds)

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def counts(self) -> dict[str, dict[str, int]]:
        """Return by field how many values there are, and their bytes.  Cost: O(values)."""
        sizes: dict[int, list[int]] = {c: [] for c in self._names}
        for (c, _), value in self._values.items():
            sizes[c].append(len(value.packed))
        return {name: {"values": len(sizes[c]), "bytes": sum(sizes[c])} for c, name in self._names.items()}

    def full(self, slots: Ints) -> list[int]:
        """Return the positions in ``slots`` [n] of segments with so many new values that they are sealed early."""
        share = self.share()
        return [i for i, slot in enumerate(slots.tolist()) if slot in self._held and self._held[slot].new >= share]

    def fits(self, slot: int, rows: Rows) -> int:
        """Return how many of the first ``rows`` [n], by field, keep the segment in ``slot`` within its share, if all
        values are new; 1 at least.  Cost: O(n) where there is a share."""
        share, count = self.share(), len(next(iter(rows.values())))
        if share == float("inf"):
            return count
        sizes, held = np.zeros(count, np.int64), self._held.get(slot)
        for name in self._names.values():
            before: Any = None
            for i, row in enumerate(rows[name]):
                sizes[i] += 0 if row is before else row.nbytes
                before = row
        room = share - (0 if held is None else held.new)
        return max(1, int(np.searchsorted(np.cumsum(sizes), room, side="right")))

    def put(self, slots: Ints, rows: Rows) -> tuple[dict[str, npt.NDArray[Any]], list[tuple[int, Key]]]:
        """Hold the values of steps that are about to be written to segments in ``slots`` [n].

        Returns the rows by field with keys, uint64 [n, 2], in the place of values; and for ``take_back``.

        Cost: a hash of each value; each new value is packed, which takes some 25 us for 400 bytes.
        """
        found, taken = dict(rows), list[tuple[int, Key]]()
        for c, name in self._names.items():
            keys = np.empty((len(slots), KEY_BYTES), np.uint8)
            row: Any = None
            key, content = (c, 0), np.zeros(0, np.uint8)
            for i, (slot, next_row) in enumerate(zip(slots.tolist(), rows[name], strict=True)):
                if next_row is not row:
                    row, content = next_row, np.ascontiguousarray(next_row).reshape(-1).view(np.uint8)
                    key = c, shared.key_of(content.data, self.kinds[c])
                keys[i] = np.frombuffer(shared.bytes_of(key[1]), np.uint8)
                there = self._values.get(key)
                if there is None or not self._refers(slot, there):
                    self._hold(slot, key, shared.pack(content.tobytes(), self.kinds[c]) if there is None else b"")
                    taken.append((slot, key))
            found[name] = keys.view("<u8")
        return found, taken

    def take_back(self, taken: Iterable[tuple[int, Key]]) -> None:
        """Undo ``put``."""
        for slot, key in taken:
            self._keep(slot, [value for value in self._held[slot].values if value.key != key])

    def hold(self, slot: int, values: Mapping[Key, bytes]) -> None:
        """Hold the packed values, which were checked, that a segment refers to."""
        for key, packed in values.items():
            there = self._values.get(key)
            if there is None or not self._refers(slot, there):
                self._hold(slot, key, packed)

    def hold_only(self, slot: int, keys: Collection[Key]) -> None:
        """Release the values that a segment refers to no more."""
        self._keep(slot, [value for value in self._of(slot) if value.key in keys])

    def release(self, slot: int) -> None:
        """Release the values of a segment."""
        self._keep(slot, [])

    def _of(self, slot: int) -> list[_Value]:
        return self._held[slot].values if slot in self._held else []

    def _refers(self, slot: int, value: _Value) -> bool:
        return value in self._of(slot)

    def _hold(self, slot: int, key: Key, packed: bytes) -> None:
        if slot not in self._held:
            self._held[slot] = _Segment()
            self.nbytes += SEGMENT_BYTES
        segment, value = self._held[slot], self._values.get(key)
        if value is None:
            value = self._values[key] = _Value(key, packed)
            self.nbytes += VALUE_BYTES + len(packed)
            segment.new += VALUE_BYTES + len(packed)
        segment.values.append(value)
        value.uses += 1
        self.nbytes += REFERENCE_BYTES

    def _keep(self, slot: int, kept: list[_Value]) -> None:
        """Release the values that a segment holds but those ``kept``."""
        if slot not in self._held:
            return
        segment = self._held[slot]
        before, segment.values = segment.values, kept
        self.nbytes -= REFERENCE_BYTES * (len(before) - len(kept))
        if not kept:
            del self._held[slot]
            self.nbytes -= SEGMENT_BYTES
        for value in set(before) - set(kept):
            value.uses -= 1
            if not value.uses:
                del self._values[value.key]
                self.nbytes -= VALUE_BYTES + len(value.packed)
                segment.new = max(0, segment.new - VALUE_BYTES - len(value.packed))  # another may have had it first
                self.freed(*value.key)

    def of(self, slot: int) -> dict[Key, bytes]:
        """Return the values that a segment refers to, packed."""
        return {value.key: value.packed for value in self._of(slot)}

    def packed(self, key: Key) -> bytes | None:
        """Return a value, packed; ``None``: it is not held."""
        value = self._values.get(key)
        return None if value is None else value.packed

    def content(self, c: int, key: int) -> bytes:
        """Return a value.  Raises: KeyError, DamagedError."""
        return shared.content(self._values[c, key].packed, self.kinds[c])
