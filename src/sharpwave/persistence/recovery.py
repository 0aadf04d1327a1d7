"""Recovery of a store's folder: a log of everything in it that is intact."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence

from sharpwave.disk.disk_tier import DiskTier
from sharpwave.disk.ownership import is_of, unfinished
from sharpwave.disk.region_files import RegionFiles
from sharpwave.disk.store_folder import QUARANTINE
from sharpwave.format.region import NOTE, SEGMENT, TAIL, Damage, Record
from sharpwave.format.region_notes import THRESHOLD_BYTES, WHERE_BYTES, unpack_threshold, where
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
    """Adopt every intact segment into the empty ``log``; with a ``disk`` they stay there until they are sampled.

    Afterwards every lane begins a new episode: where the lane's last known step did not end one, that episode is
    truncated there, and the observation after that step is the final one. The same holds at gaps that damage left.

    Args:
        damages: damaged segments are appended.
        max_lanes: limit of the store's lanes.
        writers_go_on: no episode is truncated at its lane's end, as the next segment may go on with it.

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
                break  # it was evicted
            if adoption.try_adopt(number, record):
                log.retention.add(slot, record.id)
                break
            if not adoption.damaged:
                break
    adoption.link(writers_go_on)
    if log.retention.in_order:
        _evict_again(log, adoption.report, regions, found)
    log.inventory.evicted_steps = log.inventory.total_steps - log.inventory.held_steps
    return adoption.report


def _evict_again(log: StepLog, report: Recovery, regions: RegionFiles, found: Found) -> None:
    """Evict what had been evicted before the store was closed, where segments after it are replaced by newer ones.

    Evicted segments stay in their file until all in it are. Those of a lane before a gap whose steps are only in a
    record that was replaced had been evicted; others before a gap were not: the gap is damage.

    Cost: where no lane has a gap, a look at each segment; else a read of the header of each record that was replaced.
    """
    index = log.index
    gaps: dict[int, list[int]] = {}  # slots before gaps, by lane
    for slot in log.retention.order()["slots"].tolist():
        following = int(index.next[slot])
        end = int(index.first_step[slot] + index.rows[slot])
        if index.sealed[following] and int(index.first_step[following]) > end:
            gaps.setdefault(int(index.lane[slot]), []).append(slot)
    last: dict[int, int] = {}  # by lane, the first step of the last segment that had been evicted
    for versions in ranked(found, log.stride) if gaps else ():
        latest = versions[0][1].id >> LEAF_BITS  # also if it cannot be used: that one had not been evicted
        for number, record in versions:
            if record.kind != SEGMENT or record.id >> LEAF_BITS == latest:
                continue
            content = bytearray(WHERE_BYTES)
            with contextlib.suppress(OSError):
                regions.read(number, record.offset, memoryview(content))
                lane, first, _ = where(memoryview(content))
                for before in gaps.get(lane, ()):
                    if index.first_step[before] < first < index.first_step[index.next[before]]:
                        last[lane] = max(last.get(lane, 0), int(index.first_step[before]))
    for slot in log.retention.order()["slots"].tolist() if last else ():
        if int(index.first_step[slot]) <= last.get(int(index.lane[slot]), -1):
            report.segments -= 1
            report.steps -= int(index.rows[slot])
            log.admission.evict_one(slot)


def _threshold(regions: RegionFiles, found: Found) -> float:
    """Return the lowest threshold that a reservoir noted: it only ever drops."""
    threshold = 1.0
    for number, record in found:
        if record.kind == NOTE and record.nbytes == THRESHOLD_BYTES:
            content = bytearray(record.nbytes)
            with contextlib.suppress(OSError):
                regions.read(number, record.offset, memoryview(content))
                threshold = min(threshold, unpack_threshold(content))
    return threshold


def newest(found: Found, stride: int) -> list[tuple[int, Record]]:
    """Return the record of every slot that counts, in the order of writing; rows of open segments come last."""
    return [versions[0] for versions in ranked(found, stride)]


def ranked(found: Found, stride: int) -> list[list[tuple[int, Record]]]:
    """Return, by slot, the record of ``newest`` followed by those that it replaced, for use if it cannot be.

    A power cut may leave a segment without the dictionary that was written before it.
    """
    slots: dict[int, list[tuple[int, Record]]] = {}
    for one in found:
        if one[1].kind in (SEGMENT, TAIL):
            slots.setdefault((one[1].id & LEAF_MASK) // stride, []).append(one)
    for versions in slots.values():
        versions.sort(key=lambda one: (*_rank(one[1]), one[0]), reverse=True)
    return sorted(slots.values(), key=lambda versions: (versions[0][1].kind != SEGMENT, versions[0][1].sequence))


def _rank(record: Record) -> tuple[int, bool, int]:
    """Return a record's rank in its slot: the latest generation counts; a sealed segment before its rows so far.

    Copies have the same rank: any will do.
    """
    return record.id >> LEAF_BITS, record.kind == SEGMENT, record.sequence


def set_aside(disk: DiskTier, damages: Sequence[Damage]) -> None:
    """Delete regions that hold nothing any more; move those of which nothing could be used to ``quarantine``.

    Only files that name this store; others stay where they are.
    """
    regions, files = disk.regions, disk.files
    regions.sync()  # rewritten records are on disk before the old ones are deleted
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
    """Return ``name``, with a number appended if it is taken."""
    names = (name if n == 0 else f"{name}.{n}" for n in itertools.count())
    return next(one for one in names if directory.status(one) is None)
