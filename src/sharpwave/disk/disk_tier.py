"""The disk tier: one process's hold on a store's folder, and its segments in region files."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.disk.mergeable_regions import DEAD, WORTH_BYTES, emptiest, small_ones
from sharpwave.disk.occupancy import Occupancy
from sharpwave.disk.read_pool import BASE, COLUMNS, DESCRIPTOR, DIRECT, NBYTES, PLACE, SLOT, Readers
from sharpwave.disk.region_files import Regions
from sharpwave.disk.store_folder import ANEW, FOLDER, Hold, write_manifest
from sharpwave.errors import StoreInUseError
from sharpwave.format.region import MOST_GENERATION, NOTE, SEGMENT, TAIL, Identity, checksum_of
from sharpwave.format.region_notes import THRESHOLD_BYTES, LaneEnds, Note, pack_ends, pack_threshold
from sharpwave.memory.segment_index import LEAF_BITS
from sharpwave.native.directory import Directory
from sharpwave.native.files import Files

REGION_BYTES = 64 << 20
SMALLEST_REGION = 1 << 20
MOST_REGIONS = 256
"""Of a store with a limit, about; each keeps a file open twice, and systems often allow a process 1,024."""
SHARE = 64
"""Without a limit a region is so small a part of the store at least: a terabyte lies in some 400."""
MOST_HELD = 0.75
"""Where segments leave in any order, this share of the files is held at most, and of a region that is copied."""
GENERATIONS = 1024
"""So many more than there were are taken as given out in a note or a region's header, so that few notes are needed."""
FRAGMENTED = 0.25
"""More than this share of the limit that is held no more, and regions are copied together before segments leave."""


class Tail(NamedTuple):
    """Where the newest rows of an open segment lie that were flushed, and their checksum."""

    region: int
    offset: int
    nbytes: int
    checksum: int


