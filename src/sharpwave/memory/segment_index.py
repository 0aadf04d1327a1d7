"""The index of segments: arrays beside the arena that sampling reads.

A slot holds one segment, open or sealed, of at most ``stride`` steps. The step in row r of slot s is *leaf*
``s * stride + r``; its id is ``generation[s] << 32 | leaf``, so that an id is never reused.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Ints
from sharpwave.native import core
from sharpwave.native.untouched import zeros

LEAF_BITS = 32
LEAF_MASK = (1 << LEAF_BITS) - 1
GENERATION_BITS = core.GENERATION_BITS
"""Bits of generations that leave the upper 10 of an id for a shard's number; slots beyond are used last."""


BY_SLOT = (
    "rows", "generation", "lane", "next", "previous", "gap", "context", "frames", "sealed", "begins", "offset", "codec",
    "dictionary", "base", "nbytes", "resident", "region", "region_offset", "first_step", "episode_step", "sparse",
)  # fmt: skip
"""Arrays of an index whose last axis is the slot."""


class SegmentIndex:
    """Arrays by slot. Untouched slots cost no memory: the lowest free slot is taken first.

    Attributes:
        rows: int32 [slots], steps in the segment; 0 for a free slot.
        generation: int64 [slots], number of segments that the slot held before.
        lane, next, previous: int32 [slots], the segment's lane, and the slots of the lane's next held segment (-1: none
            yet) and previous held segment (-1: none).
        gap: uint8 [slots], whether steps between the segment and the following one were evicted.
        sparse: int32 [sparse columns, slots], rows of the columns of sparse fields.
        context, frames: int32 [slots], rows of the observation's columns before the first step, and in total.
        sealed, begins: uint8 [slots], whether the segment is sealed, and whether its first step begins an episode.
        offset: int64 [columns, slots], offset of each column's payload in the arena.
        codec: uint8 [columns, slots].
        dictionary: int32 [columns, slots], place of the column's dictionary in its field's table.
        base, nbytes: int64 [slots], the sealed segment's offset in the arena, and its size.
        resident: uint8 [slots], whether the segment is in the arena; if not, ``offset`` of the fields' columns counts
            from the segment's beginning.
        region, region_offset: int32, int64 [slots], the sealed segment's region file, and its offset there, if it is
            on disk.
        first_step: int64 [slots], the lane's number of the first step.
        episode_step: int64 [slots], the number of the first step in its episode.
        latest_generation: the highest generation of any id so far.
        arrays: the arrays by slot, for the core.
    """

    def __init__(self, slots: int, stride: int, columns: int, sparse: int = 0) -> None:
        self.slots = slots
        self.stride = stride
        self.rows = zeros(slots, np.int32)
        self.generation = zeros(slots, np.int64)
        self.lane = zeros(slots, np.int32)
        self.next = zeros(slots, np.int32)
        self.previous = zeros(slots, np.int32)
        self.gap = zeros(slots, np.uint8)
        self.context = zeros(slots, np.int32)
        self.frames = zeros(slots, np.int32)
        self.sparse = zeros((sparse, slots), np.int32)
        self.sealed = zeros(slots, np.uint8)
        self.begins = zeros(slots, np.uint8)
        self.offset = zeros((columns, slots), np.int64)
        self.codec = zeros((columns, slots), np.uint8)
        self.dictionary = zeros((columns, slots), np.int32)
        self.base = zeros(slots, np.int64)
        self.nbytes = zeros(slots, np.int64)
        self.resident = zeros(slots, np.uint8)
        self.region = zeros(slots, np.int32)
        self.region_offset = zeros(slots, np.int64)
        self.first_step = zeros(slots, np.int64)
        self.episode_step = zeros(slots, np.int64)
        self.arrays = self._arrays()
        self.free = core.FreeSlots()

    def _arrays(self) -> core.IndexArrays:
        return core.IndexArrays(**{name: getattr(self, name) for name in BY_SLOT})

    @property
    def leaves(self) -> int:
        """Number of leaves: the size of a per-step tree."""
        return self.slots * self.stride

    @property
    def touched_bytes(self) -> int:
        """Bytes of memory in use."""
        nbytes: int = sum(getattr(self, name).nbytes for name in BY_SLOT)
        return nbytes * self.highest // self.slots + 8 * len(self.free)

    @property
    def highest(self) -> int:
        """Slots used so far: later slots were never touched."""
        return self.free.highest

    @highest.setter
    def highest(self, slots: int) -> None:
        self.free.highest = slots

    @property
    def first_generation(self) -> int:
        """Generation of ids in slots that were never used."""
        return self.free.first

    @property
    def latest_generation(self) -> int:
        """The highest generation of any id so far."""
        return self.free.latest

    def take(self) -> int | None:
        """Take the lowest free slot and return it, reset; ``None`` if all are in use."""
        slot = self.free.take(self.arrays)
        return None if slot < 0 else slot

    def give_back(self, slot: int) -> None:
        """Free a slot; ids of its steps are stale from now on."""
        self.free.give_back(self.arrays, slot)

    def renew(self, slot: int) -> None:
        """Give the coming steps of a segment that is empty ids that were never used."""
        self.free.renew(self.arrays, slot)

    def link(self, slot: int, following: int) -> None:
        """Link the segment in ``following`` as the lane's next after ``slot``."""
        self.next[slot], self.previous[following] = following, slot

    def chain(self, slots: list[int]) -> None:
        """Link ``slots``, in order, as the beginning of a lane's chain."""
        self.next[slots[:-1]] = slots[1:]
        self.previous[slots] = [-1, *slots[:-1]]

    def restore(self, used: set[int], first_generation: int, generation: Ints | None = None) -> None:
        """Mark exactly ``used`` as in use, among the slots up to ``highest`` or their maximum.

        Args:
            first_generation: of ids in slots that were never used.
            generation: int64 [highest], of the other free slots; by default ``first_generation``.
        """
        self.highest = max(self.highest, max(used, default=-1) + 1)
        free = [slot for slot in range(self.highest) if slot not in used]
        self.generation[free] = first_generation if generation is None else generation[free]
        self.free.first = first_generation
        self.free.latest = max(first_generation, int(self.generation[: self.highest].max(initial=0)))
        self.free.restore(self.arrays, np.array(free, np.int64))

    def larger(self, slots: int) -> SegmentIndex:
        """Return a copy with ``slots`` slots.  Raises: MemoryError."""
        other = copy.copy(self)
        for name in BY_SLOT:
            array: npt.NDArray[Any] = getattr(self, name)
            longer = zeros((*array.shape[:-1], slots), array.dtype)
            longer[..., : self.highest] = array[..., : self.highest]
            setattr(other, name, longer)
        other.arrays, other.slots = other._arrays(), slots
        return other

    def become(self, other: SegmentIndex) -> None:
        """Become a copy from ``larger``. Raises nothing."""
        for name in BY_SLOT:
            setattr(self, name, getattr(other, name))
        self.arrays, self.slots = other.arrays, other.slots

    def ids(self, leaves: Ints) -> Ints:
        """Return the ids of the steps at ``leaves`` now."""
        ids: Ints = (self.generation[leaves // self.stride] << LEAF_BITS) | leaves
        return ids

    def find(self, lanes: Ints, steps: Ints) -> Ints:
        """Return the ids of the steps so numbered in their ``lanes``, -1 where one is not held: int64 [n].

        Cost: sorting the segments held, and a search among them for each.
        """
        held = np.flatnonzero(self.rows[: self.highest])
        held = held[np.lexsort((self.first_step[held], self.lane[held]))]
        ids = np.empty(len(lanes), np.int64)
        core.find_steps(held, self.lane, self.first_step, self.rows, self.generation, self.stride, lanes, steps, ids)
        return ids

    def segment_id(self, slot: int) -> int:
        """Return the id of the first step of the segment in ``slot``."""
        return int(self.generation[slot]) << LEAF_BITS | slot * self.stride
