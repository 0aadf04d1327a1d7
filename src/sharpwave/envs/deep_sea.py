"""Deep sea: an exploration task whose reward random play finds once in 2^N episodes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete


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


def register_deep_sea() -> None:
    """Register the task with Gymnasium as ``sharpwave/DeepSea-v0``."""
    if "sharpwave/DeepSea-v0" not in gymnasium.registry:
        gymnasium.register("sharpwave/DeepSea-v0", f"{__name__}:{DeepSea.__name__}")
