"""Action masks: which actions an environment allows in a state, as a part of what is observed there."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import closing
from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Dict, Discrete, MultiBinary, MultiDiscrete

from sharpwave.environment_spec import info_spaces
from sharpwave.teams import ACTION_MASK, AGENTS

METHOD = "action_masks"
"""Method of environments for sb3-contrib, which returns the mask of the present state."""
OBS = "obs"
"""Part of the observation that is what the environment observes, where that is no dict."""

Source = Literal["observation", "method", "info"]


class ActionMasks(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Environment that observes which of its actions are legal, in the part ``action_mask``.

    So a mask is stored, stacked up and sampled with its observation: that of the next one, and the true final one, too.
    A dict of observations gets one more part; another observation becomes ``{"obs": ..., "action_mask": ...}``. The
    mask is int8 [n]: 1 where the action ``space.start + i`` is legal.

    Args:
        env: an environment with ``Discrete`` actions.
        source: what says which are legal: a part ``action_mask`` of the observation (of a stack the newest), the
            method ``action_masks()``, or ``info["action_mask"]``, of each reset and step.

    Raises:
        ValueError: actions of another kind; by ``reset`` and ``step``: a mask that is missing, of another shape than
            [n], of floats or other numbers than 0 and 1, or without a legal action while the episode goes on.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], source: Source = "info") -> None:
        super().__init__(env)
        if not isinstance(env.action_space, Discrete):
            raise ValueError(f"ActionMasks: {_name(env)} has the actions {env.action_space}, expected Discrete")
        self._source, self._count = source, int(env.action_space.n)
        inner = env.observation_space
        self._parts = isinstance(inner, Dict)
        parts = dict(inner.spaces) if isinstance(inner, Dict) else {OBS: inner}
        self.observation_space = Dict(parts | {ACTION_MASK: MultiBinary(self._count)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(obs, info, False), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(obs, info, bool(terminated)), reward, terminated, truncated, info

    def _with_mask(self, obs: Any, info: dict[str, Any], terminated: bool) -> dict[str, Any]:
        if self._source == "observation":
            said, where = np.asarray(obs[ACTION_MASK]), f"the observation's {ACTION_MASK!r}"
            said = said[-1] if said.ndim == 2 else said
        elif self._source == "method":
            said, where = np.asarray(self.env.get_wrapper_attr(METHOD)()), f"{METHOD}()"
        else:
            said, where = np.asarray(info.get(ACTION_MASK)), f"info[{ACTION_MASK!r}]"
        mask = checked_mask(said, self._count, f"{_name(self.env)}: {where}", terminated)
        return {**(obs if self._parts else {OBS: obs}), ACTION_MASK: mask}


def checked_mask(mask: npt.NDArray[Any], count: int, what: str, terminated: bool = False) -> npt.NDArray[np.int8]:
    """Return a mask as int8 [count], a copy.

    Args:
        what: name of the mask, for errors.
        terminated: the state is final, in which no action need be legal.

    Raises:
        ValueError: another shape, other values than 0 and 1, floats, or no legal action.
    """
    if mask.shape != (count,) or mask.dtype.kind not in "biu":
        got = f"{mask.dtype} of shape {mask.shape}" if mask.dtype != object else repr(mask.tolist())
        raise ValueError(f"{what} is {got}, expected ({count},), bool or integers: 1 for each legal action, else 0")
    if mask.dtype != np.bool_ and not ((mask == 0) | (mask == 1)).all():
        raise ValueError(f"{what} has the values {np.unique(mask)[:8].tolist()}, expected 0 and 1")
    if not mask.any() and not terminated:
        raise ValueError(
            f"{what} allows none of the {count} actions, expected at least one legal action, unless the episode has "
            "terminated"
        )
    return mask.astype(np.int8)


def with_action_mask(env: gymnasium.Env[Any, Any], in_infos: Callable[[], bool]) -> gymnasium.Env[Any, Any]:
    """Wrap an environment that says which of its actions are legal into ``ActionMasks``; return others as they are.

    Masks of other than ``Discrete`` actions are left out, with a warning; a team's are its own.

    Args:
        in_infos: returns whether its infos have a mask; called where nothing else says so.
    """
    space, actions = env.observation_space, env.action_space
    parts = space.spaces if isinstance(space, Dict) else {}
    discrete = isinstance(actions, Discrete)
    source: Source
    if AGENTS in parts or (ACTION_MASK in parts and not discrete):
        return env
    if ACTION_MASK in parts:
        source = "observation"
    elif env.has_wrapper_attr(METHOD):
        source = "method"
    elif ACTION_MASK in info_spaces(env) or (
        isinstance(actions, (Discrete, MultiDiscrete, MultiBinary)) and in_infos()
    ):
        source = "info"
    else:
        return env
    if not discrete:
        warnings.warn(
            f"{_name(env)}: its action masks are not used: its actions are {actions}, and masks are those of Discrete "
            "actions",
            UserWarning,
            stacklevel=2,
        )
        return env
    return ActionMasks(env, source)


def masks_in_infos(name: str) -> bool:
    """Return whether the infos of a registered environment have an action mask.

    It is asked of one that is made for that: a reset more would change what the others do.
    """
    with closing(gymnasium.make(name, disable_env_checker=True)) as env:
        _, info = env.reset(seed=0)
        return ACTION_MASK in info


def _name(env: gymnasium.Env[Any, Any]) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__
