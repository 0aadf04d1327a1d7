"""Which lane of a store each transition goes to: those of a trajectory to one, in order, however a batch is laid out.

Collectors hand out [environments, time], or that flattened; trajectories go on in the next batch. A transition goes on
from the one of the same trajectory whose next observations are, in every bit, its observations.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sharpwave.integrations.frame_stacks import same_bits
from sharpwave.integrations.torchrl.layout import Named, Rows

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass
class Places:
    """Where n transitions go.

    Attributes:
        lane, turn: int64 [n], the lane and the order in it.
        begins: bool [n], goes on from nothing that the lane holds. ``breaks``: and what the lane holds may not have
            ended.
    """

    lane: Ints
    turn: Ints
    begins: Bools
    breaks: Bools

    def blocks(self, kept: Bools) -> list[Ints]:
        """Return the kept ones, as int64 [T, lanes]: steps that the same lanes take together, one after the other.

        Only the first ones of a block break episodes off.
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
    """Trajectories under way.

    Attributes:
        lanes: lanes that were ever used.
        open: lanes of those under way, by their collector's number, or else by a hash of what they lead to, and a count
            of those that have the same; the one written to least recently first.
        last: what they lead to, by lane.
        free: lanes without one, the latest last.
    """

    lanes: int = 0
    open: dict[tuple[int, int], int] = field(default_factory=dict)
    last: dict[int, Named] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)

    def copy(self) -> Trajectories:
        """Return one that can be changed while this is kept."""
        return Trajectories(self.lanes, self.open.copy(), self.last.copy(), self.free.copy())

    def place(self, rows: Rows, most: int) -> Places:
        """Find each transition's lane, and remember what trajectories lead to.

        Args:
            most: lanes; where there are more trajectories, the one written to least recently counts as broken off.

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
        begins, breaks = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        written: dict[int, int] = {}
        for head, end in zip(heads, [*heads[1:], count], strict=True):
            first = {name: one[head] for name, one in rows.before.items()}
            key = _hash(first) if numbers is None else int(numbers[head])
            lane = self._find(key, 1 if numbers is not None else self.lanes)
            if lane is None:
                lane = self._take(most)
                begins[head] = True
            else:
                last = self.last[lane]
                begins[head] = not all(same_bits(last[name][None], one[None])[0] for name, one in first.items())
            done = written.get(lane, 0)
            breaks[head] = begins[head] and (not done or lane in self.last)
            lane_of[head:end] = lane
            turns[head:end] = np.arange(done, done + end - head)
            written[lane] = done + end - head
            self.last.pop(lane, None)
            if rows.ended[end - 1]:
                self.free.append(lane)
            else:
                self.last[lane] = {name: one[end - 1] for name, one in rows.after.items()}
                key = key if numbers is not None else _hash(self.last[lane])
                self.open[next((key, k) for k in itertools.count() if (key, k) not in self.open)] = lane
        for lane in written.keys() & self.last.keys():
            self.last[lane] = {name: np.array(one) for name, one in self.last[lane].items()}
        return Places(lane_of, turns, begins, breaks)

    def _find(self, key: int, alike: int) -> int | None:
        """Return the lane of the first of at most so many trajectories under way that have this key."""
        found = next((one for one in ((key, k) for k in range(alike)) if one in self.open), None)
        return None if found is None else self.open.pop(found)

    def _take(self, most: int) -> int:
        if self.free:
            return self.free.pop()
        if self.lanes < most:
            self.lanes += 1
            return self.lanes - 1
        return self.open.pop(next(iter(self.open)))


def _hash(obs: Named) -> int:
    return hash(tuple(one.tobytes() for one in obs.values()))
