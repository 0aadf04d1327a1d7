"""Values of shared fields: each is held once, as long as a segment refers to it.

Without a disk they are in memory. With one, those of sealed segments are in region files: memory has their keys, the
places of their copies, and a cache.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Array, Bytes
from sharpwave.codecs import shared
from sharpwave.codecs.ragged_rows import Kind
from sharpwave.codecs.shared import HEAD, KEY_BYTES, RECORD_BYTES
from sharpwave.disk.region_files import RegionFiles
from sharpwave.errors import DamagedError
from sharpwave.format.region import RECORD
from sharpwave.memory.segment_layout import SegmentLayout
from sharpwave.native import core

Rows = Mapping[str, npt.NDArray[Any]]
Key = tuple[int, int]
"""A column, and the key of a value there."""

VALUE_BYTES = 180
"""Bytes of memory of a packed value in memory beside its own, and beside the index of values, roughly."""
BEFORE, BY_OTHERS, BY_NONE = 0, 1, 2
"""Outcomes of ``SharedIndex.hold``: who referred to the value before."""


class StoredValue:
    """Value in region files, by its number in the index, which is read when it is needed."""

    __slots__ = ("_values", "number")

    def __init__(self, values: SharedValues, number: int) -> None:
        self._values, self.number = values, number

    def __len__(self) -> int:
        return self._values.packed_bytes(self.number)

    def read(self) -> bytes:
        """Return it, packed.  Raises: DamagedError."""
        return self._values.read(self.number)[0]


class SharedValues:
    """Counted values of shared fields, by column and key, and the segments that refer to them.

    A segment holds a value from the first step that has it until the segment is evicted.

    Args:
        regions: region files, whose index of values this is; ``None``: values are in memory.

    Attributes:
        kinds: of the values, by column.
        share: returns the bytes of values from which on an open segment is sealed early, for the sake of ``ram``:
            without a disk, of values that it was the first to have.
        cache_limit: returns the bytes of memory for the cache of values on disk.
        reserved: bytes of memory that the cache may take, until others need them.
        bytes_read: from disk.
    """

    def __init__(self, layout: SegmentLayout, regions: RegionFiles | None = None) -> None:
        fields = layout.spec.fields
        self._names = {c: layout.names[c] for c in layout.shared_columns}
        self.kinds: dict[int, Kind] = {c: fields[name].kind for c, name in self._names.items()}
        self._regions, self._index = regions, core.SharedIndex() if regions is None else regions.values
        self._packed: dict[int, bytes] = {}  # by number in the index
        self._packed_bytes = 0
        self._cache: OrderedDict[int, bytes] = OrderedDict()  # of values in region files, the latest used last
        self._cache_bytes = self.reserved = 0
        self._lost: dict[int, str] = {}  # why: values that are in no file any more
        self._new: dict[int, int] = {}  # by slot, as for ``share``
        self.cache_limit: Callable[[], float] = lambda: float("inf")
        self.bytes_read = 0
        if regions is not None:
            regions.losing = self._keep_in_memory
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
        """Bytes of memory, with those that the cache may take."""
        return self.needed_bytes + self.reserved

    @property
    def needed_bytes(self) -> int:
        """Bytes of memory of the index, and of values that are in no file yet."""
        return self._index.nbytes + self._packed_bytes + VALUE_BYTES * len(self._packed)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return by field how many values there are, and their bytes.  Cost: O(values)."""
        found = {}
        for c, name in self._names.items():
            values, nbytes = self._index.counts(c)
            found[name] = {"values": values, "bytes": nbytes - RECORD_BYTES * values}
        return found

    def full(self, slots: Array) -> list[int]:
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

    def put(self, slots: Array, rows: Rows) -> tuple[dict[str, npt.NDArray[Any]], list[tuple[int, int]]]:
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
                    if held == BY_NONE or number in self._lost:
                        self._add(slot, number, shared.pack(content.tobytes(), self.kinds[c]))
                    elif held == BY_OTHERS:
                        self._count(slot, number)
                found[name] = keys.view("<u8")
        except BaseException:
            self.take_back(taken)
            raise
        if taken:
            self.reserve()
        return found, taken

    def take_back(self, taken: Iterable[tuple[int, int]]) -> None:
        """Undo ``put``."""
        for slot, number in reversed(list(taken)):
            nbytes, freed = self.packed_bytes(number), self._index.release(slot, [number])
            if not freed and self._regions is not None:
                self._new[slot] = max(0, self._new.get(slot, 0) - VALUE_BYTES - nbytes)
            self._free(slot, freed)

    def hold(self, slot: int, values: Mapping[Key, bytes | StoredValue]) -> None:
        """Hold the values that a segment refers to: packed ones, which were checked, or ``stored`` ones."""
        for (c, key), packed in values.items():
            number, held = self._index.hold(slot, c, shared.bytes_of(key))
            if isinstance(packed, bytes) and (held == BY_NONE or number in self._lost):
                self._add(slot, number, packed)
            elif held != BEFORE:
                self._count(slot, number)
        self._index.settle(slot)
        self.reserve()

    def hold_stored(self, slot: int, numbers: list[int]) -> None:
        """Hold the values that a segment in region files refers to, by ``stored_numbers``."""
        self._index.hold_all(slot, numbers)
        self._index.settle(slot)
        self.reserve()

    def hold_only(self, slot: int, keys: Collection[Key]) -> None:
        """Release the values that a segment refers to no more."""
        gone = [number for number in self._index.of(slot) if self._key(number) not in keys]
        self._free(slot, self._index.release(slot, gone))

    def settle(self, slot: int) -> None:
        """Free memory that a segment needs only while it is open: with a disk, it was written there."""
        self._index.settle(slot)
        self._new.pop(slot, None)
        if self._regions is not None:
            for number in self._index.of(slot):
                if number in self._packed and self._index.copies(number):
                    self._remember(number, self._unkeep(number))
            self.reserve()

    def release(self, slot: int) -> None:
        """Release the values of a segment."""
        self._free(slot, self._index.release_all(slot))
        self._new.pop(slot, None)

    def _add(self, slot: int, number: int, packed: bytes) -> None:
        """Keep a new value in memory."""
        self._keep(number, packed)
        self._index.expect(number, RECORD_BYTES + len(packed))
        self._new[slot] = self._new.get(slot, 0) + VALUE_BYTES + len(packed)

    def _count(self, slot: int, number: int) -> None:
        """Count a value that others have: with a disk, memory may need it while the segment is open."""
        if self._regions is not None:
            self._new[slot] = self._new.get(slot, 0) + VALUE_BYTES + self.packed_bytes(number)

    def _keep(self, number: int, packed: bytes) -> None:
        self._packed[number] = packed
        self._packed_bytes += len(packed)
        self._lost.pop(number, None)

    def _unkeep(self, number: int) -> bytes:
        packed = self._packed.pop(number)
        self._packed_bytes -= len(packed)
        return packed

    def _free(self, slot: int, numbers: list[int]) -> None:
        """Free values that nothing refers to now, the segment in ``slot`` last."""
        for number in numbers:
            self._lost.pop(number, None)
            if number in self._cache:
                self._cache_bytes -= VALUE_BYTES + len(self._cache.pop(number))
            if number in self._packed:
                packed = self._unkeep(number)
                if slot in self._new:  # another may have had it first
                    self._new[slot] = max(0, self._new[slot] - VALUE_BYTES - len(packed))

    # values on disk

    def reserve(self, coming: int = 0) -> None:
        """Reserve memory for the cache: as much as all values on disk would take, within its limit, less ``coming``
        bytes that others are about to take."""
        if self._regions is not None:
            beside = VALUE_BYTES - RECORD.size - RECORD_BYTES
            most = self._index.copied_bytes + beside * (len(self._index) - len(self._packed))
            self.reserved = int(min(most, max(0, self.cache_limit() - coming)))
            self._trim(self.reserved)

    def _trim(self, most: int) -> None:
        while self._cache_bytes > most:
            self._cache_bytes -= VALUE_BYTES + len(self._cache.popitem(last=False)[1])

    def _remember(self, number: int, packed: bytes) -> None:
        """Put a value into the cache, unless it would fill much of it."""
        nbytes = VALUE_BYTES + len(packed)
        if 2 * nbytes <= self.reserved and number not in self._cache:
            self._trim(self.reserved - nbytes)
            self._cache[number] = packed
            self._cache_bytes += nbytes

    def _keep_in_memory(self, numbers: list[int]) -> None:
        """Keep values whose only copies are about to go: those that only open segments refer to."""
        for number in numbers:
            if number not in self._packed:
                with contextlib.suppress(DamagedError, OSError):
                    self._keep(number, self.read(number)[0])

    def read(self, number: int) -> tuple[bytes, bytes | None]:
        """Return a value, packed, and if it was read from disk its content.

        Raises: DamagedError: all its copies are damaged.  OSError: the system failed to read it; try again.
        """
        if (packed := self._packed.get(number)) is not None:
            return packed, None
        if (packed := self._cache.get(number)) is not None:
            self._cache.move_to_end(number)
            return packed, None
        assert self._regions is not None
        if (why := self._lost.get(number)) is not None and not self._index.copies(number):
            raise DamagedError(why)
        kind, key = self.kinds[self._index.column(number)], shared.number_of(self._index.key(number))
        most = HEAD.size + kind.most_bytes
        try:
            packed, content = self._regions.read_shared(
                number, most, lambda packed: (packed, shared.checked_content(packed, kind, key))
            )
        except DamagedError as error:
            if not self._index.copies(number):
                self._lost[number] = str(error)
            raise
        self.bytes_read += RECORD_BYTES + len(packed)
        self._remember(number, packed)
        return packed, content

    def packed_bytes(self, number: int) -> int:
        """Return the bytes of a value, packed."""
        return self._index.payload_bytes(number) - RECORD_BYTES

    def stored(self, key: Key) -> StoredValue:
        """Return a value of a segment that is being adopted from region files.

        Raises: DamagedError: it is in no file, or larger than a store makes it.
        """
        number, name = self._number(*key), self._names[key[0]]
        if number < 0 or not (self._index.copies(number) or number in self._packed):
            raise DamagedError(f"{name} refers to shared value {shared.text_of(key[1])}, which is missing")
        nbytes, most = self.packed_bytes(number), HEAD.size + self.kinds[key[0]].most_bytes
        if nbytes > most:
            raise DamagedError(f"{name}: a shared value of {nbytes:,} bytes, expected at most {most:,}")
        return StoredValue(self, number)

    def stored_numbers(self, c: int, keys: Bytes) -> list[int]:
        """Return the numbers of values by their ``keys`` uint8 [n, 16], as ``stored`` does.  Raises: DamagedError."""
        halves = np.ascontiguousarray(keys).view("<u8")
        numbers = self._index.stored(c, halves, RECORD_BYTES + HEAD.size + self.kinds[c].most_bytes)
        for key in keys[len(numbers) :]:
            numbers.append(self.stored((c, shared.number_of(key.tobytes()))).number)
        return numbers

    def by_number(self, numbers: list[int]) -> dict[Key, StoredValue]:
        """Return values by their numbers, to be written: they are not read yet."""
        return {self._key(number): StoredValue(self, number) for number in numbers}

    def _key(self, number: int) -> Key:
        return self._index.column(number), shared.number_of(self._index.key(number))

    def _number(self, c: int, key: int) -> int:
        """Return the number of a value; -1: it is not held."""
        return self._index.find(c, shared.bytes_of(key))

    def of(self, slot: int, whole: bool = True) -> dict[Key, bytes]:
        """Return the values that a segment refers to, packed; unless ``whole`` without those that cannot be read.

        Raises: DamagedError.
        """
        found = {}
        for number in self._index.of(slot):
            try:
                found[self._key(number)] = self.read(number)[0]
            except DamagedError:
                if whole:
                    raise
        return found

    def needed(self, slot: int) -> dict[Key, bytes | StoredValue]:
        """Return the values that a segment refers to, to be written with it: those in files are not read yet."""
        return {
            self._key(number): self._packed.get(number) or StoredValue(self, number) for number in self._index.of(slot)
        }

    def packed(self, key: Key) -> bytes | None:
        """Return a value, packed; ``None``: it is not held.  Raises: DamagedError."""
        number = self._number(*key)
        return None if number < 0 else self.read(number)[0]

    def expect(self, c: int, keys: Iterable[bytes]) -> None:
        """Let the disk begin to read values of which ``content`` will be asked."""
        if self._regions is not None:
            numbers = (self._index.find(c, key) for key in keys)
            away = [one for one in numbers if one >= 0 and one not in self._packed and one not in self._cache]
            if len(away) > 1:
                self._regions.expect_shared(away)

    def content(self, c: int, key: int) -> bytes:
        """Return a value.  Raises: KeyError: it is not held.  DamagedError."""
        number = self._number(c, key)
        if number < 0:
            raise KeyError(key)
        packed, found = self.read(number)
        return shared.content(packed, self.kinds[c]) if found is None else found
