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


class KnownSteps(core.KnownSteps):
    """Steps of which the ``reach`` steps that begin with each are known, or those up to their episode's end.

    ``spans`` int32 [slots, 2] says which rows of each segment those are (:class:`.view.View`).

    Args:
        foresees: the ``next_obs`` of a lane's last step makes it known, though nothing was appended after it.

    Attributes:
        runs: int64 [3, MAX_RUNS], of which ``find`` returns the first.
    """

    def __init__(self, log: StepLog, reach: int, foresees: bool = False) -> None:
        super().__init__(reach)
        self._log, self._foresees, self._arrays = log, foresees, LogArrays(log)
        self._nothing = np.zeros(0, np.uint8)
        self.runs = np.empty((3, MAX_RUNS), np.int64)
        self._none = self.runs[:, :0]

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return 4 * self.lanes + self.runs.nbytes

    def find(self, spans: Int32s) -> Ints:
        """Find those that became known since the last call, and raise the ends of ``spans``.

        Returns int64 [3, runs], as :meth:`.view.View.find`.
        """
        log = self._log
        if self.lanes < log.lanes:
            self.follow(log.inventory.oldest)
        known = log.opened.successor_known if self._foresees else self._nothing
        found = self.find_known(self._arrays.current(), known, spans, self.runs)
        return self.runs[:, :found] if found else self._none


def lost(finder: core.Finder, log: core.Log, slot: int, spans: Int32s) -> Ints:
    """Return the items that need the segment in ``slot``, as :meth:`.view.View.lose`."""
    items = np.empty(finder.most_lost(log, slot), np.int64)
    return items[: finder.lose(log, slot, spans, items)]
