"""Segments read from region files: their bytes and dictionaries, within the limits of a store's own segments.

Opening a store and the read-only tools read segments through this module, so both refuse the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from sharpwave.codecs.registry import max_dictionary_bytes
from sharpwave.disk.region_notes import Evictions
from sharpwave.errors import DamagedError
from sharpwave.format.region import SEGMENT, TAIL, Damage, Record
from sharpwave.format.segment_header import Header
from sharpwave.memory.segment_index import LEAF_BITS, LEAF_MASK
from sharpwave.memory.segment_layout import SegmentLayout


class SegmentReader:
    """Reader of a store's segments, which trusts no number in a file.

    Args:
        layout: of the store's segments. ``max_lanes``: limit of its lanes.
        read: returns a record's bytes.  Raises: OSError.
        dictionaries: records of the dictionaries, by key.
    """

    def __init__(
        self,
        layout: SegmentLayout,
        max_lanes: int,
        read: Callable[[Record], bytes],
        dictionaries: dict[int, Record],
    ) -> None:
        self.layout, self.max_lanes = layout, max_lanes
        self._read, self._records = read, dictionaries
        self._dictionaries: dict[int, bytes] = {}

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


def segment_damage(path: Path, record: Record, error: Exception) -> Damage:
    """Return damage of a segment whose checksum matches."""
    what = f"segment {record.id}: {str(error).removeprefix('segment: ')}"
    return Damage(path, record.offset, record.nbytes, what, record.id)


def max_slots(records: int) -> int:
    """Return a bound of the slots of a store of so many records: tables of slots must not grow with a damaged id."""
    return (1 << 22) + 64 * records


def ranked(found: Iterable[Record], stride: int, evictions: Evictions) -> list[list[Record]]:
    """Return, slot by slot in the order of writing, the valid record and then earlier ones, without evicted segments.

    Rows of open segments are last. An earlier record serves if a later one is unusable: a power cut may leave a
    segment without the dictionary that was written before it.
    """
    slots: dict[int, list[Record]] = {}
    for one in found:
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
