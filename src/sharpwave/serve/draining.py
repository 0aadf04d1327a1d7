"""Drain of shards: which of their steps are due to be evicted, by the order in which all shards evict theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sharpwave.errors import DamagedError

MAX_MARKS = 64
EVERYTHING = 1 << 62


@dataclass(frozen=True)
class Count:
    """Steps that a shard holds, and ever had."""

    steps: int
    total: int

    @property
    def evicted(self) -> int:
        """Steps that it had and holds no longer."""
        return self.total - self.steps


@dataclass
class Drain:
    """Progress of the drain of the shards from ``keeps`` on.

    A mark is a pair of numbers: what was appended to a drained shard up to its second number had come before what
    was appended to those that stay, all together, after its first. So when those have evicted as many steps as the
    first says, the drained shard's steps up to the second are due. Between marks it is in proportion.

    Attributes:
        keeps: how many shards stay. ``at_once``: everything is due now.
        marks: by number of a drained shard.
    """

    keeps: int
    at_once: bool = False
    marks: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    _seen: dict[int, tuple[int, int]] = field(default_factory=dict)  # total and evicted of those that stay
    _lost: dict[int, int] = field(default_factory=dict)  # totals of their earlier lives, which were lost

    def begin(self, number: int, own: Count, staying: Sequence[Count]) -> None:
        """Begin with one shard, which has had ``own`` steps, beside those that stay."""
        evicted, total = self._of_all(staying)
        self.marks[number] = [(evicted, own.evicted), (total, own.total)]

    def due(self, number: int, staying: Sequence[Count]) -> int:
        """Return how many of the first steps that a drained shard ever had are to be evicted by now."""
        if self.at_once:
            return EVERYTHING
        evicted, _ = self._of_all(staying)
        marks = self.marks[number]
        if evicted <= marks[0][0]:
            return marks[0][1]
        return int(np.interp(evicted, [x for x, _ in marks], [y for _, y in marks]))

    def over(self, number: int, staying: Sequence[Count]) -> bool:
        """Return whether all that a shard held when its drain began is due: who still writes has to leave it."""
        return self.at_once or self._of_all(staying)[0] > self.marks[number][1][0]

    def appended(self, number: int, own: Count, staying: Sequence[Count]) -> bool:
        """Note what a drained shard has had since, of episodes that were under way; return whether that is news."""
        marks = self.marks[number]
        if own.total <= marks[-1][1]:
            return False
        if len(marks) >= MAX_MARKS:
            marks.pop()
        marks.append((self._of_all(staying)[1], own.total))
        return True

    def without(self, number: int) -> Drain:
        """Return the drain of the other shards."""
        return replace(self, marks={one: marks for one, marks in self.marks.items() if one != number})

    def _of_all(self, staying: Sequence[Count]) -> tuple[int, int]:
        """Return how many steps the shards that stay have evicted, and have had, all together."""
        evicted = total = 0
        for number, one in enumerate(staying):
            before = self._seen.get(number, (0, 0))
            if one.total < before[1]:  # it began anew, empty: all that it had is gone
                self._lost[number] = self._lost.get(number, 0) + before[0]
            self._seen[number] = one.total, one.evicted
            evicted += self._lost.get(number, 0) + one.evicted
            total += self._lost.get(number, 0) + one.total
        return evicted, total

    def state(self) -> dict[str, Any]:
        """Return JSON values, for ``of``."""
        return {
            "keeps": self.keeps,
            "at_once": self.at_once,
            "marks": {str(number): marks for number, marks in self.marks.items()},
            "seen": {str(number): seen for number, seen in self._seen.items()},
            "lost": {str(number): steps for number, steps in self._lost.items()},
        }

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Drain:
        """Return the drain that ``state`` returned.  Raises: DamagedError."""
        try:
            return cls(
                int(state["keeps"]),
                bool(state["at_once"]),
                {int(number): [(int(x), int(y)) for x, y in marks] for number, marks in state["marks"].items()},
                {int(number): (int(total), int(gone)) for number, (total, gone) in state["seen"].items()},
                {int(number): int(steps) for number, steps in state["lost"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedError(f"cluster.json: draining {state!r} ({error!r})") from error
