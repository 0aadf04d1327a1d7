"""Exploration: epsilon-greedy actions, a schedule of epsilon, and a ladder of epsilons over environments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sharpwave.agents.schedules import linear
from sharpwave.configuration import check, setting

MAX_SCORED_EPSILON = 0.05
"""Largest epsilon of a lane whose scores count: above it random actions lower the score notably."""

EXPLORATION = "Exploration"


@dataclass(frozen=True)
class EpsilonGreedy:
    """Settings of epsilon-greedy exploration: epsilon falls linearly, and may differ between lanes."""

    start: float = setting(
        1.0,
        "initial epsilon, the probability of a random action",
        EXPLORATION,
        flag="--epsilon-start",
        at_least=0,
        at_most=1,
    )
    end: float = setting(0.01, "final epsilon", EXPLORATION, flag="--epsilon-end", at_least=0, at_most=1)
    steps: int = setting(
        250_000, "steps from epsilon-start to epsilon-end", EXPLORATION, flag="--epsilon-steps", at_least=0
    )
    ladder: float = setting(
        0.0,
        "environment i of N explores with epsilon ** (1 + ladder * i / (N-1)); Ape-X: 7. Mean rewards are then those "
        "of environments that end at .05 or less",
        EXPLORATION,
        flag="--epsilon-ladder",
        at_least=0,
    )

    def __post_init__(self) -> None:
        check(self)

    def epsilon(self, step: int) -> float:
        """Return the largest epsilon of all lanes after ``step`` environment steps."""
        return linear(step, self.start, self.end, self.steps)

    def epsilons(self, step: int, lanes: int) -> npt.NDArray[np.float64]:
        """Return the epsilon of each lane after ``step`` environment steps, float64 [lanes]."""
        return epsilon_ladder(self.epsilon(step), lanes, self.ladder)

    def scored(self, lanes: int) -> npt.NDArray[np.bool_]:
        """Return bool [lanes]: lanes with a small final epsilon, or the smallest, whose scores show what was learned.

        Of eight lanes with epsilon .4 and a ladder of 7, the first acts at random so often that it always loses at
        Pong; the last five are below ``MAX_SCORED_EPSILON``.
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
        int64 [N]. Always takes two draws of N from ``rng``, so that runs are repeatable.
    """
    explores = rng.random(len(greedy)) < epsilon
    random = rng.integers(0, num_actions, len(greedy))
    return np.where(explores, random, greedy)
