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
        spans: those of the last call. ``runs``: int64 [3, MAX_RUNS], of which ``find`` returns the first.
        cursor, tail: int32 [lanes], slots of the segments from which on each lane is followed, and searched.
    """

    def __init__(self, log: StepLog) -> None:
        self._log, self._arrays = log, LogArrays(log)
        self.cursor, self.tail = np.zeros(0, np.int32), np.zeros(0, np.int32)
        self.runs = np.empty((3, MAX_RUNS), np.int64)
        self.spans = np.zeros((0, 2), np.int32)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.cursor.nbytes + self.tail.nbytes + self.runs.nbytes

    def find(self, spans: Int32s) -> Ints:
        """Find those that became known since the last call, and raise the ends of ``spans``.

        Returns int64 [3, runs], as :meth:`.view.View.find`.
        """
        log, known = self._log, len(self.cursor)
        self.spans = spans
        if known < log.lanes:
            oldest = log.inventory.oldest[known:]
            self.cursor, self.tail = (np.concatenate([one, oldest]) for one in (self.cursor, self.tail))
        found = core.find_ended(self._arrays.current(), self.cursor, self.tail, spans, self.runs)
        return self.runs[:, :found]

    def lose(self, slot: int, spans: Int32s) -> None:
        """Go on from the segment after that in ``slot``, which is about to be evicted."""
        self.spans = spans
        lane = int(self._log.index.lane[slot])
        if lane < len(self.cursor):
            if self.cursor[lane] == slot:
                self.cursor[lane] = self._log.index.next[slot]
            self.tail[lane] = self.cursor[lane]  # the episode of the steps before it ends there
