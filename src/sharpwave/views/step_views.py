"""Views that the core finds and fills: the known steps of a log, and the code shared by transitions and windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.native import core
from sharpwave.views.gather import LogArrays
from sharpwave.views.layout import Arrays, BatchTarget
from sharpwave.views.view import MAX_RUNS, DividedView

if TYPE_CHECKING:
    from sharpwave.log.step_log import StepLog

B = TypeVar("B")
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

ARRAY_BYTES = 160
"""Bytes of a numpy array and of its place in a dictionary, beside its values."""


class KnownSteps(core.KnownSteps):
    """Steps whose next ``reach`` steps, themselves included, are known, up to their episode's end.

    ``spans`` int32 [slots, 2] gives the rows of these steps in each segment (:class:`.view.View`).

    Args:
        foresees: the ``next_obs`` of a lane's last step makes it known before any later step is appended.

    Attributes:
        runs: int64 [3, MAX_RUNS]; ``find`` returns the first ones.
    """

    def __init__(self, log: StepLog, arrays: LogArrays, reach: int, foresees: bool) -> None:
        super().__init__(reach)
        self._log, self._foresees, self._arrays = log, foresees, arrays
        self._nothing = np.zeros(0, np.uint8)
        self.runs = np.empty((3, MAX_RUNS), np.int64)
        self._none = self.runs[:, :0]

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return 4 * self.lanes + self.runs.nbytes

    def find(self, spans: Int32s) -> Ints:
        """Find the steps that became known since the last call, as :meth:`.view.View.find`."""
        log = self._log
        if self.lanes < log.lanes:
            self.follow(log.inventory.oldest)
        known = log.opened.successor_known if self._foresees else self._nothing
        found = self.find_known(self._arrays.current(), known, spans, self.runs)
        return self.runs[:, :found] if found else self._none


class EndedSteps:
    """Steps whose episode has ended, or whose later steps were evicted before it did.

    Attributes:
        spans: spans at the last call. ``runs``: as in ``KnownSteps``.
        cursor, tail: int32 [lanes], slots of the segments from which on each lane is followed, and searched.
    """

    def __init__(self, log: StepLog, arrays: LogArrays) -> None:
        self._log, self._arrays = log, arrays
        self.cursor, self.tail = np.zeros(0, np.int32), np.zeros(0, np.int32)
        self.runs = np.empty((3, MAX_RUNS), np.int64)
        self.spans = np.zeros((0, 2), np.int32)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.cursor.nbytes + self.tail.nbytes + self.runs.nbytes

    def find(self, spans: Int32s) -> Ints:
        """Find the steps whose episode was seen to end since the last call, as :meth:`.view.View.find`."""
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


class StepView(DividedView[B], Generic[B]):
    """View whose items the core finds among a log's known steps.

    Attributes:
        known: finder of the steps. ``expected``: TD errors of steps that await being items, by slot.
    """

    places_arrays = True

    def serve(self, log: StepLog, reach: int, foresees: bool = False) -> None:
        """Begin to serve a log, whose steps are known as in ``KnownSteps``."""
        self._log, self._spec, self._arrays = log, log.spec, LogArrays(log)
        self.known = KnownSteps(log, self._arrays, reach, foresees)
        self.expected: dict[int, npt.NDArray[np.float32]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.known.nbytes + sum(errors.nbytes + ARRAY_BYTES for errors in self.expected.values())

    def finder(self) -> core.Finder:
        """Return the finder of items that are lost with a segment."""
        return self.known

    def lose(self, slot: int, spans: Int32s) -> Ints:
        """Find the items that need a step of the segment."""
        self.expected.pop(slot, None)
        log, finder = self._arrays.current(), self.finder()
        items = np.empty(finder.most_lost(log, slot), np.int64)
        return items[: finder.lose(log, slot, spans, items)]

    def lost_by(self) -> tuple[core.Finder, dict[int, Any]] | None:
        """Return the finder, unless a class has a ``lose`` of its own."""
        return (self.finder(), self.expected) if type(self).lose is StepView.lose else None

    def expect(self, slot: int, td_error: npt.NDArray[np.float32]) -> None:
        """Note TD errors [rows] of the steps in ``slot``."""
        self.expected[slot] = td_error

    def fill(self, target: BatchTarget) -> None:
        """Compute returns and decode every field."""
        reads, readers = self.locate(target), self._arrays.readers()
        self.decode(target, reads, [readers[read.field] for read in reads])


def numbers(arrays: Arrays, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the arrays of a draw, and the arrays with ``names``, by their attribute of a batch."""
    return {name.removeprefix("."): arrays[name] for name in ("weights", "probabilities", "ids", *names)}
