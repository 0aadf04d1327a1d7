"""Regions that are half empty, or small and many -> room on disk, and few files.

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
from sharpwave.disk.disk_tier import MOST_HELD, Disk
from sharpwave.disk.segment_cache import Residency
from sharpwave.format.region import SEGMENT
from sharpwave.memory.segment_index import SegmentIndex


def compact(
    disk: Disk,
    index: SegmentIndex,
    tables: Sequence[DictionaryTable],
    residency: Residency,
    most: float = MOST_HELD,
    left_out: frozenset[int] = frozenset(),
) -> bool:
    """Copy what is held of the region that is emptiest, and delete it. False if there is none that is empty enough.

    Args:
        tables: dictionaries, by column.
        residency: reads from that region that are under way are waited for.
        most: share of the region that is held, at most.  left_out: regions that stay as they are.

    Raises:
        OSError: the disk is full or failing. What was copied counts already, and nothing is lost.

    Cost: O(slots), one read and one write for each segment, and a sync.
    """
    number = disk.emptiest(most, left_out)
    return number is not None and _copy([number], disk, index, tables, residency)


def merge(
    disk: Disk,
    index: SegmentIndex,
    tables: Sequence[DictionaryTable],
    residency: Residency,
    left_out: frozenset[int] = frozenset(),
) -> bool:
    """Copy what is held of small regions into one, where there are many of them, and delete them. False: there are few.

    Arguments, errors and cost as for :func:`compact`.
    """
    numbers = disk.small_ones(left_out)
    return bool(numbers) and _copy(numbers, disk, index, tables, residency)


def _copy(
    numbers: list[int],
    disk: Disk,
    index: SegmentIndex,
    tables: Sequence[DictionaryTable],
    residency: Residency,
) -> bool:
    used = slice(0, index.highest)
    there = np.isin(index.region[used], numbers)
    slots = np.flatnonzero(there & (index.sealed[used] > 0) & (index.rows[used] > 0))
    slots = slots[np.lexsort((index.place[slots], index.region[slots]))]
    residency.arrive(slots)
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
