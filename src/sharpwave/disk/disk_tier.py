"""The disk tier: one process's hold on a store's folder, and its segments in region files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from sharpwave.arrays import Bools, Ints
from sharpwave.disk.disk_budget import DiskBudget, Occupancy, region_bytes
from sharpwave.disk.region_files import FULL, Needed, RegionFiles
from sharpwave.disk.region_notes import MAX_IDS, Evicted, Evictions, StepEnds, pack_ends, pack_evicted
from sharpwave.disk.store_folder import ANEW, FOLDER, Hold, write_manifest
from sharpwave.errors import DamagedError, StoreInUseError
from sharpwave.format.region import MAX_GENERATION, NOTE, SEGMENT, TAIL, Identity, checksum_of, space
from sharpwave.memory.segment_index import LEAF_BITS
from sharpwave.native.directory import Directory
from sharpwave.native.file_operations import Files

NO_IDS = np.zeros(0, np.int64)
GENERATIONS = 64
"""Generations that a note or a region's header reserves beyond the latest, so that few notes are needed."""


class Tail(NamedTuple):
    """Location of the flushed rows of an open segment, and their checksum."""

    region: int
    offset: int
    nbytes: int
    checksum: int


class Claims(Protocol):
    """Facts of a log that notes in region files record, for opening.

    Attributes:
        latest_generation: the highest generation of any id so far.
    """

    @property
    def latest_generation(self) -> int: ...

    def evicted(self) -> Evicted:
        """Return the retention's threshold and the counts of evictions, without ids."""

    def unsealed(self, slots: Ints) -> Bools:
        """Return which of ``slots`` [n] hold no sealed segment."""

    def shared_values(self, id_: int) -> Needed:
        """Return the shared values of a segment, by (column, key)."""


@dataclass
class _Noted:
    """Generations reserved by the latest note or region's header, and its region (-1: none)."""

    region: int = -1
    generation: int = -1


