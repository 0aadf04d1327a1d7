"""Forks: the identity of this process among them, and objects that prepare for a fork or follow it."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """Object with its own state in each process: ``forked`` rebuilds, in a fork, locks that another thread may hold."""

    def forked(self) -> None: ...


class Forking(Protocol):
    """Object that prepares for a fork, in the parent. It must not wait for any lock."""

    def before_fork(self) -> None: ...


_path: tuple[int, ...] = ()
_forks = 0
_following: weakref.WeakSet[Forked] = weakref.WeakSet()
_preceding: weakref.WeakValueDictionary[int, Forking] = weakref.WeakValueDictionary()  # by id


def path() -> tuple[int, ...]:
    """Return which fork of the first process this one is, which fork of that one, and so on: the same in every run
    that forks in the same order. Empty: it is the first. Each process has one such object, which no other one is."""
    return _path


def follow(one: Forked) -> None:
    """Call an object's ``forked`` in every process that is forked from this one while it lives."""
    _following.add(one)


def precede(one: Forking) -> None:
    """Call an object's ``before_fork`` before every fork while it lives."""
    _preceding[id(one)] = one


def _before() -> None:
    global _forks
    _forks += 1
    for ref in _preceding.valuerefs():  # a list at once: other threads make objects
        if (one := ref()) is not None:
            one.before_fork()


def _in_child() -> None:
    global _path, _forks
    _path, _forks = (*_path, _forks), 0
    for one in list(_following):
        one.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=_in_child)
