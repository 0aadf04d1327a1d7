"""DQN passes the suite that every agent passes, over several kinds of observations."""

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from sharpwave.agents.dqn import DQN
from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.protocol import Spaces
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.testing.agent import AgentSuite

EXPLORING = EpsilonGreedy(start=0.5, end=0.5)


class TestDQN(AgentSuite):
    def make_agent(self, spaces, seed):
        settings = DQN.Settings(hidden_units=16, exploration=EXPLORING, replay=TransitionsSettings(batch_size=8))
        return DQN(spaces, settings, seed=seed)


class TestPrioritizedDQN(AgentSuite):
    """With all its options: averaged, dueling, three steps, soft targets, a falling learning rate."""

    def make_agent(self, spaces, seed):
        settings = DQN.Settings(
            hidden_units=16, dueling=True, target_tau=0.1, average_decay=0.9, lr_end=1e-5, lr_steps=500,
            exploration=EpsilonGreedy(steps=200, ladder=7.0),
            replay=TransitionsSettings(batch_size=8, n_step=3, prioritized=True),
        )  # fmt: skip
        return DQN(spaces, settings, seed=seed)


class TestDQNOverImages(AgentSuite):
    """Standardized, with numbers and categories beside them; actions are counted from 2."""

    spaces = Spaces(
        Dict(picture=Box(0, 255, (12, 10, 3), np.uint8), speed=Box(-1, 1, (2,), np.float32), gear=Discrete(4)),
        Discrete(3, start=2),
    )

    def make_agent(self, spaces, seed):
        settings = DQN.Settings(
            hidden_units=16, standardize=True, target_every=50, exploration=EXPLORING,
            replay=TransitionsSettings(batch_size=8),
        )  # fmt: skip
        agent = DQN(spaces, settings, seed=seed)
        agent.FIRST_LOOK = 32
        return agent
