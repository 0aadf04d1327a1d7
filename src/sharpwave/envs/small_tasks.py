"""Small tasks that are hard for one reason: two need memory, since a cue at an episode's first step decides much later
which action is right; one needs exploration, since random play finds its reward once in 2^N episodes."""

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


class DeepSea(gymnasium.Env[np.int64, np.int64]):
    """Grid of N x N cells in which a diver sinks one row a step, from the left of the first row.

    Each step moves one column to the left or to the right. A move to the right costs .01 / N. From the last column,
    which only N moves to the right in a row reach, it gives 1, so the best return is .99, and without the treasure 0.
    Each cell draws once which action means right: learning about one cell does not help in another.

    Observation: the cell's number, row * N + column; N * N after the last step. Actions: 0 and 1.

    Source: Osband et al. (2020), Behaviour suite for reinforcement learning, "Deep sea"; there the cell is one-hot.

    Args:
        size: N.
        mapping: seed of the actions' meanings, the same for all environments with it; 42 in bsuite's experiments.
    """

    MOVE_COST = 0.01
    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, size: int = 20, mapping: int = 42) -> None:
        if size < 1:
            raise ValueError(f"DeepSea: size={size}, expected at least 1")
        self.observation_space = Discrete(size * size + 1)
        self.action_space = Discrete(2)
        self._size = size
        self._right = np.random.RandomState(mapping).binomial(1, 0.5, (size, size))  # as bsuite draws
        self._row = self._column = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        super().reset(seed=seed)
        self._row = self._column = 0
        return self._cell(), {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        right = bool(action == self._right[self._row, self._column])
        reward = float(right and self._column == self._size - 1) - right * self.MOVE_COST / self._size
        self._column = min(max(self._column + (1 if right else -1), 0), self._size - 1)
        self._row += 1
        return self._cell(), reward, self._row == self._size, False, {}

    def _cell(self) -> np.int64:
        ended = self._row == self._size
        return np.int64(self._size**2 if ended else self._row * self._size + self._column)


TASKS = {"sharpwave/TMaze-v0": TMaze, "sharpwave/Lock-v0": Lock, "sharpwave/DeepSea-v0": DeepSea}


def register_tasks() -> None:
    for name, task in TASKS.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, f"{__name__}:{task.__name__}")
