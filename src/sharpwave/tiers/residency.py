"""Which sealed segments lie in the arena, where a disk holds them all.

A segment that is asked for is read into the arena; where the arena is full a whole chunk of others is let go: the
oldest of those that hold the fewest that are about to be used. Under random sampling recency predicts nothing, so what
is kept is what is known to be used: segments of batches that have been drawn already are pinned, and move elsewhere.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..segment import FIRST_FIELD
from .disk import Disk, Read
from .index import SegmentIndex
from .ram import Arena

Ints = npt.NDArray[np.int64]


class Residency:
    """Brings segments into the arena and lets them go.

    Attributes:
        hits, misses, moved: segments asked for that were there, that were read, and that made room for others.
        damaged: what was wrong with segments that could not be read, by slot.
    """

    def __init__(self, arena: Arena, index: SegmentIndex, disk: Disk) -> None:
        self.arena, self.index, self.disk = arena, index, disk
        self._slots: dict[int, set[int]] = {}  # resident segments by chunk, chunks in the order of filling
        self._loading: set[int] = set()  # chunks that are being read into
        self._pins = np.zeros(index.slots, np.int32)
        self.hits = self.misses = self.moved = 0
        self.damaged: dict[int, str] = {}

    def place(self, slot: int, base: int) -> None:
        """The segment in ``slot`` lies at ``base`` of the arena from now on."""
        chunk = self.arena.chunk_of(base)
        self._slots.setdefault(chunk, set()).add(slot)
        self.index.base[slot] = base
        self.index.resident[slot] = 1

    def forget(self, slot: int) -> None:
        """The segment in ``slot`` leaves the store."""
        if self.index.resident[slot]:
            self._cool(slot)
        self._pins[slot] = 0
        self.damaged.pop(slot, None)

    def cool(self) -> bool:
        """Let a chunk's segments go, which are on disk; those that are pinned move. False if that would free nothing.

        Cost: 5 us a segment, some 80 segments.
        """
        best, fewest = -1, 0
        for chunk, slots in self._slots.items():
            pinned = int(np.count_nonzero(self._pins[list(slots)]))
            busy = chunk == self.arena.current or chunk in self._loading
            if not busy and pinned < len(slots) and (best < 0 or pinned < fewest):
                best, fewest = chunk, pinned
                if pinned == 0:
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
        np.add.at(self._pins, slots, by)
        self._pins[slots] = np.maximum(self._pins[slots], 0)  # one that has left meanwhile was unpinned by that

    def require(self, slots: Ints) -> int:
        """Bring the segments in ``slots`` [n] into the arena; returns how many of the first ones are there now.

        Fewer than n where the arena has no room for all. Those that are damaged count as there and are in ``damaged``.
        """
        index = self.index
        cold = index.resident[slots] == 0
        self.hits += int((~cold).sum())
        if not cold.any():
            return len(slots)
        self.pin(slots)
        try:
            wanted: list[tuple[int, Read, int]] = []
            ready = len(slots)
            seen: set[int] = set()
            for i in np.flatnonzero(cold).tolist():
                slot = int(slots[i])
                if slot in seen or slot in self.damaged:
                    continue
                nbytes = int(index.nbytes[slot])
                while (base := self.arena.allocate(nbytes)) is None and self.cool():
                    pass
                if base is None:
                    ready = i
                    break
                seen.add(slot)
                self._loading.add(self.arena.chunk_of(base))
                out = self.arena.memory[base : base + nbytes].data
                wanted.append((slot, Read(int(index.region[slot]), int(index.place[slot]), out), base))
            problems = self.disk.read([read for _, read, _ in wanted]) if wanted else []
            self.misses += len(wanted)
            for (slot, read, base), problem in zip(wanted, problems, strict=True):
                if problem is not None:
                    self.damaged[slot] = problem
                    self.arena.free(base, len(read.out))
                    continue
                self._heat(slot, base)
            return ready
        finally:
            self._loading.clear()
            self.pin(slots, -1)

    @property
    def nbytes(self) -> int:
        """Bytes of bookkeeping, about."""
        return self._pins.nbytes * self.index.highest // self.index.slots + 100 * sum(map(len, self._slots.values()))
