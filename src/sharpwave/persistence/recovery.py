"""Recovery of a store's folder: every intact segment that counts is adopted into a log.

A segment is checked once, described in the log's index, and chained to its lane's others. The kernels that sample it
check nothing.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from sharpwave.codecs.shared import HEAD, bytes_of, checked, keys_of, text_of
from sharpwave.disk.disk_tier import DiskTier
from sharpwave.disk.ownership import is_of, unfinished
from sharpwave.disk.region_files import FULL, RegionFiles
from sharpwave.disk.region_notes import WHERE_BYTES, Evicted, StepEnds, tail_end
from sharpwave.disk.region_scan import Scan, SegmentReader, refused
from sharpwave.disk.store_folder import QUARANTINE
from sharpwave.errors import DamagedError
from sharpwave.format import segment
from sharpwave.format.region import DICTIONARY, NOTE, SEGMENT, TAIL, Damage, Record
from sharpwave.format.segment_header import Header, check_rows, sparse_rows
from sharpwave.log.open_columns import unshared_columns
from sharpwave.log.shared_values import Key, StoredValue
from sharpwave.log.step_log import StepLog
from sharpwave.memory.segment_index import LEAF_BITS, LEAF_MASK
from sharpwave.native.directory import Directory
from sharpwave.sampling.retention import Reservoir
from sharpwave.spec import TERMINATED, TRUNCATED
from sharpwave.validation import MAX_LANES

ENDED = TERMINATED | TRUNCATED


@dataclass
class Recovery:
    """Outcome of opening a store.

    Attributes:
        segments, steps: restored.
        cut_steps: flushed steps dropped at the end of an unfinished episode: they cannot be learned from without their
            successor. Their observation is the final one of the step before.
        damages: bytes set aside, each with its file, its offset and the expected content.
        differences: changed limits, and their consequences.
        views: names of the checkpoint's views for which ``sharpwave.Store.transitions`` was not called yet. They are
            kept for the next checkpoint.
    """

    segments: int = 0
    steps: int = 0
    cut_steps: int = 0
    damages: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    views: list[str] = field(default_factory=list)


class Adoption:
    """Adoption of the segments in ``regions``, whose records are those of ``scan``.

    Args:
        disk: the log's, which has the regions; ``None``: the log keeps segments in memory.
        max_lanes: limit of the store's lanes.
        writers_go_on: no episode is truncated at its lane's end, as the next segment may continue it.

    Attributes:
        damages: the scan's, and the refused segments'.
        full: a segment did not fit into memory.  damaged: the last segment tried was damaged.
        broken: slots of segments whose episode was broken off after them, which their bytes do not show.
        ends: ends of the lanes' step numbers, from all records. ``evictions``: evicted segments, from notes.
    """

    def __init__(
        self,
        log: StepLog,
        regions: RegionFiles,
        scan: Scan,
        disk: DiskTier | None,
        *,
        max_lanes: int = MAX_LANES,
        writers_go_on: bool = False,
    ) -> None:
        self.log, self.regions, self.scan, self.disk = log, regions, scan, disk
        self._writers_go_on = writers_go_on
        self.report, self.damages = Recovery(), scan.damages
        self.full = self.damaged = False
        self.broken: set[int] = set()
        generations = [region.generation for region in regions.regions.values()]
        generations += [record.id >> LEAF_BITS for record in scan.records if record.kind != DICTIONARY]
        self._generation = max(generations, default=0) + 1  # above all that were ever used
        self._lanes: dict[int, list[int]] = {}
        self._segments = SegmentReader(log.layout, max_lanes, self._read, scan.dictionaries)
        self.ends, self.evictions = StepEnds(max_lanes), scan.evictions(log.stride)
        self._read_ends()
        self.evictions.forget_all_but(np.array(scan.slots(log.stride), np.int64))
        if disk is not None:
            disk.ends, disk.evictions = self.ends, self.evictions

    def _read(self, record: Record, nbytes: int | None = None) -> bytes:
        """Return a record's content, or its first ``nbytes``.  Raises: OSError."""
        content = bytearray(record.nbytes if nbytes is None else min(record.nbytes, nbytes))
        self.regions.read(record.region, record.offset, memoryview(content))
        return bytes(content)

    def _read_ends(self) -> None:
        """Read the ends of the lanes' step numbers from all records, also evicted or replaced ones.

        Cost: a read of each tail, and of the header of each segment.
        """
        for record in self.scan.records:
            number = record.region
            with contextlib.suppress(OSError):
                if record.kind == SEGMENT and record.nbytes >= WHERE_BYTES:
                    self.ends.reach_by(self._read(record, WHERE_BYTES), number)
                elif record.kind == TAIL and record.nbytes <= self.log.layout.chunk_bytes:
                    self.ends.reach(*tail_end(self._read(record), self.log.spec), number)
                elif record.kind == NOTE and not isinstance(note := self.scan.notes.get(record), Evicted | None):
                    self.ends.reach_all(note, number)

    def try_adopt(self, record: Record) -> bool:
        """Adopt a segment. Return False if it is damaged, which is noted, or empty, or if there is no room.

        Raises:
            OSError: the segment, an open one, cannot be rewritten.
        """
        self.damaged = False
        try:
            return self._adopt(record)
        except DamagedError as error:
            self.damages.append(refused(self.regions.regions[record.region].path, record, error))
            self.damaged = True
            return False

    def _adopt(self, record: Record) -> bool:
        log, index = self.log, self.log.index
        slot, row = divmod(record.id & LEAF_MASK, log.stride)
        if row or slot >= min(index.slots, self.scan.max_slots):
            raise DamagedError(f"id {record.id}, expected that of a segment of {log.stride} steps")
        data = self._segments.payload(record) if record.kind == SEGMENT else self._ended(record)
        if not data:
            return False
        header = segment.check(data, log.spec, self._segments.dictionary)
        self._segments.check_header(header, sealed=True)
        if self.disk is None:
            data, header = segment.with_steps(data, header, log.spec, packs=False)
        values, numbers = dict[Key, bytes | StoredValue](), list[int]()
        if self.disk is None:
            values = self._values(segment.shared_keys(data, header, log.spec))
        else:
            for c, rows in segment.shared_rows(data, header, log.spec).items():
                numbers += log.shared.stored_numbers(c, rows)
        places = log.sealed.take_dictionaries(header.placed, self._segments.dictionary)
        if places is None:
            raise DamagedError("a column needs a dictionary, but its table is full: 255 others are in use")
        needed: dict[Key, bytes | StoredValue] = {**log.sealed.dictionaries(places)}
        number, offset = record.region, record.offset
        if self.disk is not None and not (
            record.kind == SEGMENT
            and all(self.regions.has(number, *key) for key in needed)
            and self.regions.values.all_have_copy(numbers, number)
        ):
            needed |= log.shared.by_number(numbers)
            # Rows of an open segment; or a dictionary is only in another region, which may be deleted earlier.
            sequence = record.sequence if record.kind == SEGMENT else None
            number, offset = self.disk.write(SEGMENT, record.id, data, self._generation, needed, sequence)
        index.codec[:, slot] = [column.codec for column in header.placed]
        index.dictionary[:, slot] = places
        index.offset[:, slot] = [column.offset for column in header.placed]
        index.rows[slot], index.frames[slot], index.context[slot] = header.steps, header.frames, header.context
        index.lane[slot], index.first_step[slot] = header.lane, header.first_step
        index.episode_step[slot] = header.episode_step
        index.sparse[:, slot] = [header.placed[c].rows for c in log.layout.sparse_columns]
        index.generation[slot] = record.id >> LEAF_BITS
        index.nbytes[slot], index.region[slot], index.region_offset[slot] = len(data), number, offset
        if self.disk is None:
            log.shared.hold(slot, values)
        else:
            log.shared.hold_stored(slot, numbers)
        if not (log.admission.fits_values() and log.adopt(slot, np.frombuffer(data, np.uint8))):
            index.rows[slot] = 0
            log.shared.release(slot)
            log.sealed.drop_dictionaries(index.dictionary[:, slot])
            self.full = True
            return False
        if self.disk is not None:
            self.disk.held.hold(number, len(data))
        self._lanes.setdefault(header.lane, []).append(slot)
        self.report.segments += 1
        self.report.steps += header.steps
        return True

    def _values(self, keys: set[Key]) -> dict[Key, bytes | StoredValue]:
        """Return shared values: with a disk not read yet, otherwise packed.

        Raises: DamagedError: one is missing; or, if it was read, damaged.
        """
        there = self.log.shared
        if self.disk is not None:
            return {key: there.stored(key) for key in keys}
        return {key: there.packed(key) or self._read_value(*key) for key in keys}

    def _read_value(self, c: int, key: int) -> bytes:
        """Return a shared value, packed, whose content has the key.  Raises: DamagedError."""
        name, number = self.log.layout.names[c], self.regions.values.find(c, bytes_of(key))
        if number < 0:
            raise DamagedError(f"{name} refers to shared value {text_of(key)}, which is missing")
        kind = self.log.shared.kinds[c]
        most = HEAD.size + kind.most_bytes
        return self.regions.read_shared(number, most, lambda packed: checked(packed, kind, key))

    def open_rows(
        self, record: Record
    ) -> tuple[Header | None, dict[str, np.ndarray[Any, Any]], dict[Key, bytes | StoredValue]]:
        """Return an open segment's rows, decoded, and their shared values; ``None``: it is damaged, which is noted."""
        try:
            header, arrays = self._open_rows(record)
            columns = {c: arrays[self.log.layout.names[c]] for c in self.log.layout.shared_columns}
            values = self._values({(c, key) for c, rows in columns.items() for key in keys_of(rows.view(np.uint8))})
            if header.context > self.log.spec.context:
                raise DamagedError(f"{header.context} frames of context in an open segment")
        except DamagedError as error:
            self.damages.append(refused(self.regions.regions[record.region].path, record, error))
            return None, {}, {}
        return header, arrays, values

    def _open_rows(self, record: Record) -> tuple[Header, dict[str, np.ndarray[Any, Any]]]:
        header, arrays = self._segments.unpack(record)
        check_rows(header, self.log.spec, arrays["flags"], sealed=False)
        return header, arrays

    def link(self) -> None:
        """Chain the lanes' segments, open new ones after them, and free all other slots."""
        log = self.log
        log.index.restore({slot for slots in self._lanes.values() for slot in slots}, self._generation)
        ends = self.ends.ends
        log.open_lanes(max([*self._lanes, int(ends.nonzero()[0].max(initial=-1))], default=-1) + 1)
        for lane, end in enumerate(ends[: log.lanes].tolist()):
            log.begin_at(lane, end)
        self.link_lanes()

    def link_lanes(self) -> None:
        """Chain the lanes' segments before their open ones, which exist already.

        An unfinished episode is truncated if the next segment begins another. If steps in between are missing, it is
        not: they were evicted or lost, and how the episode went on is unknown.
        """
        log, index = self.log, self.log.index
        for lane, slots in self._lanes.items():
            slots.sort(key=lambda slot: int(index.first_step[slot]))
            chain = [*slots, int(log.opened.slots[lane])]
            log.inventory.chain(lane, slots, chain[-1])
            for slot, following in pairwise(chain):
                index.gap[slot] = not log.sealed.adjoins(slot, following)
                if index.gap[slot]:
                    self.broken.discard(slot)
                elif self._writers_go_on and slot == slots[-1] and not index.rows[following]:
                    continue
                elif not log.sealed.goes_on(slot, following) and log.sealed.truncate(slot):
                    self.broken.add(slot)
        if self.disk is not None:
            self.regions.values.drop_unused()
        log.sealed.rewrite_truncated(sorted(self.broken))

    def _ended(self, record: Record) -> bytes:
        """Return an open segment's rows as a sealed segment: without the last step, if its episode went on."""
        header, arrays = self._open_rows(record)
        flags = arrays["flags"].copy()
        steps, frames = header.steps, header.frames
        if steps and frames > header.context + steps + np.count_nonzero(flags & ENDED):
            flags[-1] |= TRUNCATED  # its successor was known
        if steps and not flags[-1] & ENDED:
            steps -= 1
            self.report.cut_steps += 1
            if steps and not flags[steps - 1] & ENDED:
                flags[steps - 1] |= TRUNCATED  # the last frame, its successor's, becomes the final one
            else:
                frames -= 1
        if steps == 0:
            return b""
        arrays["flags"] = flags
        left = {name: self._rows_left(name, header, flags[:steps], frames) for name in self.log.layout.names}
        columns = unshared_columns(self.log.spec, {name: arrays[name][:rows] for name, rows in left.items()})
        return segment.pack_again(header, steps, frames, columns)

    def _rows_left(self, name: str, header: Header, flags: np.ndarray[Any, Any], frames: int) -> int:
        """Return the rows that a column keeps when the segment is cut to the steps of ``flags``."""
        spec = self.log.spec
        if name in spec.obs_names:
            return frames
        every = spec.fields[name].every if name in spec.sparse_names else None
        return len(flags) if every is None else sparse_rows(flags, header.episode_step, every)


