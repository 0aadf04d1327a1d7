"""Environments by name: Atari games as vectors in C++, all others through Gymnasium."""

from __future__ import annotations

import difflib
from typing import Any

from gymnasium.spaces import Dict, Discrete
from gymnasium.vector import VectorEnv

from sharpwave.envs.atari import AtariFrames, AtariSettings, games
from sharpwave.envs.gym import known, make_gym
from sharpwave.observations import PADS, stacking
from sharpwave.spec import Field, Spec

__all__ = ["AtariFrames", "AtariSettings", "games", "make_env", "step_spec"]


def make_env(
    name: str, num_envs: int, atari: AtariSettings | None = None, *, render: bool = False, stack: int = 1
) -> VectorEnv[Any, Any, Any]:
    """Make a vector of environments that reset in the step that ends an episode (``AutoresetMode.SAME_STEP``).

    Args:
        name: an Atari game as ale-py spells it ("pong", "space_invaders"), or a Gymnasium id ("CartPole-v1").
        atari: settings of Atari games, for their names only.
        render: let ``env.render()`` return one picture per environment.
        stack: observations of other environments that are stacked, the newest last; 1: none.
    Raises:
        ValueError: an unknown name, an environment whose observations are not arrays, or settings of another kind.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs: got {num_envs}, expected at least 1")
    if name in games():
        if stack != 1:
            raise ValueError(f"stack: got {stack} for the Atari game {name!r}, expected AtariSettings(stack={stack})")
        return AtariFrames(name, num_envs, atari or AtariSettings(), render=render)
    close = difflib.get_close_matches(name.lower().removeprefix("ale/").split("-")[0], games(), n=3, cutoff=0.7)
    if atari is not None and known(name):
        game = f", as {close[0]!r}" if close else ""
        raise ValueError(
            f"atari: got AtariSettings for the Gymnasium id {name!r}, expected the name of an Atari game{game}: an "
            "id's environment has its own settings"
        )
    hint = f"no environment has this name; did you mean the Atari game {' or '.join(close)}?" if close else ""
    return make_gym(name, num_envs, render=render, stack=stack, hint=hint)


def step_spec(env: Any) -> Spec:
    """Return the ``Spec`` of a step of ``env``: the newest frame of a stack, or the whole observation.

    Args:
        env: one environment, or a vector, whose observations are arrays, or a flat dict of arrays, and whose actions
            are numbers or arrays.

    Raises:
        ValueError: observations or actions of another kind, for which a ``Spec`` can be declared by hand; or
            environments that stack frames in different ways, or with a padding that no field has.
    """
    prefix = "single_" if hasattr(env, "num_envs") else ""
    space: Any = getattr(env, f"{prefix}observation_space", None)
    actions: Any = getattr(env, f"{prefix}action_space", None)
    parts: dict[str, Any] = dict(space.spaces) if isinstance(space, Dict) else {"": space}
    for what, one in [*(("observations", part) for part in parts.values()), ("actions", actions)]:
        if getattr(one, "shape", None) is None or getattr(one, "dtype", None) is None or hasattr(one, "spaces"):
            raise ValueError(f"step_spec: env has {what} {one}, expected arrays; declare sharpwave.Spec(...) for it")
    action = Field(actions.shape, "int64" if isinstance(actions, Discrete) else str(actions.dtype))
    found = stacking(env)
    usable = len(found) == 1 and (not found[0][0] or found[0][1] in PADS)
    if not usable and not isinstance(space, Dict):
        raise ValueError(
            f"env: stacks frames as (stack_size, padding_type) {found}; expected one, padded with {[*PADS]}"
        )
    fields = {key: _field(part, *(found[0] if usable else (0, ""))) for key, part in parts.items()}
    return Spec(obs=fields if isinstance(space, Dict) else fields[""], action=action)


def _field(space: Any, size: int, padding: str) -> Field:
    """Return the field of an observation, or of a part of one, in an environment that stacks ``size`` frames; 0: none.

    Parts that a wrapper added to a dict of stacks are stored as they are.
    """
    if size and space.shape[:1] == (size,):  # the replayed stack looks as the environment's does, its padding included
        return Field(space.shape[1:], str(space.dtype), stack=size, pad=PADS[padding])
    return Field(space.shape, str(space.dtype))
