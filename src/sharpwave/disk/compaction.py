"""Compaction: half-empty regions, and many small ones, are copied together.

What is still held of a region is copied, as it is, behind the newest records, under the same ids and sequence numbers;
the region's file is deleted once the copies are on disk. So a process that ends in between leaves some records twice,
and none of them not at all; opening takes either one.

Only regions of which a quarter or more is free are copied: at most three bytes are copied for each byte that is
appended. So that there is such a region, three quarters of what the limit allows are held at most. Nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sharpwave.codecs.dictionaries import DictionaryTable, key_of
from sharpwave.disk.disk_budget import MAX_HELD_SHARE
from sharpwave.disk.disk_tier import DiskTier
from sharpwave.disk.segment_cache import SegmentCache
from sharpwave.format.region import SEGMENT
from sharpwave.memory.segment_index import SegmentIndex


def compact(
    disk: DiskTier,
    index: SegmentIndex,
    tables: Sequence[DictionaryTable],
    segment_cache: SegmentCache,
    most: float = MAX_HELD_SHARE,
    left_out: frozenset[int] = frozenset(),
) -> bool:
    """Copy what is held of the emptiest region, and delete it; return False if none is empty enough.

    Args:
        tables: dictionaries, by column.
        segment_cache: reads from that region that are under way are waited for.
        most: share of the region that is held, at most.  left_out: regions that stay as they are.

    Raises:
        OSError: the disk is full or failing. What was copied counts already, and nothing is lost.

    Cost: O(slots), one read and one write for each segment, and a sync.
    """
    number = disk.budget.emptiest(most, left_out)
    return number is not None and _copy([number], disk, index, tables, segment_cache)


def merge(
    disk: DiskTier,
    index: SegmentIndex,
    tables: Sequence[DictionaryTable],
    segment_cache: SegmentCache,
    left_out: frozenset[int] = frozenset(),
) -> bool:
    """Copy what is held of small regions into one, and delete them; return False where there are few.

    Arguments, errors and cost as for :func:`compact`.
    """
    numbers = disk.budget.small_ones(left_out)
    return bool(numbers) and _copy(numbers, disk, index, tables, segment_cache)


def _copy(
    numbers: list[int],
    disk: DiskTier,
    index: SegmentIndex,
    tables: Sequence[DictionaryTable],
    segment_cache: SegmentCache,
) -> bool:
    used = slice(0, index.highest)
    there = np.isin(index.region[used], numbers)
    slots = np.flatnonzero(there & (index.sealed[used] > 0) & (index.rows[used] > 0))
    slots = slots[np.lexsort((index.place[slots], index.region[slots]))]
    segment_cache.arrive(slots)
    keys: dict[tuple[int, int], int] = {}
    generation = index.latest_generation
    for slot in slots.tolist():
        needed = {}
        for c, place in enumerate(index.dictionary[:, slot].tolist()):
            if place:
                data = tables[c].data(place)
                if (c, place) not in keys:
                    keys[c, place] = key_of(data)
                needed[c, keys[c, place]] = data
        region, offset, nbytes = int(index.region[slot]), int(index.place[slot]), int(index.nbytes[slot])
        moved = disk.move(SEGMENT, region, offset, nbytes, generation, needed)
        if moved is None:
            return False
        index.region[slot], index.place[slot] = moved
    return disk.vacate(numbers, generation)
