"""Regions that are half empty -> room on disk, where segments leave in any order.

What is still held of a region is copied, as it is, behind the newest records, under the same ids and sequence numbers;
the region's file is deleted once the copies are on disk. So a process that ends in between leaves some records twice,
and none of them not at all; opening takes either one.

Only regions of which a quarter or more is free are copied: at most three bytes are copied for each byte that is
appended. So that there is such a region, three quarters of what the limit allows are held at most. Nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .dictionaries import DictionaryTable, key_of
from .disk import MOST_HELD, Disk
from .index import SegmentIndex
from .records import SEGMENT
from .residency import Residency


def compact(disk: Disk, index: SegmentIndex, tables: Sequence[DictionaryTable], residency: Residency) -> bool:
    """Copy what is held of the region that is emptiest, and delete it. False if there is none that is empty enough.

    Args:
        tables: dictionaries, by column.
        residency: reads from that region that are under way are waited for.

    Raises:
        OSError: the disk is full or failing. What was copied counts already, and nothing is lost.

    Cost: O(slots), one read and one write for each segment, and a sync.
    """
    number = disk.emptiest(MOST_HELD)
    if number is None:
        return False
    used = slice(0, index.highest)
    slots = np.flatnonzero((index.region[used] == number) & (index.sealed[used] > 0) & (index.rows[used] > 0))
    slots = slots[np.argsort(index.place[slots])]
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
        offset, nbytes = int(index.place[slot]), int(index.nbytes[slot])
        moved = disk.move(SEGMENT, number, offset, nbytes, generation, needed)
        if moved is None:
            return False
        index.region[slot], index.place[slot] = moved
    return disk.vacate(number, generation)
