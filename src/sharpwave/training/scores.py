"""Scores: sums over each lane's current episode, and means over episodes that have ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.training import figures


def running_mean(mean: float | None, value: float, alpha: float = 0.98) -> float:
    """Return alpha * mean + (1 - alpha) * value; the first value is its own mean."""
    return value if mean is None else alpha * mean + (1.0 - alpha) * value


def game_result(
    reward: npt.NDArray[Any], ended: npt.NDArray[np.bool_], infos: Mapping[str, Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return the game's own rewards and ends of a step, of which scores are made.

    They differ from ``reward`` and ``ended`` where those are for learning: where rewards are clipped
    (``infos["unclipped_reward"]``), or episodes end at lost lives while the game goes on (``infos["game_ended"]``).
    """
    return infos.get("unclipped_reward", reward), infos.get("game_ended", ended)


@dataclass(frozen=True)
class EpisodeScore:
    """Episode that has ended, a whole game.

    Attributes:
        reward: sum of its unclipped rewards.
        steps: its length.
        lane: the lane that played it.
        figures: values that actor callbacks returned about it, by name.
    """

    reward: float
    steps: int
    lane: int
    figures: Mapping[str, float] = field(default_factory=dict)


class EpisodeSums:
    """Rewards and lengths of the current episodes of lanes that step together.

    Args:
        first_lane: number of the first lane.
    Attributes:
        steps: int64 [lanes], lengths so far.
    """

    def __init__(self, lanes: int, first_lane: int = 0) -> None:
        self._first_lane = first_lane
        self._reward = np.zeros(lanes)
        self.steps = np.zeros(lanes, np.int64)

    def add(self, reward: npt.NDArray[np.floating], ended: npt.NDArray[np.bool_]) -> list[EpisodeScore]:
        """Count one step of every lane; return the episodes that ended with it.

        Args:
            reward: float [N], unclipped.  ended: bool [N], terminated or truncated.
        """
        self._reward += reward
        self.steps += 1
        finished = []
        for lane in np.flatnonzero(ended).tolist():
            finished.append(EpisodeScore(float(self._reward[lane]), int(self.steps[lane]), self._first_lane + lane))
            self._reward[lane] = 0.0
            self.steps[lane] = 0
        return finished

    def break_off(self) -> None:
        """Begin new episodes in all lanes; unfinished ones are not counted."""
        self._reward[:] = 0.0
        self.steps[:] = 0


class Scores:
    """Means over the episodes of a run that have ended.

    Args:
        scored: bool [lanes], lanes whose episodes go into the means.

    Attributes:
        count: episodes ended, of all lanes.
        avg_reward: running mean (alpha .98) of their rewards; None before the first.
        last: rewards of the last 100.
    """

    def __init__(self, scored: npt.NDArray[np.bool_], window: int = 100) -> None:
        self.scored = scored
        self.count = 0
        self.avg_reward: float | None = None
        self.last: deque[float] = deque(maxlen=window)

    def add(self, episode: EpisodeScore) -> None:
        """Count an episode."""
        self.count += 1
        if self.scored[episode.lane]:
            self.last.append(episode.reward)
            self.avg_reward = running_mean(self.avg_reward, episode.reward)

    @property
    def mean_reward(self) -> float | None:
        """Mean reward of the last 100 episodes, or of all if there were fewer; None before the first."""
        return float(np.mean(self.last)) if self.last else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"count": self.count, "avg_reward": self.avg_reward, "last": list(self.last)}

    def load(self, values: dict[str, Any]) -> None:
        """Restore what ``to_dict`` returned.  Raises: KeyError, ValueError, OverflowError."""
        self.count, self.avg_reward = figures.count(values, "count"), figures.mean(values, "avg_reward")
        self.last.clear()
        self.last.extend(figures.scores(values, "last"))
