"""Which sealed segments lie in the arena, where a disk holds them all.

A segment that is asked for is read into the arena; where the arena is full a whole chunk of others is let go: the
oldest of those that hold the fewest that are about to be used. Under random sampling recency predicts nothing, so what
is kept is what is known to be used: segments of batches that have been drawn already are pinned, and move elsewhere.
"""

from __future__ import annotations

import copy
import time

import numpy as np
import numpy.typing as npt

from sharpwave.disk import cache_kernels as residents
from sharpwave.disk.disk_tier import Disk
from sharpwave.disk.read_pool import COMING, READ, SUSPECT, Readers
from sharpwave.format.segment import FIRST_FIELD
from sharpwave.memory.arena import Arena
from sharpwave.memory.segment_index import SegmentIndex

Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

CANDIDATES = 4
"""The oldest chunks of which the one with the fewest pinned segments is let go."""
DAMAGED = SUSPECT + 1
"""A slot's state, beside those of :mod:`.read_pool`: its segment cannot be read."""


class Residency:
    """Brings segments into the arena and lets them go.

    Attributes:
        hits, misses, moved: segments asked for that were there, that were read, and that made room for others.
        stalls, waited_s: how often, and how long in all, sampling waited for reads.
        kept_bytes: of segments that are pinned by who reads ahead, counted as often as they are.
        damaged: what was wrong with segments that could not be read, or not be decoded, by slot.
    """

    def __init__(self, arena: Arena, index: SegmentIndex, disk: Disk) -> None:
        self.arena, self.index, self.disk = arena, index, disk
        self._make(arena, index.slots)
        self.begin()
        self._coming = 0  # segments whose reads were begun, and that are not counted as here
        self.hits = self.misses = self.moved = self.stalls = 0
        self.waited_s = 0.0
        self.kept_bytes = 0
        self.damaged: dict[int, str] = {}

    def _make(self, arena: Arena, slots: int) -> None:
        """What keeps account of nothing in the memory of ``arena``."""
        self._held = np.zeros(len(arena.live), np.int64)  # bytes of segments in each chunk
        self._members = residents.rings(len(self._held), slots)
        self._order = residents.rings(1, len(self._held))
        self._pins = np.zeros(slots, np.int32)
        self._state = np.zeros(slots, np.int64)
        self._readers = Readers(arena.memory, self._state, self.disk.files)

    def begin(self) -> None:
        """Let reads go into the arena's memory from now on."""
        self.disk.read_by(self._readers)

    def place(self, slot: int, base: int) -> None:
        """The segment in ``slot`` lies at ``base`` of the arena from now on."""
        self.index.base[slot] = base
        self._place(np.array([slot]))

    def forget(self, slot: int) -> None:
        """The segment in ``slot`` leaves the store."""
        self.arrive(np.array([slot]))
        if self.index.resident[slot]:
            self.release(slot)
        self._pins[slot] = self._state[slot] = 0
        self.damaged.pop(slot, None)

    def larger(self, arena: Arena, slots: int) -> Residency:
        """One with nothing in memory, which :meth:`clear` came before. It counts once the arena has become ``arena``,
        the index has so many slots, and :meth:`begin` was called.

        Raises: MemoryError.
        """
        other = copy.copy(self)
        other._make(arena, slots)
        other._pins[: len(self._pins)] = self._pins
        other._state[: len(self._state)] = self._state  # of damaged segments
        return other

    def clear(self) -> None:
        """Let every segment go; those that are about to be used will be read again."""
        self.arrive(self._under_way())
        index = self.index
        used = slice(0, index.highest)
        for slot in np.flatnonzero(index.sealed[used] & index.resident[used] & (index.rows[used] > 0)).tolist():
            self.release(slot)

    def release(self, slot: int) -> None:
        """The segment in ``slot``, which is here, leaves the arena."""
        index = self.index
        base, chunk = int(index.base[slot]), self.arena.chunk_of(int(index.base[slot]))
        residents.cool(self._members, self._order, self._held, index.resident, chunk, slot, index.nbytes)
        index.offset[FIRST_FIELD:, slot] -= base
        self.arena.free(base, int(index.nbytes[slot]))

    def cool(self) -> bool:
        """Let a chunk's segments go, which are on disk; False if nothing is left that could go.

        Those that are pinned move elsewhere, and go only where nothing else does.
        """
        if self._let_go(self._pins):
            return True
        if self._coming:
            self.arrive(self._under_way())
            if self._let_go(self._pins):
                return True
        return self._let_go(self._no_pins())

    def pin(self, slots: Ints, by: int = 1) -> None:
        """Keep segments in the arena until they are unpinned (``by=-1``) as often."""
        residents.pin(self._pins, slots, by)

    def fetch(self, slots: Ints) -> int:
        """Begin to read those of ``slots`` [n] that are neither here nor coming; how many of the first ones are now.

        Fewer than n where what is pinned leaves no room for all. Those that are damaged count as here and are in
        ``damaged``. Waits for nothing.
        """
        return self._fetch(slots, self._pins)

    def wait(self, slots: Ints) -> None:
        """Wait for those of ``slots`` that are coming. May be called without the store's lock."""
        self.stalls += bool((self._state[slots] == COMING).any())
        begin = time.perf_counter()
        self.disk.readers.wait(slots)
        self.waited_s += time.perf_counter() - begin

    def arrive(self, slots: Ints) -> None:
        """Wait for those of ``slots`` that are coming, and let them be here."""
        if self._coming:
            self.wait(slots)
            self._land(slots)

    def require(self, slots: Ints) -> int:
        """Bring the segments in ``slots`` [n] into the arena; returns how many of the first ones are here now.

        What others have pinned goes where not even the first two could be brought in otherwise.
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
        """Bytes of bookkeeping, about."""
        per_slot = self._pins.nbytes + self._state.nbytes + self._members.nbytes
        return per_slot * self.index.highest // self.index.slots + self.disk.readers.nbytes

    def _under_way(self) -> Ints:
        """Slots whose segments are coming, or could be here."""
        return np.flatnonzero(self._state[: self.index.highest])

    def _no_pins(self) -> Int32s:
        return np.zeros(len(self._pins), np.int32)  # memory that is not touched until it is written to

    def _fetch(self, slots: Ints, pins: Int32s) -> int:
        index = self.index
        wanted, where = np.empty(len(slots), np.int64), np.empty(len(slots), np.int64)
        found, here = residents.missing(slots, index.resident, self._state, DAMAGED, wanted, where)
        self.hits += here
        if not found:
            return len(slots)
        residents.pin(pins, slots, 1)
        try:
            bases = self._make_room(index.nbytes[wanted[:found]], pins)
        finally:
            residents.pin(pins, slots, -1)
        count = len(bases)
        begun = wanted[:count]
        nbytes = index.nbytes[begun]
        try:
            reads = self.disk.reads(begun, index.region[begun], index.place[begun], bases, nbytes)
        except BaseException:  # no memory for them
            for base, size in zip(bases.tolist(), nbytes.tolist(), strict=True):
                self.arena.free(base, size)
            raise
        index.base[begun] = bases
        self._coming += count
        self.misses += count
        self.disk.start(reads)
        return len(slots) if count == found else int(where[count])

    def _make_room(self, nbytes: Ints, pins: Int32s) -> Ints:
        """Offsets for the first of segments of ``nbytes``, as many as there is room for beside those pinned."""
        bases = np.empty(len(nbytes), np.int64)
        done = 0
        try:
            while done < len(nbytes):
                some = self.arena.allocate_some(nbytes[done:])
                bases[done : done + len(some)] = some
                done += len(some)
                if not len(some) and not self._let_go(pins):
                    break
        except BaseException:
            for base, size in zip(bases[:done].tolist(), nbytes[:done].tolist(), strict=True):
                self.arena.free(base, size)
            raise
        return bases[:done]

    def _let_go(self, pins: Int32s) -> bool:
        """Free a chunk but for what is pinned, which moves; False if that would free nothing.

        Cost: 0.1 ms, some 80 segments of which 6 move.
        """
        index, arena = self.index, self.arena
        for _ in range(2):
            chunk = residents.choose(
                self._members, self._order, self._held, arena.live, pins, arena.current, CANDIDATES
            )
            if chunk >= 0 or not self._coming:
                break
            self._land(self._under_way())  # as long as room is taken in it for what nobody asked for, a chunk stays
        if chunk < 0:
            return False
        held = int(self._held[chunk])
        slots = np.empty(residents.count(self._members, len(self._held), chunk, pins)[1], np.int64)
        residents.let_go(
            self._members, self._order, self._held, index.resident, chunk, index.nbytes, index.base, index.offset,
            pins, slots,
        )  # fmt: skip
        nbytes = index.nbytes[slots]
        begins = np.cumsum(nbytes) - nbytes
        content = np.empty(int(nbytes.sum()), np.uint8)
        residents.copy(arena.memory, index.base[slots], content, begins, nbytes)
        arena.free(arena.begin_of(chunk), held)
        done = 0
        while done < len(slots):
            bases = arena.allocate_some(nbytes[done:])
            assert len(bases), "the chunk was emptied just now"
            moved = slice(done, done + len(bases))
            residents.copy(content, begins[moved], arena.memory, bases, nbytes[moved])
            self._heat(slots[moved], bases)
            done += len(bases)
        self.moved += done
        return True

    def _land(self, slots: Ints) -> None:
        """Let those of ``slots`` be here that were read."""
        picked = np.empty(len(slots), np.int64)
        read = picked[: residents.pick(slots, self._state, READ, picked)]
        self._coming -= len(read)
        self._heat(read, self.index.base[read])
        for slot in slots[self._state[slots] == SUSPECT].tolist():
            if self._state[slot] == SUSPECT:
                self._again(slot)

    def _heat(self, slots: Ints, bases: Ints) -> None:
        residents.rebase(self.index.offset, self.index.base, slots, bases)
        self._place(slots)

    def _place(self, slots: Ints) -> None:
        index = self.index
        chunks = self.arena.chunk_of(index.base[slots])
        residents.place(self._members, self._order, self._held, index.resident, chunks, slots, index.nbytes)

    def _again(self, slot: int) -> None:
        """Read a segment once more that could not be read, or not as it was written, and say what is wrong with it."""
        index = self.index
        base, nbytes = int(index.base[slot]), int(index.nbytes[slot])
        out = self.arena.memory[base : base + nbytes].data
        problem = self.disk.read(int(index.region[slot]), int(index.place[slot]), out)
        self._state[slot] = 0 if problem is None else DAMAGED
        self._coming -= 1
        if problem is None:
            self._heat(np.array([slot]), np.array([base]))
        else:
            self.damaged[slot] = problem
            self.arena.free(base, nbytes)
