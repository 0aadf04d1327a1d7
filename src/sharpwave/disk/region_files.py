"""Region files: where sealed segments lie on disk, appended one behind the other and deleted a whole file at a time.

A region is complete in itself: it holds every dictionary that its segments refer to. So deleting the oldest one never
takes anything from the others, and a damaged one costs no more than what is damaged.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sharpwave.disk.store_folder import ANEW
from sharpwave.errors import StoreInUseError
from sharpwave.format.region import (
    ALIGNMENT,
    DICTIONARY,
    END,
    FIRST,
    HEADER,
    MAGIC,
    MOST_GENERATION,
    MOST_ID,
    MOST_NUMBER,
    MOST_SEQUENCE,
    RECORD,
    RECORD_MAGIC,
    VERSION,
    Damage,
    Identity,
    Record,
    Region,
    checksum_of,
    read_region,
    space,
)
from sharpwave.native.directory import Directory, IrregularError
from sharpwave.native.files import Files


def _extent(allocated: int, end: int, size: int) -> int:
    """Up to where disk is taken for a file of ``size`` bytes that has some and needs it up to ``end``."""
    if end <= allocated:
        return allocated
    return min(size, max(end, allocated + min(MOST_EXTENT, max(FIRST_EXTENT, allocated))))


def partial_name(number: int, identity: Identity) -> str:
    """The name of a region's file while it is made: no other store has it."""
    return f".{number:012d}.{identity.store.hex()}.partial"


FIRST_EXTENT, MOST_EXTENT = 1 << 18, 8 << 20
"""Bytes of the disk that a region takes when it is made, and at a time when it is full so far, at most."""
MOST_DIRECT = 256
"""Of no more regions each has a second descriptor, for reads past the system's memory."""


