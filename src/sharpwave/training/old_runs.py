"""Runs of earlier releases, translated to what this one reads."""

from __future__ import annotations

from typing import Any

from sharpwave.agents.protocol import Agent
from sharpwave.training.recipes.environments import Atari, Gymnasium
from sharpwave.training.recipes.recipe import Recipe

ATARI_ONLY = ("frame", "crop", "stack", "actions", "clip_rewards", "frame_skip", "sticky")
"""Settings that recipes had for every environment, whatever it was."""


def recipe(settings: dict[str, Any]) -> Recipe:
    """Translate the flat settings of version 1, whose names are those of the options.

    Raises:
        ValueError, TypeError, AttributeError: they are none.
    """
    from sharpwave.envs import games

    atari = settings.get("env", Atari().name) in games()
    own = {name: value for name, value in settings.items() if atari or name not in ATARI_ONLY}
    return Recipe(env=Atari() if atari else Gymnasium()).override(**own)


def agent_figures(state: dict[str, Any], agent: Agent) -> dict[str, Any]:
    """Return the plain values of an agent's state, from a checkpoint's figures that have none: DQN was the only one.

    Raises:
        KeyError, TypeError: not the figures of such a checkpoint.
    """
    return {
        "exploration": state["training"]["exploration"],
        "targets_copied": state["steps"] // agent.settings.target_every,
    }
