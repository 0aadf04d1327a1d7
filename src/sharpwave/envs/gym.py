"""Gymnasium environments as vectors."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, VectorEnv


def make_gym(name: str, num_envs: int, *, render: bool = False, hint: str = "") -> VectorEnv[Any, Any, Any]:
    """``num_envs`` copies of a registered environment, stepped in this process.

    Args:
        name: its Gymnasium id, "CartPole-v1".
        render: ``env.render()`` returns one picture an environment.
        hint: said about an unknown name in the place of Gymnasium's own words.
    Raises:
        ValueError: an unknown name, or an environment that cannot be made here (a package is missing).
    """
    options: dict[str, Any] = {"render_mode": "rgb_array"} if render else {}
    try:
        return gymnasium.make_vec(
            name,
            num_envs=num_envs,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
            **options,
        )
    except gymnasium.error.Error as error:
        raise ValueError(
            f"env {name!r} cannot be made: {hint or error} "
            "(expected an Atari game as pong or breakout, or a Gymnasium id as CartPole-v1)"
        ) from error
