"""Translation of earlier releases' runs to this one's format."""

from __future__ import annotations

from typing import Any

from sharpwave.agents.protocol import Agent
from sharpwave.configuration import changed
from sharpwave.training.recipes.environments import Atari, Gymnasium
from sharpwave.training.recipes.recipe import Recipe

ATARI_ONLY = ("frame", "crop", "stack", "actions", "clip_rewards", "frame_skip", "sticky")
"""Atari settings that version 1 wrote for every environment."""


def recipe(settings: dict[str, Any]) -> Recipe:
    """Translate the flat settings of version 1, named as the options are.

    Raises:
        ValueError, TypeError, AttributeError: they are not such settings.
    """
    from sharpwave.envs import games

    atari = settings.get("env", Atari().name) in games()
    own = {name: value for name, value in settings.items() if atari or name not in ATARI_ONLY}
    base = Recipe(env=Atari() if atari else Gymnasium())
    return changed(base, base.paths(own))  # all settings are named, those without effect too


def agent_figures(state: dict[str, Any], agent: Agent) -> dict[str, Any]:
    """Return the plain values of a DQN's state from the figures of a checkpoint that precedes other agents.

    Raises:
        KeyError, TypeError: the figures are not those of such a checkpoint.
    """
    return {
        "exploration": state["training"]["exploration"],
        "targets_copied": state["steps"] // agent.settings.target_every,
    }
