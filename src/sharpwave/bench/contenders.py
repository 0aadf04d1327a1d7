"""Contenders: the protocol of the compared replay memories, and Sharpwave's implementation.

Every contender stores as its action the step's number in the recording, so that its samples can be checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import sharpwave as sw
from sharpwave.bench.played import PlayedSteps

CHUNK = 64
"""Time steps of a recording that are read at once."""
ALPHA, BETA = 0.6, 0.4

Array = npt.NDArray[Any]


@dataclass
class Sampled:
    """Batch to be checked: [B, *obs_shape] observations and successors, and the numbers of the steps."""

    obs: Array
    next_obs: Array
    number: Array


class Contender(Protocol):
    """Replay memory of a library in one configuration. Timed methods do only what a user's code would do."""

    def items(self, recording: PlayedSteps, begin: int, end: int) -> Iterator[Any]:
        """Yield arguments of ``add`` for all lanes' steps of ``begin <= t < end``."""

    def build(self, recording: PlayedSteps, steps: int) -> None:
        """Make an empty buffer for ``steps`` steps like those of ``recording``."""

    def add(self, item: Any) -> None:
        """Add the steps of an item."""

    def sample(self, batch: int) -> Any:
        """Return a uniform batch."""

    def prioritize(self, fill: Callable[[], None]) -> bool:
        """Make prioritized sampling ready (``fill`` adds the steps again); ``False``: the library has none."""

    def sample_prioritized(self, batch: int, td_error: Array) -> Any:
        """Return a prioritized batch, its priorities updated."""

    def seen(self, sampled: Any) -> Sampled:
        """Convert what ``sample`` returned, for checking."""


def times(recording: PlayedSteps, begin: int, end: int) -> Iterator[tuple[int, int, npt.NDArray[np.int64]]]:
    """Yield (start, stop, numbers of all lanes' steps [stop - start, lanes]) for chunks of ``begin <= t < end``."""
    for start in range(begin, end, CHUNK):
        stop = min(end, start + CHUNK)
        yield start, stop, np.arange(start * recording.lanes, stop * recording.lanes).reshape(-1, recording.lanes)


class Sharpwave:
    """Contender ``sharpwave.Store``: one frame a step; stack and successor are built when sampling."""

    def __init__(self, codec: str) -> None:
        self.codec = codec

    def items(self, recording: PlayedSteps, begin: int, end: int) -> Iterator[Any]:
        for start, stop, number in times(recording, begin, end):
            obs = np.array(recording.obs[start:stop])
            for i, t in enumerate(range(start, stop)):
                ended = recording.final_place[t].max() >= 0
                yield {
                    "obs": obs[i],
                    "action": number[i],
                    "reward": recording.reward[t],
                    "terminated": recording.terminated[t],
                    "truncated": recording.truncated[t],
                    "final_obs": recording.next_frames(t, t + 1)[0] if ended else None,
                }

    def build(self, recording: PlayedSteps, steps: int) -> None:
        obs = sw.Field(recording.frame_shape, str(recording.obs.dtype), stack=recording.stack)
        self.store = sw.Store(sw.Spec(obs=obs, action=sw.Field((), "int64")), capacity=steps, codec={"obs": self.codec})
        self.prioritized = self.store.transitions(sampler=sw.Prioritized(alpha=ALPHA, beta=BETA))
        self.uniform = self.store.transitions()

    def add(self, item: Any) -> None:
        self.store.extend(**item)

    def sample(self, batch: int) -> Any:
        return self.uniform.sample(batch)

    def prioritize(self, fill: Callable[[], None]) -> bool:
        return True

    def sample_prioritized(self, batch: int, td_error: Array) -> Any:
        sampled = self.prioritized.sample(batch)
        self.prioritized.update_priorities(sampled.ids, td_error)
        return sampled

    def seen(self, sampled: Any) -> Sampled:
        return Sampled(sampled.obs, sampled.next_obs, sampled.action)
