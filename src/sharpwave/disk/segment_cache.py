"""Cache of sealed segments in the arena, in a store with a disk.

A needed segment is read into the arena; if the arena is full, a whole chunk of others is uncached: of the oldest
chunks, the one with the fewest pinned segments. Under random sampling recency predicts nothing, so the cache keeps
segments that are known to be needed: segments of prefetched batches are pinned, and move elsewhere.
"""

from __future__ import annotations

import contextlib
import copy
import time

import numpy as np

from sharpwave.arrays import Bools, Int32s, Ints
from sharpwave.disk.disk_tier import DiskTier
from sharpwave.disk.read_pool import BASE, DESCRIPTOR, DIRECT, NBYTES, OFFSET, SLOT, Readers
from sharpwave.format.segment import CHECKSUM, FIRST_FIELD
from sharpwave.memory.arena import Arena
from sharpwave.memory.segment_index import SegmentIndex
from sharpwave.native import core
from sharpwave.native.untouched import zeros

CANDIDATES = 4
"""Number of oldest chunks of which the one with the fewest pinned segments is freed."""
DAMAGED = core.SUSPECT + 1
"""State of a slot, beside the states of reads: its segment is damaged."""
TOGETHER = 4096
"""Reads of columns that are waited for together."""
MAX_SHARE = 2
"""Some columns are read apart where they and their segment's head are at most this part of the segment: 1 / 2."""


