"""Counters that learner and actors share: progress, heartbeats and the stop flag, in anonymous shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from sharpwave.serve.supervisor import CONTEXT

UNLIMITED = (1 << 63) - 1
LINE = 8
"""Words (int64) of a cache line. Each process writes to a line of its own, so that none invalidates another's."""


def shared_memory(nbytes: int) -> Any:
    """Allocate zeroed shared memory that can be passed to a child process as an argument.

    Its backing file is unlinked at once, so the system frees the memory with the last process that maps it, even
    after a crash.
    """
    return CONTEXT.RawArray("b", nbytes)


class Counters:
    """Counters of a run: one cache line for the learner and one for each actor, readable by all processes.

    Each word has one writer, except that the learner corrects the steps of an actor that has died.

    Args:
        actors: number of actors; with central inference one more, the process that infers.
        memory: shared memory of an existing instance, passed on by pickling to a child process; None: allocate it.
    """

    def __init__(self, actors: int, memory: Any = None) -> None:
        self.actors = actors
        self._memory = shared_memory((1 + actors) * LINE * 8) if memory is None else memory
        self._words = np.frombuffer(self._memory, np.int64).reshape(1 + actors, LINE)
        if memory is None:
            self.set_limit(UNLIMITED)

    def __reduce__(self) -> tuple[Any, ...]:
        return Counters, (self.actors, self._memory)

    # written by the learner

    @property
    def stop(self) -> bool:
        """Whether actors are to stop."""
        return bool(self._words[0, 0])

    def set_stop(self) -> None:
        """Tell all actors to stop."""
        self._words[0, 0] = 1

    @property
    def steps(self) -> int:
        """Steps of the run that are in the store; schedules follow them."""
        return int(self._words[0, 1])

    @property
    def samples(self) -> int:
        """Transitions sampled since the replay ratio is counted."""
        return int(self._words[0, 2])

    def tell(self, steps: int, samples: int) -> None:
        """Publish the learner's progress to the actors."""
        self._words[0, 1], self._words[0, 2] = steps, samples

    @property
    def limit(self) -> int:
        """Steps that these actors may make in all; actors of a node are granted some at a time."""
        return int(self._words[0, 3])

    def set_limit(self, steps: int) -> None:
        """Let these actors make so many steps in all."""
        self._words[0, 3] = steps

    # written by actors

    @property
    def made(self) -> int:
        """Steps that all actors have made since this learner process began, unsent ones included."""
        return int(self._words[1:, 0].sum())

    def add_made(self, actor: int, steps: int) -> None:
        """Count steps that an actor has made."""
        self._words[1 + actor, 0] += steps

    def set_made(self, actor: int, steps: int) -> None:
        """Correct the steps of an actor that has died to those received from it. Called by the learner."""
        self._words[1 + actor, 0] = steps

    def beats(self, actor: int) -> int:
        """Return an actor's heartbeat count, which grows while it works or waits for the learner."""
        return int(self._words[1 + actor, 1])

    def beat(self, actor: int) -> None:
        """Count a heartbeat of an actor."""
        self._words[1 + actor, 1] += 1
