"""Life of a store in its process: the registry of open folders, forks, and closing when the last owner is freed.

At the end all appended steps are written, and the folder is released. In a forked process the store's memory is a copy
that goes on; its files remain the parent's.
"""

from __future__ import annotations

import errno
import os
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any

from sharpwave.disk.store_folder import MANIFEST, read_manifest
from sharpwave.errors import StoreInUseError
from sharpwave.log.step_log import StepLog
from sharpwave.native.interrupts import InterruptLock
from sharpwave.persistence.settings import Settings
from sharpwave.persistence.snapshot import flush

EXIT_WAIT_S = 10.0
"""Seconds that the process waits, at exit, for a thread that is using the store."""
FORK_WAIT_S = 10.0
"""Seconds that a fork waits for a thread that is changing a store."""
MAY_CHANGE = {"capacity", "ram", "disk_limit", "on_full", "seed"}
"""Settings that may differ when a store is opened again."""


class Life:
    """Token held by a store and by its views, but by none of their parts: it is freed with the last of them.

    Then, and at interpreter exit, an open store is closed. A forked process leaves that to the process that opened the
    store.
    """

    def __init__(self, log: StepLog, lock: Any) -> None:
        self._end = weakref.finalize(self, _end, log, lock, os.getpid())

    def keep(self, store: Any) -> None:
        """Keep the parts of ``store``. Called again after they are replaced."""
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


def close(log: StepLog) -> None:
    """Flush, and release the folder in any case. The lock is held.

    Raises:
        OSError: naming the steps that could not be written, and are lost.
    """
    disk, closing = log.disk, log.closing or log.closed
    log.closing = True  # a signal handler amid this may call it again
    if closing or disk is None or disk.forked:
        _over(log)
        return
    try:
        try:
            flush(log)  # of an open store: conditions of views read the episodes that they judge
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
        _over(log)
        if log.keeping is not None:
            log.keeping.end()
        disk.close()
        log.after_close()


def _over(log: StepLog) -> None:
    log.closed = True
    log.inventory.changes += 1  # so that a step that is staged already is refused


def _end(log: StepLog, lock: Any, process: int) -> None:
    if os.getpid() != process or log.closed:
        return
    if not lock.take(timeout=EXIT_WAIT_S):
        warnings.warn(
            "store: in use by a thread as the process ends; unflushed steps are lost", RuntimeWarning, stacklevel=2
        )
        return
    try:
        close(log)
    except OSError as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)
    finally:
        lock.release()


# stores on disk that are open in this process


_OPEN: weakref.WeakValueDictionary[tuple[int, int], Life] = weakref.WeakValueDictionary()
"""By device and inode, so that a path that is written otherwise, or a link, finds the store too."""


def remember(folder: Path, life: Life) -> None:
    """Note that a store has just been opened in a folder; it is forgotten once it and its views are freed."""
    status = os.stat(folder)
    _OPEN[status.st_dev, status.st_ino] = life


def open_here(folder: Any) -> Any | None:
    """Return the store that has a folder open in this process; ``None``: there is none, or it is closed."""
    try:
        status = os.stat(folder)
    except (OSError, TypeError, ValueError):  # it is not there, or no path
        return None
    life = _OPEN.get((status.st_dev, status.st_ino))
    store = None if life is None else life.store()
    return None if store is None or store._log.closed or store._log.disk.forked else store


def was_left_in(folder: Path) -> bool:
    """Return whether there is a store on disk in a folder, and no checkpoint.  Raises: DamagedError, OSError."""
    return (folder / MANIFEST).exists() and not read_manifest(folder).get("checkpoint")


def check_same(now: Settings, was: Settings, folder: Path, *, is_open: bool, default_segments: bool = False) -> None:
    """Check that a store has the requested settings.

    Args:
        is_open: whether it is open; in a folder, changeable settings are not compared.
        default_segments: whether ``segment_steps`` was not given, and is unchanged.

    Raises: ValueError: naming the difference.
    """
    passed = {"schema"} | (set() if is_open else MAY_CHANGE) | ({"segment_steps"} if default_segments else set())
    there, here = was.manifest(), now.manifest()
    differ = [name for name in here if name not in passed and here[name] != there.get(name)]
    if differ:
        said = "; ".join(f"{name} is {there.get(name)!r:.300}, given was {here[name]!r:.300}" for name in differ)
        remedy = "resize() or close() it first, or give" if is_open else "give"
        raise ValueError(
            f"exist_ok=True: {folder} holds a store{', open in this process,' if is_open else ''} with other settings "
            f"({said}); {remedy} the same, or another folder"
        )


# forks


_watched: weakref.WeakKeyDictionary[StepLog, InterruptLock] = weakref.WeakKeyDictionary()
_forks = threading.local()


def watch(log: StepLog, lock: InterruptLock) -> None:
    """Make forks wait until ``log`` is between two changes and encodes nothing, and close its files in the child.

    Args:
        lock: held while the log is changed.
    """
    _watched[log] = lock


def _before() -> None:
    watched = sorted(_watched.items(), key=lambda one: one[1].number)  # as ``views.view_parts`` takes several
    _forks.held = [(log, lock, lock.take(timeout=FORK_WAIT_S)) for log, lock in watched]
    for log, _, taken in _forks.held:
        if taken and log.sealing.behind is not None:
            log.sealing.behind.wait()


def _in_parent() -> None:
    for _, lock, taken in _forks.__dict__.pop("held", []):
        if taken:
            lock.release()


def _in_child() -> None:
    for log, lock, taken in _forks.__dict__.pop("held", []):
        if log.disk is not None and not log.closed:
            log.disk.leave_to_parent()
        if log.sealing.behind is not None:
            log.sealing.behind.works.forked()
        log.saving = threading.Lock()  # it may be held by a thread of the parent
        if log.copying is not None:
            log.copying.end()
        if taken:
            lock.release()
        else:  # a copy in mid-change
            log.closed = True
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