class SegmentCache:
    """Cache of sealed segments: reads them into the arena, pins and uncaches them.

    Attributes:
        hits, misses: segments required that were in the arena, and that were read.  moved: pinned segments moved.
        stalls, waited_s: how often, and how long in total, sampling waited for reads.
        bytes_read: bytes of the reads that were started.
        kept_bytes: of segments pinned by prefetching, counted once for each pin.
        damaged: error messages of segments that could not be read or decoded, by slot.
        apart: bool [slots], whether columns of the segment have checksums of their own, so that some can be read.
    """

    def __init__(self, arena: Arena, index: SegmentIndex, disk: DiskTier) -> None:
        self.arena, self.index, self._disk = arena, index, disk
        self._make(arena, index.slots)
        disk.end_reads()  # of a log whose opening was given up
        disk.end_reads = self._readers.close
        self._coming = 0  # segments whose reads were started and not entered yet
        self.hits = self.misses = self.moved = self.stalls = 0
        self.waited_s = 0.0
        self.kept_bytes = self.bytes_read = self._joined = 0
        self.damaged: dict[int, str] = {}

    def _make(self, arena: Arena, slots: int) -> None:
        """Set up empty bookkeeping for ``arena``."""
        self._lists = core.ChunkLists(len(arena.live), slots)
        self._pins = zeros(slots, np.int32)
        self._state = zeros(slots + TOGETHER, np.int64)  # of slots, then of reads of columns
        self._parts = zeros(slots, np.int64)  # columns in memory, a bit each, of segments that are not there as a whole
        self.apart = zeros(slots, np.bool_)
        self._readers = Readers(arena.memory, self._state, arena.reserved_bytes, self._disk.files)

    def place(self, slot: int, base: int) -> None:
        """Enter the segment in ``slot``, at ``base`` of the arena.  Raises: MemoryError."""
        index, arena = self.index, self.arena
        slots = np.array([slot])
        index.base[slot] = base
        first, chunk_bytes = arena.begin_of(0), arena.chunk_bytes
        self._lists.place(index.resident, slots, index.base, index.nbytes, first, chunk_bytes)

    def forget(self, slot: int) -> None:
        """Forget the segment in ``slot``, which is being evicted from the store."""
        self.arrive(np.array([slot]))
        self.leave(slot)
        self._pins[slot] = self._state[slot] = 0
        self.damaged.pop(slot, None)

    def larger(self, arena: Arena, slots: int) -> SegmentCache:
        """Return an empty cache for a larger arena, after ``clear``.  Raises: MemoryError."""
        other = copy.copy(self)
        other._make(arena, slots)
        other._pins[: len(self._pins)] = self._pins
        count = len(self._pins)
        other._state[:count], other.apart[:count] = self._state[:count], self.apart  # keeps damaged segments
        return other

    def become(self, larger: SegmentCache) -> None:
        """Become one from ``larger``, once the arena and the index have grown as well."""
        self._readers.close()
        self._joined += self._readers.joined
        self._lists, self._pins = larger._lists, larger._pins
        self._state, self._readers = larger._state, larger._readers
        self._parts, self.apart = larger._parts, larger.apart
        self._disk.end_reads = self._readers.close

    @property
    def joined(self) -> int:
        """Reads that were joined with the read of the range before them in the file."""
        return self._joined + self._readers.joined

    def clear(self) -> None:
        """Uncache every segment; pinned ones are read again later."""
        self.arrive(self._under_way())
        index = self.index
        used = slice(0, index.highest)
        for slot in np.flatnonzero(index.sealed[used] & index.resident[used] & (index.rows[used] > 0)).tolist():
            self.uncache(slot)
        for slot in np.flatnonzero(self._parts[used]).tolist():
            self.uncache(slot)

    def leave(self, slot: int) -> None:
        """Uncache the segment in ``slot``, or those of its columns that are cached, if there are any."""
        if self.index.resident[slot] or self._parts[slot]:
            self.uncache(slot)

    def uncache(self, slot: int) -> None:
        """Uncache the segment in ``slot``, which is cached, if only some of its columns."""
        index = self.index
        self._parts[slot] = 0
        base, chunk = int(index.base[slot]), self.arena.chunk_of(int(index.base[slot]))
        self._lists.uncache(index.resident, chunk, slot, index.base, index.nbytes, index.offset)
        self.arena.free(base, int(index.nbytes[slot]))

    def uncache_chunk(self) -> bool:
        """Uncache a chunk's segments; return False if no segment can be uncached any more.

        Pinned segments move elsewhere, and are uncached only as a last resort.
        """
        if self._free_chunk(self._pins):
            return True
        if self._coming:
            self.arrive(self._under_way())
            if self._free_chunk(self._pins):
                return True
        return self._free_chunk(self._no_pins())

    def pin(self, slots: Ints, by: int = 1) -> None:
        """Keep segments in the arena until they are unpinned (``by=-1``) as often."""
        core.pin(self._pins, slots, by)

    def fetch(self, slots: Ints) -> int:
        """Start reads of the ``slots`` [n] that are neither cached nor being read.

        Returns how many of the first slots are cached or being read now: fewer than n if pinned segments leave no room
        for all. Damaged ones count as cached and are in ``damaged``. Does not wait.
        """
        return self._fetch(slots, self._pins)

    def wait(self, slots: Ints) -> None:
        """Wait for the ``slots`` that are being read. May be called without the store's lock."""
        self.stalls += bool((self._state[slots] == core.COMING).any())
        begin = time.perf_counter()
        self._readers.wait(slots)
        self.waited_s += time.perf_counter() - begin

    def arrive(self, slots: Ints) -> None:
        """Wait for the ``slots`` that are being read, and enter them."""
        if self._coming:
            self.wait(slots)
            self._land(slots)

    def require(self, slots: Ints, columns: int = 0) -> int:
        """Read the segments in ``slots`` [n] into the arena; return how many of the first slots are cached now.

        Other callers' pinned segments are uncached if otherwise not even the first two would fit.

        Args:
            columns: a bit for each column that is needed, where others are not: where it saves bytes, they alone are
                read; 0: all.
        """
        there = self.index.resident[slots] > 0
        if there.all() or (columns and (there | (self._parts[slots] & columns == columns)).all()):
            self.hits += len(slots)
            return len(slots)
        if columns and self._require_columns(slots, columns):
            return len(slots)
        ready = self.fetch(slots)
        for wanted in (slots, slots[:2]):
            if ready < min(2, len(slots)):
                self.arrive(self._under_way())
                ready = self._fetch(wanted, self._no_pins())
        self.arrive(slots[:ready])
        return ready

    @property
    def nbytes(self) -> int:
        """Approximate bytes of bookkeeping."""
        per_slot = self._pins.nbytes + self._state.nbytes + self._lists.nbytes + self._parts.nbytes + self.apart.nbytes
        return per_slot * self.index.highest // self.index.slots + self._readers.nbytes

    def _under_way(self) -> Ints:
        """Return the slots whose segments are being read, or were read and not entered."""
        return np.flatnonzero(self._state[: self.index.highest])

    def _no_pins(self) -> Int32s:
        return zeros(len(self._pins), np.int32)  # untouched memory costs nothing

    def _fetch(self, slots: Ints, pins: Int32s) -> int:
        index = self.index
        for slot in np.unique(slots[self._parts[slots] > 0]).tolist():
            self.uncache(slot)  # to be read as a whole
        wanted, where = np.empty(len(slots), np.int64), np.empty(len(slots), np.int64)
        found, here = core.find_missing(slots, index.resident, self._state, DAMAGED, wanted, where)
        self.hits += here
        if not found:
            return len(slots)
        core.pin(pins, slots, 1)
        try:
            bases = self._make_room(index.nbytes[wanted[:found]], pins)
        finally:
            core.pin(pins, slots, -1)
        count = len(bases)
        begun = wanted[:count]
        try:
            reads = self._plan(begun, bases)
        except BaseException:  # out of memory
            for slot, base in zip(begun.tolist(), bases.tolist(), strict=True):
                self.arena.free(base, int(index.nbytes[slot]))
            raise
        index.base[begun] = bases
        self._coming += count
        self.misses += count
        self._readers.start(reads)
        self.bytes_read += int(reads[:, NBYTES].sum())
        return len(slots) if count == found else int(where[count])

    def reads_apart(self, slots: Ints, columns: int) -> Bools:
        """Return which segments' ``columns`` alone ``require`` reads, if the segments are not cached."""
        _, sizes, chosen = self._ranges(slots, np.full(len(slots), columns))
        found: Bools = self.apart[slots] & (self._state[slots] != DAMAGED)
        found &= (sizes > CHECKSUM.size).all(axis=0)  # a stranger's header may promise checksums that there are not
        found &= MAX_SHARE * (sizes * chosen).sum(axis=0) <= self.index.nbytes[slots]
        return found

    def head_bytes(self, slot: int) -> int:
        """Return how many of a segment's first bytes, which precede its fields' columns, have a checksum of their own;
        of one without such a checksum, all."""
        slots = np.array([slot])
        _, sizes, _ = self._ranges(slots, np.zeros(1, np.int64))
        return int(sizes[0, 0] if self.reads_apart(slots, 0)[0] else self.index.nbytes[slot])

    def _ranges(self, slots: Ints, columns: Ints) -> tuple[Ints, Ints, Bools]:
        """Return the begins in a segment of its head and of each of the fields' columns, their sizes, and
        which of them ``columns`` [n] need: [parts, n] each."""
        index = self.index
        inside = (index.resident[slots] > 0) | (self._parts[slots] > 0)
        offsets = index.offset[FIRST_FIELD:, slots] - np.where(inside, index.base[slots], 0)
        begins = np.concatenate([np.zeros((1, len(slots)), np.int64), offsets])
        ends = np.concatenate([offsets, index.nbytes[slots][None] - CHECKSUM.size])
        bits = np.arange(FIRST_FIELD, FIRST_FIELD + len(offsets))[:, None]
        chosen = np.concatenate([np.ones((1, len(slots)), np.bool_), columns >> bits & 1 > 0])
        return begins, ends - begins, chosen

    def _require_columns(self, slots: Ints, columns: int) -> bool:
        """Read what ``slots`` lack of ``columns``, of segments that are read apart, and others as a whole.

        Returns False where there is no room for all, or a read failed: then they are to be read as a whole.
        """
        index = self.index
        distinct = np.unique(slots)
        self.arrive(distinct)
        lacking = distinct[(index.resident[distinct] == 0) & (self._parts[distinct] & columns != columns)]
        is_apart = self.reads_apart(lacking, columns)
        some, others = lacking[is_apart], lacking[~is_apart]
        core.pin(self._pins, slots, 1)
        try:
            if not self._read_columns(some, self._parts[some] | columns):
                return False
            self.hits += len(slots) - len(lacking)
            if self._fetch(others, self._pins) < len(others):
                return False
            self.arrive(others)
            return bool(index.resident[others].all())
        finally:
            core.pin(self._pins, slots, -1)

    def _read_columns(self, slots: Ints, columns: Ints) -> bool:
        """Read ``columns`` [n] of the segments in ``slots`` [n] to where they are in a whole segment; return whether
        all could be."""
        index = self.index
        for slot in slots[self._parts[slots] > 0].tolist():
            self.uncache(slot)
        bases = self._make_room(index.nbytes[slots], self._pins)
        count = len(bases)
        sound = np.zeros(count, np.bool_)
        try:
            if count == len(slots):
                sound = self._read_ranges(slots, bases, columns)
        finally:
            for base, nbytes in zip(bases[~sound].tolist(), index.nbytes[slots[:count][~sound]].tolist(), strict=True):
                self.arena.free(base, nbytes)
        read = slots[:count][sound]
        index.base[read], self._parts[read] = bases[sound], columns[:count][sound]
        self._enter(read)
        return len(read) == len(slots)

    def _read_ranges(self, slots: Ints, bases: Ints, columns: Ints) -> Bools:
        """Read ranges of segments to addresses from ``bases`` [n] on; return which segments' match their checksums."""
        index, first = self.index, len(self._pins)
        begins, sizes, chosen = self._ranges(slots, columns)
        part, which = np.nonzero(chosen)
        order = np.lexsort((begins[part, which], index.region_offset[slots][which], index.region[slots][which]))
        part, which = part[order], which[order]
        reads = np.empty((len(part), core.READ_COLUMNS), np.int64)
        reads[:, SLOT] = first + np.arange(len(part)) % TOGETHER
        reads[:, OFFSET] = index.region_offset[slots][which] + begins[part, which]
        reads[:, BASE], reads[:, NBYTES] = bases[which] + begins[part, which], sizes[part, which]
        reads[:, [DESCRIPTOR, DIRECT]] = self._disk.regions.descriptors(index.region[slots])[which]
        sound = np.ones(len(slots), np.bool_)
        began = time.perf_counter()
        for begin in range(0, len(reads), TOGETHER):
            some = reads[begin : begin + TOGETHER]
            places = np.ascontiguousarray(some[:, SLOT])
            try:
                self._readers.start(some)
                self._readers.wait(places)
            except BaseException:  # an interrupt, or out of memory: no read may write to memory that is free
                self._outwait(places)
                raise
            sound[which[begin : begin + TOGETHER][self._state[places] != core.READ]] = False
            self._state[places] = 0
        self.waited_s += time.perf_counter() - began
        self.misses += len(slots)
        self.bytes_read += int(reads[:, NBYTES].sum())
        return sound

    def _outwait(self, places: Ints) -> None:
        """Wait for reads of columns through any interrupts."""
        while (self._state[places] == core.COMING).any():
            with contextlib.suppress(KeyboardInterrupt):
                self._readers.wait(places)
        self._state[places] = 0

    def _plan(self, slots: Ints, bases: Ints) -> Ints:
        """Return reads of the segments in ``slots`` [n] to ``bases`` [n], in the order of the files."""
        regions, offsets = self.index.region[slots], self.index.region_offset[slots]
        reads = np.empty((len(slots), core.READ_COLUMNS), np.int64)
        reads[:, SLOT], reads[:, OFFSET] = slots, offsets
        reads[:, BASE], reads[:, NBYTES] = bases, self.index.nbytes[slots]
        reads[:, [DESCRIPTOR, DIRECT]] = self._disk.regions.descriptors(regions)
        return reads[np.lexsort((offsets, regions))]

    def _make_room(self, nbytes: Ints, pins: Int32s) -> Ints:
        """Return offsets for as many of the first segments of ``nbytes`` as fit beside pinned ones."""
        bases = np.empty(len(nbytes), np.int64)
        done = 0
        try:
            while done < len(nbytes):
                some = self.arena.allocate_some(nbytes[done:])
                bases[done : done + len(some)] = some
                done += len(some)
                if not len(some) and not self._free_chunk(pins):
                    break
        except BaseException:
            for base, size in zip(bases[:done].tolist(), nbytes[:done].tolist(), strict=True):
                self.arena.free(base, size)
            raise
        return bases[:done]

    def _free_chunk(self, pins: Int32s) -> bool:
        """Uncache a chunk's segments except pinned ones, which move; return False if that would free nothing.

        Cost: 0.1 ms, some 80 segments of which 6 move.
        """
        index, arena = self.index, self.arena
        chunk, pinned = self._choose(pins)
        if chunk < 0 and self._coming:
            self._land(self._under_way())  # reads that nobody waits for would keep their chunk in use
            chunk, pinned = self._choose(pins)
        if chunk < 0:
            return False
        some = np.flatnonzero(self._parts[: index.highest])
        some = some[(pins[some] == 0) & ((index.base[some] - arena.begin_of(0)) // arena.chunk_bytes == chunk)]
        if some.size:
            for slot in some.tolist():
                self.uncache(slot)
            return True
        held = self._lists.held_in(chunk)
        slots = np.empty(pinned, np.int64)
        self._lists.uncache_chunk(index.resident, chunk, index.base, index.nbytes, index.offset, pins, slots)
        arena.free(arena.begin_of(chunk), held)  # the bytes stay until they are overwritten
        nbytes = index.nbytes[slots]
        begins = np.cumsum(nbytes) - nbytes
        content = np.empty(int(nbytes.sum()), np.uint8)
        core.copy_ranges(arena.memory, index.base[slots], content, begins, nbytes)
        done = 0
        while done < len(slots):
            bases = arena.allocate_some(nbytes[done:])
            assert len(bases), "the chunk was emptied just now"
            moved = slice(done, done + len(bases))
            core.copy_ranges(content, begins[moved], arena.memory, bases, nbytes[moved])
            index.base[slots[moved]] = bases
            self._enter(slots[moved])
            done += len(bases)
        self.moved += done
        return True

    def _choose(self, pins: Int32s) -> tuple[int, int]:
        """Return the chunk to uncache next (-1 if there is none), and how many of its segments are pinned."""
        return self._lists.choose(self.arena.live, pins, self.arena.current, CANDIDATES)

    def _land(self, slots: Ints) -> None:
        """Enter the ``slots`` whose reads have ended."""
        picked = np.empty(len(slots), np.int64)
        read = picked[: core.pick(slots, self._state, core.READ, picked)]
        self._coming -= len(read)
        self._enter(read)
        for slot in slots[self._state[slots] == core.SUSPECT].tolist():
            if self._state[slot] == core.SUSPECT:
                self._again(slot)

    def _enter(self, slots: Ints) -> None:
        """Enter segments at their ``base``. Takes no memory."""
        index, arena = self.index, self.arena
        first, chunk_bytes = arena.begin_of(0), arena.chunk_bytes
        self._lists.enter(index.resident, slots, index.base, index.nbytes, index.offset, first, chunk_bytes)
        index.resident[slots] = self._parts[slots] == 0

    def _again(self, slot: int) -> None:
        """Repeat a read that failed or did not match its checksum; record the segment's damage."""
        index, slots = self.index, np.array([slot])
        base, nbytes = int(index.base[slot]), int(index.nbytes[slot])
        out = self.arena.memory[base : base + nbytes].data
        problem = self._disk.regions.read_segment(int(index.region[slot]), int(index.region_offset[slot]), out)
        self._state[slot] = 0 if problem is None else DAMAGED
        self._coming -= 1
        if problem is None:
            self._enter(slots)
        else:
            self.damaged[slot] = problem
            self.arena.free(base, nbytes)
