"""Cache of sealed segments in the arena, in a store with a disk.

A needed segment is read into the arena; if the arena is full, a whole chunk of others is uncached: of the oldest
chunks, the one with the fewest pinned segments. Under random sampling recency predicts nothing, so the cache keeps
segments that are known to be needed: segments of prefetched batches are pinned, and move elsewhere.
"""

from __future__ import annotations

import copy
import time

import numpy as np
import numpy.typing as npt

from sharpwave.disk.disk_tier import DiskTier
from sharpwave.disk.read_pool import BASE, DESCRIPTOR, DIRECT, NBYTES, OFFSET, SLOT, Readers
from sharpwave.memory.arena import Arena
from sharpwave.memory.segment_index import SegmentIndex
from sharpwave.native import core
from sharpwave.native.untouched import zeros

Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

CANDIDATES = 4
"""Number of oldest chunks of which the one with the fewest pinned segments is freed."""
DAMAGED = core.SUSPECT + 1
"""State of a slot, beside the states of reads: its segment is damaged."""


class SegmentCache:
    """Cache of sealed segments: reads them into the arena, pins and uncaches them.

    Attributes:
        hits, misses: segments required that were in the arena, and that were read.  moved: pinned segments moved.
        stalls, waited_s: how often, and how long in total, sampling waited for reads.
        bytes_read: bytes of the reads that were started.
        kept_bytes: of segments pinned by prefetching, counted once for each pin.
        damaged: error messages of segments that could not be read or decoded, by slot.
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
        self._state = zeros(slots, np.int64)
        self._readers = Readers(arena.memory, self._state, self._disk.files)

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
        if self.index.resident[slot]:
            self.uncache(slot)
        self._pins[slot] = self._state[slot] = 0
        self.damaged.pop(slot, None)

    def larger(self, arena: Arena, slots: int) -> SegmentCache:
        """Return an empty cache for a larger arena, after ``clear``.

        Raises: MemoryError.
        """
        other = copy.copy(self)
        other._make(arena, slots)
        other._pins[: len(self._pins)] = self._pins
        other._state[: len(self._state)] = self._state  # keeps damaged segments
        return other

    def become(self, larger: SegmentCache) -> None:
        """Become one from ``larger``, once the arena and the index have grown as well."""
        self._readers.close()
        self._joined += self._readers.joined
        self._lists, self._pins = larger._lists, larger._pins
        self._state, self._readers = larger._state, larger._readers
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

    def uncache(self, slot: int) -> None:
        """Uncache the segment in ``slot``, which is cached."""
        index = self.index
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

    def require(self, slots: Ints) -> int:
        """Read the segments in ``slots`` [n] into the arena; return how many of the first slots are cached now.

        Other callers' pinned segments are uncached if otherwise not even the first two would fit.
        """
        if self.index.resident[slots].all():
            self.hits += len(slots)
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
        per_slot = self._pins.nbytes + self._state.nbytes + self._lists.nbytes
        return per_slot * self.index.highest // self.index.slots + self._readers.nbytes

    def _under_way(self) -> Ints:
        """Return the slots whose segments are being read, or were read and not entered."""
        return np.flatnonzero(self._state[: self.index.highest])

    def _no_pins(self) -> Int32s:
        return zeros(len(self._pins), np.int32)  # untouched memory costs nothing

    def _fetch(self, slots: Ints, pins: Int32s) -> int:
        index = self.index
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
