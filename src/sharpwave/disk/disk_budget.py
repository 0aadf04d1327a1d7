"""Budget of the region files: their total size, the size of a region, and which regions are worth compacting."""

from __future__ import annotations

from collections.abc import Callable

from sharpwave.disk.mergeable_regions import DEAD_SHARE, MIN_COPY_BYTES, emptiest, small_ones
from sharpwave.disk.occupancy import Occupancy
from sharpwave.disk.region_files import RegionFiles

REGION_BYTES = 64 << 20
MIN_REGION_BYTES = 1 << 20
MAX_REGIONS = 256
"""Regions of a store with a limit, roughly; each keeps two files open, and systems often allow a process 1,024."""
UNLIMITED_REGIONS = 64
"""Without a limit a region is at least this fraction of the store: a terabyte has some 400."""
MAX_HELD_SHARE = 0.75
"""Where segments are evicted in any order: limit of the held share of the files, and of a region to compact."""
FULL_SHARE = 7 / 8
"""On a full disk that evicts, limit of the held share of a region to compact."""
DROPPED_SHARE = 1 / 8
"""Where a full disk evicts the oldest segments, limit of a new region as a share of all files: one region is deleted at
a time, from the first few hundred KiB on."""
SPARE_BYTES = 64 << 10
"""Disk space held there for notes, and for the rest of a region that is nearly empty."""
FRAGMENTED_SHARE = 0.25
"""Once more than this share of the limit is dead, regions are compacted before segments are evicted."""


