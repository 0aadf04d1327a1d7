"""Environments with observations of every kind, to be asked for as ``tests.training.made_up:Pictures-v0``."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from sharpwave.envs import TeamEnv
from tests.envs.team_world import World


class MadeUp(gymnasium.Env):
    """Random observations; the reward is 1 for action ``obs-dependent``, and episodes last eight steps."""

    def __init__(self, space, render_mode=None):
        self.observation_space = space
        several = isinstance(space, Dict) and "camera" in space.spaces
        self.action_space = MultiDiscrete([3, 2], start=[1, -1]) if several else Discrete(3, start=1)
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
        return self.observation_space.sample(), float(np.all(action == 2)), self.steps % 16 == 8, self.steps >= 8, {}


class Levers(gymnasium.Env):
    """Two levers, the first with three places from 1, the other with two from -1: the reward is 1 if both are where
    they are seen to belong. Episodes last eight steps."""

    action_space = MultiDiscrete([3, 2], start=[1, -1])
    observation_space = MultiDiscrete([3, 2])

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.places = 0, self.np_random.integers([3, 2])
        return self.places, {}

    def step(self, action):
        assert self.action_space.contains(action), action
        reward = float((action == np.add(self.places, (1, -1))).all())
        self.steps, self.places = self.steps + 1, self.np_random.integers([3, 2])
        return self.places, reward, False, self.steps == 8, {}


class Point(gymnasium.Env):
    """A point on a line that an action moves by -1 to 1/2; the reward is minus the square of where it is then. Episodes
    last eight steps."""

    action_space = Box(-1.0, 0.5, (1,), np.float32)
    observation_space = Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.at = 0, self.np_random.uniform(-0.5, 0.5, 1).astype(np.float32)
        return self.at, {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps, self.at = self.steps + 1, (self.at + action).clip(-2, 2)
        return self.at, -float(self.at[0] ** 2), False, self.steps == 8, {}


class FarGoal(gymnasium.Env):
    """A point on a line that an action moves by a tenth at most. Reaching 2 within 30 steps ends the episode with the
    only reward; random play gets to a third on average."""

    action_space = Box(-1.0, 1.0, (1,), np.float32)
    observation_space = Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.at = 0, np.zeros(1, np.float32)
        return self.at, {}

    def step(self, action):
        self.steps, self.at = self.steps + 1, self.at + np.float32(0.1) * action
        reached = bool(self.at[0] > 1.999)
        return self.at, float(reached), reached, self.steps == 30, {}


class Counter(gymnasium.Env):
    """The observation counts steps, in episodes of eight; an action counts in bytes, from 2."""

    action_space = Discrete(3, start=2, dtype=np.uint8)
    observation_space = Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, broken_after=None, render_mode=None):
        self.broken_after, self.render_mode, self.total = broken_after, render_mode, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps, self.total = self.steps + 1, self.total + 1
        broken = self.broken_after is not None and self.total > self.broken_after
        obs = np.full(1, np.nan if broken else self.steps, np.float32)
        return obs, float(action == 3), False, self.steps == 8, {}


gymnasium.register("Counter-v0", lambda **options: Counter(**options))
gymnasium.register("Broken-v0", lambda **options: Counter(broken_after=60, **options))
gymnasium.register("Levers-v0", lambda **options: Levers(**options))
gymnasium.register("Point-v0", lambda **options: Point(**options))

SPACES = {
    "Pictures-v0": Box(0, 255, (20, 24, 3), np.uint8),
    "Grey-v0": Box(0.0, 1.0, (12, 10), np.float32),
    "Nested-v0": Dict(
        camera=Box(0, 255, (16, 16, 3), np.uint8), arm=Dict(joints=Box(-1, 1, (4,), np.float32), grip=Discrete(2))
    ),
    "Pair-v0": Tuple([Discrete(3), Tuple([Box(-1, 1, (2,), np.float32), Discrete(5, start=-2)])]),
    "Words-v0": Dict(said=Text(5), seen=Discrete(2)),
    "Remarks-v0": Tuple([Text(5), Tuple([Text(5), Discrete(2)])]),
    "OnlyWords-v0": Dict(said=Text(5)),
}
for name, space in SPACES.items():
    gymnasium.register(name, lambda space=space, **options: MadeUp(space, **options))


class Team(World):
    """Three agents, of whom one leaves, with a forbidden action each at every step; it fails if one is made."""

    def __init__(self, render_mode=None):
        super().__init__(steps=6, leaves=3)


gymnasium.register("Team-v0", lambda **options: TeamEnv(Team(**options), state=True))


class Maze(gymnasium.Env):
    """Corridor that winds through 4 x 4 cells: each row is joined to the next at one end. Steps cost 1 until the goal,
    the last row's beginning, or the 40th step; episodes begin anywhere else. It fails if an illegal action is made.

    Actions 1 to 4 go up, right, down and left. None is legal at the goal.

    Args:
        masks: where legal actions are said: "info", "method" or "observation".
        picture: observe a picture of 8 x 8 pixels instead of the cell's number.
    """

    SIDE, GOAL, LONGEST = 4, 12, 40
    MOVES = (-4, 1, 4, -1)
    DOORS = ((3, 7), (4, 8), (11, 15))
    """Cells that are joined to one of the row below."""

    def __init__(self, masks="info", picture=False, render_mode=None):
        self.masks, self.picture, self.render_mode = masks, picture, render_mode
        self.action_space = Discrete(4, start=1)
        self.observation_space = Box(0, 255, (8, 8), np.uint8) if picture else Discrete(16)
        if masks == "observation":
            self.observation_space = Dict(observation=self.observation_space, action_mask=MultiBinary(4))
        if masks == "method":
            self.action_masks = self.legal

    def legal(self):
        """Return bool [4]."""
        column = self.cell % self.SIDE
        ways = (
            (self.cell - 4, self.cell) in self.DOORS,
            column < 3,
            (self.cell, self.cell + 4) in self.DOORS,
            column > 0,
        )
        return np.array(ways) & (self.cell != self.GOAL)

    @classmethod
    def distance(cls, cell):
        """Return the steps from a cell to the goal."""
        row, column = divmod(cell, cls.SIDE)
        return (3 - row) * 4 + (column if row % 2 else 3 - column) if row < 3 else column

    def observed(self):
        cells = np.arange(16).reshape(4, 4) == self.cell
        obs = np.kron(cells, np.full((2, 2), 255, np.uint8)) if self.picture else self.cell
        said = {"action_mask": self.legal().astype(np.int8)}
        if self.masks == "observation":
            return {"observation": obs, **said}, {}
        return obs, said if self.masks == "info" else {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.cell = 0, int(self.np_random.choice([c for c in range(16) if c != self.GOAL]))
        return self.observed()

    def step(self, action):
        assert self.action_space.contains(action), action
        if not self.legal()[action - 1]:
            raise ValueError(f"action {action} is illegal in cell {self.cell}")
        self.steps, self.cell = self.steps + 1, self.cell + self.MOVES[action - 1]
        obs, info = self.observed()
        return obs, -1.0, self.cell == self.GOAL, self.steps == self.LONGEST, info


gymnasium.register("Maze-v0", lambda **options: Maze(**options))
gymnasium.register("MazeMethod-v0", lambda **options: Maze("method", **options))
gymnasium.register("MazeParts-v0", lambda **options: Maze("observation", **options))
gymnasium.register("MazePicture-v0", lambda **options: Maze(picture=True, **options))
gymnasium.register("FarGoal-v0", lambda **options: FarGoal(**options))
