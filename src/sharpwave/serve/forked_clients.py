"""Forks: a cluster's objects in a child process. State that another thread held or was changing is rebuilt there."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Protocol


class Forked(Protocol):
    """Object with its own state in each forked process: ``forked`` is called there, before anything else."""

    def forked(self) -> None: ...


class Forking(Protocol):
    """Object that prepares for a fork, in the parent. It must not wait for any lock."""

    def before_fork(self) -> None: ...


_followed: weakref.WeakSet[Forked] = weakref.WeakSet()
_forking: weakref.WeakValueDictionary[int, Forking] = weakref.WeakValueDictionary()  # by id


def follow(one: Forked) -> None:
    """Call an object's ``forked`` in every process that is forked from this one while it lives."""
    _followed.add(one)


def precede(one: Forking) -> None:
    """Call an object's ``before_fork`` before every fork while it lives."""
    _forking[id(one)] = one


def temporary_folder(owner: object) -> tuple[Path, Callable[[], object]]:
    """Make a folder that is deleted by the function returned, or with its owner, but by no process forked from this."""
    folder = tempfile.mkdtemp(prefix="sharpwave-")
    return Path(folder), weakref.finalize(owner, _delete, folder, os.getpid())


def _delete(folder: str, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _before() -> None:
    for ref in _forking.valuerefs():  # a list at once: other threads make views
        if (one := ref()) is not None:
            one.before_fork()


def _in_child() -> None:
    for one in list(_followed):
        one.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=_in_child)
