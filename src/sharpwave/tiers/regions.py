"""Region files: where sealed segments lie on disk, appended one behind the other and deleted a whole file at a time.

A region is complete in itself: it holds every dictionary that its segments refer to. So deleting the oldest one never
takes anything from the others, and a damaged one costs no more than what is damaged.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .files import Files
from .records import (
    ALIGNMENT,
    DICTIONARY,
    END,
    FIRST,
    HEADER,
    MAGIC,
    MOST_NUMBER,
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
        if not sound or checksum_of(payload) != zlib.crc32(payload[:-4]):
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