def adopt_all(adoption: Adoption) -> Recovery:
    """Adopt every intact segment that was not evicted into the empty log; with a disk they stay there until they are
    sampled.

    Afterwards every lane begins a new episode: if the lane's last known step did not end one, that episode is truncated
    there, and the observation after that step is the final one.

    Raises:
        OSError: a file cannot be written; then nothing is deleted or moved.
        ValueError, MemoryError: the capacity, or ``ram``, is too small for the lanes.
    """
    log = adoption.log
    latest = adoption.evictions.latest
    for versions in adoption.scan.versions(log.stride, adoption.evictions):
        for record in versions:
            if adoption.try_adopt(record):
                log.retention.add((record.id & LEAF_MASK) // log.stride, record.id)
                break
            if not adoption.damaged:
                break
    if isinstance(log.retention, Reservoir):
        log.retention.threshold = latest.threshold
    inventory = log.inventory
    inventory.evicted_segments, inventory.dropped_steps = latest.segments, latest.dropped_steps
    adoption.link()  # may write records, and before them a note of these counts
    inventory.evicted_steps = inventory.total_steps - inventory.held_steps
    return adoption.report


def set_aside(disk: DiskTier, damages: Sequence[Damage]) -> None:
    """Delete regions without held records; move regions without usable records to ``quarantine``.

    Only files that name this store; others stay in place. The content of their notes is written again first; on a full
    disk they stay until that succeeds.

    Raises: OSError.
    """
    regions, files = disk.regions, disk.files
    regions.sync()  # rewritten records are on disk before the old ones are deleted
    damaged = {damage.path for damage in damages}
    newest = regions.newest
    written_to = -1 if newest is None or newest.finished else newest.number
    unused = [number for number in regions.regions if not disk.held.holds(number) and number != written_to]
    full = False
    try:
        disk.repeat_notes(unused)
        disk.delete([number for number in unused if regions.regions[number].path not in damaged])
    except OSError as error:
        full = error.errno in FULL
        if not full:
            raise
    for number in unused:
        if number in regions.regions and regions.regions[number].path in damaged:
            regions.let_go(number)
    if full:
        return
    for name in unfinished(regions.directory, regions.identity):
        files.unlink(regions.directory, name)
    used = {region.path for region in regions.regions.values()}
    for name in sorted(path.name for path in damaged - used if path.parent == regions.directory.path):
        if is_of(regions.directory, name, regions.identity.store):
            to_quarantine(disk, regions.directory, name)


def to_quarantine(disk: DiskTier, directory: Directory, name: str) -> None:
    """Move a damaged file of the store's folder to ``quarantine``.  Raises: OSError."""
    with disk.files.make_directory(disk.directory, QUARANTINE) as quarantine:
        disk.files.rename(directory, name, quarantine, _free_name(quarantine, name))


def _free_name(directory: Directory, name: str) -> str:
    """Return ``name``, with a number appended if it is taken."""
    names = (name if n == 0 else f"{name}.{n}" for n in itertools.count())
    return next(one for one in names if directory.status(one) is None)