class Disk:
    """One process's hold on a store's folder.

    Args:
        path: of the folder, made if absent. ``identity``: of its region files.
        limit: most bytes of region files; ``None``: none. ``most_bytes``: of steps, as they come.
        inspect: called with the folder once no other process has it, before anything is made in it; may raise.

    Attributes:
        directory: the folder, held open. All files are reached from it.
        forked: this process is a child of the one that opened the folder, and leaves it alone.
        bytes_read: of sampling. ``bytes_written``, ``failures``: of appending.
        compacts: whether regions become half empty (see :meth:`leave_in_any_order`).
        noted: asked for the retention's threshold, and for the highest generation of any id so far.
        ends: how far the lanes' step numbers go, as the files show.

    Raises:
        StoreInUseError: another process holds the folder.
    """

    def __init__(
        self,
        path: Path,
        identity: Identity,
        limit: int | None,
        most_bytes: int | None,
        files: Files,
        inspect: Callable[[Directory], None] = lambda folder: None,
    ) -> None:
        self.limit, self._most_bytes, self.files = limit, most_bytes, files
        self.directory = files.make_folder(path)
        self._process, self.forked = os.getpid(), False
        self._hold = Hold(self.directory)
        try:
            inspect(self.directory)
            directory = files.make_directory(self.directory, FOLDER)
            self.regions = Regions(directory, identity, region_bytes(limit, most_bytes), files, self.check_held)
        except BaseException:
            self._hold.close()
            raise
        self._held = Occupancy()  # of segments, and of the newest rows of open ones
        self._tails: dict[int, Tail] = {}  # of open segments, by id
        self._note = Note()
        self.ends = LaneEnds()
        self._unreadable: set[int] = set()  # regions that could not be copied from
        self.compacts = False
        self.noted: Callable[[], tuple[float, int]] = lambda: (1.0, 0)
        self._readers: Readers | None = None
        self._joined = 0
        self.bytes_read = self.bytes_written = self.failures = 0

    def leave_in_any_order(self) -> None:
        """Be ready to copy regions that become half empty: they are smaller, and the limit leaves one free for that."""
        self.compacts = True
        self.set_limit(self.limit, self._most_bytes)

    @property
    def folder(self) -> Path:
        """Where the folder was when it was opened; for messages."""
        return self.directory.path

    @property
    def nbytes(self) -> int:
        """Bytes that the region files take."""
        return self.regions.nbytes

    def set_limit(self, limit: int | None, most_bytes: int | None) -> None:
        """Other limits from now on; regions that are there stay as large as they are."""
        if self.limit is not None and (limit is None or limit < self.limit):
            self.regions.finish()  # and so gives back what it had taken in advance
        self.limit, self._most_bytes = limit, most_bytes
        self.regions.region_bytes = region_bytes(limit, most_bytes, 32 if self.compacts else 8)

    def share(self, folder: Directory) -> list[tuple[int, str]]:
        """Give every region that holds a segment the same name in ``folder``; it will not be written to any more.

        Returns descriptors of those that could get none, and the names to copy them to.  Raises: OSError.
        """
        self.check_held()
        self.regions.check_named()
        self.regions.finish()
        left: list[tuple[int, str]] = []
        try:
            for number, region in self.regions.regions.items():
                name = region.path.name
                if self.holds(number) and not self.files.link(self.regions.directory, name, folder):
                    left.append((os.dup(region.descriptor), name))
        except BaseException:
            for descriptor, _ in left:
                os.close(descriptor)
            raise
        return left

    def room_for(self, nbytes: int) -> bool:
        """Whether the limit allows for another ``nbytes``, and leaves free what it has to."""
        if self.limit is None or (self.compacts and self.over_limit):
            return self.limit is None
        growth = self.regions.growth(nbytes)
        return not growth or self.nbytes + growth <= self.limit - self._spare

    def crowded(self, nbytes: int = 0) -> bool:
        """Whether with another ``nbytes`` so much would be held that there may be no region worth copying.

        So one segment leaves for one that comes, and not very many at once when the limit is reached.
        """
        if self.limit is None or not self.compacts:
            return False
        # Of what the limit allows a region is free, one may be begun, and one is still to come.
        return self._held.total + nbytes > MOST_HELD * (self.limit - 3 * self.regions.region_bytes)

    @property
    def over_limit(self) -> bool:
        """Whether the files take more than they may, or what is to be left free to copy into."""
        return self.limit is not None and self.nbytes > self.limit - self._spare

    @property
    def _spare(self) -> int:
        return self.regions.region_bytes if self.compacts else 0

    @property
    def wasteful(self) -> bool:
        """Whether more than half of what the files take is held no more, beside a few regions."""
        held = sum(map(self._needed, self.regions.regions))
        return self.nbytes > 2 * held + 4 * self.regions.region_bytes

    @property
    def fragmented(self) -> bool:
        """Whether so much of the files is held no more that segments need not leave, only be copied together.

        Where segments leave in their order, regions empty one after another. But merged regions hold old segments and
        new ones: there nearly all would leave until a region is empty.
        """
        dead = self.nbytes - self._held.total
        return self.limit is not None and dead > max(FRAGMENTED * self.limit, 3 * self.regions.region_bytes)

    def _needed(self, number: int) -> int:
        """Bytes of a region that a copy of it would take, at most."""
        return self._held.nbytes(number) + self.regions.regions[number].shared if self.holds(number) else 0

    def emptiest(self, most: float, left_out: frozenset[int] = frozenset()) -> int | None:
        """The region of which the smallest share is held; see :func:`clutter.emptiest`."""
        room = self.regions.region_bytes
        free = None if self.limit is None else self.limit - room - self.nbytes
        return emptiest(self.regions.regions, self._needed, most, room, free, self._unreadable | left_out)

    def small_ones(self, left_out: frozenset[int] = frozenset()) -> list[int]:
        """Small regions to be copied into one, where there are many of them."""
        # Of old steps and new ones in one region all must leave before it is free: so it is no large part of them,
        # whatever limit there is now.
        most = min(self.regions.region_bytes, max(self._held.total // 8, SMALLEST_REGION))
        return small_ones(self.regions.regions, self._needed, most, self._unreadable | left_out)

    @property
    def fits(self) -> bool:
        """Whether what is held would fit the limit, were it copied together."""
        return self.limit is None or self._held.total <= self.limit - 2 * self.regions.region_bytes - self._spare

    def move(
        self,
        kind: int,
        region: int,
        offset: int,
        nbytes: int,
        generation: int,
        dictionaries: dict[tuple[int, int], bytes],
    ) -> tuple[int, int] | None:
        """Copy a record behind the newest one, with its id and its sequence number; returns its new region and offset.

        ``None``: it cannot be read; its region will not be the emptiest one any more.  Raises: OSError: as ``append``.
        """
        try:
            found = self.regions.read_record(region, offset, nbytes)
        except OSError:
            found = None
        if found is None:
            self._unreadable.add(region)
            self.failures += 1
            return None
        record, payload = found
        try:
            place = self._append(kind, record.id, payload, generation, dictionaries, record.sequence)
        except OSError:
            self.failures += 1
            raise
        self._held.hold(place[0], nbytes)
        self._held.release(region, nbytes)
        self.bytes_written += nbytes
        return place

    def vacate(self, numbers: list[int], generation: int) -> bool:
        """Delete regions whose segments were moved; False: something in them cannot be read.  Raises: OSError."""
        for id_, tail in list(self._tails.items()):
            if tail.region in numbers:
                place = self.move(TAIL, tail.region, tail.offset, tail.nbytes, generation, {})
                if place is None:
                    return False
                self._tails[id_] = tail._replace(region=place[0], offset=place[1])
        try:
            self.delete(numbers)
        except OSError:
            self.failures += 1
            raise
        return True

    def delete(self, numbers: list[int]) -> None:
        """Delete regions in which nothing is held; what else they say is written anew first.  Raises: OSError."""
        if not numbers:
            return
        if self._note.region in numbers:
            self.note(always=True)
        if self.ends.rest_on(numbers):
            self.note_ends()
        self.regions.sync()  # what replaces their content is on disk before they go
        for number in numbers:
            self.regions.delete(number)
            self._held.forget(number)

    def note(self, always: bool = False) -> None:
        """Write down which keys have left, and which generations ids have had: opening needs them after a crash.

        Nothing, if there is nothing new to say; what is ``always`` written down is so again.  Raises: OSError.
        """
        threshold, generation = self.noted()
        before = self._note
        if not always and threshold >= before.threshold and generation <= before.generation:
            return
        generation = min(generation + GENERATIONS, MOST_GENERATION - 1)
        region, _ = self._append(NOTE, generation << LEAF_BITS, pack_threshold(threshold), generation, {})
        self._note = Note(region, threshold, generation)

    def note_ends(self, ends: npt.NDArray[np.int64] | None = None) -> None:
        """Write down how far the lanes' step numbers go: the files' knowledge, or beyond it ``ends`` [lanes].

        Nothing, if the files show ``ends`` already.  Raises: OSError.
        """
        if ends is not None and not self.ends.behind(ends):
            return
        merged = self.ends.joined(np.zeros(0, np.int64) if ends is None else ends)
        generation = min(self.noted()[1], MOST_GENERATION - 1)
        region, _ = self._append(NOTE, generation << LEAF_BITS, pack_ends(merged), generation, {})
        self.ends.reach_all(merged, region)

    def begin_life(self) -> None:
        """Note what opening found, so that no id is given out again whatever becomes of this process.

        Raises: OSError.
        """
        newest = self.regions.newest
        if newest is not None and self.regions.goes_on:
            dead = newest.used - self._needed(newest.number)
            if newest.size > self.regions.region_bytes or dead > max(DEAD * newest.used, WORTH_BYTES):
                self.regions.finish()
        if self.noted()[0] < 1.0 or (newest is not None and not newest.finished):
            self.note(always=True)

    def try_note(self) -> None:
        """As :meth:`note`, if the limit and the disk allow it; else when it is due next. What is left free is used."""
        if self.limit is None or self.regions.room_for(THRESHOLD_BYTES) or self.nbytes + self._spare <= self.limit:
            try:
                self.note()
            except OSError:
                self.failures += 1

    def _append(
        self,
        kind: int,
        id_: int,
        payload: bytes,
        generation: int,
        dictionaries: dict[tuple[int, int], bytes],
        sequence: int | None = None,
    ) -> tuple[int, int]:
        """Write a record; returns its region and offset.  Raises: OSError."""
        most = min(generation + GENERATIONS, MOST_GENERATION - 1)
        region, offset = self.regions.append(kind, id_, payload, most, dictionaries, sequence)
        if kind == SEGMENT:
            self.ends.reach_by(payload, region)
        begun = self.regions.regions[region].generation
        if begun > self._note.generation and self._note.threshold >= 1.0:
            self._note = Note(region, 1.0, begun)  # a header says as much as a note does
        return region, offset

    def append(
        self, id_: int, packed: bytes, generation: int, dictionaries: dict[tuple[int, int], bytes]
    ) -> tuple[int, int]:
        """Write a segment; returns its region and offset.  Raises: OSError; then nothing is held of it."""
        if self.limit is None and not self.regions.room_for(len(packed)):
            self.regions.region_bytes = max(region_bytes(None, self._most_bytes), self.nbytes // SHARE)
        try:
            if generation > self._note.generation >= 0:
                self.note()
            region, offset = self._append(SEGMENT, id_, packed, generation, dictionaries)
        except OSError:
            self.failures += 1
            raise
        self.hold(region, len(packed))
        self.drop_tail(id_)
        self.bytes_written += len(packed)
        return region, offset

    def write_anew(
        self, id_: int, packed: bytes, generation: int, dictionaries: dict[tuple[int, int], bytes]
    ) -> tuple[int, int]:
        """Write a segment that is not counted as held yet; returns its region and offset.  Raises: OSError."""
        return self._append(SEGMENT, id_, packed, generation, dictionaries)

    def has_tail(self, id_: int, packed: bytes) -> bool:
        """Whether just these rows of an open segment were written already."""
        before = self._tails.get(id_)
        # The CRC-32 is the one in it: that of bytes with their CRC-32 is a constant.
        return before is not None and before.checksum == checksum_of(packed)

    def append_tail(self, id_: int, packed: bytes, generation: int) -> None:
        """Write an open segment as far as it goes, unless just that was written already.  Raises: OSError."""
        if self.has_tail(id_, packed):
            return
        checksum, before = checksum_of(packed), self._tails.get(id_)
        try:
            region, offset = self._append(TAIL, id_, packed, generation, {})
        except OSError:
            self.failures += 1
            raise
        if before is not None:
            self._held.release(before.region, before.nbytes)
        self._tails[id_] = Tail(region, offset, len(packed), checksum)
        self._held.hold(region, len(packed))
        self.bytes_written += len(packed)

    def drop_tail(self, id_: int) -> None:
        """Rows that were flushed of an open segment, if there are any, count no more: it is sealed, or has left."""
        tail = self._tails.pop(id_, None)
        if tail is not None:
            self.release(tail.region, tail.nbytes)

    def hold(self, region: int, nbytes: int) -> None:
        """Count a segment of ``region`` as held."""
        self._held.hold(region, nbytes)

    def holds(self, region: int) -> bool:
        """Whether anything in ``region`` is held."""
        return self._held.holds(region)

    def let_go(self) -> None:
        """Count nothing as held."""
        self._held.clear()

    def let_go_of(self, region: int, nbytes: int) -> None:
        """Count a segment of ``region`` as held no more. Its file stays."""
        self._held.release(region, nbytes)

    def release(self, region: int, nbytes: int) -> None:
        """One of its segments has left the store; a region without any is deleted, unless it is being written to.

        Raises nothing: one that cannot be deleted now is tried again when the next segment leaves.
        """
        self._held.release(region, nbytes)
        unused = [n for n in list(self.regions.regions)[:-1] if not self.holds(n)]
        if not unused:
            return
        self.try_note()
        try:
            self.delete(unused)
        except OSError:
            self.failures += 1

    def read_by(self, readers: Readers) -> None:
        """Say who reads segments from now on."""
        if self._readers is not None:
            self._readers.close()
            self._joined += self._readers.joined
        self._readers = readers

    def reads(
        self,
        slots: npt.NDArray[np.int64],
        regions: npt.NDArray[np.int32],
        places: npt.NDArray[np.int64],
        bases: npt.NDArray[np.int64],
        nbytes: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """What :meth:`start` takes, to read segments [n] from ``places`` of ``regions`` to ``bases``."""
        reads = np.empty((len(slots), COLUMNS), np.int64)
        reads[:, SLOT], reads[:, PLACE], reads[:, BASE], reads[:, NBYTES] = slots, places, bases, nbytes
        reads[:, [DESCRIPTOR, DIRECT]] = self.regions.descriptors(regions)
        return reads[np.lexsort((places, regions))]

    def start(self, reads: npt.NDArray[np.int64]) -> None:
        """Begin reads. Cost: 50 us for 256, with :meth:`reads`."""
        self.readers.start(reads)
        self.bytes_read += int(reads[:, NBYTES].sum())

    @property
    def joined(self) -> int:
        """Reads that were made with the one before, beside which they lie in the file."""
        return self._joined + self.readers.joined

    @property
    def readers(self) -> Readers:
        """Who reads; after :meth:`read_by`."""
        assert self._readers is not None
        return self._readers

    def read(self, number: int, offset: int, out: memoryview) -> str | None:
        """Read a segment at once; returns what is wrong with it, or ``None``."""
        region = self.regions.regions.get(number)
        try:
            self.regions.read(number, offset, out)
        except (OSError, KeyError) as error:
            return f"region {number}: {error}"
        stored, found = int.from_bytes(out[-4:], "little"), zlib.crc32(out[:-4])
        if stored != found:
            path = region.path if region else number
            return f"{path}: byte {offset:,}: checksum {found:08x}, expected {stored:08x}"
        return None

    def describe(self, manifest: dict[str, Any]) -> None:
        """Write ``store.json``.  Raises: OSError."""
        self.check_held()
        write_manifest(self.directory, manifest, self.files)

    def check_process(self) -> None:
        """Raises: StoreInUseError in a process that was forked from the one that opened the folder."""
        if self.forked:
            raise StoreInUseError(
                f"disk: {self.folder} was opened by process {self._process}; this is process {os.getpid()}, forked "
                "from it, and two would write over each other. Open stores after the fork, or use it there"
            )

    def check_held(self) -> None:
        """Raises: StoreInUseError: the folder, or what it is held by, was deleted or replaced."""
        self._hold.check()
        if not self.directory.names_file(FOLDER, self.regions.directory.descriptor):
            raise StoreInUseError(f"disk: {self.regions.directory.path} was deleted or replaced; {ANEW}")

    def flush(self) -> None:
        """Return when everything appended so far is on disk, in files that have their names.

        Raises:
            StoreInUseError: files, the folder or its lock were deleted or replaced.  OSError.
        """
        self.check_held()
        self.regions.check_named()
        self.regions.sync()

    def leave_to_parent(self) -> None:
        """Close all files in a process that was just forked, whose they are not."""
        self.forked = True
        if self._readers is not None:
            self._readers.leave()
        self.regions.leave()
        self._hold.leave()
        self.regions.directory.close()
        self.directory.close()

    def close(self) -> None:
        """Let the folder go."""
        if self.forked:
            return
        if self._readers is not None:
            self._readers.close()
        try:
            self.regions.close()
        finally:
            self.regions.directory.close()
            self._hold.close()
            self.directory.close()


def region_bytes(limit: int | None, most_bytes: int | None, count: int = 8) -> int:
    """Size of a region: a store is some ``count`` or more, and with a limit at most ``MOST_REGIONS`` of them."""
    most = [size // count for size in (limit, most_bytes) if size is not None]
    return max(min([max(REGION_BYTES, (limit or 0) // MOST_REGIONS), *most]), SMALLEST_REGION)
