"""The policy's weights in shared memory: one process publishes versions, others take the newest one that is whole."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sharpwave.agents.protocol import Agent
from sharpwave.training.actors.counters import shared_memory

LATEST, SLOTS, WORDS = 0, 8, 8
"""Words (int64) before the weights: the newest version, and from word 8 on a cache line for each of the two slots."""
VERSION, CHECKSUM = 0, 1
ATTEMPTS = 8
"""A reader is overtaken only by a writer that publishes twice while it copies; after so often it tries another time."""


class SharedWeights:
    """Two slots of float32 numbers: version v is written to slot v % 2 while readers copy the other one.

    A reader knows that its copy is whole by the slot's version before and after, and, on machines that let other cores
    see writes out of their order, by a checksum over the numbers and the version. Nobody waits for anybody: a writer
    that dies in the middle leaves the version before.

    Args:
        count: numbers.
        memory: what another process made, as it comes with the arguments of a process.
    """

    def __init__(self, count: int, memory: Any = None) -> None:
        self.count = count
        self._memory = shared_memory((SLOTS + 2 * WORDS) * 8 + 2 * count * 4) if memory is None else memory
        header = (SLOTS + 2 * WORDS) * 8
        self._words = np.frombuffer(self._memory, np.int64, header // 8)
        self._slots = np.frombuffer(self._memory, np.float32, 2 * count, header).reshape(2, count)

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedWeights, (self.count, self._memory)

    @property
    def latest(self) -> int:
        """The newest version; 0 before the first."""
        return int(self._words[LATEST])

    def publish(self, parts: Sequence[torch.Tensor]) -> int:
        """Write tensors, ``count`` numbers in all, one behind the other, as the next version, which is returned."""
        version = self.latest + 1
        slot, words = self._slots[version % 2], self._slot_words(version)
        words[VERSION] = 0
        begin = 0
        for part in parts:
            end = begin + part.numel()
            torch.from_numpy(slot[begin:end]).copy_(part.detach().reshape(-1))
            begin = end
        if begin != self.count:
            raise ValueError(f"weights: {begin} numbers, expected {self.count}")
        words[CHECKSUM] = _checksum(slot, version)
        words[VERSION] = version
        self._words[LATEST] = version
        return version

    def read(self, into: npt.NDArray[np.float32]) -> int | None:
        """Copy the newest version into float32 [count] and return it; ``None`` if there is none yet, or if it was
        overtaken again and again: then ``into`` is of no use."""
        for _ in range(ATTEMPTS):
            version = self.latest
            if version == 0:
                return None
            words = self._slot_words(version)
            if words[VERSION] != version:
                continue
            _copy(into, self._slots[version % 2])
            checksum = words[CHECKSUM]
            if words[VERSION] == version and checksum == _checksum(into, version):
                return version
        return None

    def _slot_words(self, version: int) -> npt.NDArray[np.int64]:
        begin = SLOTS + version % 2 * WORDS
        return self._words[begin : begin + WORDS]


_copy = np.copyto


def _checksum(numbers: npt.NDArray[np.float32], version: int) -> int:
    return zlib.crc32(numbers.data, version & 0xFFFFFFFF)


def shared_weights(agent: Agent) -> SharedWeights:
    """Make room for the weights of agents like this one."""
    return SharedWeights(sum(part.numel() for part in agent.policy_tensors(explore=True).values()))


def load(agent: Agent, numbers: npt.NDArray[np.float32]) -> None:
    """Let an agent act by the ``numbers`` that :meth:`SharedWeights.read` gave."""
    tensors, begin = agent.policy_tensors(explore=True), 0
    for part in tensors.values():
        end = begin + part.numel()
        part.copy_(torch.from_numpy(numbers[begin:end]).view(part.shape))
        begin = end
    agent.load_policy(tensors)
