"""Which sealed segments lie in the arena, where a disk holds them all.

A segment that is asked for is read into the arena; where the arena is full a whole chunk of others is let go: the
oldest of those that hold the fewest that are about to be used. Under random sampling recency predicts nothing, so what
is kept is what is known to be used: segments of batches that have been drawn already are pinned, and move elsewhere.
"""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt
from numba import njit

from ..segment import FIRST_FIELD
from .disk import Disk, Read
from .index import SegmentIndex
from .ram import Arena

Ints = npt.NDArray[np.int64]

CANDIDATES = 4
"""The oldest chunks of which the one with the fewest pinned segments is let go."""

_Coming = tuple[Future[list[str | None]], int, int]
"""A read under way: its task, its place among what that reads, and to where in the arena it goes."""
_NOT_YET: _Coming = (Future(), 0, -1)


@njit(nogil=True, cache=True)
def _pin(pins: npt.NDArray[np.int32], slots: Ints, by: int) -> None:
    for slot in slots:
        pins[slot] = max(0, pins[slot] + by)  # one that has left meanwhile was unpinned by that


class Residency:
    """Brings segments into the arena and lets them go.

    Attributes:
        hits, misses, moved: segments asked for that were there, that were read, and that made room for others.
        waited_s: how long sampling waited for reads.
        damaged: what was wrong with segments that could not be read, by slot.
    """

    def __init__(self, arena: Arena, index: SegmentIndex, disk: Disk) -> None:
        self.arena, self.index, self.disk = arena, index, disk
        self._slots: dict[int, set[int]] = {}  # resident segments by chunk, chunks in the order of filling
        self._coming: dict[int, _Coming] = {}  # what is being read, by slot, and to where
        self._loading: Counter[int] = Counter()  # how many are being read into each chunk
        self._pins = np.zeros(index.slots, np.int32)
        self.hits = self.misses = self.moved = 0
        self.waited_s = 0.0
        self.damaged: dict[int, str] = {}

    def place(self, slot: int, base: int) -> None:
        """The segment in ``slot`` lies at ``base`` of the arena from now on."""
        chunk = self.arena.chunk_of(base)
        self._slots.setdefault(chunk, set()).add(slot)
        self.index.base[slot] = base
        self.index.resident[slot] = 1

    def forget(self, slot: int) -> None:
        """The segment in ``slot`` leaves the store."""
        self.arrive(np.array([slot]))
        if self.index.resident[slot]:
            self._cool(slot)
        self._pins[slot] = 0
        self.damaged.pop(slot, None)

    def clear(self) -> None:
        """Let every segment go; those that are about to be used will be read again."""
        self.arrive(np.array(list(self._coming), np.int64))
        for slots in list(self._slots.values()):
            for slot in list(slots):
                self._cool(slot)

    def resized(self) -> None:
        """The index has more slots than before."""
        self._pins = np.concatenate([self._pins, np.zeros(self.index.slots - len(self._pins), np.int32)])

    def cool(self) -> bool:
        """Let a chunk's segments go, which are on disk; those that are pinned move. False if that would free nothing.

        Cost: 5 us a segment, some 80 segments.
        """
        best, fewest, looked = -1, 0, 0
        for chunk, slots in self._slots.items():
            pinned = int(np.count_nonzero(self._pins[list(slots)]))
            busy = chunk == self.arena.current or self._loading[chunk] > 0
            if not busy and pinned < len(slots):
                looked += 1
                if best < 0 or pinned < fewest:
                    best, fewest = chunk, pinned
                if pinned == 0 or looked == CANDIDATES:
                    break
        if best < 0:
            return False
        index, memory = self.index, self.arena.memory
        kept = []
        for slot in list(self._slots[best]):
            if self._pins[slot]:
                begin = int(index.base[slot])
                kept.append((slot, memory[begin : begin + int(index.nbytes[slot])].copy()))
            self._cool(slot)
        for slot, content in kept:
            base = self.arena.allocate(len(content))
            assert base is not None, "the chunk was emptied just now"
            memory[base : base + len(content)] = content
            self._heat(slot, base)
        self.moved += len(kept)
        return True

    def _heat(self, slot: int, base: int) -> None:
        self.index.offset[FIRST_FIELD:, slot] += base
        self.place(slot, base)

    def _cool(self, slot: int) -> None:
        index = self.index
        base = int(index.base[slot])
        chunk = self.arena.chunk_of(base)
        self._slots[chunk].discard(slot)
        if not self._slots[chunk]:
            del self._slots[chunk]
        index.offset[FIRST_FIELD:, slot] -= base
        index.resident[slot] = 0
        self.arena.free(base, int(index.nbytes[slot]))

    def pin(self, slots: Ints, by: int = 1) -> None:
        """Keep segments in the arena until they are unpinned (``by=-1``) as often."""
        _pin(self._pins, slots, by)

    def fetch(self, slots: Ints) -> int:
        """Begin to read those of ``slots`` [n] that are neither here nor coming; how many of the first ones are now.

        Fewer than n where the arena has no room for all. Those that are damaged count as here and are in ``damaged``.
        """
        index = self.index
        cold = np.flatnonzero(index.resident[slots] == 0)
        self.hits += len(slots) - len(cold)
        wanted: list[Read] = []
        places: list[tuple[int, int]] = []
        ready = len(slots)
        self.pin(slots)
        for i in cold.tolist():
            slot = int(slots[i])
            if slot in self._coming or slot in self.damaged:
                continue
            nbytes = int(index.nbytes[slot])
            while (base := self.arena.allocate(nbytes)) is None and self.cool():
                pass
            if base is None:
                ready = i
                break
            self._coming[slot] = _NOT_YET
            self._loading[self.arena.chunk_of(base)] += 1
            out = self.arena.memory[base : base + nbytes].data
            wanted.append(Read(int(index.region[slot]), int(index.place[slot]), out))
            places.append((slot, base))
        self.pin(slots, -1)
        for (slot, base), (task, k) in zip(places, self.disk.start(wanted) if wanted else [], strict=True):
            self._coming[slot] = (task, k, base)
        self.misses += len(wanted)
        return ready

    def arrive(self, slots: Ints) -> None:
        """Wait for those of ``slots`` that are coming, and let them be here."""
        if not self._coming:
            return
        begin = time.perf_counter()
        for slot in slots.tolist():
            if slot in self._coming:
                task, k, base = self._coming[slot]
                problem = task.result()[k]
                del self._coming[slot]
                self._loading[self.arena.chunk_of(base)] -= 1
                if problem is None:
                    self._heat(slot, base)
                else:
                    self.damaged[slot] = problem
                    self.arena.free(base, int(self.index.nbytes[slot]))
        self.waited_s += time.perf_counter() - begin

    def require(self, slots: Ints) -> int:
        """Bring the segments in ``slots`` [n] into the arena; returns how many of the first ones are here now."""
        if self.index.resident[slots].all():
            self.hits += len(slots)
            return len(slots)
        ready = self.fetch(slots)
        self.arrive(slots[:ready])
        return ready

    @property
    def nbytes(self) -> int:
        """Bytes of bookkeeping, about."""
        return self._pins.nbytes * self.index.highest // self.index.slots + 100 * sum(map(len, self._slots.values()))
