"""Region files: where sealed segments lie on disk, appended one behind the other and deleted a whole file at a time.

A region is complete in itself: it holds every dictionary that its segments refer to. So deleting the oldest one never
takes anything from the others, and a damaged one costs no more than what is damaged. ``docs/format.md`` specifies the
bytes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .dictionaries import KEY_BYTES
from .direct import open_direct
from .files import Files

MAGIC, VERSION = b"SWREGION", 1
HEADER = struct.Struct("<8sIIQQQ16sQII")  # magic, version, 0, number, size, schema, store, generation, 0, CRC-32; 72
RECORD = struct.Struct("<4sIQQQII")  # magic, kind, nbytes, id, sequence, column, CRC-32 of what stands before it; 40
RECORD_MAGIC = b"SWRC"
SEGMENT, DICTIONARY, TAIL, END, NOTE = 1, 2, 3, 4, 5
"""Kinds of records: a sealed segment; a dictionary; an open segment's rows so far, which a later record replaces;
nothing follows, and the file may end here; which of a reservoir's segments have left."""
ALIGNMENT = 8
MOST_NUMBER, MOST_GENERATION, MOST_ID = 1 << 31, 1 << 30, 1 << 62
"""Region numbers, generations, and ids and sequence numbers lie below these; a file that says otherwise is damaged."""
FIRST = -(-HEADER.size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Identity:
    """Which store a region belongs to: its random 16 bytes, and its schema's hash."""

    store: bytes
    schema: int


@dataclass(frozen=True)
class Record:
    """A record that was found whole. ``offset`` and ``nbytes`` are of the payload in its file."""

    kind: int
    id: int
    sequence: int
    column: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Damage:
    """Bytes of a region that are not what was written there: ``nbytes`` from ``offset`` on; ``id`` -1: unknown."""

    path: Path
    offset: int
    nbytes: int
    what: str
    id: int = -1

    def __str__(self) -> str:
        return f"{self.path}: byte {self.offset:,}: {self.what}; {self.nbytes:,} bytes set aside"


@dataclass
class Region:
    """One file. ``used`` is where the next record goes, ``size`` how large the file is on disk.

    Attributes:
        synced: all before it is on disk.
        spoiled: up to here may lie what a write left that failed.
        unsure: a sync failed. The system may count as written what it could not write, and say so of the next sync.
        shared: bytes that its dictionaries take.
    """

    path: Path
    number: int
    descriptor: int
    size: int
    used: int
    generation: int
    keys: set[tuple[int, int]] = field(default_factory=set)  # (column, dictionary's key) that it holds
    synced: int = 0
    finished: bool = False
    spoiled: int = 0
    unsure: bool = False
    shared: int = 0

    @cached_property
    def direct(self) -> int:
        """The file for reads past the system's memory; -1: there are none. See :func:`direct.open_direct`."""
        return open_direct(self.path, self.descriptor)

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)
        if vars(self).get("direct", -1) >= 0:
            os.close(self.direct)


