"""Which transition of a store is at each place of a ring buffer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sharpwave.store import Store

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NONE = -1


class Places:
    """Places of a ring buffer, a run of the same length for each lane, and the transitions at them.

    Attributes:
        ids: int64 [places], in the store that ``find`` was last given; -1: none, or it is not known yet.
        absent: bool [places], there is a transition that the store has not: evicted, or never written.
    """

    def __init__(self, count: int, lanes: int) -> None:
        self.ids = np.full(count, NONE)
        self.absent = np.zeros(count, np.bool_)
        self._numbers = np.full(count, NONE)  # of each place's transition among those of its lane
        self._written = np.zeros(lanes, np.int64)  # transitions of each lane
        self._each = count // lanes

    def write(self, lanes: Ints, stored: Bools) -> None:
        """Count transitions that were written to lanes of the store. ``stored``: bool [n], which of them."""
        self._written[lanes] += stored

    def put(self, places: Ints, lanes: Ints, stored: Bools, ids: Ints | None) -> None:
        """Put the newest transitions of lanes at places. ``ids``: ``None``, not known yet."""
        self.ids[places] = NONE if ids is None else ids
        self._numbers[places] = self._written[lanes] - 1
        self.absent[places] = ~stored

    def find(self, store: Store) -> None:
        """Find all ids anew, in a store that has the same transitions."""
        places = np.flatnonzero((self._numbers >= 0) & ~self.absent)
        lanes = places // self._each
        ends = np.zeros(len(self._written), np.int64)
        ends[: store.lanes] = store.lane_steps
        steps = ends[lanes] - self._written[lanes] + self._numbers[places]
        there = steps >= 0
        self.ids[:] = NONE
        self.ids[places[there]] = store.ids(lanes[there], steps[there], missing="mask")
        self.absent[places] = self.ids[places] < 0

    def lose(self, gone: Ints) -> Ints:
        """Mark transitions as evicted, and all that are older in their lanes; return the places of those."""
        newest = np.full(len(self._written), NONE)
        np.maximum.at(newest, gone // self._each, self._numbers[gone])
        lanes = np.flatnonzero(newest >= 0)
        places = (lanes[:, None] * self._each + np.arange(self._each)).reshape(-1)
        numbers = self._numbers[places]
        lost: Ints = places[(numbers >= 0) & (numbers <= np.repeat(newest[lanes], self._each)) & ~self.absent[places]]
        self.absent[lost] = True
        return lost

    @property
    def filled(self) -> Bools:
        """Places at which there is or was a transition: bool [places]."""
        return self._numbers >= 0

    def clear(self) -> None:
        """Forget all transitions."""
        self.ids[:], self._numbers[:], self.absent[:] = NONE, NONE, False
