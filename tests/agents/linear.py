"""DQN over networks of the tests' own making."""

import numpy as np
from gymnasium.spaces import Box, Discrete

from sharpwave.agents.dqn import DQN
from sharpwave.agents.protocol import Spaces


def make_dqn(build, num_actions=2, size=2, seed=0, **settings):
    """A DQN whose networks ``build`` makes, over vectors of ``size`` numbers."""

    class Built(DQN):
        def network(self):
            return build()

    spaces = Spaces(Box(-np.inf, np.inf, (size,), np.float32), Discrete(num_actions))
    return Built(spaces, DQN.Settings(**settings), seed=seed)
