"""Which steps' returns are known: those whose episode ends soon enough, or which enough observations follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sharpwave.views.log_arrays import LogWords
from sharpwave.views.transition_kernels import cut, sync
from sharpwave.views.view import MAX_RUNS

if TYPE_CHECKING:
    from sharpwave.log.step_log import StepLog

Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]


class KnownSteps:
    """Steps of which the ``reach`` steps that begin with each are known, or those up to their episode's end.

    ``spans`` int32 [slots, 2] says which rows of each segment those are (:class:`.view.View`).

    Args:
        foresees: the ``next_obs`` of a lane's last step makes it known, though nothing was appended after it.
    """

    def __init__(self, log: StepLog, reach: int, foresees: bool = False) -> None:
        self._log, self._reach, self._foresees, self._words = log, reach, foresees, LogWords(log)
        self._nothing = np.zeros(0, np.uint8)
        self._cursor = np.zeros(0, np.int32)  # by lane, slot of the segment that was followed so far
        self._runs = np.empty((3, MAX_RUNS), np.int64)
        self._none = self._runs[:, :0]

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._cursor.nbytes + self._nothing.nbytes + self._runs.nbytes

    def find(self, spans: Int32s) -> Ints:
        """Find those that became known since the last call, and raise the ends of ``spans``.

        Returns int64 [3, runs], as :meth:`.view.View.find`.
        """
        log = self._log
        if len(self._cursor) < log.lanes:
            self._cursor = np.concatenate([self._cursor, log.inventory.oldest[len(self._cursor) :]])
            self._nothing = np.zeros(len(self._cursor), np.uint8)
        known = log.opened.successor_known if self._foresees else self._nothing
        found = sync(self._words.current(), known, self._cursor, spans, self._reach, self._runs)
        return self._runs[:, :found] if found else self._none

    def lose(self, slot: int, spans: Int32s, reaching: Ints) -> int:
        """Find those before the segment in ``slot``, which is about to be evicted, that reach into it; lower the ends
        of ``spans``, and go on from the segment after it.

        Args:
            reaching: int64 [reach - 1] or more, receives their numbers, ``slot * log.stride + row``, the last first.

        Returns how many there are.
        """
        log, index = self._log, self._log.index
        found = 0
        if self._reach > 1:
            found = cut(self._words.current(), slot, log.stride, spans, reaching[: self._reach - 1])
        lane = index.lane[slot]
        if lane < len(self._cursor) and self._cursor[lane] == slot:
            self._cursor[lane] = index.next[slot]
        return found
