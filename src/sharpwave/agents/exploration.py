"""Exploration while acting: a strategy turns action values into actions, by schedules and with a ladder over lanes.

Noisy networks explore by themselves (``distributional.py``). Strategies that count how often each arm was chosen are
bandits (``bandits.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.agents.actions import epsilon_greedy, softmax_actions
from sharpwave.agents.replay import EXPLORATION, linear
from sharpwave.configuration import Checked, setting

MAX_SCORED_EPSILON = 0.05
"""Largest epsilon of a lane whose scores count: above it random actions lower the score notably."""

Values = npt.NDArray[np.floating[Any]]
Actions = npt.NDArray[np.int64]


class Strategy(ABC):
    """Choice of actions by their values. Strategies are settings: all random state is the caller's generator.

    Each has a level, epsilon or the temperature, that falls from ``start`` to ``end`` and may differ between lanes.
    """

    start: float
    end: float
    steps: int
    hold: int

    def level(self, step: int) -> float:
        """Return the highest level of all lanes after ``step`` environment steps: ``start`` during the first ``hold``.

        Source: Mnih et al. (2015), Human-level control: epsilon falls once the replay memory holds its first steps.
        """
        return self.start if step < self.hold else linear(step - self.hold, self.start, self.end, self.steps)

    def ignores_values(self, step: int, lanes: slice, of: int) -> bool:
        """Return whether every one of the lanes acts uniformly at random after ``step`` steps, whatever the values."""
        return False

    @abstractmethod
    def choose(self, values: Values, step: int, lanes: slice, of: int, rng: np.random.Generator) -> Actions:
        """Choose an action for each lane.

        Args:
            values: float [N, A], the estimated value of each action; -infinity for those that are illegal.
            step: environment steps so far.
            lanes: which of the run's ``of`` lanes the N are.
        Returns:
            int64 [N], in 0 ... A-1.
        """

    @abstractmethod
    def scored(self, lanes: int) -> npt.NDArray[np.bool_]:
        """Return bool [lanes]: lanes whose scores show what was learned."""

    @abstractmethod
    def schedules(self, step: int) -> dict[str, float]:
        """Return the level after ``step`` steps by its name, for reports."""


@dataclass(frozen=True)
class EpsilonGreedy(Checked, Strategy):
    """Settings of epsilon-greedy exploration: epsilon falls linearly, and may differ between lanes.

    Source: Watkins (1989), Learning from delayed rewards; the schedule: Mnih et al. (2015), extended data table 1.
    """

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
    hold: int = setting(
        0,
        "steps at epsilon-start before it falls; in Mnih et al. (2015) those of the warm-up",
        EXPLORATION,
        flag="--epsilon-hold",
        at_least=0,
    )
    ladder: float = setting(
        0.0,
        "environment i of N explores with epsilon ** (1 + ladder * i / (N-1)); Ape-X: 7. Mean rewards are then those "
        "of environments that end at .05 or less",
        EXPLORATION,
        flag="--epsilon-ladder",
        at_least=0,
    )

    def epsilons(self, step: int, lanes: int) -> npt.NDArray[np.float64]:
        """Return the epsilon of each lane after ``step`` environment steps, float64 [lanes]."""
        return epsilon_ladder(self.level(step), lanes, self.ladder)

    def ignores_values(self, step: int, lanes: slice, of: int) -> bool:
        return bool(self.epsilons(step, of)[lanes].min() >= 1.0)

    def choose(self, values: Values, step: int, lanes: slice, of: int, rng: np.random.Generator) -> Actions:
        legal = values > -np.inf
        epsilons = self.epsilons(step, of)[lanes]
        return epsilon_greedy(values.argmax(axis=1), values.shape[1], epsilons, rng, None if legal.all() else legal)

    def scored(self, lanes: int) -> npt.NDArray[np.bool_]:
        """Return bool [lanes]: lanes with a small final epsilon, or the smallest, whose scores show what was learned.

        Of eight lanes with epsilon .4 and a ladder of 7, the first acts at random so often that it always loses at
        Pong; the last five are below ``MAX_SCORED_EPSILON``.
        """
        final = epsilon_ladder(self.end, lanes, self.ladder)
        return np.less_equal(final, max(MAX_SCORED_EPSILON, final.min()))

    def schedules(self, step: int) -> dict[str, float]:
        return {"epsilon": self.level(step)}


@dataclass(frozen=True)
class Softmax(Checked, Strategy):
    """Settings of softmax (Boltzmann) exploration: the temperature falls linearly, and may differ between lanes.

    Actions of nearly equal value are tried equally often, bad ones seldom; how often depends on the scale of values.
    Source: Sutton and Barto (2018), Reinforcement learning, eq. 2.11.
    """

    start: float = setting(
        1.0,
        "softmax: initial temperature, in units of value: e times the probability for a value that is higher by it",
        EXPLORATION,
        flag="--temperature-start",
        at_least=0,
    )
    end: float = setting(
        0.02, "softmax: final temperature; 0: greedy", EXPLORATION, flag="--temperature-end", at_least=0
    )
    steps: int = setting(
        250_000,
        "softmax: steps from temperature-start to temperature-end",
        EXPLORATION,
        flag="--temperature-steps",
        at_least=0,
    )
    hold: int = setting(
        0, "softmax: steps at temperature-start before it falls", EXPLORATION, flag="--temperature-hold", at_least=0
    )
    ladder: float = setting(
        1.0,
        "softmax: environment i of N explores with temperature / ladder ** (i / (N-1)); 1: all alike. Mean rewards "
        "are then those of the last",
        EXPLORATION,
        flag="--temperature-ladder",
        at_least=1,
    )

    def temperatures(self, step: int, lanes: int) -> npt.NDArray[np.float64]:
        """Return the temperature of each lane after ``step`` environment steps, float64 [lanes]."""
        return self.level(step) / self.ladder ** rungs(lanes)

    def choose(self, values: Values, step: int, lanes: slice, of: int, rng: np.random.Generator) -> Actions:
        return softmax_actions(values, self.temperatures(step, of)[lanes], rng)

    def scored(self, lanes: int) -> npt.NDArray[np.bool_]:
        """Return bool [lanes]: those of the lowest temperature; without a ladder all."""
        return np.full(lanes, True) if self.ladder == 1 else rungs(lanes) == rungs(lanes)[-1]

    def schedules(self, step: int) -> dict[str, float]:
        return {"temperature": self.level(step)}


@dataclass(frozen=True)
class ExplorationSettings:
    """Settings of how an agent explores: the strategy, and each one's own."""

    explore: str = setting(
        "epsilon", "strategy of exploration: epsilon-greedy or softmax", EXPLORATION, choices=("epsilon", "softmax")
    )
    exploration: EpsilonGreedy = field(default_factory=EpsilonGreedy)
    softmax: Softmax = field(default_factory=Softmax)

    def unused(self) -> Iterator[tuple[str, str]]:
        if self.explore == "softmax":
            yield "exploration", "--explore epsilon"
        else:
            yield "softmax", "--explore softmax"

    @property
    def strategy(self) -> Strategy:
        """Strategy that is chosen."""
        return self.softmax if self.explore == "softmax" else self.exploration


def rungs(lanes: int) -> npt.NDArray[np.float64]:
    """Return the lanes' places on a ladder, i / (N - 1), float64 [lanes]; 0 for a single lane."""
    return np.arange(lanes) / max(lanes - 1, 1)


def epsilon_ladder(epsilon: float, lanes: int, exponent: float) -> npt.NDArray[np.float64]:
    """Give each lane its own epsilon: epsilon ** (1 + exponent * i / (N - 1)), so that some explore and some exploit.

    Args:
        epsilon: the largest, of lane 0.  lanes: N.
        exponent: 7 in Ape-X (with epsilon .4); 0 gives every lane the same.
    Returns:
        float64 [N].
    Source: Horgan et al. (2018), Distributed prioritized experience replay, section 4.1.
    """
    return np.asarray(epsilon, np.float64) ** (1.0 + exponent * rungs(lanes))
