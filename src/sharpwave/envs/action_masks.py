"""Action masks: an environment's legal actions in a state, as a part of the observation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any, Literal, get_args

import gymnasium
import gymnasium.vector
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector.utils import batch_space

from sharpwave.environment_spec import info_spaces
from sharpwave.step_infos import info_value
from sharpwave.teams import ACTION_MASK, AGENTS

METHOD = "action_masks"
"""Method of environments for sb3-contrib that returns the current state's mask."""
OBS = "obs"
"""Part of the observation with the environment's own observation, if that is no dict."""

Source = Literal["observation", "method", "info"]


class ActionMasks(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Environment whose observation shows its legal actions, in the part ``action_mask``.

    So a mask is stored, stacked up and sampled with its observation, also with the next and the true final one.
    A dict of observations gets one more part; another observation becomes ``{"obs": ..., "action_mask": ...}``. The
    mask is int8 [n]: 1 if the action ``space.start + i`` is legal.

    Args:
        env: an environment with ``Discrete`` actions.
        source: origin of the mask: a part ``action_mask`` of the observation (of a stack the newest), the
            method ``action_masks()``, or ``info["action_mask"]`` of each reset and step.

    Raises:
        ValueError: actions of another kind, an unknown source, or one that the environment lacks; from ``reset`` and
            ``step``: a mask that is missing, of another shape than [n], of floats or other numbers than 0 and 1, or
            without a legal action while the episode continues.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], source: Source = "info") -> None:
        super().__init__(env)
        inner = env.observation_space
        self.observation_space, self._count, self._parts = _masked("ActionMasks", env, inner, env.action_space)
        if source not in get_args(Source):
            raise ValueError(f"ActionMasks: source is {source!r}, expected one of {', '.join(get_args(Source))}")
        if source == "observation" and not (isinstance(inner, Dict) and ACTION_MASK in inner.spaces):
            raise ValueError(f"ActionMasks: {_name(env)} observes {inner}, expected a Dict with a part {ACTION_MASK!r}")
        if source == "method" and not env.has_wrapper_attr(METHOD):
            raise ValueError(f"ActionMasks: {_name(env)} has no method {METHOD}()")
        self._source = source

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


class VectorActionMasks(gymnasium.vector.VectorWrapper):
    """``ActionMasks`` for a vector that can only be wrapped as a whole, by ``infos["action_mask"]``.

    Its observations, and the final ones of a SameStep vector, ``infos["final_obs"]``, get the part ``action_mask``.

    Raises:
        ValueError: as from ``ActionMasks``.
    """

    def __init__(self, env: gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self.single_observation_space, self._count, self._parts = _masked(
            "VectorActionMasks", env, env.single_observation_space, env.single_action_space
        )
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self._mask = np.zeros((env.num_envs, self._count), np.int8)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, infos = self.env.reset(seed=seed, options=options)
        chosen = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        self._take(infos, np.flatnonzero(chosen).tolist())
        return self._joined(obs, self._mask.copy()), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, infos = self.env.step(actions)
        finals = infos.get("final_obs")
        self._take(infos, range(self.num_envs), terminated if finals is None else ())
        if finals is not None:
            infos = {**infos, "final_obs": np.full(self.num_envs, None, object)}
            for row in np.flatnonzero(terminated | truncated).tolist():
                one = {name: part[row] for name, part in finals.items()} if isinstance(finals, dict) else finals[row]
                mask = self._said(infos, row, bool(terminated[row]), ended=True)
                infos["final_obs"][row] = self._joined(one, mask)
        return self._joined(obs, self._mask.copy()), reward, terminated, truncated, infos

    def _take(self, infos: dict[str, Any], rows: Iterable[int], terminated: Any = ()) -> None:
        """Copy the masks of lanes whose infos describe their current state; ``terminated`` marks final states."""
        for row in rows:
            self._mask[row] = self._said(infos, row, bool(len(terminated) and terminated[row]))

    def _said(self, infos: dict[str, Any], row: int, terminated: bool, ended: bool = False) -> npt.NDArray[np.int8]:
        said = np.asarray(info_value(infos, ACTION_MASK, row, ended))
        what = f"{_name(self.env)}: info[{ACTION_MASK!r}] of environment {row}"
        return checked_mask(said, self._count, what, terminated)

    def _joined(self, obs: Any, mask: npt.NDArray[np.int8]) -> dict[str, Any]:
        return {**(obs if self._parts else {OBS: obs}), ACTION_MASK: mask}


def _masked(what: str, env: Any, space: Any, actions: Any) -> tuple[Dict, int, bool]:
    """Return the space with masks, the number of actions, and whether ``space`` has parts.  Raises: ValueError."""
    if not isinstance(actions, Discrete):
        raise ValueError(f"{what}: {_name(env)} has the actions {actions}, expected Discrete")
    parts = dict(space.spaces) if isinstance(space, Dict) else {OBS: space}
    return Dict(parts | {ACTION_MASK: MultiBinary(int(actions.n))}), int(actions.n), isinstance(space, Dict)


def checked_mask(mask: npt.NDArray[Any], count: int, what: str, terminated: bool = False) -> npt.NDArray[np.int8]:
    """Return a mask as int8 [count], a copy.

    Args:
        what: name of the mask, for errors.
        terminated: the state is final, so that no action need be legal.

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
    """Wrap an environment with known legal actions into ``ActionMasks``; return others as they are.

    Masks of actions other than ``Discrete`` are left out, with a warning; a team has its own.

    Args:
        in_infos: returns whether the environment's infos have a mask; called if no other source is found.
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
            f"{_name(env)}: its action masks are not used: its actions are {actions}, and masks are for Discrete "
            "actions",
            UserWarning,
            stacklevel=2,
        )
        return env
    return ActionMasks(env, source)


def masks_in_infos(name: str) -> bool:
    """Return whether the infos of a registered environment have an action mask.

    A separate environment is made for this: an extra reset would change the others' episodes.
    """
    with closing(gymnasium.make(name, disable_env_checker=True)) as env:
        return in_infos_of(env)


def in_infos_of(env: Any) -> bool:
    """Return whether infos have an action mask, by a reset."""
    try:
        _, info = env.reset(seed=0)
        return ACTION_MASK in info
    except (TypeError, ValueError):  # no info, or none that is a dict: a vector's reset tells
        return False


def _name(env: Any) -> str:
    name: str = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    return name
