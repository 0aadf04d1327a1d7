"""Which steps' returns are known: those whose episode ends soon enough, or which enough observations follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sharpwave.native import core
from sharpwave.views.log_arrays import LogArrays
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

    Attributes:
        cursor: int32 [lanes], slot of the segment up to which each lane was followed.
        runs: int64 [3, MAX_RUNS], of which ``find`` returns the first.
    """

    def __init__(self, log: StepLog, reach: int, foresees: bool = False) -> None:
        self._log, self._reach, self._foresees, self._arrays = log, reach, foresees, LogArrays(log)
        self._nothing = np.zeros(0, np.uint8)
        self.cursor = np.zeros(0, np.int32)
        self.runs = np.empty((3, MAX_RUNS), np.int64)
        self._none = self.runs[:, :0]

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.cursor.nbytes + self._nothing.nbytes + self.runs.nbytes

    def find(self, spans: Int32s) -> Ints:
        """Find those that became known since the last call, and raise the ends of ``spans``.

        Returns int64 [3, runs], as :meth:`.view.View.find`.
        """
        log = self._log
        if len(self.cursor) < log.lanes:
            self.cursor = np.concatenate([self.cursor, log.inventory.oldest[len(self.cursor) :]])
            self._nothing = np.zeros(len(self.cursor), np.uint8)
        known = log.opened.successor_known if self._foresees else self._nothing
        found = core.find_known(self._arrays.current(), known, self.cursor, spans, self._reach, self.runs)
        return self.runs[:, :found] if found else self._none

    def lose(self, slot: int, spans: Int32s, reaching: Ints) -> int:
        """Find those before the segment in ``slot``, which is about to be evicted, that reach into it; lower the ends
        of ``spans``, and go on from the segment after it.

        Args:
            reaching: int64 [reach - 1] or more, receives their numbers, ``slot * log.stride + row``, the last first.

        Returns how many there are.
        """
        index, found = self._log.index, 0
        if self._reach > 1:
            found = core.lose_reaching(self._arrays.current(), slot, spans, reaching[: self._reach - 1])
        lane = index.lane[slot]
        if lane < len(self.cursor) and self.cursor[lane] == slot:
            self.cursor[lane] = index.next[slot]
        return found
