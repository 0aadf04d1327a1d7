"""Small games for teams, whose best policies are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

from sharpwave.envs.teams import TeamEnv

Each = dict[str, Any]
"""A value for each agent, by name."""


class TwoStepGame:
    """Cooperative matrix game of two steps and two agents with two actions each, a PettingZoo ``ParallelEnv``.

    The first agent's first action chooses the matrix that determines the second step's reward: 0 the one that always
    pays 7, 1 the one that pays 0, 1, 1 and 8. The best team gets 8. A sum of one value for each agent cannot express
    the second matrix; learned under uniform exploration, it takes the 7. Both agents observe the game's state one-hot.

    Source: Rashid et al. (2018), QMIX, table 1.
    """

    metadata: dict[str, Any] = {"name": "two_step"}  # noqa: RUF012
    possible_agents = ("first", "second")
    PAYOFFS = (((7.0, 7.0), (7.0, 7.0)), ((0.0, 1.0), (1.0, 8.0)))

    def __init__(self) -> None:
        self.agents: list[str] = []
        self._place = 0

    def observation_space(self, agent: str) -> Box:
        """Return the space of an agent's observations."""
        return Box(0.0, 1.0, (3,), np.float32)

    def action_space(self, agent: str) -> Discrete:
        """Return the space of an agent's actions."""
        return Discrete(2)

    def reset(self, seed: int | None = None, options: Each | None = None) -> tuple[Each, Each]:
        """Begin at the first step."""
        self.agents, self._place = [*self.possible_agents], 0
        return self._observed(), {}

    def step(self, actions: Each) -> tuple[Each, Each, Each, Each, Each]:
        """Choose the matrix, or pay half of its reward to each agent."""
        first, second = actions["first"], actions["second"]
        over = self._place > 0
        pay = self.PAYOFFS[self._place - 1][first][second] / 2 if over else 0.0
        if not over:
            self._place = 1 + first
        seen = self._observed()
        self.agents = [] if over else self.agents
        return seen, dict.fromkeys(seen, pay), dict.fromkeys(seen, over), dict.fromkeys(seen, False), {}

    def render(self) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Release nothing."""

    def _observed(self) -> dict[str, npt.NDArray[np.float32]]:
        return {agent: np.eye(3, dtype=np.float32)[self._place] for agent in self.agents}


def two_step(render_mode: str | None = None) -> TeamEnv:
    """Make the two-step game as a Gymnasium environment; it has no pictures."""
    return TeamEnv(TwoStepGame())
