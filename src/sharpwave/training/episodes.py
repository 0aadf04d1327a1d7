"""Scores: every environment's running episode, and means over the last episodes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.training import figures


def running_mean(mean: float | None, value: float, alpha: float = 0.98) -> float:
    """alpha * mean + (1 - alpha) * value; the first value is its own mean."""
    return value if mean is None else alpha * mean + (1.0 - alpha) * value


@dataclass(frozen=True)
class Episode:
    """One that has ended: the sum of its unclipped rewards, its length, and the environment that played it."""

    reward: float
    steps: int
    lane: int


class Episodes:
    """Adds up what the environments give.

    Args:
        scored: bool [lanes], the environments whose rewards go into the means; None: all.

    Attributes:
        count: episodes ended, of all environments.
        avg_reward: running mean (alpha .98) of their rewards, None before the first.  last: rewards of the last 100.
    """

    def __init__(self, lanes: int, window: int = 100, scored: npt.NDArray[np.bool_] | None = None) -> None:
        self.scored = np.ones(lanes, np.bool_) if scored is None else scored
        self.count = 0
        self.avg_reward: float | None = None
        self.last: deque[float] = deque(maxlen=window)
        self._reward = np.zeros(lanes)
        self._steps = np.zeros(lanes, np.int64)

    def add(self, reward: npt.NDArray[np.floating], ended: npt.NDArray[np.bool_]) -> list[Episode]:
        """Count one step of every environment; returns the episodes that ended with it.

        Args:
            reward: float [N], unclipped.  ended: bool [N], terminated or truncated.
        """
        self._reward += reward
        self._steps += 1
        finished = []
        for lane in np.flatnonzero(ended):
            episode = Episode(float(self._reward[lane]), int(self._steps[lane]), int(lane))
            self._reward[lane] = 0.0
            self._steps[lane] = 0
            self.ended(episode)
            finished.append(episode)
        return finished

    def ended(self, episode: Episode) -> None:
        """Count an episode that was added up elsewhere."""
        self.count += 1
        if not self.scored[episode.lane]:
            return
        self.last.append(episode.reward)
        self.avg_reward = running_mean(self.avg_reward, episode.reward)

    def break_off(self) -> None:
        """Every environment begins a new episode; those that had not ended are not counted."""
        self._reward[:] = 0.0
        self._steps[:] = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, of the episodes that have ended."""
        return {"count": self.count, "avg_reward": self.avg_reward, "last": list(self.last)}

    def load(self, values: dict[str, Any]) -> None:
        """Inverse of :meth:`to_dict`; no episode has begun.  Raises: KeyError, ValueError, OverflowError."""
        self.break_off()
        self.count, self.avg_reward = figures.count(values, "count"), figures.mean(values, "avg_reward")
        self.last.clear()
        self.last.extend(figures.scores(values, "last"))

    @property
    def mean_reward(self) -> float | None:
        """Mean over the last 100 episodes, or over all if there were fewer; None before the first."""
        return float(np.mean(self.last)) if self.last else None
