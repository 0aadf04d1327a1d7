"""Deletion of steps: marks beside the segments, on disk before they count, and the space of segments of marked steps.

A step is deleted once its mark is in the file ``.deleted`` (``column_files``). That file is replaced as a whole, so
that a crash leaves all steps of one deletion or none.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sharpwave.log.step_log import StepLog
from sharpwave.persistence.snapshot import flush

Ints = npt.NDArray[np.int64]


def delete(log: StepLog, ids: Ints, describe: Callable[[], None]) -> int:
    """Delete the steps ``ids`` [n], as far as they are held; return how many these are.

    Args:
        describe: has ``store.json`` require readers that know deleted steps.

    Raises:
        OSError, MemoryError: nothing is deleted; but see ``ColumnFiles.write_deleted``.
    """
    log.sealing.settle()
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
    """Evict sealed segments all of whose steps are deleted. Others keep theirs until they are evicted."""
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
