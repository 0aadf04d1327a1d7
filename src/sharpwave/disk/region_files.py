"""Region files: sealed segments on disk, appended one after another and deleted a whole file at a time.

A region is self-contained: it holds every dictionary and shared value that its segments refer to. So deleting the
oldest one affects no other, and damage is limited to the records that it hits.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from sharpwave.arrays import Int32s, Ints
from sharpwave.codecs.shared import IS_SHARED, KEY_BYTES, RECORD_BYTES, bytes_of, number_of, text_of
from sharpwave.disk.region_scan import Scan, scan_region
from sharpwave.disk.store_folder import ANEW
from sharpwave.errors import DamagedError, StoreInUseError
from sharpwave.format.region import (
    ALIGNMENT,
    DICTIONARY,
    END,
    FIRST,
    HEADER,
    MAGIC,
    MAX_GENERATION,
    MAX_ID,
    MAX_NUMBER,
    MAX_SEQUENCE,
    NOTE,
    RECORD,
    RECORD_MAGIC,
    SHARED,
    VERSION,
    Identity,
    Record,
    Region,
    Values,
    checksum_of,
    pack_shared,
    space,
    unpack_shared,
)
from sharpwave.native import core
from sharpwave.native.descriptors import will_read
from sharpwave.native.directory import Directory
from sharpwave.native.file_operations import Files


def _extent(allocated: int, end: int, size: int) -> int:
    """Return up to where to allocate disk space for a file of ``size`` bytes that needs it up to ``end``."""
    if end <= allocated:
        return allocated
    return min(size, max(end, allocated + min(MAX_EXTENT, max(FIRST_EXTENT, allocated // 4))))


def partial_name(number: int, identity: Identity) -> str:
    """Return the name of a region's file while it is created: no other store uses it."""
    return f".{number:012d}.{identity.store.hex()}.partial"


FIRST_EXTENT, MAX_EXTENT = 1 << 18, 8 << 20
"""Disk space allocated for a new region, and at least and at most in one step as it fills, by a quarter of itself."""
NOTE_ROOM, NOTE_SHARE = 8 << 10, 256
"""Disk space allocated behind the records of the region being written, for notes on a disk that became full: at least
so much, and this part of a region. A note of all segments in a region takes less."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk, which deleting files may remedy."""
MAX_DIRECT_REGIONS = 256
"""Limit of the regions with a second descriptor, for reads that bypass the page cache."""
MAX_WRITE_BYTES = 1 << 20
"""Limit of the records written at once, exceeded by the last one."""


T = TypeVar("T")


class Unread(Protocol):
    """Shared value in a file, which is read when it is written again."""

    def __len__(self) -> int: ...

    def read(self) -> bytes:
        """Return its bytes.  Raises: DamagedError."""


Needed = Mapping[tuple[int, int], bytes | Unread]
"""Dictionaries and shared values that a record refers to: content by (column, key)."""


class _NewRecord(NamedTuple):
    """Record to be written; without a ``sequence`` it is a new one."""

    kind: int
    id: int
    column: int
    payload: bytes
    sequence: int | None = None


