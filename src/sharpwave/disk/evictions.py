"""Evictions that outlive the process: which records in region files belong to evicted segments, by which note."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from sharpwave.format.region_notes import Evicted
from sharpwave.memory.segment_index import LEAF_BITS, LEAF_MASK

Ints = npt.NDArray[np.int64]


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
