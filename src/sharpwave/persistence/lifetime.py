"""End of a store on disk: everything appended is written, and its folder released, whichever owner was last."""

from __future__ import annotations

import errno
import os
import warnings
import weakref
from typing import Any

from sharpwave.disk.disk_tier import DiskTier
from sharpwave.errors import StoreInUseError
from sharpwave.log.step_log import StepLog

EXIT_WAIT_S = 10.0
"""How long the end of the process waits for a thread that is using the store."""


class Life:
    """Token kept by a store and by its views, and by nothing that these keep: it dies with the last of them.

    Then, and when the interpreter exits, the store is closed if it was not. A forked process leaves that to the one
    that opened the store.
    """

    def __init__(self, log: StepLog, lock: Any) -> None:
        self._end = weakref.finalize(self, _end, log, lock, os.getpid())

    def keep(self, store: Any) -> None:
        """Keep what a store consists of, for ``store``. Again, once it is replaced."""
        self._kind, self._store = type(store), weakref.ref(store)
        self._parts = {name: part for name, part in vars(store).items() if part is not self}

    def store(self) -> Any:
        """Return the store; where views have outlived the object, another of the same parts."""
        found = self._store()
        if found is None:
            found = object.__new__(self._kind)
            vars(found).update(self._parts, _life=self)
            self._store = weakref.ref(found)
        return found

    def over(self) -> None:
        """Note that the store was closed."""
        self._end.detach()


def flush(log: StepLog, *, views: bool = True, evict: bool = True) -> None:
    """Sync everything appended so far to disk, open segments included, and what ``views`` remember.

    Args:
        evict: evict for the rows of open segments where the files' limit has no room; else exceed it, as opening does.

    Raises: OSError.
    """
    if log.disk is not None:
        log.sealed.rewrite_left()
        _write_tails(log, log.disk, evict)
        if log.annotations.changed:
            before = {name: said for name, said in log.disk.described.items() if name != "annotations"}
            log.disk.describe(before | log.annotations.manifest())
            log.annotations.changed = False
        log.disk.flush()
        if views and log.keeping is not None:
            log.keeping.write()


def _write_tails(log: StepLog, disk: DiskTier, evict: bool) -> None:
    """Write every open segment to disk so far, and the end of each lane's step numbers.  Raises: OSError."""
    for lane in range(log.lanes):
        if log.index.rows[log.opened.slots[lane]]:
            id_, packed = log.opened.pack_so_far(lane)
            if disk.has_tail(id_, packed):
                continue  # no eviction for a tail
            if evict:
                log.admission.write_tail(id_, packed)
            else:
                disk.append_tail(id_, packed, log.index.latest_generation)
    disk.note_counts()  # and the evictions for these rows
    disk.note_ends(log.index.first_step[log.opened.slots])  # beyond the files' steps, where segments were evicted


def close(log: StepLog) -> None:
    """Flush, and release the folder in any case. The lock is held.

    Raises:
        OSError: naming what could not be written, and is lost.
    """
    disk, closed = log.disk, log.closed
    log.closed = True
    log.inventory.changes += 1  # so that a step that is staged already is refused
    if closed or disk is None or disk.forked:
        return
    try:
        try:
            flush(log)
        except StoreInUseError:
            raise
        except OSError:
            flush(log)  # a single failure costs nothing
    except (OSError, OverflowError) as error:
        steps = int(log.index.rows[log.opened.slots].sum())
        number = getattr(error, "errno", None)
        what = os.strerror(number) if number else error
        raise OSError(
            number or errno.EIO,
            f"close: {disk.folder} could not be written to ({what}). It was released; the last steps of {log.lanes} "
            f"lanes, {steps:,} at most, are lost, except those flushed before",
        ) from error
    finally:
        if log.keeping is not None:
            log.keeping.end()
        disk.close()


def _end(log: StepLog, lock: Any, process: int) -> None:
    if os.getpid() != process or log.closed:
        return
    if not lock.take(timeout=EXIT_WAIT_S):
        warnings.warn(
            "store: in use by a thread as the process ends; what was not flushed is lost", RuntimeWarning, stacklevel=2
        )
        return
    try:
        close(log)
    except OSError as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)
    finally:
        lock.release()
