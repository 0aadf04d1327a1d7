"""Notes in region files: facts for opening a store that are no longer in the segments on disk.

Each note's id is the highest generation of ids so far. One kind holds evictions: ids of segments whose records may
still be in the files, counts, and the retention's threshold. The other holds, lane by lane, the end of the used step
numbers; it is written before the last record that shows such an end is deleted. ``Evictions`` and ``StepEnds`` hold the
facts of all notes, and know which file has each.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from typing import NamedTuple

import numpy as np

from sharpwave.arrays import Ints
from sharpwave.errors import DamagedError
from sharpwave.format import segment
from sharpwave.memory.segment_index import LEAF_BITS, LEAF_MASK
from sharpwave.spec import TERMINATED, TRUNCATED, Spec
from sharpwave.validation import MAX_LANES

EVICTED_MAGIC = b"GONE"
EVICTED = struct.Struct("<4sIdQQ")  # magic, 0, threshold, evicted segments, dropped steps; then ids; 32
MAX_IDS = 1 << 20
"""Limit of the ids in one note of evictions."""
ENDS = b"ENDS"
MAX_NOTE_BYTES = EVICTED.size + 8 * max(MAX_IDS, MAX_LANES) + 4
_WHERE = struct.Struct("<QQI")  # lane, first_step, steps: in a segment's header
_WHERE_AT = 16
WHERE_BYTES = _WHERE_AT + _WHERE.size
"""Bytes at a segment's beginning, up to its lane and step numbers."""


class Evicted(NamedTuple):
    """Note of evictions.

    Attributes:
        threshold: of the retention's keys; segments with keys at or above it are not kept. 1 without keys.
        segments, dropped_steps: evicted and dropped so far.
        ids: int64 [n], of segments evicted since the note before; no record of their slots counts up to their
            generations.
    """

    threshold: float = 1.0
    segments: int = 0
    dropped_steps: int = 0
    ids: Ints = np.zeros(0, np.int64)

    @property
    def counts(self) -> tuple[float, int, int]:
        """The note without its ids."""
        return self.threshold, self.segments, self.dropped_steps

    @property
    def nbytes(self) -> int:
        """Bytes of the payload."""
        return EVICTED.size + 8 * len(self.ids) + 4


def pack_evicted(note: Evicted) -> bytes:
    """Return the payload that ``unpack_evicted`` reads."""
    head = EVICTED.pack(EVICTED_MAGIC, 0, note.threshold, note.segments, note.dropped_steps)
    return _checked(head + note.ids.astype("<i8").tobytes())


def unpack_evicted(payload: bytes | bytearray) -> Evicted | None:
    """Return a note of evictions; ``None`` for another kind of note, or impossible numbers."""
    if len(payload) < EVICTED.size + 4 or payload[:4] != EVICTED_MAGIC or (len(payload) - EVICTED.size - 4) % 8:
        return None
    _, _, threshold, segments, dropped_steps = EVICTED.unpack_from(payload)
    ids = np.frombuffer(bytes(payload[EVICTED.size : -4]), "<i8").astype(np.int64)
    possible = 0 <= threshold <= 1 and max(segments, dropped_steps) < segment.MAX_NUMBER and (ids >= 0).all()
    return Evicted(threshold, segments, dropped_steps, ids) if possible else None


def unpack_ends(payload: bytes | bytearray) -> Ints:
    """Return int64 [lanes] from a note of step numbers; an empty array from the other kind."""
    body = payload[len(ENDS) : -4]
    if payload[: len(ENDS)] != ENDS or len(body) % 8:
        return np.zeros(0, np.int64)
    ends = np.frombuffer(bytes(body), "<i8")[:MAX_LANES].astype(np.int64)
    return np.where((ends >= 0) & (ends < segment.MAX_NUMBER), ends, 0)


def pack_ends(ends: Ints) -> bytes:
    """Return the payload that ``unpack_ends`` reads."""
    return _checked(ENDS + ends[: int(ends.nonzero()[0].max(initial=-1)) + 1].astype("<i8").tobytes())


def _checked(body: bytes) -> bytes:
    return body + zlib.crc32(body).to_bytes(4, "little")


