"""Region files and their records: their bytes, and how to find records again in a file that may be damaged.

``docs/format.md`` specifies the bytes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sharpwave.codecs import dictionaries
from sharpwave.codecs.shared import IS_SHARED, KEY_BYTES, RECORD_BYTES, bytes_of, number_of
from sharpwave.errors import NewerVersionError
from sharpwave.escaping import escaped
from sharpwave.format import segment
from sharpwave.native import core, descriptors
from sharpwave.native.descriptors import max_read_bytes, next_data, open_direct
from sharpwave.native.directory import Directory, IrregularError, open_file

MAGIC, VERSION = b"SWREGION", 1
HEADER = struct.Struct("<8sIIQQQ16sQII")  # magic, version, 0, number, size, schema, store, generation, 0, CRC-32; 72
RECORD = struct.Struct("<4sIQQQII")  # magic, kind, nbytes, id, sequence, column, CRC-32 of the bytes before it; 40
RECORD_MAGIC = b"SWRC"
SEGMENT, DICTIONARY, TAIL, END, NOTE, SHARED = 1, 2, 3, 4, 5, 6
"""Kinds of records: a sealed segment; a dictionary; an open segment's rows so far, which a later record replaces;
the end mark of a file; a note, such as a reservoir's threshold; a shared value."""
ALIGNMENT = 8
ROOM = 1 << 20
MAX_NUMBER, MAX_GENERATION, MAX_SEQUENCE = (1 << 31) - ROOM, (1 << 30) - ROOM, (1 << 62) - ROOM
MAX_ID = MAX_GENERATION << 32
"""Limits of region numbers, generations, sequence numbers and ids: a file with larger ones is damaged, as none are ever
written. ``ROOM``: margin for counting in memory, so that counts still fit their integers."""
FIRST = -(-HEADER.size // ALIGNMENT) * ALIGNMENT
MAX_COLUMNS = 1 << 16
"""Limit of the columns of shared values, which is beyond those of any store."""
MAX_PAYLOAD_BYTES = 1 << 30
"""Limit for a record's payload."""
_STRIDE, _SHORT_STRIDE = 1 << 20, 1 << 12
"""Bytes read from a file at a time."""
_RUN = 1024
"""Records of shared values found at a time."""

Found = npt.NDArray[np.uint64]
"""Records of shared values as ``core.find_values`` finds them."""


@dataclass(frozen=True)
class Identity:
    """Store that a region belongs to: its random 16 bytes, and its schema's hash."""

    store: bytes
    schema: int


@dataclass(frozen=True)
class Record:
    """Record found intact, in file number ``region``. ``offset`` and ``nbytes`` are of the payload there; ``key`` is a
    dictionary's, or the number of a shared value's."""

    region: int
    kind: int
    id: int
    sequence: int
    column: int
    offset: int
    nbytes: int
    key: int = 0


@dataclass(frozen=True)
class Damage:
    """Damaged part of a region: ``nbytes`` bytes from ``offset`` on; ``id`` -1: unknown."""

    path: Path
    offset: int
    nbytes: int
    what: str
    id: int = -1

    def __str__(self) -> str:
        return escaped(f"{self.path}: byte {self.offset:,}: {self.what}; {self.nbytes:,} bytes set aside")


@dataclass
class Region:
    """Region file. ``used`` is the offset of the next record, ``size`` the file's size on disk.

    Attributes:
        synced: everything before this offset is on disk.
        spoiled: a failed write may have left bytes up to this offset.
        unsure: a sync failed: the system may then drop unwritten data, and report success for it later.
        keys: space of its dictionaries, by (column, key). ``shared``: of all of them.
        allocated: bytes of disk space in use; the rest, up to ``size``, is a hole.
        sequence: above those of the records that were found in it.
    """

    path: Path
    number: int
    descriptor: int
    size: int
    used: int
    generation: int
    keys: dict[tuple[int, int], int] = field(default_factory=dict)
    synced: int = 0
    finished: bool = False
    spoiled: int = 0
    unsure: bool = False
    shared: int = 0
    allocated: int = 0
    sequence: int = 0

    @cached_property
    def direct(self) -> int:
        """Descriptor for reads that bypass the page cache; -1: unavailable. See ``open_direct``."""
        return open_direct(self.descriptor)

    def hold(self, column: int, key: int, nbytes: int) -> None:
        """Note a dictionary in the file, by its payload's bytes."""
        self.shared += space(nbytes) - self.keys.get((column, key), 0)
        self.keys[column, key] = space(nbytes)

    def park(self) -> None:
        """Close the file until it is opened again; ``descriptor`` is -1 meanwhile."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1

    def close(self) -> None:
        self.park()
        if vars(self).get("direct", -1) >= 0:
            os.close(self.direct)


def pack_shared(key: int, packed: bytes) -> bytes:
    """Return the payload of a shared value's record: its key, its bytes and a checksum."""
    body = bytes_of(key) + packed
    return body + zlib.crc32(body).to_bytes(4, "little")


def unpack_shared(payload: bytes) -> bytes:
    """Return a shared value's bytes from the payload of its record, which is intact."""
    return payload[KEY_BYTES:-4]


def space(nbytes: int) -> int:
    """Return the bytes that a record with a payload of ``nbytes`` takes."""
    return -(-(RECORD.size + nbytes) // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Values:
    """Index that takes a region's shared values in the place of records; ``verified``: their payloads, too."""

    index: core.SharedIndex
    verified: bool


def read_region(
    path: Path,
    identity: Identity | None = None,
    directory: Directory | None = None,
    begin: int = FIRST,
    values: Values | None = None,
) -> tuple[Region | None, list[Record], list[Damage]]:
    """Open a region's file for reading and find its records; return ``None`` if its header cannot be trusted.

    Every record's checksum is verified, and every payload's: the CRC-32 of a segment or a shared value, a dictionary's
    key. A file that is not regular, or that the disk cannot read, is damaged.

    Args:
        directory: folder to open the file from; by default ``path``'s.
        begin: offset of the first record to find; earlier ones are known already.
        values: takes the shared values; ``None``: they are among the records.

    Raises:
        NewerVersionError, OSError.
    """
    descriptor = -1
    try:
        # Another process's file is never appended to.
        descriptor = open_file(path, directory)
        return _read_region(path, descriptor, identity, begin, values)
    except BaseException as error:
        size = os.fstat(descriptor).st_size if descriptor >= 0 else 0
        if descriptor >= 0:
            os.close(descriptor)
        if isinstance(error, IrregularError):
            return None, [], [Damage(path, 0, 0, error.what)]
        if isinstance(error, OSError) and error.errno == errno.EIO:
            return None, [], [Damage(path, 0, size, f"cannot be read ({error})")]
        raise


def _read_region(
    path: Path, descriptor: int, identity: Identity | None, begin: int, values: Values | None
) -> tuple[Region | None, list[Record], list[Damage]]:
    size = os.fstat(descriptor).st_size
    header = descriptors.pread(descriptor, HEADER.size, 0)
    what = ""
    if len(header) < HEADER.size or header[:8] != MAGIC or checksum_of(header) != zlib.crc32(header[:-4]):
        what = "no region's header, or a damaged one"
    else:
        _, version, _, number, said, schema, store, generation, _, _ = HEADER.unpack(header)
        if version > VERSION:
            raise NewerVersionError(f"{path}: region format version {version}, this release reads up to {VERSION}")
        if version != VERSION:
            what = f"region format version {version}, expected {VERSION}"
        elif identity is not None and (schema, store) != (identity.schema, identity.store):
            expected = f"{identity.store.hex()}, {identity.schema:016x}"
            what = f"region of store {store.hex()}, schema {schema:016x}; expected {expected}"
        elif number >= MAX_NUMBER or generation >= MAX_GENERATION:
            what = f"region {number}, generation {generation}; expected below {MAX_NUMBER:,} and {MAX_GENERATION:,}"
        elif path.name != f"{number:012d}.region":
            what = f"region {number} under a wrong name, expected {number:012d}.region"
    if what:
        os.close(descriptor)
        return None, [], [Damage(path, 0, size, what)]
    taken = getattr(os.fstat(descriptor), "st_blocks", size) * 512
    region = Region(path, number, descriptor, size, begin, generation, allocated=min(size, taken))
    records: list[Record] = []
    damages: list[Damage] = []
    for found in _scan(path, descriptor, number, size, begin, values is None or values.verified):
        if isinstance(found, Damage):
            damages.append(found)
        elif isinstance(found, np.ndarray):
            if values is not None:
                values.index.place_all(number, found)
            else:
                records += _values(number, found)
            region.used = int(found[-1, 0] + found[-1, 1])
            region.sequence = max(region.sequence, int(found[:, 3].max()) + 1)
        elif found.kind == END:
            region.finished = True
        else:
            if found.kind == SHARED and values is not None and found.column < MAX_COLUMNS:
                values.index.place(found.column, bytes_of(found.key), number, found.offset, found.nbytes)
            else:
                records.append(found)
            region.used = found.offset + found.nbytes
            region.sequence = max(region.sequence, found.sequence + 1)
            if found.kind == DICTIONARY:
                region.hold(found.column, found.key, found.nbytes)
    if size < said and not region.finished:
        damages.insert(0, Damage(path, size, said - size, f"the file ends here, expected {said:,} bytes"))
    return region, records, damages


def checksum_of(packed: bytes) -> int:
    """Return the CRC-32 at the end of a packed header, segment or tail."""
    return int.from_bytes(packed[-4:], "little")


def _scan(
    path: Path, descriptor: int, number: int, size: int, begin: int, verifies_values: bool
) -> Iterator[Record | Found | Damage]:
    """Yield the records from ``begin`` on, in order, and bytes between them that are neither a record nor unused.

    Shared values come in runs, as far as the core can tell that they are intact.

    Args:
        verifies_values: whether shared values are read; otherwise only their heads.
    """
    at, lost_from, unread = begin, -1, max_read_bytes(descriptor)
    lost = "bytes that are no record"
    while at + RECORD.size <= size:
        prefix = descriptors.pread(descriptor, RECORD.size, at)
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
        if kind == SHARED and len(found := _run(descriptor, at, min(size, at + unread), verifies_values)):
            yield found
            end = int(found[-1, 0]) - RECORD.size + space(int(found[-1, 1]))
            unread -= end - at
            at = end
            continue
        if at + RECORD.size + nbytes > size:
            yield Damage(path, at, size - at, f"a record of {nbytes:,} bytes reaches over the file's end", id_)
            return
        first, end = at + RECORD.size, at + RECORD.size + nbytes
        unread -= space(nbytes)
        if nbytes > MAX_PAYLOAD_BYTES or unread < 0:
            what = f"a record of {nbytes:,} bytes, in a file of {size:,} that has not so many"
            yield Damage(path, at, size - at, what, id_)
            return
        head_only = kind == SHARED and nbytes >= RECORD_BYTES and not verifies_values
        wrong = "" if head_only else _wrong(path, descriptor, kind, id_, first, end)
        if sequence >= MAX_SEQUENCE or (kind != DICTIONARY and id_ >= MAX_ID):
            wrong = wrong or f"record {sequence}, id {id_}: beyond the format's limits"
        padding = b"" if head_only else descriptors.pread(descriptor, at + space(nbytes) - end, end)
        if not wrong and any(padding):
            yield Damage(path, end, len(padding), "padding that is not zero")
        if wrong:
            yield Damage(path, at, space(nbytes), wrong, id_ if kind != DICTIONARY else -1)
        else:
            key = id_ if kind == DICTIONARY else 0
            if kind == SHARED:
                key = number_of(descriptors.pread(descriptor, KEY_BYTES, first))
            yield Record(number, kind, id_, sequence, column, first, nbytes, key)
        at += space(nbytes)
    if lost_from < 0 and not _all_zero(descriptor, at, size):  # too few bytes for another record
        lost_from = at
    if lost_from >= 0:
        yield Damage(path, lost_from, size - lost_from, lost)


def _run(descriptor: int, begin: int, end: int, verified: bool) -> Found:
    """Return records of shared values that follow one another from ``begin`` on, intact and within the limits."""
    found = np.empty((_RUN, 7), np.uint64)
    found = found[: core.find_values(descriptor, begin, end, verified, found)]
    beyond = (found[:, 1:5] >= np.array([MAX_PAYLOAD_BYTES + 1, MAX_ID, MAX_SEQUENCE, MAX_COLUMNS], np.uint64)).any(1)
    return found[: int(beyond.argmax())] if beyond.any() else found


def _values(region: int, found: Found) -> Iterator[Record]:
    for offset, nbytes, id_, sequence, column, low, high in found.tolist():
        yield Record(region, SHARED, id_, sequence, column, offset, nbytes, IS_SHARED | low | high << 64)


def _wrong(path: Path, descriptor: int, kind: int, id_: int, begin: int, end: int) -> str:
    """Return the damage of a payload, or "". It is read in parts: a record may claim any size."""
    if kind == DICTIONARY:
        digest = hashlib.blake2b(digest_size=dictionaries.KEY_BYTES)
        for part in _parts(descriptor, begin, end):
            digest.update(part)
        key = int.from_bytes(digest.digest(), "little") if end > begin else 0
        return "" if key == id_ else f"dictionary {id_:016x}: its content has the key {key:016x}"
    if kind == END and begin == end:
        return ""
    if kind not in (SEGMENT, TAIL, NOTE, SHARED):
        return f"a record of unknown kind {kind}"
    found, head = 0, b""
    for part in _parts(descriptor, begin, end - 4):
        found, head = zlib.crc32(part, found), head or part[: segment.HEADER.size]
    stored = int.from_bytes(descriptors.pread(descriptor, 4, max(begin, end - 4)), "little")
    if end - begin < 4 or stored != found:
        what = f"segment {id_}" if kind != SHARED else f"shared value {head[:KEY_BYTES].hex()}"
        return f"{what}: checksum {found:08x}, expected {stored:08x}"
    if kind == SHARED and end - begin < RECORD_BYTES:
        return f"shared value: {end - begin} bytes, expected at least {RECORD_BYTES}"
    if kind not in (NOTE, SHARED) and head.startswith(segment.MAGIC):
        segment.check_version(head, f"{path}: byte {begin:,}")
    return ""


def _parts(descriptor: int, begin: int, end: int) -> Iterator[bytes]:
    return (descriptors.pread(descriptor, min(_STRIDE, end - at), at) for at in range(begin, end, _STRIDE))


def _next_record(descriptor: int, begin: int, size: int) -> int:
    """Return the next offset at which a record may begin, or ``size`` if there is none."""
    at, stride = begin, _SHORT_STRIDE  # short at first: false beginnings cost few reads of the file
    while at < size:
        if (data := next_data(descriptor, at)) < 0:
            break
        at = max(at, data // ALIGNMENT * ALIGNMENT)
        chunk = descriptors.pread(descriptor, stride + len(RECORD_MAGIC), at)
        place = chunk.find(RECORD_MAGIC)
        while place >= 0 and (at + place) % ALIGNMENT:
            place = chunk.find(RECORD_MAGIC, place + 1)
        if place >= 0:
            return at + place
        at, stride = at + stride, min(2 * stride, _STRIDE)
    return size


def _all_zero(descriptor: int, begin: int, size: int) -> bool:
    while 0 <= (begin := next_data(descriptor, begin)) < size:
        part = descriptors.pread(descriptor, min(_STRIDE, size - begin), begin)
        if part.count(0) < len(part):
            return False
        begin += max(1, len(part))
    return True
