"""Stores in a forked process: the child's memory is a copy that goes on, the files stay the parent's."""

from __future__ import annotations

import os
import threading
import weakref

from sharpwave.log.step_log import StepLog
from sharpwave.native.interrupts import Lock

LOCK_S = 10.0
"""How long a fork waits for a thread that is changing a store."""

_watched: weakref.WeakKeyDictionary[StepLog, Lock] = weakref.WeakKeyDictionary()
_forks = threading.local()


def watch(log: StepLog, lock: Lock) -> None:
    """Make forks wait until ``log`` is between two changes and encodes nothing, and close its files in the child.

    Args:
        lock: held while the log is changed.
    """
    _watched[log] = lock


def _before() -> None:
    watched = sorted(_watched.items(), key=lambda one: one[1].number)  # as ``views.turns`` takes several
    _forks.held = [(log, lock, lock.take(timeout=LOCK_S)) for log, lock in watched]
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
