"""How much the region files may take, how large a region is, and which regions are worth copying together."""

from __future__ import annotations

from sharpwave.disk.mergeable_regions import DEAD_SHARE, MIN_COPY_BYTES, emptiest, small_ones
from sharpwave.disk.occupancy import Occupancy
from sharpwave.disk.region_files import RegionFiles

REGION_BYTES = 64 << 20
MIN_REGION_BYTES = 1 << 20
MAX_REGIONS = 256
"""Regions of a store with a limit, roughly; each keeps a file open twice, and systems often allow a process 1,024."""
UNLIMITED_REGIONS = 64
"""Without a limit a region is at least this fraction of the store: a terabyte lies in some 400."""
MAX_HELD_SHARE = 0.75
"""Where segments are evicted in any order, at most this share of the files is held, and of a region that is copied."""
FRAGMENTED_SHARE = 0.25
"""Once more than this share of the limit is dead, regions are copied together before segments are evicted."""


class DiskBudget:
    """The limit on the region files, and what it leaves.

    Args:
        regions: the store's region files; their size follows from the limit.
        held: what of them is held.
        limit_bytes: of the files; ``None``: none.  max_step_bytes: of all steps as they come; ``None``: not known.

    Attributes:
        compacts: segments are evicted in any order, so regions become half empty and are copied together.
        unreadable: regions that could not be copied from.
    """

    def __init__(
        self, regions: RegionFiles, held: Occupancy, limit_bytes: int | None, max_step_bytes: int | None
    ) -> None:
        self._regions, self._held = regions, held
        self.limit_bytes, self._max_step_bytes = limit_bytes, max_step_bytes
        self.compacts = False
        self.unreadable: set[int] = set()

    def evict_in_any_order(self) -> None:
        """Prepare for regions that become half empty: they are smaller, and the limit keeps one free to copy into."""
        self.compacts = True
        self.set_limit(self.limit_bytes, self._max_step_bytes)

    def set_limit(self, limit_bytes: int | None, max_step_bytes: int | None) -> None:
        """Change the limit; regions that are there keep their size.  Raises: OSError."""
        if self.limit_bytes is not None and (limit_bytes is None or limit_bytes < self.limit_bytes):
            self._regions.finish()  # which gives back what it had allocated in advance
        self.limit_bytes, self._max_step_bytes = limit_bytes, max_step_bytes
        self._regions.region_bytes = region_bytes(limit_bytes, max_step_bytes, 32 if self.compacts else 8)

    def grow_regions(self) -> None:
        """Enlarge the next region as the store has grown, where there is no limit."""
        if self.limit_bytes is None:
            least = region_bytes(None, self._max_step_bytes)
            self._regions.region_bytes = max(least, self._regions.nbytes // UNLIMITED_REGIONS)

    def room_for(self, nbytes: int) -> bool:
        """Return whether the limit allows another ``nbytes`` and keeps free what it has to."""
        if self.limit_bytes is None or (self.compacts and self.over_limit):
            return self.limit_bytes is None
        growth = self._regions.growth(nbytes)
        return not growth or self._regions.nbytes + growth <= self.limit_bytes - self.spare_bytes

    def crowded(self, nbytes: int = 0) -> bool:
        """Return whether another ``nbytes`` would leave no region worth copying.

        Then one segment is evicted for each that comes, rather than very many at once when the limit is reached.
        """
        if self.limit_bytes is None or not self.compacts:
            return False
        # Of what the limit allows one region is free, one may be begun, and one is still to come.
        return self._held.total + nbytes > MAX_HELD_SHARE * (self.limit_bytes - 3 * self._regions.region_bytes)

    @property
    def over_limit(self) -> bool:
        """Whether the files take more than they may, the region kept free to copy into included."""
        return self.limit_bytes is not None and self._regions.nbytes > self.limit_bytes - self.spare_bytes

    @property
    def spare_bytes(self) -> int:
        """Bytes of the limit that are kept free to copy a region into."""
        return self._regions.region_bytes if self.compacts else 0

    @property
    def wasteful(self) -> bool:
        """Whether more than half of what the files take is dead, a few regions aside."""
        needed = sum(map(self.needed_bytes, self._regions.regions))
        return self._regions.nbytes > 2 * needed + 4 * self._regions.region_bytes

    @property
    def fragmented(self) -> bool:
        """Whether so much of the files is dead that copying regions together frees room without an eviction.

        Where segments are evicted in order, regions empty one after another. But merged regions hold old segments and
        new ones: there nearly all would have to be evicted before a region is empty.
        """
        if self.limit_bytes is None:
            return False
        dead = self._regions.nbytes - self._held.total
        return dead > max(FRAGMENTED_SHARE * self.limit_bytes, 3 * self._regions.region_bytes)

    @property
    def fits(self) -> bool:
        """Whether what is held would fit the limit once copied together."""
        if self.limit_bytes is None:
            return True
        return self._held.total <= self.limit_bytes - 2 * self._regions.region_bytes - self.spare_bytes

    def needed_bytes(self, number: int) -> int:
        """Return the most bytes that a copy of what is held of a region would take."""
        if not self._held.holds(number):
            return 0
        return self._held.nbytes(number) + self._regions.regions[number].shared

    def emptiest(self, max_share: float, left_out: frozenset[int] = frozenset()) -> int | None:
        """Return the region of which the smallest share is held; see :func:`.mergeable_regions.emptiest`."""
        room = self._regions.region_bytes
        free = None if self.limit_bytes is None else self.limit_bytes - room - self._regions.nbytes
        return emptiest(self._regions.regions, self.needed_bytes, max_share, room, free, self.unreadable | left_out)

    def small_ones(self, left_out: frozenset[int] = frozenset()) -> list[int]:
        """Return small regions to copy into one, where there are many of them."""
        # A region with old steps and new ones is free only when all of them have gone: so it is no large part of what
        # is held, whatever the limit is now.
        most = min(self._regions.region_bytes, max(self._held.total // 8, MIN_REGION_BYTES))
        return small_ones(self._regions.regions, self.needed_bytes, most, self.unreadable | left_out)

    @property
    def newest_is_worn(self) -> bool:
        """Whether the region that is written to is too large for the limit, or mostly dead."""
        newest = self._regions.newest
        if newest is None:
            return False
        dead = newest.used - self.needed_bytes(newest.number)
        return newest.size > self._regions.region_bytes or dead > max(DEAD_SHARE * newest.used, MIN_COPY_BYTES)


def region_bytes(limit_bytes: int | None, max_step_bytes: int | None, count: int = 8) -> int:
    """Return a region's size: a store has at least some ``count``, and with a limit at most ``MAX_REGIONS``."""
    most = [size // count for size in (limit_bytes, max_step_bytes) if size is not None]
    return max(min([max(REGION_BYTES, (limit_bytes or 0) // MAX_REGIONS), *most]), MIN_REGION_BYTES)