class RegionFiles:
    """Region files of one store, oldest first; records are appended to the newest.

    Args:
        directory: the files' folder, which stays open.
        region_bytes: size of a file; a single larger record makes a larger one.
        check: called before a file is created; raises if the folder is no longer the store's.

    Attributes:
        values: index of shared values, with their copies in these files.
        losing: called with the values in use whose only copy is in a file that is about to be closed.
        goes_on: whether another process began the newest.
        spare_bytes: disk space held in a file that is deleted when a full disk must take a note or a copy.
        scarce: the process may not open so many files; each is opened when it is read.
    """

    def __init__(
        self,
        directory: Directory,
        identity: Identity,
        region_bytes: int,
        files: Files,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.directory, self.identity, self.region_bytes, self.files = directory, identity, region_bytes, files
        self._check = check
        self.regions: dict[int, Region] = {}
        self.values = core.SharedIndex()
        self.losing: Callable[[list[int]], None] = lambda numbers: None
        self.sequence = 0
        self.next_number = 0
        self.goes_on = self.scarce = False
        self._visited: Region | None = None
        self._searched = set[int]()  # numbers of files, for intact copies of damaged values
        self.spare_bytes, self._spare = 0, -1

    def find(self, go_on: bool = False) -> Scan:
        """Open the folder's files, oldest first; return their records and damage.

        Nothing is changed on disk. Shared values go into ``values``; but in the newest file only their heads are read.

        Args:
            go_on: append to the newest file, if a store left it intact and no checkpoint shares it; otherwise begin a
                new file. The newest file is not assumed to be on disk before a sync.

        Raises:
            OSError: a file cannot be opened. A file that the disk cannot read counts as damaged.
        """
        scan = Scan()
        scans = list[tuple[Region | None, Scan]]()
        newest_is_known = False
        for name in sorted((one for one in self.directory.names() if one.endswith(".region")), reverse=True):
            # A power cut tears only the newest file's last records: the other files were on disk before it existed.
            region, found = self._scan_region(self.directory.path / name, Values(self.values, not newest_is_known))
            scans.append((region, found))
            if region is not None:
                self.regions[region.number] = region  # to be parked if too many are open
                newest_is_known = True
        for region, found in reversed(scans):
            scan.add(found)
            if region is None:
                continue
            self.regions[region.number] = self.regions.pop(region.number)  # oldest first
            self.next_number = max(self.next_number, region.number + 1)
            self.sequence = max(self.sequence, region.sequence)
        newest = self.newest
        if go_on and newest is not None and not any(one.path == newest.path for one in scan.damages):
            self._continue(newest)
        for region in self.regions.values():
            if not (region is newest and self.goes_on):
                region.used = region.synced = region.size
                region.finished = True
        if go_on and newest is not None:  # older files were synced before this one was created
            newest.synced = FIRST
        return scan

    def _scan_region(self, path: Path, values: Values) -> tuple[Region | None, Scan]:
        """Read a file; where too many would be open, close it and all others."""
        try:
            found = scan_region(path, self.identity, self.directory, FIRST, values)
        except OSError as error:
            if error.errno != errno.EMFILE or self.scarce:
                raise
            self.scarce = True
            for region in self.regions.values():
                region.park()
            found = scan_region(path, self.identity, self.directory, FIRST, values)
        if self.scarce and found[0] is not None:
            found[0].park()
        return found

    def _continue(self, region: Region) -> None:
        """Append to another process's file, of which only the header is known to be on disk."""
        shared = os.fstat(self.descriptor_of(region)).st_nlink > 1
        if region.finished or shared or region.used >= region.size:
            return
        try:
            descriptor = self.files.open_again(self.directory, region.path.name, region.descriptor)
        except PermissionError:
            return
        os.close(region.descriptor)
        self._keep_open(region, descriptor)
        region.used = -(-region.used // ALIGNMENT) * ALIGNMENT
        region.allocated = max(region.allocated, region.used)
        self.goes_on = True

    def open_all(self) -> None:
        """Open every file that ``find`` could not keep open.  Raises: OSError: there are still too many."""
        self.scarce = False
        for region in self.regions.values():
            try:
                self._keep_open(region, self.descriptor_of(region))
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                raise OSError(
                    errno.EMFILE,
                    f"{self.directory.path}: {len(self.regions)} files, more than this process may have open; "
                    "raise its limit (ulimit -n), or open the store with a smaller disk_limit=",
                ) from error

    @property
    def nbytes(self) -> int:
        """Bytes of the files on disk."""
        return sum(region.allocated for region in self.regions.values())

    @property
    def note_room(self) -> int:
        """Disk space that records other than notes leave allocated behind them."""
        return min(max(NOTE_ROOM, self.region_bytes // NOTE_SHARE), self.region_bytes // 16)

    def room_for(self, nbytes: int, note: bool = False) -> bool:
        """Return whether a record of ``nbytes`` fits without another file. Dictionaries may be added."""
        newest, need = self.newest, RECORD.size + nbytes + ALIGNMENT
        return newest is not None and not self._full(newest, need + (0 if note else self.note_room))

    def growth(self, nbytes: int) -> int:
        """Return the disk space that a record of ``nbytes`` takes beyond the allocated space."""
        need, newest = RECORD.size + nbytes + ALIGNMENT + self.note_room, self.newest
        if newest is None or self._full(newest, need):
            return _extent(0, FIRST + need, max(self.region_bytes, FIRST + need))
        return _extent(newest.allocated, newest.used + need, newest.size) - newest.allocated

    def need(self, nbytes: int, dictionaries: Needed, beside: int = 0) -> int:
        """Return the space of a record of ``nbytes`` with the dictionaries and shared values that its region lacks.

        That is the newest, unless they do not fit there with ``beside`` bytes; then a new one, which lacks all.
        """
        newest, sizes = self.newest, {key: space(RECORD_BYTES + len(data)) for key, data in dictionaries.items()}
        if newest is not None and not newest.finished:
            lacking = sum(size for key, size in sizes.items() if not self.has(newest.number, *key))
            if not self._full(newest, space(nbytes) + lacking + beside + self.note_room):
                return space(nbytes) + lacking
        return space(nbytes) + sum(sizes.values())

    def _full(self, region: Region, need: int) -> bool:
        """Return whether a region has no room for ``need`` bytes. A lowered limit makes it smaller than its file."""
        return region.finished or region.used + need > min(region.size, self.region_bytes)

    def append(
        self,
        kind: int,
        id_: int,
        payload: bytes,
        generation: int,
        dictionaries: Needed,
        sequence: int | None = None,
        *,
        whole: bool = False,
    ) -> tuple[int, int]:
        """Write a record, preceded by dictionaries and shared values that its region lacks; return (region, offset of
        payload).

        Records other than notes leave ``note_room`` bytes allocated behind them. So a note needs no disk space, unless
        others have used up that room since the last such record, or the region was finished.

        Args:
            generation: highest of any id so far; stored in a new region's header.
            dictionaries: and shared values.
            sequence: of the record that this one copies; ``None``: a new record.
            whole: raise an error if a shared value cannot be read; otherwise it is left out here.
        Raises:
            DamagedError: see ``whole``.
            OSError: the disk is full or failing. Bytes written of the record do not count and will be overwritten.
        """
        need = self.need(len(payload), dictionaries) + (0 if kind == NOTE else self.note_room)
        try:
            region = self._region_for(need, generation)
        except OSError as error:
            takes_spare = kind == NOTE or self._spare < 0  # negative: a crashed process may have left the spare file
            if not takes_spare or error.errno not in FULL or not self.release_spare():
                raise
            region = self._region_for(need, generation)
        records, nbytes = list[_NewRecord](), 0
        for (column, key), data in dictionaries.items():
            if self.has(region.number, column, key):
                continue
            try:
                content = data if isinstance(data, bytes) else data.read()
            except (DamagedError, OSError) as error:
                if whole:
                    raise DamagedError(str(error)) from error  # not an OSError: writing did not fail
                continue
            if key & IS_SHARED:
                records.append(_NewRecord(SHARED, 0, column, pack_shared(key, content)))
            else:
                records.append(_NewRecord(DICTIONARY, key, column, content))
            nbytes += len(data)
            if nbytes > MAX_WRITE_BYTES:
                self._write(region, records)
                records, nbytes = [], 0
        return region.number, self._write(region, [*records, _NewRecord(kind, id_, 0, payload, sequence)])

    def has(self, number: int, column: int, key: int) -> bool:
        """Return whether a region has a dictionary or a shared value."""
        if not key & IS_SHARED:
            return (column, key) in self.regions[number].keys
        value = self.values.find(column, bytes_of(key))
        return value >= 0 and self.values.has_copy(value, number)

    def shared_bytes(self, number: int) -> int:
        """Return the space of a region's dictionaries, and of its shared values in use."""
        return self.regions[number].shared + self.values.bytes_in(number)

    def _region_for(self, need: int, generation: int) -> Region:
        """Return the region to append ``need`` bytes to, with disk space allocated for them.  Raises: OSError."""
        region = self.newest
        if region is None or self._full(region, need):
            if region is not None:
                if region.size > self.region_bytes:
                    self.finish()  # frees its preallocated space
                self._clean(region)
                self.check_named()
                self.sync()
            region = self._create(FIRST + need, generation)
        self._allocate(region, region.used + need)
        return region

    def hold_spare(self, nbytes: int) -> None:
        """Allocate disk space, if none is held, in a file that ``release_spare`` deletes.  Raises: OSError."""
        if self.spare_bytes:
            return
        self._check()
        name = partial_name(MAX_NUMBER, self.identity)  # after a crash, opening deletes it as any partial file
        self.files.unlink(self.directory, name)
        descriptor = self.files.open(self.directory, name)
        try:
            self.files.allocate(descriptor, 0, nbytes)
        except OSError:
            self._unlink(name, descriptor)
            os.close(descriptor)
            raise
        self._spare, self.spare_bytes = descriptor, nbytes

    def release_spare(self) -> bool:
        """Free the disk space of ``hold_spare``, also a crashed process's; return whether any was held."""
        if self._spare < 0:
            name = partial_name(MAX_NUMBER, self.identity)
            left = self.directory.is_file(name)
            if left:
                self.files.unlink(self.directory, name)
            return left
        with contextlib.suppress(OSError):  # an opening process deletes it
            self._unlink(partial_name(MAX_NUMBER, self.identity), self._spare)
        os.close(self._spare)
        self._spare, self.spare_bytes = -1, 0
        return True

    def finish(self) -> None:
        """Close the newest region to writing, so that its file can be shared.  Raises: OSError."""
        region = self.newest
        if region is None or region.finished or region.used == FIRST:
            return
        self._clean(region)
        region.finished = True
        if region.used + RECORD.size <= region.size:
            self._allocate(region, region.used + RECORD.size)
            self._write(region, [_NewRecord(END, 0, 0, b"")])
            self.files.truncate(region.descriptor, region.used)
            region.size = region.allocated = region.used

    def read(self, number: int, offset: int, out: memoryview) -> None:
        """Fill ``out`` from a region's file.  Raises: OSError: also if the file is too short."""
        region = self.regions[number]
        done = self.files.pread(self.descriptor_of(region), out, offset)
        if done != len(out):
            raise OSError(
                f"{region.path}: got {done:,} bytes at {offset:,}, expected {len(out):,}: the file was truncated"
            )

    def read_segment(self, number: int, offset: int, out: memoryview, passing: bool = False) -> str | None:
        """Fill ``out`` with a segment; return its damage, or ``None``.  Raises: OSError: where ``passing``, the system
        failed to read it."""
        region = self.regions.get(number)
        try:
            self.read(number, offset, out)
        except (OSError, KeyError) as error:
            if passing and isinstance(error, OSError) and error.errno is not None:
                raise
            return f"region {number}: {error}"
        stored, found = int.from_bytes(out[-4:], "little"), zlib.crc32(out[:-4])
        if stored != found:
            path = region.path if region else number
            return f"{path}: byte {offset:,}: checksum {found:08x}, expected {stored:08x}"
        return None

    def read_shared(self, value: int, most: int, checked: Callable[[bytes], T]) -> T:
        """Return the first copy of a shared value, by its number in the index, and forget damaged ones.

        One that the system fails to read now is not forgotten.

        Args:
            most: limit of its bytes. ``checked``: returns a result of these.  Raises: DamagedError.

        Raises: DamagedError: all copies are damaged.  OSError: the system failed to read one, and the others are.
        """
        found: list[str] = []
        failure: OSError | None = None
        copies = self.values.copies(value)[::-1]
        while copies:
            number, offset, nbytes = copies.pop()
            damage: str | None = f"region {number}: byte {offset:,}: {nbytes:,} bytes, expected at most {most:,}"
            if nbytes <= RECORD_BYTES + most:
                payload = bytearray(nbytes)
                try:
                    damage = self.read_segment(number, offset, memoryview(payload), passing=True)
                except OSError as error:
                    failure = error
                    continue
                if damage is None and payload[:KEY_BYTES] == self.values.key(value):
                    try:
                        return checked(unpack_shared(bytes(payload)))
                    except DamagedError as error:
                        damage = str(error)
            found.append(damage or f"region {number}: byte {offset:,}: another value")
            self.values.drop_copy(value, number)
            if self._find_intact(number) and self.values.has_copy(value, number):
                copies += [one for one in self.values.copies(value) if one[0] == number]
        key = text_of(number_of(self.values.key(value)))
        if failure is not None:
            path = self.directory.path
            raise OSError(
                failure.errno, f"{path}: shared value {key} could not be read: {failure.strerror}"
            ) from failure
        raise DamagedError(f"shared value {key}: {'; '.join(found) or 'in no file'}")

    def _find_intact(self, number: int) -> bool:
        """Let the index have an intact copy of each value that a file holds more than once; return False if it was done
        before.  Cost: reading the file."""
        if number in self._searched or number not in self.regions:
            return False
        self._searched.add(number)
        try:
            region, scan = scan_region(self.regions[number].path, self.identity, self.directory)
        except OSError:
            return False
        if region is not None:
            region.close()
        for one in scan.dictionaries:
            if one.kind == SHARED and self.values.find(one.column, bytes_of(one.key)) >= 0:
                self.values.place(one.column, bytes_of(one.key), number, one.offset, one.nbytes)
        return True

    def expect_shared(self, values: Iterable[int]) -> None:
        """Tell the system which shared values will be read, by their numbers: the disk serves many at once."""
        places = sorted(copies[0] for value in values if (copies := self.values.copies(value)))
        opened = {number: one.descriptor for number, one in self.regions.items() if one.descriptor >= 0}
        will_read((opened[number], offset, nbytes) for number, offset, nbytes in places if number in opened)

    def read_record(self, number: int, offset: int, nbytes: int) -> tuple[Record, bytes] | None:
        """Read a segment or a tail and its payload; return ``None`` if it is damaged.  Raises: OSError."""
        content = bytearray(RECORD.size + nbytes)
        self.read(number, offset - RECORD.size, memoryview(content))
        prefix, payload = bytes(content[: RECORD.size]), bytes(content[RECORD.size :])
        magic, kind, size, id_, sequence, column, checksum = RECORD.unpack(prefix)
        sound = magic == RECORD_MAGIC and checksum == zlib.crc32(prefix[:-4]) and size == nbytes
        if not sound or checksum_of(payload) != zlib.crc32(payload[:-4]):
            return None
        return Record(number, kind, id_, sequence, column, offset, nbytes), payload

    def descriptors(self, numbers: Int32s) -> Ints:
        """Return [n, 2]: each region's descriptor, and that for direct reads; -1: none."""
        different, which = np.unique(numbers, return_inverse=True)
        regions = [self.regions.get(number) for number in different.tolist()]
        direct = len(self.regions) <= MAX_DIRECT_REGIONS
        found = [(-1, -1) if one is None else (one.descriptor, one.direct if direct else -1) for one in regions]
        return np.array(found, np.int64).reshape(-1, 2)[which]

    def sync(self) -> None:
        """Sync everything appended so far to disk.  Raises: OSError."""
        for region in self.regions.values():
            if region.synced < region.used:
                used = region.used
                if region.unsure:
                    self._rewrite(region)
                region.unsure = True
                self.files.fsync(self.descriptor_of(region))
                region.synced, region.unsure = used, False

    def check_named(self) -> None:
        """Check that files written to since the last ``sync`` still have their names.

        Raises:
            StoreInUseError: one was deleted or replaced.
        """
        for region in self.regions.values():
            if region.synced < region.used and not self.directory.names_file(region.path.name, region.descriptor):
                raise StoreInUseError(f"{region.path} was deleted or replaced while the store was open; {ANEW}")

    def delete(self, number: int) -> None:
        """Delete a region's file.  Raises: OSError; then it still exists."""
        self._unlink(self.regions[number].path.name, self.descriptor_of(self.regions[number]))
        self.let_go(number)

    def let_go(self, number: int) -> None:
        """Close a region's file, which is no longer one of the store's."""
        if lost := self.values.only_in(number):
            self.losing(lost)
        self.values.drop_region(number)
        self.regions.pop(number).close()

    def _unlink(self, name: str, descriptor: int) -> None:
        """Delete an open file by its name, unless the name is another file's by now."""
        if self.directory.names_file(name, descriptor):
            self.files.unlink(self.directory, name)

    def close(self, *, keep_room: bool = True) -> None:
        """Close the files; unless ``keep_room``, give back the disk space allocated for records to come."""
        if self._spare >= 0:
            self.release_spare()
        for region in self.regions.values():
            with contextlib.suppress(OSError):  # opening the store finds the file, at no cost
                self._clean(region)
                if not keep_room:
                    self._free_unused(region)
            region.close()
        self.regions.clear()

    def _free_unused(self, region: Region) -> None:
        """Give back a file's disk space behind its records, but for some notes."""
        end = region.used + max(NOTE_ROOM, self.nbytes // NOTE_SHARE)
        if not region.finished and region.descriptor >= 0 and end < region.allocated:
            self.files.free(region.descriptor, end, region.allocated - end)

    def leave(self) -> None:
        """Close the files without writing: they are another process's."""
        if self._spare >= 0:
            os.close(self._spare)
            self._spare, self.spare_bytes = -1, 0
        for region in self.regions.values():
            region.close()
        self.regions.clear()

    def descriptor_of(self, region: Region) -> int:
        """Return a region's descriptor; where files are scarce, it is valid until the next call."""
        if region.descriptor < 0:
            if self._visited is not None:
                self._visited.park()
            region.descriptor = self.directory.open_file(region.path.name)
            self._visited = region
        return region.descriptor

    def _keep_open(self, region: Region, descriptor: int) -> None:
        """Keep a region's file open, as ``descriptor``."""
        region.descriptor = descriptor
        self._visited = None if self._visited is region else self._visited

    @property
    def newest(self) -> Region | None:
        """Region that records are appended to, unless it is finished."""
        return next(reversed(self.regions.values()), None)

    def _create(self, need: int, generation: int) -> Region:
        """Create a file for at least ``need`` bytes.

        It is renamed once its header is on disk; a region file without a header is damaged.
        """
        self._check()
        while self.directory.status(f"{self.next_number:012d}.region"):  # foreign, or it could not be deleted
            self.next_number += 1
        number, me, size = self.next_number, self.identity, max(self.region_bytes, need)
        generation = min(generation, MAX_GENERATION - 1)  # no id beyond it is ever written
        if number >= MAX_NUMBER:
            raise OverflowError(f"{self.directory.path}: region {number}: this store's numbers are used up")
        name, partial = f"{number:012d}.region", partial_name(number, me)
        body = HEADER.pack(MAGIC, VERSION, 0, number, size, me.schema, me.store, generation, 0, 0)[:-4]
        self.next_number += 1  # even if this fails: a file that cannot be deleted does not block the next
        if self.directory.is_file(partial):  # left by a process that crashed while creating it
            self.files.unlink(self.directory, partial)
        descriptor = self.files.open(self.directory, partial)
        try:
            self.files.truncate(descriptor, size)
            allocated = self._extend(descriptor, 0, need, size)
            self.files.pwrite(descriptor, body + struct.pack("<I", zlib.crc32(body)), 0)
            self.files.fsync(descriptor)
            self.files.rename(self.directory, partial, self.directory, name)
            self.files.fsync_folder(self.directory)
        except OSError:
            for left in (partial, name):
                with contextlib.suppress(OSError):
                    self._unlink(left, descriptor)
            os.close(descriptor)
            raise
        path = self.directory.path / name
        region = Region(path, number, descriptor, size, FIRST, generation, synced=FIRST, allocated=allocated)
        self.regions[number] = region
        self.goes_on = False
        return region

    def _allocate(self, region: Region, end: int) -> None:
        """Allocate disk space up to ``end``.  Raises: OSError: the disk is full; then nothing was written."""
        if end > region.allocated:
            region.allocated = self._extend(region.descriptor, region.allocated, end, region.size)

    def _extend(self, descriptor: int, allocated: int, end: int, size: int) -> int:
        """Allocate disk space after ``allocated`` bytes of a file up to ``end`` or further; return how far."""
        for upto in (_extent(allocated, end, size), end):
            try:
                self.files.allocate(descriptor, allocated, upto - allocated)
            except OSError as error:
                if error.errno != errno.ENOSPC or upto == end:
                    raise
            else:
                return upto
        raise AssertionError

    def _write(self, region: Region, records: Sequence[_NewRecord]) -> int:
        """Write records at once, and note their dictionaries and values; return the offset of the last one's payload.

        Raises: OSError; then none counts.
        """
        parts, offsets, end, sequence = list[bytes](), list[int](), region.used, self.sequence
        for kind, id_, column, payload, given in records:
            number = sequence if given is None else given
            if number >= MAX_SEQUENCE or (kind != DICTIONARY and id_ >= MAX_ID):
                raise OverflowError(f"{region.path}: record {number}, id {id_}: this store's numbers are used up")
            body = RECORD.pack(RECORD_MAGIC, kind, len(payload), id_, number, column, 0)[:-4]
            parts += (body, struct.pack("<I", zlib.crc32(body)), payload, bytes(-len(payload) % ALIGNMENT))
            offsets.append(end + RECORD.size)
            end += space(len(payload))
            sequence += given is None
        self._clean(region)
        region.spoiled = end
        self.files.pwrite(region.descriptor, b"".join(parts[:-1]), region.used)
        region.spoiled, region.used, self.sequence = 0, end, sequence
        for one, offset in zip(records, offsets, strict=True):
            if one.kind == DICTIONARY:
                region.hold(one.column, one.id, len(one.payload))
            elif one.kind == SHARED:
                key, nbytes = one.payload[:KEY_BYTES], len(one.payload)
                self.values.place(one.column, key, region.number, offset, nbytes)
        return offsets[-1]

    def _clean(self, region: Region) -> None:
        """Overwrite the remains of a failed write with zeros.  Raises: OSError."""
        if region.spoiled > region.used:
            self.files.pwrite(region.descriptor, bytes(region.spoiled - region.used), region.used)
        region.spoiled = 0

    def _rewrite(self, region: Region) -> None:
        """Rewrite, from the page cache, bytes that may not be on disk.  Raises: OSError."""
        content = memoryview(bytearray(region.used - region.synced))
        self.read(region.number, region.synced, content)
        self.files.pwrite(region.descriptor, bytes(content), region.synced)