class Regions:
    """The regions of one store, oldest first; the newest is written to.

    Args:
        folder: where the files lie: a path, made if absent, or a folder that is open, and stays so.
        region_bytes: size of a file; one with a single larger record is larger.
        check: called before a file is made; raises where the folder is not the store's any more.

    Attributes:
        goes_on: the newest is one that another process began.
        scarce: this process may not open so many files; until :meth:`open_all` those that are read are opened for that.
    """

    def __init__(
        self,
        folder: Path | Directory,
        identity: Identity,
        region_bytes: int,
        files: Files,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.directory = folder if isinstance(folder, Directory) else files.make_folder(folder)
        self._owned = self.directory is not folder
        self.identity, self.region_bytes, self.files, self._check = identity, region_bytes, files, check
        self.regions: dict[int, Region] = {}
        self.sequence = 0
        self.next_number = 0
        self.goes_on = self.scarce = False
        self._visited: Region | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that the files take on disk."""
        return sum(region.allocated for region in self.regions.values())

    def room_for(self, nbytes: int) -> bool:
        """Whether a record of ``nbytes`` fits without another file. Dictionaries may come on top."""
        newest = self.newest
        return newest is not None and not self._full(newest, RECORD.size + nbytes + ALIGNMENT)

    def growth(self, nbytes: int) -> int:
        """Bytes of the disk that a record of ``nbytes`` will take, beyond what is taken already."""
        need, newest = RECORD.size + nbytes + ALIGNMENT, self.newest
        if newest is None or self._full(newest, need):
            return _extent(0, FIRST + need, max(self.region_bytes, FIRST + need))
        return _extent(newest.allocated, newest.used + need, newest.size) - newest.allocated

    def _full(self, region: Region, need: int) -> bool:
        """Whether a region takes no further ``need`` bytes. One from before a limit sank is smaller than its file."""
        return region.finished or region.used + need > min(region.size, self.region_bytes)

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
        region = self.newest
        if region is None or self._full(region, need):
            if region is not None:
                if region.size > self.region_bytes:
                    self.finish()  # and so gives back what it had taken in advance
                self._clean(region)
                self.check_named()
                self.sync()
            region = self._create(FIRST + need, generation)
        self._allocate(region, region.used + need)
        for (column, key), data in dictionaries.items():
            if (column, key) not in region.keys:
                self._write(region, DICTIONARY, key, column, data)
                region.keys.add((column, key))
        return region.number, self._write(region, kind, id_, 0, payload, sequence)

    def finish(self) -> None:
        """Write nothing more into the newest region: its file may be shared from now on.  Raises: OSError."""
        region = self.newest
        if region is None or region.finished or region.used == FIRST:
            return
        self._clean(region)
        region.finished = True
        if region.used + RECORD.size <= region.size:
            self._allocate(region, region.used + RECORD.size)
            self._write(region, END, 0, 0, b"")
            self.files.truncate(region.descriptor, region.used)
            region.size = region.allocated = region.used

    def read(self, number: int, offset: int, out: memoryview) -> None:
        """Fill ``out`` from a region's bytes.  Raises: OSError, also where the file is too short."""
        region = self.regions[number]
        done = self.files.pread(self._descriptor(region), out, offset)
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
        if not sound or checksum_of(payload) != zlib.crc32(payload[:-4]):
            return None
        return Record(kind, id_, sequence, column, offset, nbytes), payload

    def descriptors(self, numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """The open file of each region, and the same for reads past the system's memory. [n, 2]; -1: there is none."""
        different, which = np.unique(numbers, return_inverse=True)
        regions = [self.regions.get(number) for number in different.tolist()]
        direct = len(self.regions) <= MOST_DIRECT
        found = [(-1, -1) if one is None else (one.descriptor, one.direct if direct else -1) for one in regions]
        return np.array(found, np.int64).reshape(-1, 2)[which]

    def sync(self) -> None:
        """Return when everything appended so far is on disk.  Raises: OSError."""
        for region in self.regions.values():
            if region.synced < region.used:
                used = region.used
                if region.unsure:
                    self._rewrite(region)
                region.unsure = True
                self.files.fsync(self._descriptor(region))
                region.synced, region.unsure = used, False

    def check_named(self) -> None:
        """See to it that files which were written to since the last :meth:`sync` still have their names.

        Raises:
            StoreInUseError: one was deleted or replaced.
        """
        for region in self.regions.values():
            if region.synced < region.used and not self.directory.names_file(region.path.name, region.descriptor):
                raise StoreInUseError(f"{region.path} was deleted or replaced while the store was open; {ANEW}")

    def delete(self, number: int) -> None:
        """Delete a region's file.  Raises: OSError; then it is still there."""
        self._unlink(self.regions[number].path.name, self._descriptor(self.regions[number]))
        self.regions.pop(number).close()

    def _unlink(self, name: str, descriptor: int) -> None:
        """Delete an open file by its name, unless that has become another one's."""
        if self.directory.names_file(name, descriptor):
            self.files.unlink(self.directory, name)

    def close(self) -> None:
        """Close the files."""
        for region in self.regions.values():
            with contextlib.suppress(OSError):  # it is found when the store is opened, and costs nothing
                self._clean(region)
            region.close()
        self.regions.clear()
        if self._owned:
            self.directory.close()

    def leave(self) -> None:
        """Close the files as they are: they are another process's."""
        for region in self.regions.values():
            region.close()
        self.regions.clear()

    def recover(self, go_on: bool = False) -> tuple[list[tuple[int, Record]], list[Damage]]:
        """Open the folder's files, oldest first: what is whole, as (region, record), and what is not.

        Nothing is changed on disk.

        Args:
            go_on: writing goes on behind the newest file's last record, if the file is as a store leaves it and no
                checkpoint shares it; else in a new one. The newest file is not taken to be on disk before a sync.

        Raises:
            OSError: a file cannot be opened. One that the disk cannot read is a damage.
        """
        found: list[tuple[int, Record]] = []
        damages: list[Damage] = []
        for name in self.directory.names():
            if not name.endswith(".region"):
                continue
            path = self.directory.path / name
            try:
                region, records, wrong = self._read(path)
            except IrregularError as error:
                region, records, wrong = None, [], [Damage(path, 0, 0, error.what)]
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                found_size = self.directory.status(name)
                size = found_size.st_size if found_size else 0
                region, records, wrong = None, [], [Damage(path, 0, size, f"cannot be read ({error})")]
            damages += wrong
            if region is not None and path.stem != f"{region.number:012d}":
                region.close()
                what = f"region {region.number} under another name, expected {region.number:012d}.region"
                damages.append(Damage(path, 0, region.size, what))
                region = None
            if region is None:
                continue
            self.regions[region.number] = region
            self.next_number = max(self.next_number, region.number + 1)
            for record in records:
                self.sequence = max(self.sequence, record.sequence + 1)
                found.append((region.number, record))
        if go_on and self.newest is not None and not any(one.path == self.newest.path for one in damages):
            self._go_on(self.newest)
        for region in self.regions.values():
            if not (region is self.newest and self.goes_on):
                region.used = region.synced = region.size
                region.finished = True
        if go_on and self.newest is not None:  # those before it were synced before it was made
            self.newest.synced = FIRST
        return found, damages

    def _read(self, path: Path) -> tuple[Region | None, list[Record], list[Damage]]:
        """Read a file; where there are more than may be open at a time, let go of the others, and of it."""
        try:
            found = read_region(path, self.identity, self.directory)
        except OSError as error:
            if error.errno != errno.EMFILE or self.scarce:
                raise
            self.scarce = True
            for region in self.regions.values():
                region.park()
            found = read_region(path, self.identity, self.directory)
        if self.scarce and found[0] is not None:
            found[0].park()
        return found

    def _descriptor(self, region: Region) -> int:
        if region.descriptor < 0:
            if self._visited is not None:
                self._visited.park()
            region.descriptor = self.directory.open_file(region.path.name)
            self._visited = region
        return region.descriptor

    def open_all(self) -> None:
        """Open every file, where opening the store could not.  Raises: OSError: there are still too many."""
        self.scarce, self._visited = False, None
        for region in self.regions.values():
            try:
                region.descriptor = self._descriptor(region)
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                raise OSError(
                    errno.EMFILE,
                    f"{self.directory.path}: {len(self.regions)} files, more than this process may have open; "
                    "raise its limit (ulimit -n), or open the store with a smaller disk_limit=",
                ) from error
            self._visited = None

    def _go_on(self, region: Region) -> None:
        """Write on in a file that another process left, of which nothing is known to be on disk but the header."""
        name = region.path.name
        shared = os.fstat(self._descriptor(region)).st_nlink > 1
        if region.finished or shared or region.used >= region.size:
            return
        try:
            descriptor = self.files.open_again(self.directory, name, region.descriptor)
        except PermissionError:
            return
        os.close(region.descriptor)
        self._visited = None if self._visited is region else self._visited
        region.descriptor = descriptor
        region.used = -(-region.used // ALIGNMENT) * ALIGNMENT
        region.allocated = max(region.allocated, region.used)
        self.goes_on = True

    @property
    def newest(self) -> Region | None:
        """The one that is written to, unless it is finished."""
        return next(reversed(self.regions.values()), None)

    def _create(self, need: int, generation: int) -> Region:
        """Begin a file for ``need`` bytes at least.

        It gets its name when its header is on disk, so that one without a header is damaged.
        """
        self._check()
        while self.directory.status(f"{self.next_number:012d}.region"):  # another's, or it could not be deleted
            self.next_number += 1
        number, me, size = self.next_number, self.identity, max(self.region_bytes, need)
        generation = min(generation, MOST_GENERATION - 1)  # behind it no id is written any more
        if number >= MOST_NUMBER:
            raise OverflowError(f"{self.directory.path}: region {number}: this store's numbers are used up")
        name, partial = f"{number:012d}.region", partial_name(number, me)
        body = HEADER.pack(MAGIC, VERSION, 0, number, size, me.schema, me.store, generation, 0, 0)[:-4]
        self.next_number += 1  # also where it fails: what could not be deleted is in no one's way
        if self.directory.is_file(partial):  # of a process that ended while it made a region of this number
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
        """Take disk for all before ``end``.  Raises: OSError: it is full; then nothing was written."""
        if end > region.allocated:
            region.allocated = self._extend(region.descriptor, region.allocated, end, region.size)

    def _extend(self, descriptor: int, allocated: int, end: int, size: int) -> int:
        """Take disk behind ``allocated`` bytes of a file up to ``end`` and some more; returns how far."""
        for upto in (_extent(allocated, end, size), end):
            try:
                self.files.allocate(descriptor, allocated, upto - allocated)
            except OSError as error:
                if error.errno != errno.ENOSPC or upto == end:
                    raise
            else:
                return upto
        raise AssertionError

    def _write(
        self, region: Region, kind: int, id_: int, column: int, payload: bytes, sequence: int | None = None
    ) -> int:
        number = self.sequence if sequence is None else sequence
        if number >= MOST_SEQUENCE or (kind != DICTIONARY and id_ >= MOST_ID):
            raise OverflowError(f"{region.path}: record {number}, id {id_}: this store's numbers are used up")
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
