"""Lanes of a store for transitions: a trajectory's transitions go to one lane, in order, in any layout of a batch.

Collectors return [environments, time], or that flattened; trajectories continue in the next batch. A transition
continues the transition of the same trajectory whose next observations equal its observations in every bit.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from sharpwave.arrays import Bools, Ints
from sharpwave.integrations.frame_stacks import same_bits
from sharpwave.integrations.resets import Resets
from sharpwave.integrations.torchrl.tensordict_layout import Named, Rows

Keyed = dict[tuple[int, int], int]
"""Lanes by key and by a count that distinguishes equal keys."""


@dataclass
class LanePlaces:
    """Lanes and order for n transitions.

    Attributes:
        lane, turn: int64 [n], the lane and the order in it.
        begins: bool [n], the transition does not continue the lane's last one. ``breaks``: and the lane's last
            episode may not have ended.
        dropped: bool [n], the row is a reset and no step.
    """

    lane: Ints
    turn: Ints
    begins: Bools
    breaks: Bools
    dropped: Bools

    def some(self, chosen: Bools) -> LanePlaces:
        """Return the places of the transitions ``chosen``, bool [n]."""
        lane, turn = self.lane[chosen], self.turn[chosen]
        return LanePlaces(lane, turn, self.begins[chosen], self.breaks[chosen], self.dropped[chosen])

    def blocks(self, kept: Bools) -> list[Ints]:
        """Return the kept transitions as int64 [T, lanes]: consecutive steps that the same lanes take together.

        Only the first steps of a block break episodes off.
        """
        order = np.lexsort((self.lane, self.turn))
        order = order[kept[order]]
        blocks: list[list[Ints]] = []
        for rows in np.split(order, np.flatnonzero(np.diff(self.turn[order])) + 1):
            same = bool(blocks) and np.array_equal(self.lane[rows], self.lane[blocks[-1][0]])
            if same and not self.breaks[rows].any():
                blocks[-1].append(rows)
            else:
                blocks.append([rows])
        return [np.stack(rows) for rows in blocks if len(rows[0])]


@dataclass
class Trajectories:
    """Unfinished trajectories.

    Attributes:
        lanes: number of lanes ever used.
        open: lanes of unfinished trajectories, by their collector's number, or else by a hash of their last
            observation, and a count that distinguishes equal keys; the least recently written first.
        last: last observations [1, ...], by lane.
        free: lanes without a trajectory, the latest last.
        ended: lanes of ended trajectories without a number, by a hash of the final observation and a count: a row that
            observes it again goes there, as it may be a reset.
        resets: finder of rows that are resets.
    """

    lanes: int = 0
    open: Keyed = field(default_factory=dict)
    last: dict[int, Named] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    ended: Keyed = field(default_factory=dict)
    resets: Resets = field(default_factory=lambda: Resets(0))

    def copy(self) -> Trajectories:
        """Return a copy that can change on its own."""
        parts = self.open.copy(), self.last.copy(), self.free.copy(), self.ended.copy(), self.resets.copy()
        return Trajectories(self.lanes, *parts)

    def anew(self, lanes: int) -> Trajectories:
        """Return new trajectories with all lanes free."""
        resets = self.resets.copy()
        resets.forget()
        return Trajectories(lanes, free=list(range(lanes)), resets=resets)

    def place(self, rows: Rows, most: int, drops: bool = True) -> LanePlaces:
        """Find each transition's lane, and remember the trajectories' last observations.

        Args:
            most: largest number of lanes; with more trajectories, the least recently written one counts as broken off.
            drops: look for rows that are resets. Rows with a collector's number are none: TorchRL's environments
                reset apart from their steps.

        Cost: one comparison of all observations; a Python step for each run of consecutive transitions.
        """
        count, numbers = len(rows), rows.trajectory
        goes_on = ~rows.ended[:-1]
        if numbers is not None:
            goes_on &= numbers[1:] == numbers[:-1]
        for name, before in rows.before.items():
            goes_on &= same_bits(rows.after[name][:-1], before[1:])
        heads = [0, *(np.flatnonzero(~goes_on) + 1).tolist()]
        lane_of, turns = np.zeros(count, np.int64), np.zeros(count, np.int64)
        begins, breaks, dropped = np.zeros((3, count), np.bool_)
        written: dict[int, int] = {}
        for head, end in zip(heads, [*heads[1:], count], strict=True):
            first = _row(rows.before, head)
            key = _hash(first) if numbers is None else int(numbers[head])
            lane = _find(self.open, key, 1 if numbers is not None else self.lanes)
            if lane is None:
                lane = self._take(most, key)
                if drops and numbers is None and self._is_reset(rows, head, lane):
                    dropped[head] = True
                    lane_of[head], head = lane, head + 1
                    if head == end:
                        self.free.append(lane)
                        continue
                begins[head] = True
            else:
                last = self.last[lane]
                begins[head] = not all(same_bits(last[name], one)[0] for name, one in first.items())
            done = written.get(lane, 0)
            breaks[head] = begins[head] and (not done or lane in self.last)
            lane_of[head:end] = lane
            turns[head:end] = np.arange(done, done + end - head)
            written[lane] = done + end - head
            self.last.pop(lane, None)
            last = _row(rows.after, end - 1)
            key = key if numbers is not None else _hash(last)
            if not rows.ended[end - 1]:
                self.last[lane] = last
                _put(self.open, key, lane)
            elif numbers is not None:
                self.free.append(lane)
            else:
                _put(self.ended, key, lane)
                self._remember(rows, end - 1, lane, False)
        for lane in written.keys() & self.last.keys():
            self.last[lane] = {name: np.array(one) for name, one in self.last[lane].items()}
        return LanePlaces(lane_of, turns, begins, breaks, dropped)

    def _take(self, most: int, key: int) -> int:
        """Return a lane for a new trajectory: that of an ended one with its first observation, if any."""
        lane = _find(self.ended, key, self.lanes)
        if lane is not None:
            return lane
        if self.free:
            return self.free.pop()
        if self.ended:
            return self.ended.pop(next(iter(self.ended)))
        if self.lanes < most:
            self.lanes += 1
            return self.lanes - 1
        return self.open.pop(next(iter(self.open)))

    def _is_reset(self, rows: Rows, row: int, lane: int) -> bool:
        """Return whether the first row of an apparent trajectory is a reset."""
        self.resets.widen(self.lanes)
        before, after = (_row(part, row) for part in (rows.before, rows.after))
        is_one = slice(row, row + 1)
        found = bool(self.resets.find(before, after, rows.reward[is_one], rows.ended[is_one], np.array([lane]))[0])
        self._remember(rows, row, lane, found)
        return found

    def _remember(self, rows: Rows, row: int, lane: int, dropped: bool) -> None:
        before, after = (_row(part, row) for part in (rows.before, rows.after))
        told, dropped_rows = np.zeros(1, np.bool_), np.array([dropped])
        self.resets.widen(self.lanes)
        self.resets.remember(before, after, rows.ended[row : row + 1], told, np.array([lane]), dropped_rows)


def _find(lanes: Keyed, key: int, alike: int) -> int | None:
    """Remove the first of at most ``alike`` lanes with this key, and return it; ``None``: no such lane."""
    found = next((one for one in ((key, k) for k in range(alike)) if one in lanes), None)
    return None if found is None else lanes.pop(found)


def _put(lanes: Keyed, key: int, lane: int) -> None:
    lanes[next((key, k) for k in itertools.count() if (key, k) not in lanes)] = lane


def _row(obs: Named, row: int) -> Named:
    return {name: one[row : row + 1] for name, one in obs.items()}


def _hash(obs: Named) -> int:
    """Return a hash of observations [1, ...]."""
    rows = (one[0] if one.dtype == object else one for one in obs.values())
    return hash(tuple(row.tobytes() if isinstance(row, np.ndarray) else row for row in rows))
