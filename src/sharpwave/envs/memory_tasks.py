"""Small tasks that need memory: a cue at an episode's first step decides much later which action is right."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

Obs = npt.NDArray[np.float32]

CELL = 16
"""Length of a cell's side in a picture, in pixels."""
MAX_STEPS = 5
"""Steps until a T-maze is truncated, per step of its corridor."""
GREY, WHITE, BLUE = (90, 90, 90), (230, 230, 230), (70, 110, 230)
COLOURS = ((230, 90, 80), (90, 190, 100), (240, 200, 70), (160, 110, 220))
"""Colors of cues and keys, in turn."""


class PicturedTask(gymnasium.Env[Obs, np.int64]):
    """Task whose state is drawn as a row of cells, with the cues above it while they are observed."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012

    def __init__(self, render_mode: str | None) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"{type(self).__name__}: render_mode={render_mode!r}, expected None or 'rgb_array'")
        self.render_mode = render_mode

    def cells(self) -> tuple[list[int], list[tuple[int, int, int]]]:
        """Return the currently observed cues, and the colors of the row."""
        raise NotImplementedError

    def render(self) -> Any:
        """Return the picture, uint8 [H, W, 3]; None without ``render_mode``."""
        if self.render_mode is None:
            return None
        cues, row = self.cells()
        picture = np.zeros((2, max(len(row), len(cues)), 3), np.uint8)
        picture[1, : len(row)] = row
        for place, cue in enumerate(cues):
            picture[0, place] = COLOURS[cue % len(COLOURS)]
        return picture.repeat(CELL, axis=0).repeat(CELL, axis=1)


class TMaze(PicturedTask):
    """Corridor with a junction at its end; a cue at the first step says on which side the reward is.

    Observation float32 [3]: the cue (-1 or 1; 0 after the first step), whether this is the junction, and 1. Actions:
    0 moves on, 1 and 2 turn; in the corridor a turn has no effect. At the junction the right side gives 1, the other
    -1, and the episode ends. It is truncated after five times the corridor's length, in which nearly every random walk
    reaches the junction: the task is hard for memory, not for search.

    Source: Bakker (2002), Reinforcement learning with long short-term memory.

    Args:
        length: steps from the start to the junction.
        render_mode: "rgb_array" or None.
    """

    def __init__(self, length: int = 20, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        if length < 1:
            raise ValueError(f"TMaze: length={length}, expected at least 1")
        self.observation_space = Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = Discrete(3)
        self._length = length
        self._cue = self._place = self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self._cue = 2 * int(self.np_random.integers(2)) - 1
        self._place = self._steps = 0
        return self._observed(self._cue), {}

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        reward, terminated = 0.0, False
        if self._place < self._length:
            self._place += action == 0
        elif action != 0:
            reward, terminated = (1.0 if (action == 1) == (self._cue == 1) else -1.0), True
        return self._observed(0), reward, terminated, not terminated and self._steps >= MAX_STEPS * self._length, {}

    def cells(self) -> tuple[list[int], list[tuple[int, int, int]]]:
        row = [GREY] * self._length + [WHITE]
        row[self._place] = BLUE
        return ([int(self._cue > 0)] if self._steps == 0 else []), row

    def _observed(self, cue: int) -> Obs:
        return np.array([cue, self._place == self._length, 1.0], np.float32)


class Lock(PicturedTask):
    """Doors in a row, opened in turn by the digits of a combination that is shown only at the first step.

    Door i wants digit i modulo ``digits``, raised by i: key (digit + i) modulo ``keys``. So repeating one key opens no
    lock. A policy without memory can press the keys of one combination, which is right once in ``keys ** digits``
    episodes.

    Observation float32 [digits * keys + doors]: the digits, one-hot, zeros after the first step; and the door, one-hot,
    zeros when all are open. The action is a key. A wrong key ends the episode with reward 0, the last door gives 1.
    Values of each digit are dealt from a shuffled deck: ``keys`` episodes after a seeded reset have shown every value.

    Args:
        doors: number of doors.  keys: number of keys, and of values of a digit.  digits: of the combination.
        render_mode: "rgb_array" or None.
    """

    def __init__(self, doors: int = 8, keys: int = 4, digits: int = 2, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        if doors < 1 or keys < 2 or digits < 1:
            raise ValueError(f"Lock: doors={doors}, keys={keys}, digits={digits}, expected at least 1, 2 and 1")
        self.observation_space = Box(0.0, 1.0, (digits * keys + doors,), np.float32)
        self.action_space = Discrete(keys)
        self._doors, self._keys, self._digits = doors, keys, digits
        self._decks = np.empty((0, digits), np.int64)  # combinations of the next episodes, last first
        self._combination, self._open = np.zeros(digits, np.int64), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None or not len(self._decks):
            decks = [self.np_random.permutation(self._keys) for _ in range(self._digits)]
            self._decks = np.stack(decks, axis=1)
        self._combination, self._decks = self._decks[-1], self._decks[:-1]
        self._open = 0
        obs = self._observed()
        obs[np.arange(self._digits) * self._keys + self._combination] = 1.0
        return obs, {}

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        door = self._open
        right = int(action) == (self._combination[door % self._digits] + door) % self._keys
        self._open += right
        ended = not right or self._open == self._doors
        return self._observed(), float(right and ended), bool(ended), False, {}

    def cells(self) -> tuple[list[int], list[tuple[int, int, int]]]:
        row = [WHITE] * self._open + [GREY] * (self._doors - self._open)
        return (self._combination.tolist() if self._open == 0 else []), row

    def _observed(self) -> Obs:
        obs = np.zeros(self._digits * self._keys + self._doors, np.float32)
        if self._open < self._doors:
            obs[self._digits * self._keys + self._open] = 1.0
        return obs


TASKS = {"sharpwave/TMaze-v0": TMaze, "sharpwave/Lock-v0": Lock}


def register_tasks() -> None:
    """Register the tasks with Gymnasium."""
    for name, task in TASKS.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, f"{__name__}:{task.__name__}")
