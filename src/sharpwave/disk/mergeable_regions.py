"""Choice of the region files to compact: those of which little is held, and small ones where there are many.

The end of a process, and a checkpoint, may leave a region of a few steps. Each takes a descriptor and, at every
opening, time. So where there are ``MANY`` of one order of size, as many of them as fit into one region become one, of a
higher order. So a byte is copied a few times in total, and there are some dozens of small regions at any time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from sharpwave.format.region import RECORD, Region

MANY = 8
DEAD_SHARE = 0.75
"""A region of another process is compacted when the store is opened if more than this share of it is dead."""
MIN_COPY_BYTES = 1 << 18
"""Fewer dead bytes are not worth compacting a region for."""

Needed = Callable[[int], int]
"""Maps a region's number to an upper bound of the bytes that a copy of its held records takes."""


def emptiest(
    regions: dict[int, Region], needed: Needed, max_share: float, room: int, free: int | None, left_out: Collection[int]
) -> int | None:
    """Return the region with the smallest held share, if that is at most ``max_share`` and it can be copied.

    Args:
        room: bytes always kept free to copy into. ``free``: room within the limit beside them; negative: the files
            exceed it already; ``None``: there is no limit.
        left_out: regions that cannot be copied.

    Cost: O(regions).
    """
    found: list[tuple[float, int]] = []
    for number, region in regions.items():
        nbytes = needed(number)
        if _written_to(regions, number) or number in left_out or nbytes > max_share * region.allocated:
            continue
        # A region older than a lowered limit may be larger than the room kept free.
        if nbytes + 4 * RECORD.size > room and free is not None and -room <= free < nbytes:
            continue
        found.append((nbytes / region.allocated, number))
    return min(found, default=(0, None))[1]


def small_ones(regions: dict[int, Region], needed: Needed, region_bytes: int, left_out: Collection[int]) -> list[int]:
    """Return regions to merge into one; none where there are few.  Cost: O(regions)."""
    groups: dict[int, list[int]] = {}
    for number in regions:
        nbytes = needed(number)
        if not _written_to(regions, number) and number not in left_out and 4 * nbytes <= region_bytes:
            groups.setdefault(int(math.log(nbytes + 1, MANY)), []).append(number)
    for _, group in sorted(groups.items()):
        if len(group) >= MANY:
            chosen: list[int] = []
            total = 0
            for number in group:
                total += needed(number)
                if chosen and total > region_bytes:
                    break
                chosen.append(number)
            if len(chosen) > 2:  # the copies lie in two at most; merging fewer would never end
                return chosen
    return []


def _written_to(regions: dict[int, Region], number: int) -> bool:
    return number == next(reversed(regions)) and not regions[number].finished
