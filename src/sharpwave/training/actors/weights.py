"""The policy's weights in shared memory: the learner publishes versions, actors copy the newest complete one."""

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
"""Header in words (int64): the newest version in word 0, then from word 8 a cache line for each of the two slots."""
VERSION, CHECKSUM = 0, 1
"""Words of a slot's cache line."""
ATTEMPTS = 8
"""Attempts of a read. One fails only if the learner publishes twice during the copy; the actor reads again later."""


class SharedWeights:
    """Lock-free double buffer of weights: version v is written to slot v % 2 while readers copy the other slot.

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
        self._slots = np.frombuffer(self._memory, np.float32, 2 * count, header).reshape(2, count)

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedWeights, (self.count, self._memory)

    @property
    def latest(self) -> int:
        """Newest published version; 0 before the first."""
        return int(self._words[LATEST])

    def publish(self, parts: Sequence[torch.Tensor]) -> int:
        """Publish tensors, concatenated, as the next version and return its number.

        Raises:
            ValueError: they do not hold ``count`` numbers in all.
        """
        version = self.latest + 1
        slot, words = self._slots[version % 2], self._slot_words(version)
        words[VERSION] = 0
        begin = 0
        for part in parts:
            end = begin + part.numel()
            torch.from_numpy(slot[begin:end]).copy_(part.detach().reshape(-1))
            begin = end
        if begin != self.count:
            raise ValueError(f"weights: got {begin:,} numbers, expected {self.count:,}")
        words[CHECKSUM] = _checksum(slot, version)
        words[VERSION] = version
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
