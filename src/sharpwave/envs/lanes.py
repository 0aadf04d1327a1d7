"""Vector of environments whose errors name an environment with an invalid outcome, and the expected outcome."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

TAKEN_BY = (
    "gymnasium.vector",
    "gymnasium.wrappers",
    "gymnasium.core",
    "numpy",
    "functools",
    "sharpwave.envs.gym",
    __name__,
)
"""Modules that take what an environment returns; an error in another one is the environment's own."""
JOINED_BY = "gymnasium.vector.utils"


class LaneEnvs(SyncVectorEnv):
    """Vector in this process that resets in the step that ends an episode.  Raises: ValueError."""

    def __init__(self, make: Sequence[Callable[[], Any]]) -> None:
        super().__init__(make, autoreset_mode=AutoresetMode.SAME_STEP)

    def reset(self, **settings: Any) -> Any:
        try:
            return super().reset(**settings)
        except (TypeError, ValueError, AttributeError, LookupError) as error:
            self._tell(error, "reset", "(observation, info), the latter a dict")
            raise

    def step(self, actions: Any) -> Any:
        try:
            return super().step(actions)
        except (TypeError, ValueError, AttributeError, LookupError) as error:
            self._tell(error, "step", "(observation, a number, two booleans, a dict)")
            raise

    def _tell(self, error: Exception, call: str, form: str) -> None:
        """Raise an error that says what environments returned, unless ``error`` is their own.  Raises: ValueError."""
        modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
        if not all(module.startswith(TAKEN_BY) for module in modules):
            return
        name = str(self.envs[0].unwrapped)
        if any(module.startswith(JOINED_BY) for module in modules):
            for number, obs in enumerate(self._env_obs):
                if found := _misfit(self.single_observation_space, obs):
                    raise ValueError(
                        f"env: {name}, environment {number}, observes {found} of its observation_space"
                    ) from error
        raise ValueError(f"env: {name} returned from {call}() something else than {form}: {error}") from error


def _misfit(space: Any, obs: Any) -> str:
    """Return the shape or keys of an observation, and the expected ones; "": it fits."""
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, dict) or not space.spaces.keys() <= obs.keys():
            return f"{sorted(obs) if isinstance(obs, dict) else type(obs).__name__}, expected {sorted(space.spaces)}"
        found = ((name, _misfit(part, obs[name])) for name, part in space.spaces.items())
        return next((f"{name!r}: {one}" for name, one in found if one), "")
    what = "None" if obs is None else f"shape {np.shape(obs)}"
    return "" if obs is not None and np.shape(obs) == space.shape else f"{what}, expected shape {space.shape}"
