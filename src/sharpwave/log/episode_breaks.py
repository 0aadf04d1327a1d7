"""Where an episode was broken off between two segments of a lane: found in the bytes, and written into them.

A process that ended in mid-episode leaves a last segment whose episode goes on; what comes behind it, in a later
process, begins an episode and says so (START). From that alone the break is known. The segment is also written anew
with its last step truncated, so that who reads the files sees the same, whichever of the two it finds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from sharpwave.format import segment
from sharpwave.format.segment import FLAGS
from sharpwave.spec import START, TRUNCATED

if TYPE_CHECKING:
    from sharpwave.log.step_log import StepLog


def adjoins(log: StepLog, slot: int, following: int) -> bool:
    """Return whether the segment in ``following`` begins with the step behind the last one of that in ``slot``."""
    index = log.index
    return bool(index.first_step[following] == index.first_step[slot] + index.rows[slot])


def goes_on(log: StepLog, slot: int, following: int) -> bool:
    """Return whether the segment in ``following``, sealed or open, goes on with the episode open in ``slot``."""
    index = log.index
    if not adjoins(log, slot, following):
        return False
    if not index.rows[following]:
        return not index.begins[following]
    return not log.arena.memory[index.offset[FLAGS, following]] & START


def write_down(log: StepLog, slots: Iterable[int], release: bool = False) -> None:
    """Write the sealed segments in ``slots`` anew, whose last steps were truncated in memory only.

    A disk that refuses is no error: the break can be told from what follows it as well.

    Args:
        release: the region of the old record goes if nothing in it is held; else it stays for now.
    """
    disk, segment_cache = log.disk, log.segment_cache
    if disk is None or segment_cache is None:
        return
    for slot in slots:
        segment_cache.arrive(np.array([slot]))  # a read that is under way is of the old record
        with contextlib.suppress(OSError):
            _write(log, slot, release)


def _write(log: StepLog, slot: int, release: bool) -> None:
    index, disk = log.index, log.disk
    assert disk is not None
    region, nbytes = int(index.region[slot]), int(index.nbytes[slot])
    content = np.empty(nbytes, np.uint8)
    if disk.read(region, int(index.place[slot]), content.data) is not None:
        return  # it cannot be read: nothing is made of it
    header = segment.parse(content, log.spec)
    content[header.placed[FLAGS].offset + header.steps - 1] |= TRUNCATED
    segment.seal_again(content)
    dictionaries = log.sealed.dictionaries(header.placed, index.dictionary[:, slot].tolist())
    index.region[slot], index.place[slot] = disk.append(
        index.segment_id(slot), content.tobytes(), index.latest_generation, dictionaries
    )
    disk.release(region, nbytes) if release else disk.held.release(region, nbytes)
