"""What learner and actors tell each other all the time: numbers in shared memory that has no name."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np

CONTEXT = multiprocessing.get_context("spawn")
"""Processes begin anew: numba's and torch's threads do not survive a fork."""

LINE = 8
"""Words (int64) of a cache line: nobody writes into a line in which another one does."""


def shared_memory(nbytes: int) -> Any:
    """Zeros that go along with the arguments of a process.

    The file behind them is deleted as soon as it is made, so the memory goes with the last process that has it, however
    that ends: there is nothing to clean up.
    """
    return CONTEXT.RawArray("b", nbytes)


class Counters:
    """The learner's line and one for each actor; each word is written by one process only, and read by all.

    Args:
        actors: how many.  memory: what another process made.
    """

    def __init__(self, actors: int, memory: Any = None) -> None:
        self.actors = actors
        self._memory = shared_memory((1 + actors) * LINE * 8) if memory is None else memory
        self._words = np.frombuffer(self._memory, np.int64).reshape(1 + actors, LINE)

    def __reduce__(self) -> tuple[Any, ...]:
        return Counters, (self.actors, self._memory)

    # the learner's

    @property
    def stop(self) -> bool:
        """Whether actors should end."""
        return bool(self._words[0, 0])

    def set_stop(self) -> None:
        """Let them end."""
        self._words[0, 0] = 1

    @property
    def steps(self) -> int:
        """Steps of the run that are in the store: what schedules go by."""
        return int(self._words[0, 1])

    @property
    def samples(self) -> int:
        """Transitions learned from, since the ratio is counted."""
        return int(self._words[0, 2])

    def tell(self, steps: int, samples: int) -> None:
        """The learner says where it is."""
        self._words[0, 1], self._words[0, 2] = steps, samples

    # the actors'

    @property
    def made(self) -> int:
        """Steps that all actors have made in this process's run, those under way included."""
        return int(self._words[1:, 0].sum())

    def add_made(self, actor: int, steps: int) -> None:
        """An actor has made so many."""
        self._words[1 + actor, 0] += steps

    def set_made(self, actor: int, steps: int) -> None:
        """What an actor that has ended had under way is lost; the learner says so."""
        self._words[1 + actor, 0] = steps

    def beats(self, actor: int) -> int:
        """Grows as long as the actor is at work, or waits as it should."""
        return int(self._words[1 + actor, 1])

    def beat(self, actor: int) -> None:
        """The actor is at work."""
        self._words[1 + actor, 1] += 1
