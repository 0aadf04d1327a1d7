"""Where an episode was broken off between two segments of a lane."""

from __future__ import annotations

from sharpwave.format.segment import FLAGS
from sharpwave.memory.arena import Arena
from sharpwave.memory.segment_index import SegmentIndex
from sharpwave.spec import START


def adjoins(index: SegmentIndex, slot: int, following: int) -> bool:
    """Return whether the segment in ``following`` begins with the step after the last one of that in ``slot``."""
    return bool(index.first_step[following] == index.first_step[slot] + index.rows[slot])


def goes_on(index: SegmentIndex, arena: Arena, slot: int, following: int) -> bool:
    """Return whether the segment in ``following``, sealed or open, continues the episode under way in ``slot``."""
    if not adjoins(index, slot, following):
        return False
    if not index.rows[following]:
        return not index.begins[following]
    return not arena.memory[index.offset[FLAGS, following]] & START
