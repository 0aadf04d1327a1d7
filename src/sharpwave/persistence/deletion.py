"""Deletion of steps: marks beside the segments, on disk before they count, and the space of segments of marked steps.

A step is deleted once its mark is in the file ``.deleted`` (``column_files``). That file is replaced as a whole, so
that a crash leaves all steps of one deletion or none.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from sharpwave.arrays import Ints
from sharpwave.disk.disk_budget import MIN_COPY_BYTES
from sharpwave.disk.disk_tier import DiskTier
from sharpwave.disk.region_files import FULL
from sharpwave.log.step_log import StepLog
from sharpwave.persistence.snapshot import flush

MAX_COPIED_SHARE = 0.5
"""Limit of the held share of a region that is copied so that its file can be deleted."""


def delete(log: StepLog, ids: Ints, describe: Callable[[], None]) -> int:
    """Delete the steps ``ids`` [n], as far as they are held; return how many these are.

    Args:
        describe: has ``store.json`` require readers that know deleted steps.

    Raises:
        OSError, MemoryError: nothing is deleted; but see ``ColumnFiles.write_deleted``.
    """
    log.sealing.settle()
    try:
        return _delete(log, ids, describe)
    except OSError as error:
        if log.disk is None or error.errno not in FULL:
            raise
        what = "nothing was deleted. Make room; clear() evicts all steps, also on a full disk"
        raise OSError(
            error.errno, f"delete: {log.disk.folder} could not be written to ({os.strerror(error.errno)}): {what}"
        ) from error


def _delete(log: StepLog, ids: Ints, describe: Callable[[], None]) -> int:
    if log.disk is not None:
        # First: a crash could give ids that are not on disk to other steps, and bring back evicted ones, whose marks
        # are in the file no more.
        flush(log, views=False)
    leaves, there = log.late.held(ids)
    leaves = leaves[there]
    if not len(leaves):
        return 0
    log.late.expect_deletions()
    if log.late.writer is not None:
        describe()
        log.late.writer.write_deleted(leaves)
    log.inventory.changes += 1
    log.late.delete(leaves)
    return len(leaves)


def free_deleted(log: StepLog) -> None:
    """Evict sealed segments all of whose steps are deleted, and shrink files. Other segments keep theirs until they are
    evicted."""
    index, late = log.index, log.late
    if late.deleted is None:
        return
    for slot in sorted(late.unsettled):
        first, rows = slot * index.stride, int(index.rows[slot])
        if rows and not index.sealed[slot]:
            continue  # until it is sealed
        if rows and late.deleted[first : first + rows].all():
            log.admission.evict_one(slot)
        late.unsettled.discard(slot)
    if log.disk is not None:
        log.disk.try_note()
        _shrink_files(log, log.disk)


def _shrink_files(log: StepLog, disk: DiskTier) -> None:
    """Copy the held records of regions that are at least half free, and delete these.

    So less is copied than becomes free. Files that a version or a checkpoint has, too, stay: deleting them frees
    nothing. Errors are ignored: the next deletion or opening tries again.
    """
    assert log.compaction is not None
    with contextlib.suppress(OSError):
        newest = disk.regions.newest
        if newest is not None and not newest.finished:
            dead = newest.used - disk.budget.needed_bytes(newest.number)
            if dead > max((1 - MAX_COPIED_SHARE) * newest.used, MIN_COPY_BYTES):
                disk.regions.finish()
        before = disk.regions.next_number
        if disk.budget.emptiest(MAX_COPIED_SHARE) is not None:
            linked = disk.linked()
            while log.compaction.compact(MAX_COPIED_SHARE, linked, before):
                pass
