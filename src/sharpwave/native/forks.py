"""Forks: the identity of this process among them."""

from __future__ import annotations

import os

_path: tuple[int, ...] = ()
_forks = 0


def path() -> tuple[int, ...]:
    """Return which fork of the first process this one is, which fork of that one, and so on: the same in every run
    that forks in the same order. Empty: it is the first. Each process has one such object, which no other one is."""
    return _path


def _before() -> None:
    global _forks
    _forks += 1


def _in_child() -> None:
    global _path, _forks
    _path, _forks = (*_path, _forks), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=_in_child)
