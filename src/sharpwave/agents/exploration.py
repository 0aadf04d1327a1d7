"""How an agent explores: epsilon-greedy actions, a schedule of epsilon, and a ladder of epsilons over environments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sharpwave.agents.schedules import linear
from sharpwave.configuration import check, setting

MAX_SCORED_EPSILON = 0.05
"""Largest epsilon that costs little of the score."""

EXPLORATION = "Exploration"


@dataclass(frozen=True)
class EpsilonGreedy:
    """Settings of epsilon-greedy exploration: epsilon falls in a straight line, and may differ between lanes."""

    start: float = setting(
        1.0, "first probability of a random action", EXPLORATION, flag="--epsilon-start", at_least=0, at_most=1
    )
    end: float = setting(0.01, "its final value", EXPLORATION, flag="--epsilon-end", at_least=0, at_most=1)
    steps: int = setting(
        250_000, "steps from epsilon-start to epsilon-end", EXPLORATION, flag="--epsilon-steps", at_least=0
    )
    ladder: float = setting(
        0.0,
        "environment i of N explores with epsilon ** (1 + this * i / (N-1)); Ape-X: 7. Mean rewards are then those of "
        "environments that end at .05 or less",
        EXPLORATION,
        flag="--epsilon-ladder",
        at_least=0,
    )

    def __post_init__(self) -> None:
        check(self)

    def epsilon(self, step: int) -> float:
        """Largest epsilon of all lanes after ``step`` environment steps."""
        return linear(step, self.start, self.end, self.steps)

    def epsilons(self, step: int, lanes: int) -> npt.NDArray[np.float64]:
        """Epsilon of each lane, float64 [lanes]."""
        return epsilon_ladder(self.epsilon(step), lanes, self.ladder)

    def scored(self, lanes: int) -> npt.NDArray[np.bool_]:
        """Which lanes end with a small epsilon, or with the smallest: their scores show what was learned. bool [lanes].

        Of eight lanes with .4 and a ladder of 7 the first plays at random so often that it loses at Pong to the end;
        the last five explore with less than :data:`MAX_SCORED_EPSILON`.
        """
        final = epsilon_ladder(self.end, lanes, self.ladder)
        return np.less_equal(final, max(MAX_SCORED_EPSILON, final.min()))


def epsilon_ladder(epsilon: float, lanes: int, exponent: float) -> npt.NDArray[np.float64]:
    """Give each lane its own epsilon: epsilon ** (1 + exponent * i / (N - 1)), so that some explore and some exploit.

    Args:
        epsilon: the largest, of lane 0.  lanes: N.
        exponent: 7 in Ape-X (with epsilon .4); 0 gives every lane the same.
    Returns:
        float64 [N].
    Source: Horgan et al. (2018), Distributed prioritized experience replay, section 4.1.
    """
    rungs = np.arange(lanes) / max(lanes - 1, 1)
    return np.asarray(epsilon, np.float64) ** (1.0 + exponent * rungs)


def epsilon_greedy(
    greedy: npt.NDArray[np.int64],
    num_actions: int,
    epsilon: float | npt.NDArray[np.float64],
    rng: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """Replace greedy actions, with probability epsilon, by uniformly random ones.

    Args:
        greedy: int64 [N].  epsilon: one for all, or float [N].
    Returns:
        int64 [N]. Always two draws of N from ``rng``, so that a run can be repeated.
    """
    explores = rng.random(len(greedy)) < epsilon
    random = rng.integers(0, num_actions, len(greedy))
    return np.where(explores, random, greedy)
