"""Budget of the region files: their total size, the held records in each, and the choice of regions to compact.

The end of a process, and a checkpoint, may leave a region of a few steps. Each takes a descriptor and, at every
opening, time. So ``MANY`` regions of one order of size are merged into one of a higher order, as far as they fit. A
byte is copied a few times in total, and there are some dozens of small regions at any time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from sharpwave.disk.region_files import RegionFiles
from sharpwave.format.region import RECORD, space

REGION_BYTES = 64 << 20
MIN_REGION_BYTES = 1 << 20
MAX_REGIONS = 256
"""Regions of a store with a limit, roughly; each keeps two files open, and systems often allow a process 1,024."""
UNLIMITED_REGIONS = 64
"""Without a limit a region is at least this fraction of the store: a terabyte has some 400."""
MAX_HELD_SHARE = 0.75
"""If segments are evicted in any order: limit of the held share of the files, and of a region to compact."""
FULL_SHARE = 7 / 8
"""On a full disk that evicts, limit of the held share of a region to compact."""
DROPPED_SHARE = 1 / 8
"""If a full disk evicts the oldest segments: limit of a new region as a share of all files. One region is deleted at a
time, from the first few hundred KiB on."""
SPARE_BYTES = 64 << 10
"""Disk space held there for notes, and for the rest of a region that is nearly empty."""
FRAGMENTED_SHARE = 0.25
"""Once more than this share of the limit is dead, regions are compacted before segments are evicted."""
MANY = 8
"""Small regions of one order of size that are merged; also the base of that order."""
DEAD_SHARE = 0.75
"""Limit of the dead share of another process's region; beyond it the region is compacted when the store is opened."""
MIN_COPY_BYTES = 1 << 18
"""Fewer dead bytes are not worth compacting a region for."""


