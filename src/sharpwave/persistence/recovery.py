"""Recovery of a store's folder: a log of everything in it that is intact."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from sharpwave.disk.disk_tier import DiskTier
from sharpwave.disk.evictions import Evictions
from sharpwave.disk.ownership import is_of, unfinished
from sharpwave.disk.region_files import FULL, RegionFiles
from sharpwave.disk.store_folder import QUARANTINE
from sharpwave.format.region import SEGMENT, TAIL, Damage, Record
from sharpwave.log.step_log import StepLog
from sharpwave.memory.segment_index import LEAF_BITS, LEAF_MASK
from sharpwave.native.directory import Directory
from sharpwave.persistence.adoption import Adoption, Found, Recovery, max_slots
from sharpwave.sampling.retention import Reservoir
from sharpwave.validation import MAX_LANES


def highest_slot(found: Found, stride: int) -> int:
    """Return the highest slot among the records' ids, within the bounds of a store; -1 without any."""
    slots = ((record.id & LEAF_MASK) // stride for _, record in found if record.kind in (SEGMENT, TAIL))
    end = max_slots(found)
    return max((slot for slot in slots if slot < end), default=-1)


def adopt_all(
    log: StepLog,
    regions: RegionFiles,
    found: Found,
    damages: list[Damage],
    disk: DiskTier | None,
    max_lanes: int = MAX_LANES,
    writers_go_on: bool = False,
) -> Recovery:
    """Adopt every intact segment that was not evicted into the empty ``log``; with a ``disk`` they stay there until
    they are sampled.

    Afterwards every lane begins a new episode: where the lane's last known step did not end one, that episode is
    truncated there, and the observation after that step is the final one.

    Args:
        damages: damaged segments are appended.
        max_lanes: limit of the store's lanes.
        writers_go_on: no episode is truncated at its lane's end, as the next segment may go on with it.

    Raises:
        OSError: a file cannot be written; then nothing is deleted or moved.
        ValueError, MemoryError: the capacity, or ``ram``, is too small for the lanes.
    """
    adoption = Adoption(log, regions, found, damages, disk, max_lanes)
    evictions = adoption.noted.evictions
    if isinstance(log.retention, Reservoir):
        log.retention.threshold = adoption.noted.threshold
    for versions in ranked(found, log.stride, evictions):
        for number, record in versions:
            if record.sequence < evictions.since and not log.retention.admits(record.id):
                break  # evicted by a release that noted the threshold alone
            if adoption.try_adopt(number, record):
                log.retention.add((record.id & LEAF_MASK) // log.stride, record.id)
                break
            if not adoption.damaged:
                break
    if isinstance(log.retention, Reservoir):
        log.retention.threshold = min(adoption.noted.threshold, evictions.latest.threshold)
    inventory, latest = log.inventory, evictions.latest
    inventory.evicted_segments, inventory.dropped_steps = latest.segments, latest.dropped_steps
    adoption.link(writers_go_on)  # which may write records, and a note of these counts before them
    inventory.evicted_steps = inventory.total_steps - inventory.held_steps
    return adoption.report


def newest(found: Found, stride: int, evictions: Evictions) -> list[tuple[int, Record]]:
    """Return the record of every slot that counts, in the order of writing; rows of open segments come last."""
    return [versions[0] for versions in ranked(found, stride, evictions)]


def ranked(found: Found, stride: int, evictions: Evictions) -> list[list[tuple[int, Record]]]:
    """Return, by slot, the record of ``newest`` followed by earlier ones, for use if it cannot be; none evicted.

    A power cut may leave a segment without the dictionary that was written before it.
    """
    slots: dict[int, list[tuple[int, Record]]] = {}
    for one in found:
        if one[1].kind in (SEGMENT, TAIL) and not evictions.covers(one[1].id):
            slots.setdefault((one[1].id & LEAF_MASK) // stride, []).append(one)
    for versions in slots.values():
        versions.sort(key=lambda one: (*_rank(one[1]), one[0], one[1].offset), reverse=True)
    return sorted(slots.values(), key=lambda versions: (versions[0][1].kind != SEGMENT, versions[0][1].sequence))


def _rank(record: Record) -> tuple[int, bool, int]:
    """Return a record's rank in its slot: the latest generation counts; a sealed segment before its rows so far.

    Of copies the last is taken: it may have an end of an episode that the others lack.
    """
    return record.id >> LEAF_BITS, record.kind == SEGMENT, record.sequence


def set_aside(disk: DiskTier, damages: Sequence[Damage]) -> None:
    """Delete regions that hold nothing any more; move those of which nothing could be used to ``quarantine``.

    Only files that name this store; others stay where they are. What their notes tell is written again first; on a full
    disk they stay until it can be.

    Raises: OSError.
    """
    regions, files = disk.regions, disk.files
    regions.sync()  # rewritten records are on disk before the old ones are deleted
    damaged = {damage.path for damage in damages}
    newest = regions.newest
    written_to = -1 if newest is None or newest.finished else newest.number
    unused = [number for number in regions.regions if not disk.held.holds(number) and number != written_to]
    full = False
    try:
        disk.repeat_notes(unused)
        disk.delete([number for number in unused if regions.regions[number].path not in damaged])
    except OSError as error:
        full = error.errno in FULL
        if not full:
            raise
    for number in unused:
        if number in regions.regions and regions.regions[number].path in damaged:
            regions.regions.pop(number).close()
    if full:
        return
    for name in unfinished(regions.directory, regions.identity):
        files.unlink(regions.directory, name)
    used = {region.path for region in regions.regions.values()}
    for name in sorted(path.name for path in damaged - used if path.parent == regions.directory.path):
        if is_of(regions.directory, name, regions.identity.store):
            with files.make_directory(disk.directory, QUARANTINE) as quarantine:
                files.rename(regions.directory, name, quarantine, _free_name(quarantine, name))


def _free_name(directory: Directory, name: str) -> str:
    """Return ``name``, with a number appended if it is taken."""
    names = (name if n == 0 else f"{name}.{n}" for n in itertools.count())
    return next(one for one in names if directory.status(one) is None)
