"""Environments with observations of every kind, to be asked for as ``tests.training.made_up:Pictures-v0``."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple


class MadeUp(gymnasium.Env):
    """Random observations; the reward is 1 for action ``obs-dependent``, and episodes last eight steps."""

    action_space = Discrete(3, start=1)

    def __init__(self, space, render_mode=None):
        self.observation_space = space
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        return self.observation_space.sample(), float(action == 2), self.steps % 16 == 8, self.steps >= 8, {}


SPACES = {
    "Pictures-v0": Box(0, 255, (20, 24, 3), np.uint8),
    "Grey-v0": Box(0.0, 1.0, (12, 10), np.float32),
    "Nested-v0": Dict(
        camera=Box(0, 255, (16, 16, 3), np.uint8), arm=Dict(joints=Box(-1, 1, (4,), np.float32), grip=Discrete(2))
    ),
    "Pair-v0": Tuple([Discrete(3), Tuple([Box(-1, 1, (2,), np.float32), Discrete(5, start=-2)])]),
    "Words-v0": Dict(said=Text(5), seen=Discrete(2)),
}
for name, space in SPACES.items():
    gymnasium.register(name, lambda space=space, **options: MadeUp(space, **options))
