"""Two agents of tuples, as in lbforaging and rware: they lift a load together, or recall what they were shown."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Tuple


class Lift(gymnasium.Env[Any, Any]):
    """Each agent sees its own place, the other's and the load's; actions, counted from 1: left, right, lift.

    The load is lifted, and each is paid half, when both lift in its place; else each step costs them .01 together. As
    lbforaging's it pays a list, and takes the limit of its steps as an argument of its own.
    """

    observation_space = Tuple([Box(0, 4, (3,), np.float32)] * 2)
    action_space = Tuple([Discrete(3, start=1)] * 2)

    def __init__(self, max_episode_steps: int, masks: bool = False, render_mode: str | None = None) -> None:
        self.limit, self.masks, self.render_mode = max_episode_steps, masks, render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.places, self.load = 0, self.np_random.integers(0, 5, 2), self.np_random.integers(0, 5)
        return self._seen(), self._info()

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(tuple(action)), action
        lifted = all(one == 3 and place == self.load for one, place in zip(action, self.places, strict=True))
        self.places = np.clip(self.places + [{1: -1, 2: 1, 3: 0}[int(one)] for one in action], 0, 4)
        self.steps += 1
        paid = [0.5 if lifted else -0.005] * 2
        return self._seen(), paid, bool(lifted), self.steps >= self.limit and not lifted, self._info()

    def _seen(self) -> Any:
        (one, other), load = self.places, self.load
        return np.array([one, other, load], np.float32), np.array([other, one, load], np.float32)

    def _info(self) -> Any:
        """Of masks that allow a step aside only where there is a place."""
        return {"action_mask": [[place > 0, place < 4, True] for place in self.places]} if self.masks else {}


class Recall(gymnasium.Env[Any, Any]):
    """A number, 0 or 1, is shown in the first of three steps; the team is paid if both choose it in the last one."""

    observation_space = Tuple([Box(-1, 1, (2,), np.float32)] * 2)
    action_space = Tuple([Discrete(2)] * 2)
    render_mode = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.number = 0, int(self.np_random.integers(2))
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        over = self.steps == 3
        return self._seen(), [float(over and all(one == self.number for one in action)) / 2] * 2, over, False, {}

    def _seen(self) -> Any:
        shown = 2 * self.number - 1 if self.steps == 0 else 0
        return (np.array([shown, self.steps - 1], np.float32).clip(-1, 1),) * 2


gymnasium.register("Recall-v0", "tests.envs.tuple_world:Recall")
PATH = "tests.envs.tuple_world:Lift"
gymnasium.register("Lift-v0", PATH, kwargs={"max_episode_steps": 12})
gymnasium.register("MaskedLift-v0", PATH, kwargs={"max_episode_steps": 12, "masks": True})
