"""bsuite's memory chain as a Gymnasium environment: ``--env memory_chain:MemoryChain-v0`` with benchmarks/ in the path.

bsuite pins nothing that hinders, but asks for much that the chain never uses: install it without its dependencies, and
then dm_env, immutabledict, scikit-image, imageio, lazy-loader and termcolor. ``learning.py --tasks memory-chain``
trains on it.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from bsuite.environments.memory_chain import MemoryChain  # type: ignore[import-not-found]


class Chain(gymnasium.Env[Any, Any]):
    """A bit, shown at the episode's start, is wanted ``length`` steps later: 1 if it is right, -1 if not."""

    def __init__(self, length: int = 20) -> None:
        self._length = length
        self._chain = MemoryChain(length)
        shape = self._chain.observation_spec().shape[1:]
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.action_space = gymnasium.spaces.Discrete(self._chain.action_spec().num_values)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; a seed makes the chain anew."""
        super().reset(seed=seed)
        if seed is not None:
            self._chain = MemoryChain(self._length, seed=seed)
        return self._chain.reset().observation[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Make a step."""
        step = self._chain.step(int(action))
        return step.observation[0], float(step.reward), step.last(), False, {}


if "MemoryChain-v0" not in gymnasium.registry:
    gymnasium.register("MemoryChain-v0", "memory_chain:Chain")
