"""Environments by name: Atari games as vectors in C++, all others through Gymnasium."""

from __future__ import annotations

import difflib
from typing import Any

from sharpwave.extras import install

try:
    import ale_py  # noqa: F401
    import gymnasium  # noqa: F401
    from gymnasium.vector import VectorEnv
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"sharpwave.envs needs {error.name}: {install('train')}", name=error.name) from error

from sharpwave.environment_spec import step_spec
from sharpwave.envs.action_masks import ActionMasks, VectorActionMasks
from sharpwave.envs.atari import AtariFrames, AtariSettings, games
from sharpwave.envs.gym import known, make_gym
from sharpwave.envs.team_games import TeamEnv

__all__ = [
    "ActionMasks",
    "AtariFrames",
    "AtariSettings",
    "TeamEnv",
    "VectorActionMasks",
    "games",
    "make_env",
    "step_spec",
]


def make_env(
    name: str,
    num_envs: int,
    atari: AtariSettings | None = None,
    *,
    render: bool = False,
    stack: int = 1,
    action_masks: bool = True,
) -> VectorEnv[Any, Any, Any]:
    """Make a vector of environments that reset in the step that ends an episode (``AutoresetMode.SAME_STEP``).

    Args:
        name: an Atari game as ale-py spells it ("pong", "space_invaders"), or a Gymnasium id ("CartPole-v1").
        atari: settings of Atari games, for their names only.
        render: let ``env.render()`` return one picture per environment.
        stack: number of observations of other environments that are stacked, the newest last; 1: no stack.
        action_masks: other environments observe legal actions, if they declare them (``ActionMasks``).
    Raises:
        ValueError: an unknown name, an environment whose observations are not arrays, or settings of the wrong kind.
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
    return make_gym(name, num_envs, render=render, stack=stack, action_masks=action_masks, hint=hint)
