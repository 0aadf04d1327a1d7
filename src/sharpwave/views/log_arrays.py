"""The log's arrays as the core reads them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sharpwave.native import core

if TYPE_CHECKING:
    from sharpwave.log.step_log import StepLog


def arrays_of(log: StepLog) -> core.Log:
    """Return a log's arrays, valid until it grows."""
    index = log.index
    return core.Log(
        log.arena.memory, index.offset, index.rows, index.next, index.previous, index.gap, index.sealed, index.context,
        index.episode_step, index.lane, index.first_step, index.frames, index.stride,
    )  # fmt: skip


class LogArrays:
    """Arrays of a log, of which a new ``core.Log`` is made when it has grown."""

    def __init__(self, log: StepLog) -> None:
        self._log = log
        # Arrays that a store replaces when it grows, which outdates addresses; weak, so that they can be freed.
        self._memory: Callable[[], Any] = lambda: None
        self._offset: Callable[[], Any] = lambda: None

    def current(self) -> core.Log:
        """Return the arrays, valid until the log grows."""
        index, arena = self._log.index, self._log.arena
        if self._memory() is not arena.memory or self._offset() is not index.offset:
            self._arrays = arrays_of(self._log)
            self._memory, self._offset = weakref.ref(arena.memory), weakref.ref(index.offset)
        return self._arrays
