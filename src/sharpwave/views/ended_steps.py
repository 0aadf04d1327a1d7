"""Which steps' episodes have ended."""

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


class EndedSteps:
    """Steps whose episode has ended, or whose later steps were evicted before it did.

    ``spans`` int32 [slots, 2] says which rows of each segment those are (:class:`.view.View`).

    Attributes:
        spans: those of the last call.
    """

    def __init__(self, log: StepLog) -> None:
        self._log, self._arrays = log, LogArrays(log)
        self._cursor, self._tail = np.zeros(0, np.int32), np.zeros(0, np.int32)
        self._runs = np.empty((3, MAX_RUNS), np.int64)
        self.spans = np.zeros((0, 2), np.int32)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._cursor.nbytes + self._tail.nbytes + self._runs.nbytes

    def find(self, spans: Int32s) -> Ints:
        """Find those that became known since the last call, and raise the ends of ``spans``.

        Returns int64 [3, runs], as :meth:`.view.View.find`.
        """
        log, known = self._log, len(self._cursor)
        self.spans = spans
        if known < log.lanes:
            oldest = log.inventory.oldest[known:]
            self._cursor, self._tail = (np.concatenate([one, oldest]) for one in (self._cursor, self._tail))
        found = core.find_ended(self._arrays.current(), self._cursor, self._tail, spans, self._runs)
        return self._runs[:, :found]

    def lose(self, slot: int, spans: Int32s) -> None:
        """Go on from the segment after that in ``slot``, which is about to be evicted."""
        self.spans = spans
        lane = int(self._log.index.lane[slot])
        if lane < len(self._cursor):
            if self._cursor[lane] == slot:
                self._cursor[lane] = self._log.index.next[slot]
            self._tail[lane] = self._cursor[lane]  # the episode of the steps before it ends there
