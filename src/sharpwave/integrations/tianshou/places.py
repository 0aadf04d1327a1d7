"""Mapping from the places of one or several ring buffers to a store's transitions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sharpwave.store import Store

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NONE = -1


class Places:
    """Places of ring buffers, and the transitions at them.

    Attributes:
        ids: int64 [places], in the store last given to ``find``; -1: none, or not known yet.
        absent: bool [places], the place's transition is not in the store: evicted, or never written.
    """

    def __init__(self, count: int, lanes: int) -> None:
        self.ids = np.full(count, NONE)
        self.absent = np.zeros(count, np.bool_)
        self._numbers = np.full(count, NONE)  # number of each place's transition in its lane
        self._lanes = np.full(count, NONE)  # lane of each place's transition
        self._written = np.zeros(lanes, np.int64)  # number of transitions of each lane

    def write(self, lanes: Ints, stored: Bools) -> None:
        """Count transitions written to lanes of the store. ``stored``: bool [n], which rows were."""
        self._written[lanes] += stored

    def put(self, places: Ints, lanes: Ints, stored: Bools, ids: Ints | None) -> None:
        """Put the newest transitions of lanes at places. ``ids``: ``None``, not known yet."""
        self.ids[places] = NONE if ids is None else ids
        self._lanes[places], self._numbers[places] = lanes, self._written[lanes] - 1
        self.absent[places] = ~stored

    def find(self, store: Store) -> None:
        """Find all ids again, in a store with the same transitions."""
        places = np.flatnonzero((self._numbers >= 0) & ~self.absent)
        lanes = self._lanes[places]
        ends = np.zeros(len(self._written), np.int64)
        ends[: store.lanes] = store.lane_steps
        steps = ends[lanes] - self._written[lanes] + self._numbers[places]
        there = steps >= 0
        self.ids[:] = NONE
        self.ids[places[there]] = store.ids(lanes[there], steps[there], missing="mask")
        self.absent[places] = self.ids[places] < 0

    def lose(self, gone: Ints) -> Ints:
        """Mark transitions, and all older ones in their lanes, as evicted; return their places."""
        newest = np.full(len(self._written), NONE)
        np.maximum.at(newest, self._lanes[gone], self._numbers[gone])
        lost: Ints = np.flatnonzero(self.filled & (self._numbers <= newest[self._lanes]) & ~self.absent)
        self.absent[lost] = True
        return lost

    def copy(self, places: Ints, to: Ints) -> None:
        """Copy the transitions at some places to others."""
        for one in (self.ids, self.absent, self._numbers, self._lanes):
            one[to] = one[places]

    @property
    def filled(self) -> Bools:
        """Places that have or had a transition: bool [places]."""
        return self._numbers >= 0

    def clear(self, places: Ints | slice = slice(None)) -> None:
        """Forget the transitions at places."""
        self.ids[places], self._numbers[places], self.absent[places] = NONE, NONE, False