class StepEnds:
    """Ends of the lanes' step numbers, as region files show them, and which file shows each.

    Args:
        max_lanes: limit of the store; records of lanes beyond it are not its own.

    Attributes:
        ends: int64 [lanes], the number after the last step of the lane that any record ever held.
    """

    def __init__(self, max_lanes: int = MAX_LANES) -> None:
        self._most = max_lanes
        self.ends: Ints = np.zeros(0, np.int64)
        self._regions = np.zeros(0, np.int64)

    def reach(self, lane: int, end: int, region: int) -> None:
        """Note that a record in ``region`` shows a lane's steps up to before ``end``.  Cost: O(1)."""
        if lane >= self._most:
            return
        self._make_room(lane)
        if end and end >= self.ends[lane]:
            self.ends[lane], self._regions[lane] = end, region

    def make_room_for(self, packed: bytes | memoryview) -> None:
        """Make room for the ends in a sealed segment that begins with these bytes.  Raises: MemoryError."""
        self._make_room(_WHERE.unpack_from(packed, _WHERE_AT)[0])

    def _make_room(self, lane: int) -> None:
        if len(self.ends) <= lane < self._most:
            more = max(16, 2 * len(self.ends), lane + 1) - len(self.ends)
            ends = np.concatenate([self.ends, np.zeros(more, np.int64)])
            self._regions = np.concatenate([self._regions, np.full(more, -1)])
            self.ends = ends

    def reach_by(self, packed: bytes | memoryview, region: int) -> None:
        """Note the end that a sealed segment in ``region`` shows; ``packed`` is its beginning."""
        lane, first, steps = where(packed)
        if first < segment.MAX_NUMBER and steps <= segment.MAX_STEPS:
            self.reach(lane, first + steps, region)

    def reach_all(self, ends: Ints, region: int) -> None:
        """Note the ends of all lanes that a note in ``region`` holds."""
        for lane in np.flatnonzero(ends).tolist():
            self.reach(lane, int(ends[lane]), region)

    def rest_on(self, regions: list[int]) -> bool:
        """Return whether some lane's end is recorded in those files only."""
        return bool(np.isin(self._regions, regions).any())

    def behind(self, ends: Ints) -> bool:
        """Return whether some lane has an end beyond that in ``ends`` int64 [lanes]."""
        known = self.ends[: len(ends)]
        return bool((ends[: len(known)] > known).any() or ends[len(known) :].any())

    def joined(self, ends: Ints) -> Ints:
        """Return the larger end of each lane, of the known ends and ``ends`` [lanes]."""
        merged = np.zeros(max(len(self.ends), len(ends)), np.int64)
        merged[: len(self.ends)] = self.ends
        merged[: len(ends)] = np.maximum(merged[: len(ends)], ends)
        return merged


def where(packed: bytes | memoryview) -> tuple[int, int, int]:
    """Return a sealed segment's lane, first step and number of steps; ``packed`` is its beginning."""
    lane, first, steps = _WHERE.unpack_from(packed, _WHERE_AT)
    return lane, first, steps


def _none(key: int) -> bytes:
    raise KeyError(key)  # open segments refer to no dictionaries


def tail_end(payload: bytes | bytearray, spec: Spec) -> tuple[int, int]:
    """Return the lane of an open segment's rows, and the number after the last step that opening the store keeps."""
    try:
        header, arrays = segment.unpack(memoryview(payload), spec, _none, only=("flags",))
        flags = arrays["flags"]
    except DamagedError:
        return 0, 0
    if not header.steps:
        return 0, 0
    ended = flags & (TERMINATED | TRUNCATED) != 0
    whole = bool(ended[-1]) or header.frames > header.context + header.steps + int(ended.sum())
    return header.lane, header.first_step + header.steps - (not whole)


class Evictions:
    """Generations evicted of each slot, by notes in region files, and the file with each note.

    A slot holds one segment at a time, and its generation rises with each: so one number a slot identifies all evicted
    records, over the whole life of a store.

    Args:
        stride: limit of steps in a segment. ``max_slots``: of the store; ids beyond are foreign.

    Attributes:
        pending: ids of evicted segments that no note records yet; a dict keeps their order.
        latest: the latest note.
    """

    def __init__(self, stride: int, max_slots: int = 1 << 32) -> None:
        self._stride, self._max_slots = stride, max_slots
        self.pending: dict[int, None] = {}
        self.latest = Evicted()
        self._sequence = -1
        self._generations, self._regions = np.zeros(0, np.int64), np.zeros(0, np.int32)
        self._told: Counter[int] = Counter()  # slots by region

    def take(self, note: Evicted, sequence: int, region: int) -> None:
        """Take in a note that is in ``region``, in any order.  Raises: MemoryError; nothing changed.  Cost: O(ids)."""
        slots, generations = (note.ids & LEAF_MASK) // self._stride, note.ids >> LEAF_BITS
        ours = slots < self._max_slots
        slots, generations = slots[ours], generations[ours]
        more = int(slots.max(initial=-1)) + 1 - len(self._generations)
        if more > 0:
            more = max(more, len(self._generations), 1024)
            generations_of, regions = np.full(more, -1), np.full(more, -1, np.int32)
            generations_of = np.concatenate([self._generations, generations_of])
            regions = np.concatenate([self._regions, regions])
            self._generations, self._regions = generations_of, regions
        np.maximum.at(self._generations, slots, generations)
        told = slots[self._generations[slots] == generations]
        self._told.subtract(self._regions[told].tolist())
        self._regions[told] = region
        self._told[region] += len(told)
        if sequence > self._sequence:
            self.latest, self._sequence = note, sequence

    def covers(self, id_: int) -> bool:
        """Return whether the segment was evicted."""
        slot = (id_ & LEAF_MASK) // self._stride
        return slot < len(self._generations) and int(self._generations[slot]) >= id_ >> LEAF_BITS

    def forget_all_but(self, slots: Ints) -> None:
        """Forget evictions of slots without records in any file: no note needs to repeat them.

        Args:
            slots: slots of all records.
        """
        left = np.zeros(len(self._generations), np.bool_)
        left[slots[slots < len(left)]] = True
        self._regions[~left] = -1
        self._told = Counter(self._regions[left].tolist())

    def bytes_in(self, region: int) -> int:
        """Return an upper bound of the bytes of ids that are noted again where a region is deleted."""
        return 8 * self._told[region]

    def told_by(self, regions: list[int]) -> Ints:
        """Return the slots whose evictions are recorded in these regions' notes."""
        return np.flatnonzero(np.isin(self._regions, regions))

    def ids(self, slots: Ints) -> Ints:
        """Return the id of the last segment evicted of each of ``slots`` [n]."""
        ids: Ints = self._generations[slots] << LEAF_BITS | slots * self._stride
        return ids

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._generations.nbytes + self._regions.nbytes
