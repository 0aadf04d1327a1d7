"""Rows that are resets, not steps, in loops over a vector that resets with the next step (Gymnasium's NEXT_STEP)."""

from __future__ import annotations

import numpy as np

from sharpwave.arrays import Array, Bools, Ints
from sharpwave.integrations.frame_stacks import same_bits

Named = dict[str, Array]

SURE = 4
"""Excess of rows that look like resets over ``MOST`` times the others from which those others count as resets, too."""
MOST = 3
"""Rows that look like resets for each that does not: in a world that is never reset, half of them do."""


class Resets:
    """Finder of such rows.

    A vector that resets in the step that ends an episode reports the final observation separately. One that resets with
    the next step does not; its next row has the final observation again, jumps to another one, and has no reward. A
    step in a small world, or in one that is never reset, may look like that. So a row counts as a reset only if
    most episodes begin so, and not if a lane's first observation comes again. A row that goes no farther than the step
    before it counts only if most others went farther: a loop may give the next episode's observation for the final one.

    Attributes:
        dropped: number of rows taken for resets.
    """

    def __init__(self, lanes: int) -> None:
        self.dropped = 0
        self._alike = self._others = 0  # first rows of episodes: like resets, and others
        self._may = np.zeros(lanes, np.bool_)  # the lane's episode has just ended, without a reported final observation
        self._last: dict[int, list[Array]] = {}  # its final observation, by lane, and its last step's distance
        self._came = np.zeros(lanes)
        self._first: dict[int, list[Array]] = {}  # the lane's first observation

    def copy(self) -> Resets:
        """Return a copy that can change on its own."""
        made = Resets(len(self._may))
        made.dropped, made._alike, made._others = self.dropped, self._alike, self._others
        made._may[:], made._came[:] = self._may, self._came
        made._last, made._first = self._last.copy(), self._first.copy()
        return made

    def widen(self, lanes: int) -> None:
        """Make room for more lanes."""
        more = max(0, lanes - len(self._may))
        self._may, self._came = np.pad(self._may, (0, more)), np.pad(self._came, (0, more))

    def forget(self) -> None:
        """Expect no resets after the episodes that ended so far; other episodes follow."""
        self._may[:] = False

    def find(self, before: Named, after: Named, reward: Array, ended: Bools, lanes: Ints) -> Bools:
        """Return which rows [n] are resets: bool [n].  Cost: none if no episode has just ended."""
        found = np.zeros(len(lanes), np.bool_)
        for row in np.flatnonzero(self._may[lanes]).tolist():
            lane = int(lanes[row])
            obs = _row(before, row)
            if not _same(obs, self._last[lane]):
                self._others += 1
                continue
            if ended[row]:
                continue
            sure = self._alike >= MOST * self._others + SURE
            went = _distance(obs, _row(after, row))
            if not sure and (went == 0 or _same(obs, self._first[lane])):
                continue
            alike = reward[row] == 0 and went > self._came[lane] and not _same(obs, self._first[lane])
            found[row] = reward[row] == 0 and (sure or (alike and self._alike >= MOST * self._others))
            self.dropped += int(found[row])
            self._alike += int(alike)
            self._others += int(not alike)
        return found

    def remember(self, before: Named, after: Named, ended: Bools, told: Bools, lanes: Ints, dropped: Bools) -> None:
        """Record rows [n], the ``dropped`` ones among them, and the ends that the environment reported (``told``)."""
        if len(self._first) < len(self._may):
            for row, lane in enumerate(lanes.tolist()):
                self._first.setdefault(lane, [one.copy() for one in _row(before, row)])
        self._may[lanes] = may = ended & ~told & ~dropped
        for row in np.flatnonzero(may).tolist():
            self._last[int(lanes[row])] = last = [one.copy() for one in _row(after, row)]
            self._came[lanes[row]] = _distance(_row(before, row), last)


def _row(obs: Named, row: int) -> list[Array]:
    """Return each observation's row, [1, ...]."""
    return [one[row : row + 1] for one in obs.values()]


def _distance(some: list[Array], others: list[Array]) -> float:
    """Return how far apart two rows are; texts and rows of any length count for nothing."""
    with np.errstate(invalid="ignore"):
        numbers = ((a, b) for a, b in zip(some, others, strict=True) if a.dtype != object)
        return float(sum(np.nansum(np.abs(a.astype(float) - b.astype(float))) for a, b in numbers))


def _same(some: list[Array], others: list[Array]) -> bool:
    return all(bool(same_bits(a, b)[0]) for a, b in zip(some, others, strict=True))
