"""Turns: threads use one object after each other, and one whose turn it is may wait for steps meanwhile."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from sharpwave.errors import LimiterTimeoutError
from sharpwave.native.interrupts import Lock
from sharpwave.sampling.limiters import LOOK_S

POLL_S = 0.01
"""Between two looks at what a thread does that keeps a turn longer than another would wait for steps."""

_made: weakref.WeakSet[Lock] = weakref.WeakSet()


def turn() -> Lock:
    """Return a lock for ``held``, taken before any store's. In a forked child it is free.

    What it guards is changed under the stores' locks: a fork waits for those, and not for this one, which a thread may
    hold while it waits for steps.
    """
    made = Lock()
    _made.add(made)
    return made


@contextmanager
def held(lock: Lock, seconds: float, what: str, waits: Callable[[], bool]) -> Iterator[None]:
    """Hold a lock, which another thread may keep while it waits for steps.

    Args:
        waits: whether it does; ``seconds`` are for that only, not for what another thread draws meanwhile.

    Raises:
        LimiterTimeoutError: it waits for steps, and ``seconds`` are over.
    """
    end, left = time.monotonic() + seconds, seconds
    while not lock.acquire(timeout=min(left, LOOK_S)):  # in parts: an interrupt is deferred during each
        left = max(0.0, end - time.monotonic())
        if not left and not waits():
            left = POLL_S
        elif not left:
            raise LimiterTimeoutError(
                f"sample: timed out after {seconds:g} s; another thread samples from this {what}, and waits for steps"
            )
    try:
        yield
    finally:
        lock.release()


@contextmanager
def all_held(locks: Sequence[Lock]) -> Iterator[None]:
    """Hold the locks of several stores. Any two callers take them in one order, as forks do."""
    with ExitStack() as stack:
        for lock in locks:
            stack.enter_context(lock)
        yield


def in_order(locks: Sequence[Lock]) -> list[Lock]:
    """Return each of ``locks`` once, in the order in which they were made."""
    return sorted(dict.fromkeys(locks), key=lambda lock: lock.number)


def _in_child() -> None:
    for lock in list(_made):
        if not lock._is_owned():  # by a thread that the child does not have
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
