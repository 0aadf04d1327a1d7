"""Sums over episodes, to compare a data set with its import."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


def finite_sum(rewards: npt.NDArray[Any]) -> float:
    """Sum the finite rewards of steps that are left out and so were not checked."""
    values = np.asarray(rewards, np.float64)
    return float(values[np.isfinite(values)].sum())


@dataclass
class Totals:
    """Sums over episodes.

    Attributes:
        reward: sum of the rewards, in float64.
        terminated, truncated, unmarked: numbers of episodes by their end; an episode with both ends counts in both,
            one without any in ``unmarked``.
    """

    episodes: int = 0
    steps: int = 0
    reward: float = 0.0
    terminated: int = 0
    truncated: int = 0
    unmarked: int = 0

    def add(self, reward: npt.NDArray[Any], terminated: bool, truncated: bool) -> None:
        """Add an episode with rewards [T]."""
        self.episodes += 1
        self.steps += len(reward)
        self.reward += float(np.sum(reward, dtype=np.float64))
        self.terminated += terminated
        self.truncated += truncated
        self.unmarked += not (terminated or truncated)

    def plus(self, other: Totals) -> Totals:
        """Return the sum of both."""
        return Totals(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))
