"""One scan of a store's region files. Opening a store and the read-only tools consume its result, a ``Scan``:

- by file, the intact records in their order, each with its position (``Record``), and the bytes that are no record,
  each with file, offset and reason (``Damage``);
- the facts in the notes among them: evictions, and ends of the lanes' step numbers;
- by slot, the record that counts, then earlier ones, which serve if it is unusable; no evicted ones (``versions``).

A scan decodes no segment. ``SegmentReader`` reads the segment of a record and refuses what no store writes, ``refused``
names the place: so all consumers refuse the same segments. They chain the others by lane as they decode them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Ints
from sharpwave.codecs.codec_registry import max_dictionary_bytes
from sharpwave.codecs.shared import HEAD, RECORD_BYTES, checked, keys_of, number_of, text_of, unpack
from sharpwave.disk.region_notes import MAX_NOTE_BYTES, Evicted, Evictions, unpack_ends, unpack_evicted
from sharpwave.errors import DamagedError
from sharpwave.format import segment
from sharpwave.format.region import (
    DICTIONARY,
    FIRST,
    NOTE,
    SEGMENT,
    SHARED,
    TAIL,
    Damage,
    Identity,
    Record,
    Region,
    Values,
    read_region,
    unpack_shared,
)
from sharpwave.format.segment_header import Header
from sharpwave.memory.segment_index import LEAF_BITS, LEAF_MASK
from sharpwave.memory.segment_layout import SegmentLayout
from sharpwave.native import descriptors
from sharpwave.native.directory import Directory


@dataclass
class Scan:
    """Intact records of one or several region files, in order.

    Attributes:
        dictionaries: those among the records, and shared values. ``notes``: contents of notes that can be parsed.
        damages: bytes that are no record.
    """

    records: list[Record] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    dictionaries: list[Record] = field(default_factory=list)
    notes: dict[Record, Evicted | Ints] = field(default_factory=dict)

    def add(self, other: Scan) -> None:
        """Add the records and the damage of a later scan."""
        self.records += other.records
        self.damages += other.damages
        self.dictionaries += other.dictionaries
        self.notes |= other.notes

    @property
    def max_slots(self) -> int:
        """Bound of the slots of a store of so many records: tables of slots must not grow with a damaged id."""
        return (1 << 22) + 64 * len(self.records)

    def slots(self, stride: int) -> list[int]:
        """Return the slot of each segment and of each open segment's rows."""
        return [(one.id & LEAF_MASK) // stride for one in self.records if one.kind in (SEGMENT, TAIL)]

    def highest_slot(self, stride: int) -> int:
        """Return the highest slot within the bound; -1 without any."""
        end = self.max_slots
        return max((slot for slot in self.slots(stride) if slot < end), default=-1)

    def evictions(self, stride: int) -> Evictions:
        """Return the evicted segments, by the notes."""
        found = Evictions(stride, self.max_slots)
        for record, note in self.notes.items():
            if isinstance(note, Evicted):
                found.take(note, record.sequence, record.region)
        return found

    def versions(self, stride: int, evictions: Evictions) -> list[list[Record]]:
        """Return, slot by slot in the order of writing, the record that counts and then earlier ones; none evicted.

        Rows of open segments are last. An earlier record serves if a later one is unusable: a power cut may leave a
        segment without the dictionary that was written before it.
        """
        slots: dict[int, list[Record]] = {}
        for one in self.records:
            if one.kind in (SEGMENT, TAIL) and not evictions.covers(one.id):
                slots.setdefault((one.id & LEAF_MASK) // stride, []).append(one)
        for versions in slots.values():
            versions.sort(key=_rank, reverse=True)
        return sorted(slots.values(), key=lambda versions: (versions[0].kind != SEGMENT, versions[0].sequence))


def _rank(record: Record) -> tuple[int, bool, int, int, int]:
    """Return a record's rank in its slot: the latest generation counts; a sealed segment before its rows so far.

    Of copies the last is taken: it may have an end of an episode that the others lack.
    """
    return record.id >> LEAF_BITS, record.kind == SEGMENT, record.sequence, record.region, record.offset


def scan_region(
    path: Path,
    identity: Identity | None = None,
    directory: Directory | None = None,
    begin: int = FIRST,
    values: Values | None = None,
) -> tuple[Region | None, Scan]:
    """Open a region's file, and return it with its records; ``None`` if its header cannot be trusted.

    Args, Raises: as ``read_region``.
    """
    region, records, damages = read_region(path, identity, directory, begin, values)
    scan = Scan(records, damages, [one for one in records if one.kind in (DICTIONARY, SHARED)])
    for record in records:
        if record.kind == NOTE and record.nbytes <= MAX_NOTE_BYTES:
            assert region is not None
            with contextlib.suppress(OSError):
                content = descriptors.pread(region.descriptor, record.nbytes, record.offset)
                evicted = unpack_evicted(content)
                scan.notes[record] = unpack_ends(content) if evicted is None else evicted
    return region, scan


class SegmentReader:
    """Reader of a store's segments, which trusts no number in a file.

    Args:
        layout: of the store's segments. ``max_lanes``: limit of its lanes.
        read: returns a record's bytes.  Raises: OSError.
        dictionaries: their records, and those of shared values.
    """

    def __init__(
        self,
        layout: SegmentLayout,
        max_lanes: int,
        read: Callable[[Record], bytes],
        dictionaries: Sequence[Record],
    ) -> None:
        self.layout, self.max_lanes = layout, max_lanes
        self._read, self._records = read, {one.key: one for one in dictionaries if one.kind == DICTIONARY}
        self._columns = {(one.column, one.key): one for one in dictionaries}
        self._dictionaries: dict[int, bytes] = {}
        self._verified = set[tuple[int, int]]()  # shared values

    def payload(self, record: Record) -> bytes:
        """Return a segment's bytes.  Raises: DamagedError: unreadable, or more than a store writes."""
        limit = self.layout.chunk_bytes
        if record.nbytes > limit:
            raise DamagedError(f"{record.nbytes:,} bytes, expected at most {limit:,}")
        return self._content(record)

    def _content(self, record: Record) -> bytes:
        try:
            return self._read(record)
        except OSError as error:
            raise DamagedError(f"cannot be read: {error}") from error

    def dictionary(self, key: int) -> bytes:
        """Return a dictionary; key 0 is the empty one.

        Raises: KeyError: there is none.  DamagedError: larger than a store makes them.
        """
        if key and key not in self._dictionaries:
            record = self._records[key]
            limit = max_dictionary_bytes(int(self.layout.sizes.max()))
            if record.nbytes > limit:
                raise DamagedError(f"dictionary {key:016x} has {record.nbytes:,} bytes, expected at most {limit:,}")
            self._dictionaries[key] = self._content(record)
        return self._dictionaries[key] if key else b""

    def shared_value(self, c: int, key: int) -> bytes:
        """Return a shared value, packed, whose content has the key.  Raises: DamagedError."""
        name = self.layout.names[c]
        if (record := self._columns.get((c, key))) is None:
            raise DamagedError(f"{name} refers to shared value {text_of(key)}, which is missing")
        kind = self.layout.spec.fields[name].kind
        limit = HEAD.size + RECORD_BYTES + kind.most_bytes
        if record.nbytes > limit:
            raise DamagedError(f"{name}: a shared value of {record.nbytes:,} bytes, expected at most {limit:,}")
        return checked(unpack_shared(self._content(record)), kind, key)

    def check_header(self, header: Header, *, sealed: bool) -> None:
        """Refuse a segment larger than this store's.  Raises: DamagedError."""
        layout, least = self.layout, int(sealed)
        if not least <= header.steps <= layout.stride or not header.context <= header.frames <= layout.max_frames:
            raise DamagedError(
                f"{header.steps:,} steps, {header.frames:,} frames, {header.context:,} of them context; "
                f"expected {least} to {layout.stride:,} steps and at most {layout.max_frames:,} frames"
            )
        rows = [column.rows for column in header.placed]
        if any(count > limit for count, limit in zip(rows, layout.limits, strict=True)):
            raise DamagedError(f"columns of {rows} rows, expected at most {layout.limits}")
        if header.lane >= self.max_lanes:
            raise DamagedError(
                f"lane {header.lane:,}, expected one below {self.max_lanes:,}, which the capacity allows"
            )

    def _whole(self, record: Record) -> bytes:
        """Return a segment's bytes, if its header's sizes fit into memory, and its dictionaries are there.

        Raises: DamagedError.
        """
        payload = self.payload(record)
        header = segment.parse(payload, self.layout.spec)
        self.check_header(header, sealed=record.kind == SEGMENT)
        for column, placed in enumerate(header.placed):
            if placed.dictionary and (column, placed.dictionary) not in self._columns:
                raise DamagedError(
                    f"column {column} refers to dictionary {placed.dictionary:016x}, which this region does not hold"
                )
        return payload

    def verify(self, record: Record) -> Header:
        """Decode every row of a segment, sealed or open; return its header.  Raises: DamagedError."""
        whole, sealed, spec = self._whole(record), record.kind == SEGMENT, self.layout.spec
        header = segment.check(whole, spec, self.dictionary, sealed=sealed, decode=True)
        for key in segment.shared_keys(whole, header, spec) - self._verified:
            self.shared_value(*key)
            self._verified.add(key)
        return header

    def unpack(self, record: Record, only: Collection[str] | None = None) -> tuple[Header, dict[str, npt.NDArray[Any]]]:
        """Decode a segment, or some of its columns, with keys of shared values.  Raises: DamagedError."""
        limit = self.layout.chunk_bytes
        return segment.unpack(self._whole(record), self.layout.spec, self.dictionary, only, limit)

    def read(self, record: Record, only: Collection[str]) -> tuple[Header, dict[str, npt.NDArray[Any]]]:
        """Decode columns of a segment, with the shared values themselves.  Raises: DamagedError."""
        header, arrays = self.unpack(record, only)
        for c, name in enumerate(self.layout.names):
            if c in self.layout.shared_columns and name in arrays:
                field, keys = self.layout.spec.fields[name], arrays[name].view(np.uint8)
                values = {key: unpack(self.shared_value(c, key), field.kind) for key in keys_of(keys)}
                size = len(keys) * field.item_bytes
                if not field.ragged and size > segment.DECODED_BYTES:
                    raise DamagedError(f"{name}: {size:,} bytes of rows, expected at most {segment.DECODED_BYTES:,}")
                rows = [field.kind.row(values[number_of(key.tobytes())]) for key in keys]
                arrays[name] = (
                    np.empty(len(rows), object) if field.ragged else np.empty((len(rows), *field.shape), field.np_dtype)
                )
                for i, row in enumerate(rows):
                    arrays[name][i] = row if field.ragged else row[0]
        return header, arrays


def refused(path: Path, record: Record, error: Exception) -> Damage:
    """Return the damage of an intact record whose segment was refused."""
    what = f"segment {record.id}: {str(error).removeprefix('segment: ')}"
    return Damage(path, record.offset, record.nbytes, what, record.id)
