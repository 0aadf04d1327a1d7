"""Adoption of segments in region files into a log: checked, described in its index, and chained by lane."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from sharpwave.codecs.registry import max_dictionary_bytes
from sharpwave.disk.disk_tier import DiskTier
from sharpwave.disk.evictions import Evictions
from sharpwave.disk.region_files import RegionFiles
from sharpwave.errors import DamagedError
from sharpwave.format import segment
from sharpwave.format.region import DICTIONARY, NOTE, SEGMENT, TAIL, Damage, Record
from sharpwave.format.region_notes import (
    MAX_NOTE_BYTES,
    WHERE_BYTES,
    LaneEnds,
    tail_end,
    unpack_ends,
    unpack_evicted,
    unpack_threshold,
)
from sharpwave.format.row_counts import check_rows, sparse_rows
from sharpwave.format.segment import FIRST_FIELD, FLAGS, REWARD, Column
from sharpwave.format.segment_header import Header
from sharpwave.log.open_columns import unshared_column
from sharpwave.log.step_log import StepLog
from sharpwave.memory.segment_index import LEAF_BITS, LEAF_MASK
from sharpwave.spec import TERMINATED, TRUNCATED, Spec
from sharpwave.validation import MAX_LANES

ENDED = TERMINATED | TRUNCATED

Found = Sequence[tuple[int, Record]]


@dataclass
class Recovery:
    """Outcome of opening a store.

    Attributes:
        segments, steps: restored.
        cut_steps: flushed steps dropped at the end of an episode that went on: they cannot be learned from without
            their successor. Their observation is the final one of the step before.
        damages: bytes set aside, each with its file, its offset and what was expected.
        differences: limits other than before, and their consequences.
        views: names of the checkpoint's views that ``sharpwave.Store.transitions`` was not called for yet. They are
            kept for the next checkpoint.
    """

    segments: int = 0
    steps: int = 0
    cut_steps: int = 0
    damages: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    views: list[str] = field(default_factory=list)


def max_slots(found: Sized) -> int:
    """Return a bound of the slots of such a store: tables of slots must not grow with a damaged id."""
    return (1 << 22) + 64 * len(found)


class Noted(NamedTuple):
    """Facts that records show beyond their steps, evicted and replaced records included.

    Attributes:
        ends: ends of the lanes' step numbers.
        evictions: evicted segments, by notes.
        threshold: the lowest that a reservoir of an earlier release noted, instead of evicted segments.
    """

    ends: LaneEnds
    evictions: Evictions
    threshold: float


def read_notes(
    spec: Spec,
    stride: int,
    regions: RegionFiles,
    found: Found,
    max_segment_bytes: int,
    max_lanes: int = MAX_LANES,
) -> Noted:
    """Return the ends of the lanes' step numbers, and the evictions.

    Cost: a read of each note and tail, and of the header of each segment.

    Args:
        max_segment_bytes: limit of a segment's size; a larger tail is not the store's own, and is not read.
    """
    ends, evictions, threshold = LaneEnds(max_lanes), Evictions(stride, max_slots(found)), 1.0
    for number, record in found:
        most = {TAIL: max_segment_bytes, NOTE: MAX_NOTE_BYTES, SEGMENT: record.nbytes}.get(record.kind, -1)
        if record.nbytes > most:
            continue
        content = bytearray(min(record.nbytes, WHERE_BYTES) if record.kind == SEGMENT else record.nbytes)
        with contextlib.suppress(OSError):
            regions.read(number, record.offset, memoryview(content))
            if record.kind == TAIL:
                ends.reach(*tail_end(content, spec), number)
            elif record.kind == SEGMENT and len(content) == WHERE_BYTES:
                ends.reach_by(memoryview(content), number)
            elif record.kind == NOTE:
                if (note := unpack_evicted(content)) is not None:
                    evictions.take(note, record.sequence, number)
                threshold = min(threshold, unpack_threshold(content))
                ends.reach_all(unpack_ends(content), number)
    return Noted(ends, evictions, threshold)


class Adoption:
    """Adoption of segments that lie in ``regions``, as the records ``found``.

    Args:
        damages: damaged segments are appended.
        disk: the log's, which has the regions; ``None``: the log keeps segments in memory.

    Attributes:
        full: a segment did not fit into memory.  damaged: the last segment tried was damaged.
        broken: slots of segments whose episode was broken off after them, which their bytes do not say.
        noted: facts that the records show beyond their steps.
    """

    def __init__(
        self,
        log: StepLog,
        regions: RegionFiles,
        found: Found,
        damages: list[Damage],
        disk: DiskTier | None,
        max_lanes: int = MAX_LANES,
    ) -> None:
        self.log, self.regions, self.damages, self.disk = log, regions, damages, disk
        self._max_lanes = max_lanes
        self.report = Recovery()
        self.full = self.damaged = False
        self.broken: set[int] = set()
        self._dictionaries = {record.id: (number, record) for number, record in found if record.kind == DICTIONARY}
        generations = [region.generation for region in regions.regions.values()]
        generations += [record.id >> LEAF_BITS for _, record in found if record.kind != DICTIONARY]
        self._generation = max(generations, default=0) + 1  # above all that were ever used
        self._max_slots = max_slots(found)
        self._read: dict[int, bytes] = {}  # dictionaries, by key
        self._lanes: dict[int, list[int]] = {}
        self.noted = read_notes(log.spec, log.stride, regions, found, log.layout.chunk_bytes, max_lanes)
        slots = [(record.id & LEAF_MASK) // log.stride for _, record in found if record.kind in (SEGMENT, TAIL)]
        self.noted.evictions.forget_all_but(np.array(slots, np.int64))
        if disk is not None:
            disk.ends, disk.evictions = self.noted.ends, self.noted.evictions

    def try_adopt(self, number: int, record: Record) -> bool:
        """Adopt a segment. Return False if it is damaged, which is noted, or empty, or if there is no room.

        Raises:
            OSError: the segment, an open one, cannot be rewritten.
        """
        self.damaged = False
        try:
            return self._adopt(number, record)
        except DamagedError as error:
            self._note(number, record, error)
            self.damaged = True
            return False

    def _adopt(self, number: int, record: Record) -> bool:
        log, index = self.log, self.log.index
        slot, row = divmod(record.id & LEAF_MASK, log.stride)
        if row or slot >= min(index.slots, self._max_slots):
            raise DamagedError(f"id {record.id}, expected that of a segment of {log.stride} steps")
        data: bytes | bytearray = self._segment(number, record)
        if record.kind != SEGMENT:
            data = self._ended(data)
            if not data:
                return False
        header = segment.check(memoryview(data), log.spec, self._dictionary)
        if header.steps > log.stride or header.frames > log.layout.max_frames or header.lane >= self._max_lanes:
            raise DamagedError(
                f"{header.steps} steps, {header.frames} frames of lane {header.lane}; expected at most {log.stride}, "
                f"{log.layout.max_frames} and {self._max_lanes - 1}"
            )
        self._check_limits(header)
        shared = [self._dictionary(column.dictionary) for column in header.placed]
        places: list[int] = []
        for c, one in enumerate(shared):
            place = log.tables[c].add(one) if one else 0
            if place is None:
                for table, taken in zip(log.tables, places, strict=False):
                    table.drop(taken)
                raise DamagedError(f"column {c} needs a dictionary, but its table is full: 255 others are in use")
            places.append(place)
        needed = {
            (c, column.dictionary): one for c, (column, one) in enumerate(zip(header.placed, shared, strict=True))
        }
        needed = {key: one for key, one in needed.items() if one}
        offset = record.offset
        if self.disk is not None and (record.kind != SEGMENT or needed.keys() - self.regions.regions[number].keys):
            # Rows of an open segment; or a dictionary is only in another region, which may be deleted earlier.
            sequence = record.sequence if record.kind == SEGMENT else None
            number, offset = self.disk.write(SEGMENT, record.id, bytes(data), self._generation, needed, sequence)
        index.codec[:, slot] = [column.codec for column in header.placed]
        index.dictionary[:, slot] = places
        index.offset[:, slot] = [column.offset for column in header.placed]
        index.rows[slot], index.frames[slot], index.context[slot] = header.steps, header.frames, header.context
        index.lane[slot], index.first_step[slot] = header.lane, header.first_step
        index.episode_step[slot] = header.episode_step
        index.sparse[:, slot] = [header.placed[c].rows for c in log.layout.sparse_columns]
        index.generation[slot] = record.id >> LEAF_BITS
        index.nbytes[slot], index.region[slot], index.region_offset[slot] = len(data), number, offset
        if not log.adopt(slot, np.frombuffer(data, np.uint8)):
            log.sealed.drop_dictionaries(index.dictionary[:, slot])
            self.full = True
            return False
        if self.disk is not None:
            self.disk.held.hold(number, len(data))
        self._lanes.setdefault(header.lane, []).append(slot)
        self.report.segments += 1
        self.report.steps += header.steps
        return True

    def _check_limits(self, header: Header) -> None:
        limits = self.log.layout.limits
        if any(column.rows > most for column, most in zip(header.placed, limits, strict=True)):
            rows = [column.rows for column in header.placed]
            raise DamagedError(f"columns of {rows} rows, expected at most {list(limits)}")

    def open_rows(self, number: int, record: Record) -> tuple[Header | None, dict[str, np.ndarray[Any, Any]]]:
        """Return an open segment's rows, decoded; ``None``: it is damaged, which is noted."""
        log = self.log
        try:
            data = self._segment(number, record)
            header, arrays = segment.unpack(memoryview(data), log.spec, self._dictionary, limit=log.layout.chunk_bytes)
            check_rows(header, log.spec, arrays["flags"], sealed=False)
            self._check_limits(header)
            if header.steps > log.stride or header.frames > log.layout.max_frames or header.context > log.spec.context:
                raise DamagedError(f"{header.steps} steps, {header.frames} frames in an open segment")
        except DamagedError as error:
            self._note(number, record, error)
            return None, {}
        return header, arrays

    def _note(self, number: int, record: Record, error: DamagedError) -> None:
        what = f"segment {record.id}: {str(error).removeprefix('segment: ')}"
        self.damages.append(Damage(self.regions.regions[number].path, record.offset, record.nbytes, what, record.id))

    def link(self, writers_go_on: bool = False) -> None:
        """Chain the lanes' segments, open new ones after them, and free all other slots.

        Args:
            writers_go_on: as for ``link_lanes``.
        """
        log = self.log
        log.index.restore({slot for slots in self._lanes.values() for slot in slots}, self._generation)
        ends = self.noted.ends.ends
        log.open_lanes(max([*self._lanes, int(ends.nonzero()[0].max(initial=-1))], default=-1) + 1)
        for lane, end in enumerate(ends[: log.lanes].tolist()):
            log.begin_at(lane, end)
        self.link_lanes(writers_go_on)

    def link_lanes(self, writers_go_on: bool = False) -> None:
        """Chain the lanes' segments before their open ones, which exist already.

        An episode under way is truncated where the next segment begins another. Where steps in between are not held,
        it is not: they were evicted, or lost, and how it went on is unknown.

        Args:
            writers_go_on: the episode of a lane's last segment is not truncated, where the open one is empty.
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
                elif writers_go_on and slot == slots[-1] and not index.rows[following]:
                    continue
                elif not log.sealed.goes_on(slot, following) and log.sealed.truncate(slot):
                    self.broken.add(slot)
        log.sealed.rewrite_truncated(sorted(self.broken))

    def _segment(self, number: int, record: Record) -> bytearray:
        if record.nbytes > self.log.layout.chunk_bytes:
            raise DamagedError(f"{record.nbytes:,} bytes, expected at most {self.log.layout.chunk_bytes:,}")
        return self._content(number, record)

    def _content(self, number: int, record: Record) -> bytearray:
        out = bytearray(record.nbytes)
        try:
            self.regions.read(number, record.offset, memoryview(out))
        except OSError as error:
            raise DamagedError(f"cannot be read: {error}") from error
        return out

    def _dictionary(self, key: int) -> bytes:
        """Read a dictionary.  Raises: KeyError: there is none.  DamagedError: larger than a store makes them."""
        if key and key not in self._read:
            number, record = self._dictionaries[key]
            max_bytes = max_dictionary_bytes(int(self.log.layout.sizes.max()))
            if record.nbytes > max_bytes:
                raise DamagedError(f"dictionary {key:016x} has {record.nbytes:,} bytes, expected at most {max_bytes:,}")
            self._read[key] = bytes(self._content(number, record))
        return self._read[key] if key else b""

    def _ended(self, data: bytes | bytearray) -> bytes:
        """Return an open segment's rows as a sealed segment: without the last step, if its episode went on."""
        limit = self.log.layout.chunk_bytes
        header, arrays = segment.unpack(memoryview(data), self.log.spec, self._dictionary, limit=limit)
        check_rows(header, self.log.spec, arrays["flags"], sealed=False)
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
        columns: list[Column] = []
        for name, size in zip(self.log.layout.names, self.log.layout.sizes.tolist(), strict=True):
            rows: np.ndarray[Any, Any] = arrays[name][: self._rows_left(name, header, flags[:steps], frames)]
            columns.append(unshared_column(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).reshape(-1, size)))
        assert (FLAGS, REWARD, FIRST_FIELD) == (0, 1, 2)
        return segment.pack_again(header, steps, frames, columns)

    def _rows_left(self, name: str, header: Header, flags: np.ndarray[Any, Any], frames: int) -> int:
        """Return the rows that a column keeps when the segment is cut to the steps of ``flags``."""
        spec = self.log.spec
        if name in spec.obs_names:
            return frames
        every = spec.fields[name].every if name in spec.sparse_names else None
        return len(flags) if every is None else sparse_rows(flags, header.episode_step, every)