class DiskBudget:
    """Limit of the region files, and the room within it.

    Args:
        regions: the store's region files; their size follows from the limit.
        held: the records held in them.
        limit_bytes: of the files; ``None``: none.  max_step_bytes: of all steps, unencoded; ``None``: unknown.

    Attributes:
        compacts: segments are evicted in any order, so regions become half empty and are compacted.
        drops: segments are evicted when the disk is full, so regions are small parts of the store.
        unreadable: regions that could not be copied from.
        noted_bytes: returns the bytes of a region's notes that are written again before it is deleted.
    """

    def __init__(
        self, regions: RegionFiles, held: Occupancy, limit_bytes: int | None, max_step_bytes: int | None
    ) -> None:
        self._regions, self._held = regions, held
        self.limit_bytes, self._max_step_bytes = limit_bytes, max_step_bytes
        self.compacts = self.drops = False
        self.unreadable: set[int] = set()
        self.noted_bytes: Callable[[int], int] = lambda number: 0

    def evict_in_any_order(self) -> None:
        """Prepare for regions that become half empty: make them smaller, and keep one free within the limit to copy
        into."""
        self.compacts = True
        self.set_limit(self.limit_bytes, self._max_step_bytes)

    def set_limit(self, limit_bytes: int | None, max_step_bytes: int | None) -> None:
        """Change the limit; existing regions keep their size.  Raises: OSError."""
        if self.limit_bytes is not None and (limit_bytes is None or limit_bytes < self.limit_bytes):
            self._regions.finish()  # which frees what it had allocated in advance
        self.limit_bytes, self._max_step_bytes = limit_bytes, max_step_bytes
        self._regions.region_bytes = region_bytes(limit_bytes, max_step_bytes, 32 if self.compacts else 8)

    def grow_regions(self) -> None:
        """Fit the size of future regions to that of the store, where there is no limit or a full disk drops steps."""
        size = region_bytes(self.limit_bytes, self._max_step_bytes, 32 if self.compacts else 8)
        if self.limit_bytes is None:
            size = max(size, self._regions.nbytes // UNLIMITED_REGIONS)
        if self.drops:
            size = min(size, max(MIN_REGION_BYTES // 4, int(DROPPED_SHARE * self._regions.nbytes)))
        if self.limit_bytes is None or self.drops:
            self._regions.region_bytes = size

    def drop_when_full(self) -> None:
        """Prepare for evicting segments when the disk is full."""
        self.drops = True
        self.grow_regions()

    @property
    def reserve_bytes(self) -> int:
        """Disk space to hold for what a full disk must take before a file is deleted: notes and, where segments are
        evicted in any order, a copy of a region."""
        return max(SPARE_BYTES, self._regions.region_bytes if self.compacts else 0)

    def emptied(self, left_out: frozenset[int] = frozenset()) -> int | None:
        """Return a region so nearly empty that a copy of its records fits the disk space in reserve, or ``None``."""
        number = self.emptiest(FULL_SHARE, left_out)
        return None if number is None or self.needed_bytes(number) > self.reserve_bytes else number

    def room_for(self, nbytes: int) -> bool:
        """Return whether the limit has room for ``nbytes`` beside the region kept free.

        Opening a store writes beyond the limit rather than evict: the first write afterwards makes room.
        """
        if self.limit_bytes is None or self.over_limit:
            return self.limit_bytes is None
        growth = self._regions.growth(nbytes)
        return not growth or self._regions.nbytes + growth <= self.limit_bytes - self.spare_bytes

    def crowded(self, nbytes: int = 0) -> bool:
        """Return whether another ``nbytes`` would leave no region worth copying.

        Then one segment is evicted for each new one, rather than very many at once when the limit is reached.
        """
        if self.limit_bytes is None or not self.compacts:
            return False
        # Within the limit, one region is free, one may be partly filled, and one is still to be created.
        return self._held.total + nbytes > MAX_HELD_SHARE * (self.limit_bytes - 3 * self._regions.region_bytes)

    @property
    def over_limit(self) -> bool:
        """Whether the files exceed the limit, counting the region kept free to copy into."""
        return self.limit_bytes is not None and self._regions.nbytes > self.limit_bytes - self.spare_bytes

    @property
    def spare_bytes(self) -> int:
        """Bytes of the limit kept free to copy a region into, or held in reserve for a full disk."""
        return max(self._regions.region_bytes if self.compacts else 0, self._regions.spare_bytes)

    @property
    def wasteful(self) -> bool:
        """Whether more than half of the files' bytes are dead, apart from a few regions."""
        needed = sum(map(self.needed_bytes, self._regions.regions))
        return self._regions.nbytes > 2 * needed + 4 * self._regions.region_bytes

    @property
    def fragmented(self) -> bool:
        """Whether so much of the files is dead that compacting frees room without an eviction.

        Where segments are evicted in order, regions become empty one after another. But merged regions hold old
        segments
        and new ones: nearly all would have to be evicted before such a region is empty.
        """
        if self.limit_bytes is None:
            return False
        dead = self._regions.nbytes - self._held.total
        return dead > max(FRAGMENTED_SHARE * self.limit_bytes, 3 * self._regions.region_bytes)

    @property
    def fits(self) -> bool:
        """Whether the held records would fit the limit once compacted."""
        if self.limit_bytes is None:
            return True
        return self._held.total <= self.limit_bytes - 2 * self._regions.region_bytes - self.spare_bytes

    def needed_bytes(self, number: int) -> int:
        """Return an upper bound of the bytes that a copy of a region's held records and of its notes takes."""
        if not self._held.holds(number):
            return self.noted_bytes(number)
        return self._held.nbytes(number) + self._regions.regions[number].shared + self.noted_bytes(number)

    def emptiest(self, max_share: float, left_out: frozenset[int] = frozenset()) -> int | None:
        """Return the region with the smallest held share; see ``mergeable_regions.emptiest``."""
        room = self._regions.region_bytes
        free = None if self.limit_bytes is None else self.limit_bytes - room - self._regions.nbytes
        return emptiest(self._regions.regions, self.needed_bytes, max_share, room, free, self.unreadable | left_out)

    def small_ones(self, left_out: frozenset[int] = frozenset()) -> list[int]:
        """Return small regions to merge into one, where there are many of them."""
        # A region with old and new steps is freed only when all of them are evicted: so it should be no large part of
        # the held bytes, whatever the limit is now.
        most = min(self._regions.region_bytes, max(self._held.total // 8, MIN_REGION_BYTES))
        return small_ones(self._regions.regions, self.needed_bytes, most, self.unreadable | left_out)

    @property
    def newest_is_worn(self) -> bool:
        """Whether the region being written is too large for the limit, or mostly dead."""
        newest = self._regions.newest
        if newest is None:
            return False
        dead = newest.used - self.needed_bytes(newest.number)
        return newest.size > self._regions.region_bytes or dead > max(DEAD_SHARE * newest.used, MIN_COPY_BYTES)


def region_bytes(limit_bytes: int | None, max_step_bytes: int | None, count: int = 8) -> int:
    """Return a region's size: a store has at least some ``count``, and with a limit at most ``MAX_REGIONS``."""
    most = [size // count for size in (limit_bytes, max_step_bytes) if size is not None]
    return max(min([max(REGION_BYTES, (limit_bytes or 0) // MAX_REGIONS), *most]), MIN_REGION_BYTES)