class Occupancy:
    """Counts of the held records of each region, and their bytes. All methods but ``clear`` cost O(1)."""

    def __init__(self) -> None:
        self._records: dict[int, int] = {}
        self._bytes: dict[int, int] = {}
        self.total = 0
        """Bytes held in all regions."""

    def hold(self, region: int, nbytes: int) -> None:
        """Count a record of ``region``, with a payload of ``nbytes``, as held."""
        self._records[region] = self._records.get(region, 0) + 1
        self._bytes[region] = self._bytes.get(region, 0) + space(nbytes)
        self.total += space(nbytes)

    def release(self, region: int, nbytes: int) -> None:
        """Count a record as dead; the file stays."""
        self._records[region] -= 1
        self._bytes[region] -= space(nbytes)
        self.total -= space(nbytes)

    def holds(self, region: int) -> bool:
        """Return whether a record of ``region`` is held."""
        return self._records.get(region, 0) > 0

    def nbytes(self, region: int) -> int:
        """Return the bytes of the held records of ``region``."""
        return self._bytes.get(region, 0)

    def forget(self, region: int) -> None:
        """Forget a deleted region."""
        self._records.pop(region, None)
        self.total -= self._bytes.pop(region, 0)

    def clear(self) -> None:
        """Reset all counts."""
        self._records.clear()
        self._bytes.clear()
        self.total = 0


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

    def begin(self, compacts: bool, drops: bool) -> None:
        """Prepare for regions that become half empty, by smaller regions and one free within the limit to copy into
        (``compacts``); and for evicting segments when the disk is full (``drops``)."""
        self.compacts, self.drops = compacts, drops
        if compacts:
            self.set_limit(self.limit_bytes, self._max_step_bytes)
        if drops:
            self.grow_regions()

    def set_limit(self, limit_bytes: int | None, max_step_bytes: int | None) -> None:
        """Change the limit; existing regions keep their size.  Raises: OSError."""
        if self.limit_bytes is not None and (limit_bytes is None or limit_bytes < self.limit_bytes):
            self._regions.finish()  # frees its preallocated space
        self.limit_bytes, self._max_step_bytes = limit_bytes, max_step_bytes
        self._regions.region_bytes = region_bytes(limit_bytes, max_step_bytes, 32 if self.compacts else 8)

    def grow_regions(self) -> None:
        """Fit the size of future regions to the store's size, if there is no limit or a full disk drops steps."""
        size = region_bytes(self.limit_bytes, self._max_step_bytes, 32 if self.compacts else 8)
        if self.limit_bytes is None:
            size = max(size, self._regions.nbytes // UNLIMITED_REGIONS)
        if self.drops:
            size = min(size, max(MIN_REGION_BYTES // 4, int(DROPPED_SHARE * self._regions.nbytes)))
        if self.limit_bytes is None or self.drops:
            self._regions.region_bytes = size

    @property
    def reserve_bytes(self) -> int:
        """Disk space to hold for writes on a full disk that precede a file's deletion.

        These are notes and, if segments are evicted in any order, a copy of a region.
        """
        return max(SPARE_BYTES, self._regions.region_bytes if self.compacts else 0)

    def emptied(self, left_out: frozenset[int]) -> int | None:
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
        return self._live_bytes + nbytes > MAX_HELD_SHARE * (self.limit_bytes - 3 * self._regions.region_bytes)

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

        If segments are evicted in order, regions become empty one after another. But merged regions hold old and new
        segments: nearly all would have to be evicted before such a region is empty.
        """
        if self.limit_bytes is None:
            return False
        dead = self._regions.nbytes - self._live_bytes
        return dead > max(FRAGMENTED_SHARE * self.limit_bytes, 3 * self._regions.region_bytes)

    @property
    def fits(self) -> bool:
        """Whether the held records would fit the limit once compacted."""
        if self.limit_bytes is None:
            return True
        return self._live_bytes <= self.limit_bytes - 2 * self._regions.region_bytes - self.spare_bytes

    @property
    def _live_bytes(self) -> int:
        """Bytes of the held records, and of the dictionaries and shared values that they need."""
        return self._held.total + sum(map(self._regions.shared_bytes, self._regions.regions))

    def needed_bytes(self, number: int) -> int:
        """Return an upper bound of the bytes that a copy of a region's held records and of its notes takes."""
        if not self._held.holds(number):
            return self.noted_bytes(number)
        return self._held.nbytes(number) + self._regions.shared_bytes(number) + self.noted_bytes(number)

    def emptiest(self, max_share: float, left_out: frozenset[int] = frozenset()) -> int | None:
        """Return the region with the smallest held share, if that is at most ``max_share`` and it can be copied.

        Args:
            left_out: regions that are not chosen.

        Cost: O(regions).
        """
        regions, room = self._regions.regions, self._regions.region_bytes
        # Beside the region kept free to copy into; negative: the files exceed the limit already.
        free = None if self.limit_bytes is None else self.limit_bytes - room - self._regions.nbytes
        found: list[tuple[float, int]] = []
        for number, nbytes in self._copyable(left_out):
            if nbytes > max_share * regions[number].allocated:
                continue
            # A region older than a lowered limit may be larger than the room kept free.
            if nbytes + 4 * RECORD.size > room and free is not None and -room <= free < nbytes:
                continue
            found.append((nbytes / regions[number].allocated, number))
        return min(found, default=(0, None))[1]

    def small_ones(self, left_out: frozenset[int]) -> list[int]:
        """Return small regions to merge into one, if there are many; otherwise none.  Cost: O(regions)."""
        # A region with old and new steps is freed only when all of them are evicted: so it should be a small part of
        # the held bytes, independent of the current limit.
        most = min(self._regions.region_bytes, max(self._held.total // 8, MIN_REGION_BYTES))
        groups: dict[int, list[tuple[int, int]]] = {}
        for number, nbytes in self._copyable(left_out):
            if 4 * nbytes <= most:
                groups.setdefault(int(math.log(nbytes + 1, MANY)), []).append((number, nbytes))
        for _, group in sorted(groups.items()):
            if len(group) >= MANY:
                chosen: list[int] = []
                total = 0
                for number, nbytes in group:
                    total += nbytes
                    if chosen and total > most:
                        break
                    chosen.append(number)
                if len(chosen) > 2:  # the copies fill at most two regions; merging fewer would never end
                    return chosen
        return []

    def _copyable(self, left_out: frozenset[int]) -> list[tuple[int, int]]:
        """Return the regions that are no longer written to, each with a bound of the bytes that its copy takes."""
        newest = self._regions.newest
        skipped = {*self.unreadable, *left_out, -1 if newest is None or newest.finished else newest.number}
        return [(number, self.needed_bytes(number)) for number in self._regions.regions if number not in skipped]

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
