"""A store's folder -> a log that holds everything in it that is whole."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence

from sharpwave.disk.disk_tier import DiskTier
from sharpwave.disk.ownership import is_of, unfinished
from sharpwave.disk.region_files import RegionFiles
from sharpwave.disk.store_folder import QUARANTINE
from sharpwave.format.region import NOTE, SEGMENT, TAIL, Damage, Record
from sharpwave.format.region_notes import THRESHOLD_BYTES, unpack_threshold
from sharpwave.log.step_log import StepLog
from sharpwave.memory.segment_index import LEAF_BITS, LEAF_MASK
from sharpwave.native.directory import Directory
from sharpwave.persistence.adoption import Adoption, Found, Recovery, max_slots
from sharpwave.sampling.retention import Reservoir
from sharpwave.validation import MAX_LANES


def highest_slot(found: Found, stride: int) -> int:
    """Return the highest slot that a record's id names, of those that a store can have come to; -1 without any."""
    slots = ((record.id & LEAF_MASK) // stride for _, record in found if record.kind in (SEGMENT, TAIL))
    most = max_slots(found)
    return max((slot for slot in slots if slot < most), default=-1)


def adopt_all(
    log: StepLog,
    regions: RegionFiles,
    found: Found,
    damages: list[Damage],
    disk: DiskTier | None,
    max_lanes: int = MAX_LANES,
) -> Recovery:
    """Put every whole segment into the empty ``log``; with a ``disk`` they stay there until they are sampled.

    Every lane begins a new episode afterwards: where the last step known of it did not end one, that episode is
    truncated there, and the observation after that step is the final one. So it is at gaps that damage left.

    Args:
        damages: segments that are damaged are added.
        max_lanes: that the store could have.

    Raises:
        OSError: a file cannot be written; then nothing is deleted or moved.
        ValueError, MemoryError: the capacity, or ``ram``, is too small for the lanes.
    """
    adoption = Adoption(log, regions, found, damages, disk, max_lanes)
    if isinstance(log.retention, Reservoir):
        log.retention.threshold = _threshold(regions, found)
    for versions in ranked(found, log.stride):
        for number, record in versions:
            slot = (record.id & LEAF_MASK) // log.stride
            if not log.retention.admits(record.id):
                break  # it had left
            if adoption.try_adopt(number, record):
                log.retention.add(slot, record.id)
                break
            if not adoption.damaged:
                break
    adoption.link()
    return adoption.report


def _threshold(regions: RegionFiles, found: Found) -> float:
    """Return the lowest that a reservoir noted: it only ever sinks."""
    threshold = 1.0
    for number, record in found:
        if record.kind == NOTE and record.nbytes == THRESHOLD_BYTES:
            content = bytearray(record.nbytes)
            with contextlib.suppress(OSError):
                regions.read(number, record.offset, memoryview(content))
                threshold = min(threshold, unpack_threshold(content))
    return threshold


def newest(found: Found, stride: int) -> list[tuple[int, Record]]:
    """Return of every slot the record that counts, in the order of writing; rows of open segments come last."""
    return [versions[0] for versions in ranked(found, stride)]


def ranked(found: Found, stride: int) -> list[list[tuple[int, Record]]]:
    """As :func:`newest`, and behind each record those it replaced: where it turns out to be of no use, the next one
    counts. A power cut may leave a segment, and not the dictionary that was written before it."""
    slots: dict[int, list[tuple[int, Record]]] = {}
    for place in found:
        if place[1].kind in (SEGMENT, TAIL):
            slots.setdefault((place[1].id & LEAF_MASK) // stride, []).append(place)
    for versions in slots.values():
        versions.sort(key=lambda place: (*_rank(place[1]), place[0]), reverse=True)
    return sorted(slots.values(), key=lambda versions: (versions[0][1].kind != SEGMENT, versions[0][1].sequence))


def _rank(record: Record) -> tuple[int, bool, int]:
    """Rank a record among its slot's: the one with the latest generation counts; a sealed segment before its rows so
    far. Copies have the same rank: any will do."""
    return record.id >> LEAF_BITS, record.kind == SEGMENT, record.sequence


def set_aside(disk: DiskTier, damages: Sequence[Damage]) -> None:
    """Delete regions that hold nothing any more; move those to ``quarantine`` of which nothing could be used.

    Both only where the file says itself that it is the store's; others stay where they are.
    """
    regions, files = disk.regions, disk.files
    regions.sync()  # what was written anew is on disk before what it replaces goes
    damaged = {damage.path for damage in damages}
    newest = regions.newest
    written_to = -1 if newest is None or newest.finished else newest.number
    unused = [number for number in regions.regions if not disk.held.holds(number) and number != written_to]
    disk.delete([number for number in unused if regions.regions[number].path not in damaged])
    for number in unused:
        if number in regions.regions:
            regions.regions.pop(number).close()
    for name in unfinished(regions.directory, regions.identity):
        files.unlink(regions.directory, name)
    used = {region.path for region in regions.regions.values()}
    for name in sorted(path.name for path in damaged - used if path.parent == regions.directory.path):
        if is_of(regions.directory, name, regions.identity.store):
            with files.make_directory(disk.directory, QUARANTINE) as quarantine:
                files.rename(regions.directory, name, quarantine, _free_name(quarantine, name))


def _free_name(directory: Directory, name: str) -> str:
    """Return ``name``, or with a number behind it where something has it already."""
    names = (name if n == 0 else f"{name}.{n}" for n in itertools.count())
    return next(one for one in names if directory.status(one) is None)