class Regions:
    """The regions of one store, oldest first; the newest is written to.

    Args:
        folder: where the files lie; made if absent.
        region_bytes: size of a file; one with a single larger record is larger.
    """

    def __init__(self, folder: Path, identity: Identity, region_bytes: int, files: Files) -> None:
        self.folder, self.identity, self.region_bytes, self.files = folder, identity, region_bytes, files
        self.regions: dict[int, Region] = {}
        self.sequence = 0
        self.next_number = 0
        files.make_folder(folder)

    @property
    def nbytes(self) -> int:
        """Bytes that the files take on disk."""
        return sum(region.size for region in self.regions.values())

    def room_for(self, nbytes: int) -> bool:
        """Whether a record of ``nbytes`` fits without another file. Dictionaries may come on top."""
        newest = self._newest()
        if newest is None or newest.finished:
            return False
        return newest.used + RECORD.size + nbytes + ALIGNMENT <= newest.size

    def append(
        self,
        kind: int,
        id_: int,
        payload: bytes,
        generation: int,
        dictionaries: dict[tuple[int, int], bytes],
        sequence: int | None = None,
    ) -> tuple[int, int]:
        """Write a record, and before it the dictionaries that its region lacks; returns (region, offset of payload).

        Args:
            generation: highest of any id so far; a new region keeps it.
            dictionaries: content by (column, key).
            sequence: of the record that this one is a copy of; ``None``: it is new.
        Raises:
            OSError: the disk is full or failing. What was written of the record is not counted and will be overwritten.
        """
        need = sum(space(len(data)) for data in dictionaries.values()) + space(len(payload))
        region = self._newest()
        if region is None or region.finished or region.used + need > region.size:
            if region is not None:
                self._clean(region)
                self.sync()
            region = self._create(max(self.region_bytes, FIRST + need), generation)
        for (column, key), data in dictionaries.items():
            if (column, key) not in region.keys:
                self._write(region, DICTIONARY, key, column, data)
                region.keys.add((column, key))
        return region.number, self._write(region, kind, id_, 0, payload, sequence)

    def finish(self) -> None:
        """Write nothing more into the newest region: its file may be shared from now on.  Raises: OSError."""
        region = self._newest()
        if region is None or region.finished or region.used == FIRST:
            return
        self._clean(region)
        region.finished = True
        if region.used + RECORD.size <= region.size:
            self._write(region, END, 0, 0, b"")
            self.files.truncate(region.descriptor, region.used)
            region.size = region.used

    def read(self, number: int, offset: int, out: memoryview) -> None:
        """Fill ``out`` from a region's bytes.  Raises: OSError, also where the file is too short."""
        region = self.regions[number]
        done = self.files.pread(region.descriptor, out, offset)
        if done != len(out):
            raise OSError(
                f"{region.path}: got {done:,} bytes at {offset:,}, expected {len(out):,}: the file was cut off"
            )

    def read_record(self, number: int, offset: int, nbytes: int) -> tuple[Record, bytes] | None:
        """A segment or a tail, and its payload; ``None``: it is not as it was written.  Raises: OSError."""
        content = bytearray(RECORD.size + nbytes)
        self.read(number, offset - RECORD.size, memoryview(content))
        prefix, payload = bytes(content[: RECORD.size]), bytes(content[RECORD.size :])
        magic, kind, size, id_, sequence, column, checksum = RECORD.unpack(prefix)
        sound = magic == RECORD_MAGIC and checksum == zlib.crc32(prefix[:-4]) and size == nbytes
        if not sound or _checksum(payload) != zlib.crc32(payload[:-4]):
            return None
        return Record(kind, id_, sequence, column, offset, nbytes), payload

    def descriptors(self, numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """The open file of each region, and the same for reads past the system's memory. [n, 2]; -1: there is none."""
        different, which = np.unique(numbers, return_inverse=True)
        regions = [self.regions.get(number) for number in different.tolist()]
        found = [(-1, -1) if region is None else (region.descriptor, region.direct) for region in regions]
        return np.array(found, np.int64).reshape(-1, 2)[which]

    def sync(self) -> None:
        """Return when everything appended so far is on disk.  Raises: OSError."""
        for region in self.regions.values():
            if region.synced < region.used:
                used = region.used
                if region.unsure:
                    self._rewrite(region)
                region.unsure = True
                self.files.fsync(region.descriptor)
                region.synced, region.unsure = used, False

    def delete(self, number: int) -> None:
        """Delete a region's file.  Raises: OSError; then it is still there."""
        self.files.unlink(self.regions[number].path)
        self.regions.pop(number).close()

    def close(self) -> None:
        """Close the files."""
        for region in self.regions.values():
            with contextlib.suppress(OSError):  # it is found when the store is opened, and costs nothing
                self._clean(region)
            region.close()
        self.regions.clear()

    def recover(self) -> tuple[list[tuple[int, Record]], list[Damage]]:
        """Open the folder's files, oldest first: what is whole, as (region, record), and what is not.

        Nothing is changed on disk. Writing goes on in a new file.

        Raises:
            OSError: a file cannot be opened. One that the disk cannot read is a damage.
        """
        found: list[tuple[int, Record]] = []
        damages: list[Damage] = []
        for path in self.folder.iterdir():  # also what was about to be a region
            if re.fullmatch("[0-9]{12}", path.stem) and int(path.stem) < MOST_NUMBER:
                self.next_number = max(self.next_number, int(path.stem) + 1)
        for path in sorted(self.folder.glob("*.region")):
            try:
                region, records, wrong = read_region(path, self.identity)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                region, records, wrong = None, [], [Damage(path, 0, path.stat().st_size, f"cannot be read ({error})")]
            damages += wrong
            if region is not None and path.stem != f"{region.number:012d}":
                region.close()
                what = f"region {region.number} under another name, expected {region.number:012d}.region"
                damages.append(Damage(path, 0, region.size, what))
                region = None
            if region is None:
                continue
            self.regions[region.number] = region
            for record in records:
                self.sequence = max(self.sequence, record.sequence + 1)
                found.append((region.number, record))
        for region in self.regions.values():
            region.used = region.synced = region.size
            region.finished = True  # appending begins in a file of its own
        return found, damages

    def _newest(self) -> Region | None:
        return next(reversed(self.regions.values()), None)

    def _create(self, size: int, generation: int) -> Region:
        """Begin a file. It gets its name when its header is on disk, so that one without a header is damaged."""
        number = self.next_number
        path = self.folder / f"{number:012d}.region"
        partial = self.folder / f"{number:012d}.partial"
        me = self.identity
        body = HEADER.pack(MAGIC, VERSION, 0, number, size, me.schema, me.store, generation, 0, 0)[:-4]
        self.next_number += 1  # also where it fails: what could not be deleted is in no one's way
        descriptor = self.files.open(partial)
        try:
            self.files.allocate(descriptor, size)
            self.files.pwrite(descriptor, body + struct.pack("<I", zlib.crc32(body)), 0)
            self.files.fsync(descriptor)
            self.files.rename(partial, path)
            self.files.fsync_folder(self.folder)
        except OSError:
            os.close(descriptor)
            for left in (partial, path):
                with contextlib.suppress(OSError):
                    self.files.unlink(left)
            raise
        region = self.regions[number] = Region(path, number, descriptor, size, FIRST, generation, synced=FIRST)
        return region

    def _write(
        self, region: Region, kind: int, id_: int, column: int, payload: bytes, sequence: int | None = None
    ) -> int:
        number = self.sequence if sequence is None else sequence
        body = RECORD.pack(RECORD_MAGIC, kind, len(payload), id_, number, column, 0)[:-4]
        offset = region.used + RECORD.size
        end = region.used + space(len(payload))
        self._clean(region)
        region.spoiled = end
        self.files.pwrite(region.descriptor, body + struct.pack("<I", zlib.crc32(body)) + payload, region.used)
        region.spoiled, region.used = 0, end
        region.shared += space(len(payload)) if kind == DICTIONARY else 0
        self.sequence += sequence is None
        return offset

    def _clean(self, region: Region) -> None:
        """Make zeros again of what a write left that failed.  Raises: OSError."""
        if region.spoiled > region.used:
            self.files.pwrite(region.descriptor, bytes(region.spoiled - region.used), region.used)
        region.spoiled = 0

    def _rewrite(self, region: Region) -> None:
        """Write once more what is not known to be on disk, from what the system still holds.  Raises: OSError."""
        content = memoryview(bytearray(region.used - region.synced))
        self.read(region.number, region.synced, content)
        self.files.pwrite(region.descriptor, bytes(content), region.synced)


def space(nbytes: int) -> int:
    """Bytes that a record takes whose payload has ``nbytes``."""
    return -(-(RECORD.size + nbytes) // ALIGNMENT) * ALIGNMENT


def read_region(path: Path, identity: Identity | None = None) -> tuple[Region | None, list[Record], list[Damage]]:
    """Open a region's file for reading and find its records; ``None`` where its header cannot be trusted.

    Every record's own checksum is verified, and every payload's: a segment's CRC-32, a dictionary's key.
    Raises: OSError.
    """
    descriptor = os.open(path, os.O_RDONLY)  # nothing is ever appended to a file that another process left
    try:
        return _read_region(path, descriptor, identity)
    except BaseException:
        os.close(descriptor)
        raise


def _read_region(
    path: Path, descriptor: int, identity: Identity | None
) -> tuple[Region | None, list[Record], list[Damage]]:
    size = os.fstat(descriptor).st_size
    header = os.pread(descriptor, HEADER.size, 0)
    what = ""
    if len(header) < HEADER.size or header[:8] != MAGIC or _checksum(header) != zlib.crc32(header[:-4]):
        what = "no region's header, or a damaged one"
    else:
        _, version, _, number, said, schema, store, generation, _, _ = HEADER.unpack(header)
        if version != VERSION:
            what = f"region format version {version}, this release reads {VERSION}"
        elif identity is not None and (schema, store) != (identity.schema, identity.store):
            expected = f"{identity.store.hex()}, {identity.schema:016x}"
            what = f"region of store {store.hex()}, schema {schema:016x}; expected {expected}"
        elif number >= MOST_NUMBER or generation >= MOST_GENERATION:
            what = f"region {number}, generation {generation}: no store counts so far"
    if what:
        os.close(descriptor)
        return None, [], [Damage(path, 0, size, what)]
    region = Region(path, number, descriptor, size, FIRST, generation)
    records: list[Record] = []
    damages: list[Damage] = []
    for found in _scan(path, descriptor, size):
        if isinstance(found, Damage):
            damages.append(found)
        elif found.kind == END:
            region.finished = True
        else:
            records.append(found)
            region.used = found.offset + found.nbytes
            if found.kind == DICTIONARY:
                region.keys.add((found.column, found.id))
                region.shared += space(found.nbytes)
    if size < said and not region.finished:
        damages.insert(0, Damage(path, size, said - size, f"the file ends here, expected {said:,} bytes"))
    return region, records, damages


def _checksum(packed: bytes) -> int:
    return int.from_bytes(packed[-4:], "little")


def _scan(path: Path, descriptor: int, size: int) -> Iterator[Record | Damage]:
    """Records in their order, and what lies between them that is neither a record nor unused."""
    at, lost_from = FIRST, -1
    lost = "bytes that are no record"
    while at + RECORD.size <= size:
        prefix = os.pread(descriptor, RECORD.size, at)
        magic, kind, nbytes, id_, sequence, column, checksum = RECORD.unpack(prefix)
        sound = magic == RECORD_MAGIC and checksum == zlib.crc32(prefix[:-4])
        if not sound:
            if lost_from < 0:
                if not any(prefix) and _all_zero(descriptor, at, size):
                    return
                lost_from = at
            at = _next_record(descriptor, at + ALIGNMENT, size)
            continue
        if lost_from >= 0:
            yield Damage(path, lost_from, at - lost_from, lost)
            lost_from = -1
        if at + RECORD.size + nbytes > size:
            yield Damage(path, at, size - at, f"a record of {nbytes:,} bytes reaches over the file's end", id_)
            return
        begin, end = at + RECORD.size, at + RECORD.size + nbytes
        wrong = _wrong(descriptor, kind, id_, begin, end)
        if sequence >= MOST_ID or (kind != DICTIONARY and id_ >= MOST_ID):
            wrong = wrong or f"record {sequence}, id {id_}: no store counts so far"
        padding = os.pread(descriptor, at + space(nbytes) - end, end)
        if not wrong and any(padding):
            yield Damage(path, end, len(padding), "padding that is not zero")
        if wrong:
            yield Damage(path, at, space(nbytes), wrong, id_ if kind != DICTIONARY else -1)
        else:
            yield Record(kind, id_, sequence, column, at + RECORD.size, nbytes)
        at += space(nbytes)
    if lost_from < 0 and not _all_zero(descriptor, at, size):  # too few bytes for another record
        lost_from = at
    if lost_from >= 0:
        yield Damage(path, lost_from, size - lost_from, lost)


def _wrong(descriptor: int, kind: int, id_: int, begin: int, end: int) -> str:
    """What is wrong with a payload, or nothing. It is read in parts: a record may claim any size."""
    if kind == DICTIONARY:
        digest = hashlib.blake2b(digest_size=KEY_BYTES)
        for part in _parts(descriptor, begin, end):
            digest.update(part)
        key = int.from_bytes(digest.digest(), "little") if end > begin else 0
        return "" if key == id_ else f"dictionary {id_:016x} does not have the content of its key"
    if kind == END and begin == end:
        return ""
    if kind not in (SEGMENT, TAIL, NOTE):
        return f"a record of unknown kind {kind}"
    found = 0
    for part in _parts(descriptor, begin, end - 4):
        found = zlib.crc32(part, found)
    stored = int.from_bytes(os.pread(descriptor, 4, max(begin, end - 4)), "little")
    if end - begin < 4 or stored != found:
        return f"segment {id_}: checksum {found:08x}, expected {stored:08x}"
    return ""


def _parts(descriptor: int, begin: int, end: int) -> Iterator[bytes]:
    return (os.pread(descriptor, min(_STRIDE, end - at), at) for at in range(begin, end, _STRIDE))


_STRIDE = 1 << 20
_SHORT_STRIDE = 1 << 12


def _next_record(descriptor: int, begin: int, size: int) -> int:
    """The next place that may be a record's beginning, or ``size``."""
    at, stride = begin, _SHORT_STRIDE  # short at first: a file full of false beginnings is read only some times over
    while at < size:
        chunk = os.pread(descriptor, stride + len(RECORD_MAGIC), at)
        place = chunk.find(RECORD_MAGIC)
        while place >= 0 and (at + place) % ALIGNMENT:
            place = chunk.find(RECORD_MAGIC, place + 1)
        if place >= 0:
            return at + place
        at, stride = at + stride, min(2 * stride, _STRIDE)
    return size


def _all_zero(descriptor: int, begin: int, size: int) -> bool:
    return all(part == bytes(len(part)) for part in _parts(descriptor, begin, size))
