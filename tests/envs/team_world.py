"""A made-up parallel environment in PettingZoo's form, whose agents differ, come, and leave."""

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

NAMES = ("ant", "bee", "cat")


class World:
    """Agents see how many steps were made and their number; of each, one action is forbidden at every step.

    The ant has 3 actions from 0, the bee 2 from 5, the cat 4 from 0. Each is paid its number times the step's. The bee
    leaves after ``leaves`` steps; the episode ends after ``steps``: truncated, or terminated with ``dies``.
    """

    metadata = {"name": "world", "render_modes": ["rgb_array"], "render_fps": 7, "is_parallelizable": True}  # noqa: RUF012
    possible_agents = list(NAMES)  # noqa: RUF012
    state_space = Box(0, 100, (2,), np.float32)

    def __init__(self, steps=4, leaves=2, dies=False, masks="infos", sizes=(2, 2, 2), render_mode=None):
        self.steps, self.leaves, self.dies, self.masks, self.sizes = steps, leaves, dies, masks, sizes
        self.render_mode = render_mode
        self.agents, self.made, self.log, self.seeds = [], 0, [], []

    def observation_space(self, name):
        space = Box(-1, 100, (self.sizes[NAMES.index(name)],), np.float32)
        if self.masks != "observations":
            return space
        return Dict(observation=space, action_mask=Box(0, 1, (self.action_space(name).n,), np.int8))

    def action_space(self, name):
        return {"ant": Discrete(3), "bee": Discrete(2, start=5), "cat": Discrete(4)}[name]

    def mask(self, name):
        """All but one action, another one at each step."""
        mask = np.ones(self.action_space(name).n, np.int8)
        mask[self.made % len(mask)] = 0
        return mask

    def seen(self, name):
        number = NAMES.index(name)
        seen = np.zeros(self.sizes[number], np.float32)
        seen[:2] = self.made, number + 1
        return {"observation": seen, "action_mask": self.mask(name)} if self.masks == "observations" else seen

    def infos(self, names):
        return {name: {"action_mask": self.mask(name)} if self.masks == "infos" else {} for name in names}

    def reset(self, seed=None, options=None):
        self.agents, self.made = list(NAMES), 0
        self.seeds.append(seed)
        return {name: self.seen(name) for name in self.agents}, self.infos(self.agents)

    def step(self, actions):
        assert sorted(actions) == sorted(self.agents)
        for name, action in actions.items():
            space = self.action_space(name)
            assert space.contains(action)
            assert self.masks == "none" or self.mask(name)[action - int(space.start)]
        self.log.append(dict(actions))
        self.made += 1
        acting = self.agents
        over = self.made == self.steps
        gone = {name: name == "bee" and self.made == self.leaves for name in acting}
        terminated = {name: gone[name] or (over and self.dies) for name in acting}
        truncated = {name: over and not self.dies for name in acting}
        rewards = {name: float((NAMES.index(name) + 1) * self.made) for name in acting}
        seen, infos = {name: self.seen(name) for name in acting}, self.infos(acting)
        self.agents = [name for name in acting if not (terminated[name] or truncated[name])]
        return seen, rewards, terminated, truncated, infos

    def state(self):
        return np.array([self.made, 42], np.float32)

    def render(self):
        return np.full((4, 4, 3), self.made, np.uint8)

    def close(self):
        self.agents = []
