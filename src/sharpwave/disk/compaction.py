"""Compaction: merges half-empty regions, and many small ones.

The held records of a region are copied unchanged behind the newest records, under the same ids and sequence numbers;
the region's file is deleted once the copies are on disk. So a crash in between loses no record and leaves some twice;
opening takes either one.

Only regions that are at least a quarter free are copied: at most three bytes are copied for each byte appended. At most
three quarters of the limit are held, so that such a region always exists. Nothing is decoded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np

from sharpwave.disk.disk_budget import DEAD_SHARE, MAX_HELD_SHARE
from sharpwave.disk.disk_tier import DiskTier
from sharpwave.disk.region_files import Needed
from sharpwave.disk.segment_cache import SegmentCache
from sharpwave.format.region import MAX_NUMBER, SEGMENT
from sharpwave.memory.segment_index import SegmentIndex


class Compaction:
    """Compaction of one store's regions.

    Args:
        needed: returns the dictionaries and shared values of a slot's segment.
        segment_cache: waits for its reads from a region that is copied.

    Cost of a copy: O(slots), one read and one write for each segment, and a sync.
    """

    def __init__(
        self,
        disk: DiskTier,
        index: SegmentIndex,
        needed: Callable[[int], Needed],
        segment_cache: SegmentCache,
    ) -> None:
        self.disk, self._index, self._needed, self._segment_cache = disk, index, needed, segment_cache

    def compact(
        self, max_share: float = MAX_HELD_SHARE, left_out: frozenset[int] = frozenset(), before: int = MAX_NUMBER
    ) -> bool:
        """Copy the held records of the emptiest region, and delete it; return False if no region is empty enough.

        Args:
            max_share: limit of the region's held share.  left_out: regions not to copy.
            before: only regions of lower numbers. A caller's loop passes the ``RegionFiles.next_number`` of its first
                call: if few records fit into a region, its copy is as empty, and the loop would never end.

        Raises:
            OSError: the disk is full or failing. Copies made by then are valid, and no record is lost.
        """
        left_out |= {number for number in self.disk.regions.regions if number >= before}
        number = self.disk.budget.emptiest(max_share, left_out)
        return number is not None and self._copy([number])

    def merge(self, left_out: frozenset[int] = frozenset()) -> bool:
        """Copy small regions into one, where there are many, and delete them; return False if there are few.

        Raises: OSError: as ``compact``.
        """
        numbers = self.disk.budget.small_ones(left_out)
        return bool(numbers) and self._copy(numbers)

    def make_room(self, need: Callable[[], int]) -> bool:
        """Return whether there is room for ``need()`` bytes, with a note of evictions, making it if that takes no
        eviction. A copy changes the dictionaries and values that the newest region lacks.  Raises: OSError."""
        budget, regions = self.disk.budget, self.disk.regions
        before, size = regions.next_number, need()
        if budget.crowded(size):
            return False
        if not regions.room_for(size):  # a new region will be needed
            with contextlib.suppress(OSError):
                while self.merge():
                    pass
            while not regions.room_for(size := need()) and budget.wasteful and self.compact(before=before):
                pass
        while not budget.room_for(size):
            if not (self.compact(before=before) if budget.compacts else budget.fragmented and self._try(before)):
                return False
            size = need()
        return True

    def tidy(self, left_out: frozenset[int]) -> None:
        """Leave few files with little waste for the next opening, which reads them all. Errors are ignored.

        Args:
            left_out: regions not to copy.
        """
        with contextlib.suppress(OSError):
            while self.merge(left_out):
                pass
            before = self.disk.regions.next_number
            while self.compact(1 - DEAD_SHARE, left_out, before):
                pass

    def _try(self, before: int) -> bool:
        """Compact where evicting would make room as well: a full disk is no error then."""
        try:
            return self.compact(before=before)
        except OSError:
            return False

    def _copy(self, numbers: list[int]) -> bool:
        index, disk = self._index, self.disk
        used = slice(0, index.highest)
        there = np.isin(index.region[used], numbers)
        slots = np.flatnonzero(there & (index.sealed[used] > 0) & (index.rows[used] > 0))
        slots = slots[np.lexsort((index.region_offset[slots], index.region[slots]))]
        self._segment_cache.arrive(slots)
        generation = index.latest_generation
        for slot in slots.tolist():
            region, offset, nbytes = int(index.region[slot]), int(index.region_offset[slot]), int(index.nbytes[slot])
            moved = disk.move(SEGMENT, region, offset, nbytes, generation, self._needed(slot))
            if moved is None:
                return False
            index.region[slot], index.region_offset[slot] = moved
        return disk.vacate(numbers, generation)