class DiskTier:
    """Store's folder, held by one process.

    Args:
        path: of the folder, created if absent. ``identity``: of its region files.
        limit: limit of the region files, in bytes; ``None``: none. ``max_step_bytes``: of all steps, unencoded.
        inspect: called with the folder once this process has locked it, before anything is created in it; may raise.

    Attributes:
        directory: the folder, open; all files are opened from it.
        forked: this process was forked from the one that opened the folder, and leaves the folder alone.
        end_reads: called before the files are closed: it ends all reads from them.
        bytes_written, failures: of appending.
        budget: the limit on the files, and the room that remains.
        held: held records of each region: segments, and the newest rows of open ones.
        ends: ends of the lanes' step numbers, from the files. ``evictions``: evicted segments, likewise.
        described: contents of ``store.json``.
        stuck: a region that holds nothing could not be deleted last time.

    Raises:
        StoreInUseError: another process holds the folder.
    """

    def __init__(
        self,
        path: Path,
        identity: Identity,
        limit: int | None,
        max_step_bytes: int | None,
        files: Files,
        inspect: Callable[[Directory], None] = lambda folder: None,
    ) -> None:
        self.files = files
        self.directory = files.make_folder(path)
        self._process, self.forked = os.getpid(), False
        self._hold = Hold(self.directory)
        try:
            inspect(self.directory)
            directory = files.make_directory(self.directory, FOLDER)
            self.regions = RegionFiles(directory, identity, region_bytes(limit, max_step_bytes), files, self.check_held)
        except BaseException:
            self._hold.close()
            raise
        self.held = Occupancy()
        self._tails: dict[int, Tail] = {}  # of open segments, by id
        self._noted, self._ends_due = _Noted(), False
        self.stuck = False
        self.ends, self.evictions = StepEnds(), Evictions(1)
        self.budget = DiskBudget(self.regions, self.held, limit, max_step_bytes)
        self.budget.noted_bytes = lambda number: self.evictions.bytes_in(number)
        self._claims: Claims  # of the log; after ``begin``
        self.end_reads: Callable[[], None] = lambda: None
        self.bytes_written = self.failures = 0
        self.described: dict[str, Any] = {}

    def begin(self, claims: Claims, stride: int, in_order: bool, drops: bool = False) -> None:
        """Begin to serve a log. Notes record its ``claims``.

        Args:
            stride: limit of steps in a segment.
            in_order: whether segments are evicted in the order in which they were added.
            drops: whether segments are evicted when the disk is full.
        """
        self._claims, self.evictions = claims, Evictions(stride)
        self.budget.begin(not in_order, drops)

    @property
    def folder(self) -> Path:
        """Absolute path of the folder when it was opened; for messages."""
        return self.directory.path

    @property
    def nbytes(self) -> int:
        """Bytes of the region files."""
        return self.regions.nbytes

    def share(self, folder: Directory) -> list[tuple[int, str]]:
        """Link every region into ``folder`` under the same name, and write to it no more.

        Regions without held segments are included: they have notes of evictions. Returns descriptors of regions that
        cannot be linked, and the names to copy them to.  Raises: OSError.
        """
        self.check_held()
        self.regions.check_named()
        self.note()
        self.regions.finish()
        left: list[tuple[int, str]] = []
        try:
            for region in self.regions.regions.values():
                name, empty = region.path.name, region is self.regions.newest and not region.finished
                if not empty and not self.files.link(self.regions.directory, name, folder):
                    left.append((os.dup(region.descriptor), name))
        except BaseException:
            for descriptor, _ in left:
                os.close(descriptor)
            raise
        return left

    def move(
        self,
        kind: int,
        region: int,
        offset: int,
        nbytes: int,
        generation: int,
        dictionaries: Needed,
    ) -> tuple[int, int] | None:
        """Copy a record behind the newest one, with its id and its sequence number; return its new region and offset.

        ``None``: it, or a shared value, cannot be read, and its region is not compacted again.

        Raises: OSError: as ``append``.
        """
        try:
            found = self.regions.read_record(region, offset, nbytes)
        except OSError:
            found = None
        try:
            if found is None:
                raise DamagedError(f"region {region}: byte {offset:,}: cannot be read")
            record, payload = found
            moved = self.write(kind, record.id, payload, generation, dictionaries, record.sequence, whole=True)
        except DamagedError:
            self.budget.unreadable.add(region)
            self.failures += 1
            return None
        except OSError:
            self.failures += 1
            raise
        self.held.hold(moved[0], nbytes)
        self.held.release(region, nbytes)
        self.bytes_written += nbytes
        return moved

    def vacate(self, numbers: list[int], generation: int) -> bool:
        """Delete regions whose segments were moved; return False if a record cannot be read.  Raises: OSError."""
        for id_, tail in list(self._tails.items()):
            if tail.region in numbers:
                values = self._claims.shared_values(id_)
                moved = self.move(TAIL, tail.region, tail.offset, tail.nbytes, generation, values)
                if moved is None:
                    return False
                self._tails[id_] = tail._replace(region=moved[0], offset=moved[1])
        try:
            self.delete(numbers)
        except OSError:
            self.failures += 1
            raise
        return True

    def delete(self, numbers: list[int]) -> None:
        """Delete regions without held records, after repeating their notes.  Raises: OSError."""
        if not numbers:
            return
        try:
            self.repeat_notes(numbers)
        except OSError as error:
            if not self.budget.drops or error.errno not in FULL:
                raise
            # Without any reserve a full disk takes the notes only after the files are deleted. A crash in between loses
            # no held step: some evicted steps would return.
            self.evictions.pending.update(dict.fromkeys(self._told_by(numbers).tolist()))
            self._ends_due = True
        self.regions.sync()  # replacements of their records are on disk before they are deleted
        for number in numbers:
            self.regions.delete(number)
            self.held.forget(number)
        if self._ends_due:
            with contextlib.suppress(OSError):  # retried before the next record
                self.note(always=True)

    def _told_by(self, numbers: list[int]) -> Ints:
        """Return the ids of evicted segments that only notes in regions ``numbers`` record.

        Ids that a sealed segment replaces are left out.
        """
        slots = self.evictions.told_by(numbers)
        return self.evictions.ids(slots[self._claims.unsealed(slots)])

    def repeat_notes(self, numbers: list[int]) -> None:
        """Write the evictions and lanes' ends that only records in regions ``numbers`` contain.

        Evictions that no file records yet are written with them.  Raises: OSError.
        """
        again = self._told_by(numbers)
        if again.size or self.evictions.pending or self._noted.region in numbers:
            self.note(always=True, again=again)
        if self.ends.rest_on(numbers):
            self.note_ends()

    def clear(self, ends: Ints) -> None:
        """Delete every region but a new one, which notes ids, lanes and evictions. Nothing is held any more.

        Args:
            ends: int64 [lanes], the number of each lane's next step.

        Raises: OSError: files could not be deleted.
        """
        self.regions.finish()
        self.note(always=True)
        self.note_ends(ends)
        self.delete(list(self.regions.regions)[:-1])

    def evict(self, id_: int) -> None:
        """Note that a segment is about to be evicted: its records are no longer valid.

        The note is written with the next record, or before a file is deleted.
        """
        self.evictions.pending[id_] = None

    @property
    def _has_news(self) -> bool:
        """Whether opening the files would not find the evictions, the threshold or the ids so far."""
        if self.evictions.pending or self._ends_due:
            return True
        if self._claims.evicted().threshold < self.evictions.latest.threshold:
            return True
        return self._claims.latest_generation > self._noted.generation >= 0

    @property
    def note_bytes(self) -> int:
        """Bytes that a note of all news takes in a file."""
        return space(Evicted().nbytes + 8 * len(self.evictions.pending)) if self._has_news else 0

    def note(self, always: bool = False, again: Ints = NO_IDS) -> None:
        """Write a note of evictions and of the reserved generations, for opening.

        Writes nothing if nothing changed, unless ``always``.  Raises: OSError; the evictions are in the next note.

        Args:
            again: further ids of evicted segments, whose note is about to be deleted.
        """
        if not always and not self._has_news:
            return
        generation = min(self._claims.latest_generation + GENERATIONS, MAX_GENERATION - 1)
        ids = np.concatenate([again, np.fromiter(self.evictions.pending, np.int64, len(self.evictions.pending))])
        for begin in range(0, max(1, len(ids)), MAX_IDS):
            note = self._claims.evicted()._replace(ids=ids[begin : begin + MAX_IDS])
            sequence = self.regions.sequence
            region = self.write_note(pack_evicted(note), generation)
            self.evictions.take(note, sequence, region)
            self._noted = _Noted(region, generation)
        self.evictions.pending.clear()
        if self._ends_due:
            self.note_ends()
            self._ends_due = False

    def note_ends(self, ends: Ints | None = None) -> None:
        """Write a note of the ends of the lanes' step numbers: as the files show, or beyond them ``ends`` [lanes].

        Writes nothing if the files show ``ends`` already.  Raises: OSError.
        """
        if ends is not None and not self.ends.behind(ends):
            return
        merged = self.ends.joined(np.zeros(0, np.int64) if ends is None else ends)
        region = self.write_note(pack_ends(merged), self._claims.latest_generation)
        self.ends.reach_all(merged, region)

    def note_counts(self) -> None:
        """Write a note as ``note`` does, also where only counts changed: they are written with the rest, or at a flush.

        Raises: OSError.
        """
        self.note(always=self._claims.evicted().counts != self.evictions.latest.counts)

    def begin_life(self) -> None:
        """Write a note of the state found at opening, so that no id is ever reused, even after a crash.

        A full disk does not prevent opening: the note is then written before the next record.

        Raises: OSError: for another reason.
        """
        newest = self.regions.newest
        if newest is not None and self.regions.goes_on and self.budget.newest_is_worn:
            self.regions.finish()
        self._hold_spare()
        try:
            self.note(always=True)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self.failures += 1
            self._noted = _Noted(generation=0)  # below all ids of this life

    def try_note(self) -> None:
        """Write a note as ``note`` does, if limit and disk allow it, using the spare room too."""
        budget, room = self.budget, self.regions.room_for(self.note_bytes, note=True)
        if budget.limit_bytes is None or room or self.nbytes + budget.spare_bytes <= budget.limit_bytes:
            try:
                self.note()
            except OSError:
                self.failures += 1

    def write_note(self, payload: bytes, generation: int) -> int:
        """Write a note, a record that holds no steps, behind the newest record; return its region.

        A full disk has room for it: every segment leaves ``RegionFiles.note_room`` bytes allocated behind it, 8 KiB or
        more, for all notes until the next segment. More notes need disk space, and so does one behind a finished
        region (a checkpoint finishes it); ``on_full="drop_oldest"`` holds some in reserve for that.

        Args:
            generation: the highest of any id so far, or one that the note reserves.

        Raises: OSError.
        """
        generation = min(generation, MAX_GENERATION - 1)
        return self.write(NOTE, generation << LEAF_BITS, payload, generation, {})[0]

    def write(
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
        """Write a record that does not count as held yet; return its region and offset.

        Args, Raises: as ``RegionFiles.append``.
        """
        most = min(generation + GENERATIONS, MAX_GENERATION - 1)
        if kind == SEGMENT:
            self.ends.make_room_for(payload)  # first: the written record counts
        region, offset = self.regions.append(kind, id_, payload, most, dictionaries, sequence, whole=whole)
        if kind == SEGMENT:
            self.ends.reach_by(payload, region)
        begun = self.regions.regions[region].generation
        if begun > self._noted.generation and self._claims.evicted().counts == Evicted().counts:
            self._noted = _Noted(region, begun)  # a header serves as a note
        return region, offset

    def need(self, nbytes: int, dictionaries: Needed) -> int:
        """Return the space of a record of ``nbytes``, of what its region lacks, and of a note of evictions."""
        note = self.note_bytes
        return self.regions.need(nbytes, dictionaries, note) + note

    def append(
        self,
        id_: int,
        packed: bytes,
        generation: int,
        dictionaries: Needed,
        sequence: int | None = None,
    ) -> tuple[int, int]:
        """Write a segment, after a note of evictions that made room for it; return its region and offset.

        Args:
            sequence: sequence number of the replaced record; ``None``: a new record.

        Raises: OSError; then no part of it is held.
        """
        if not self.regions.room_for(len(packed)):
            self.budget.grow_regions()
        place = self._put(SEGMENT, id_, packed, generation, dictionaries, sequence)
        self._drop_tail(id_)
        return place

    def _put(
        self, kind: int, id_: int, packed: bytes, generation: int, dictionaries: Needed, sequence: int | None = None
    ) -> tuple[int, int]:
        """Write a record, after a note of evictions, and hold it; return its region and offset.  Raises: OSError."""
        try:
            self._hold_spare()
            self.note()
            region, offset = self.write(kind, id_, packed, generation, dictionaries, sequence)
        except OSError:
            self.failures += 1
            raise
        self.held.hold(region, len(packed))
        self.bytes_written += len(packed)
        return region, offset

    def _hold_spare(self) -> None:
        """Hold disk space in reserve, where segments are dropped on a full disk and it has some.  Raises: OSError."""
        if self.budget.drops:
            try:
                self.regions.hold_spare(self.budget.reserve_bytes)
            except OSError as error:
                if error.errno not in FULL:
                    raise

    def has_tail(self, id_: int, packed: bytes) -> bool:
        """Return whether these very rows of an open segment were written already."""
        before = self._tails.get(id_)
        # Compare the stored CRC-32: the CRC-32 of bytes followed by their CRC-32 is a constant.
        return before is not None and before.checksum == checksum_of(packed)

    def append_tail(self, id_: int, packed: bytes, generation: int) -> None:
        """Write an open segment's rows so far (see ``has_tail``).  Raises: OSError."""
        place = self._put(TAIL, id_, packed, generation, self._claims.shared_values(id_))
        if (before := self._tails.get(id_)) is not None:
            self.held.release(before.region, before.nbytes)
        self._tails[id_] = Tail(*place, len(packed), checksum_of(packed))

    def _drop_tail(self, id_: int) -> None:
        """Release the flushed rows of an open segment, if any."""
        tail = self._tails.pop(id_, None)
        if tail is not None:
            self.release(tail.region, tail.nbytes)

    def evict_tail(self, id_: int, lane: int, end: int) -> None:
        """Evict the flushed rows of an open segment, if any.  ``end``: the number after its last step."""
        if id_ in self._tails:
            self.ends.reach(lane, end, self._tails[id_].region)  # noted before that file is deleted
            self.evict(id_)
            self._drop_tail(id_)

    def release(self, region: int, nbytes: int) -> None:
        """Release an evicted segment; delete its region once it holds none, unless it is being written.

        Raises nothing: deleting a file is tried again at the next eviction.
        """
        self.held.release(region, nbytes)
        newest = self.regions.newest
        unused = [
            number
            for number, region in self.regions.regions.items()
            if (region is not newest or (region.finished and self.budget.drops)) and not self.held.holds(number)
        ]
        self.stuck = bool(unused)
        if not unused:
            return
        try:
            self.delete(unused)
            self.stuck = False
        except (OSError, MemoryError):
            self.failures += 1

    def linked(self) -> frozenset[int]:
        """Return the regions whose files have other names too, in a checkpoint: deleting them frees no disk space."""
        found = {number: self.regions.directory.status(one.path.name) for number, one in self.regions.regions.items()}
        return frozenset(number for number, status in found.items() if status is not None and status.st_nlink > 1)

    @property
    def dropping_frees(self) -> bool:
        """Whether evicting segments may free disk space: some file that is not being written to has no other name."""
        regions, linked = self.regions.regions, self.linked()
        written_to = [one.number for one in (self.regions.newest,) if one is not None and not one.finished]
        return bool(regions.keys() - linked - set(written_to if len(regions) > 1 else ()))

    def describe(self, manifest: dict[str, Any]) -> None:
        """Write ``store.json``.  Raises: OSError."""
        self.check_held()
        write_manifest(self.directory, manifest, self.files)
        self.described = manifest

    def check_process(self) -> None:
        """Refuse a process that was forked from the one that opened the folder.  Raises: StoreInUseError."""
        if self.forked:
            raise StoreInUseError(
                f"disk: {self.folder} was opened by process {self._process}; this is process {os.getpid()}, forked "
                "from it, and both would overwrite each other's files. Open the store after the fork, or use it in the "
                "parent"
            )

    def check_held(self) -> None:
        """Check that the folder and its lock were not deleted or replaced.  Raises: StoreInUseError."""
        self._hold.check()
        if not self.directory.names_directory(FOLDER, self.regions.directory):
            raise StoreInUseError(f"disk: {self.regions.directory.path} was deleted or replaced; {ANEW}")

    def flush(self) -> None:
        """Sync everything appended so far to disk, in files that still have their names.

        Raises:
            StoreInUseError: files, the folder or its lock were deleted or replaced.  OSError.
        """
        self.check_held()
        self.regions.check_named()
        self.regions.sync()

    def leave_to_parent(self) -> None:
        """Close all files in a forked process: they are its parent's."""
        self.forked = True
        self.regions.leave()
        self._hold.leave()
        self.regions.directory.close()
        self.directory.close()

    def close(self) -> None:
        """Close the files and unlock the folder."""
        if self.forked:
            return
        try:
            self.end_reads()
        finally:
            try:
                # A store that drops steps on a full disk would not get the space again.
                self.regions.close(keep_room=self.budget.drops)
            finally:
                self.regions.directory.close()
                self._hold.close()
                self.directory.close()
