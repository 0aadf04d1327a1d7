"""Memory that learner and actors share: counters of their progress, and the policy's weights.

It has no name: its backing file is unlinked at once, so the system frees it with the last process that maps it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sharpwave.agents.protocol import Agent
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
        """Number of steps of all actors since this learner process began, including unsent ones."""
        return int(self._words[1:, 0].sum())

    def add_made(self, actor: int, steps: int) -> None:
        """Count steps that an actor has made."""
        self._words[1 + actor, 0] += steps

    def set_made(self, actor: int, steps: int) -> None:
        """Correct the steps of a dead actor to the number received from it. Called by the learner."""
        self._words[1 + actor, 0] = steps

    def beats(self, actor: int) -> int:
        """Return an actor's heartbeat count, which grows while it works or waits for the learner."""
        return int(self._words[1 + actor, 1])

    def beat(self, actor: int) -> None:
        """Count a heartbeat of an actor."""
        self._words[1 + actor, 1] += 1


# weights

LATEST, SLOTS, WORDS = 0, 8, 8
"""Header in words (int64): the newest version in word 0, then from word 8 a cache line for each of the two slots."""
VERSION, CHECKSUM = 0, 1
"""Words of a slot's cache line."""
ATTEMPTS = 8
"""Attempts of a read. One fails only if the learner publishes twice during the copy; the actor reads again later."""


class SharedWeights:
    """Lock-free double buffer of weights: a new version is written to one slot while readers copy the other.

    A reader accepts its copy if the slot's version was the same before and after, and if a checksum over the weights
    and the version matches, which also catches writes that another core sees out of order. No process waits for
    another: if the writer dies in the middle, readers keep the previous version.

    Args:
        count: float32 numbers in a version.
        memory: shared memory of an existing instance, passed on by pickling to a child process; None: allocate it.
    """

    def __init__(self, count: int, memory: Any = None) -> None:
        self.count = count
        self._memory = shared_memory((SLOTS + 2 * WORDS) * 8 + 2 * count * 4) if memory is None else memory
        header = (SLOTS + 2 * WORDS) * 8
        self._words = np.frombuffer(self._memory, np.int64, header // 8)
        self._headers = self._words[SLOTS:].reshape(2, WORDS)
        self._slots = np.frombuffer(self._memory, np.float32, 2 * count, header).reshape(2, count)

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedWeights, (self.count, self._memory)

    @property
    def latest(self) -> int:
        """Newest published version; 0 before the first."""
        return int(self._words[LATEST])

    def publish(self, parts: Sequence[torch.Tensor], version: int = 0) -> int:
        """Publish tensors, concatenated, and return the number of their version.

        Args:
            version: larger than all earlier versions; 0: the next one.

        Raises:
            ValueError: their size differs from ``count`` numbers.
        """
        version = version or self.latest + 1
        number = int(self._headers[0, VERSION] == self.latest)  # the slot that nobody reads
        slot, header = self._slots[number], self._headers[number]
        header[VERSION] = 0
        begin = 0
        for part in parts:
            end = begin + part.numel()
            torch.from_numpy(slot[begin:end]).copy_(part.detach().reshape(-1))
            begin = end
        if begin != self.count:
            raise ValueError(f"weights: got {begin:,} numbers, expected {self.count:,}")
        header[CHECKSUM] = _checksum(slot, version)
        header[VERSION] = version
        self._words[LATEST] = version
        return version

    def read(self, into: npt.NDArray[np.float32]) -> int | None:
        """Copy the newest version into ``into``, float32 [count], and return its number.

        Returns:
            None: nothing was published yet, or every attempt was overtaken by the writer; ``into`` is then undefined.
        """
        for _ in range(ATTEMPTS):
            version = self.latest
            if version == 0:
                return None
            for slot, header in zip(self._slots, self._headers, strict=True):
                if header[VERSION] != version:
                    continue
                _copy(into, slot)
                checksum = header[CHECKSUM]
                if header[VERSION] == version and checksum == _checksum(into, version):
                    return version
        return None


_copy = np.copyto


def _checksum(numbers: npt.NDArray[np.float32], version: int) -> int:
    return zlib.crc32(numbers.data, version & 0xFFFFFFFF)


def shared_weights(agent: Agent) -> SharedWeights:
    """Allocate shared memory for the weights of agents like ``agent``."""
    return SharedWeights(sum(part.numel() for part in agent.policy_tensors(explore=True).values()))


def load(agent: Agent, numbers: npt.NDArray[np.float32]) -> None:
    """Load weights that ``SharedWeights.read`` copied into an agent's policy."""
    tensors, begin = agent.policy_tensors(explore=True), 0
    for part in tensors.values():
        end = begin + part.numel()
        part.copy_(torch.from_numpy(numbers[begin:end]).view(part.shape))
        begin = end
    agent.load_policy(tensors)
