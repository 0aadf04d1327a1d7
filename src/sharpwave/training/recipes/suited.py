"""Settings that nobody gave: the recipe that suits an environment, and schedules for the length of a run.

An algorithm's own defaults are those of its paper, whose runs have a million steps or more. ``fitted`` shortens their
warm-up and schedules for shorter runs. Recipes of particular environments stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from gymnasium.spaces import Box, Space

from sharpwave.configuration import changed, leaves
from sharpwave.teams import AGENTS
from sharpwave.training.recipes import load_recipe, tables
from sharpwave.training.recipes.recipe import Environment, OwnEnvironment, Recipe

OF_ENVIRONMENTS = ("cartpole", "lunarlander", "pong", "minatar", "tmaze")
"""Recipes that were made for an environment, which they solve without anything else being given."""

SHARES = {
    "training.warmup_steps": 0.05,
    "agent.random_steps": 0.05,
    "agent.exploration.steps": 0.25,
    "agent.softmax.steps": 0.25,
    "agent.target_every": 0.02,
    "evaluation.evaluate_every": 0.2,
}
"""Settings that are a share of a run's steps, or of an algorithm's own settings where those are fewer."""


def suited(environment: Environment) -> tuple[str, Recipe, str]:
    """Return the recipe that suits an environment, with its name, and what it was chosen by.

    Raises: ValueError: an unknown environment.
    """
    name = environment.name
    for recipe in OF_ENVIRONMENTS:
        own = load_recipe(recipe)
        if (own.env.kind, own.env.name) == (environment.kind, name):
            return recipe, own, f"made for {name}"
    if environment.kind == "atari":
        return "atari", load_recipe("atari"), "for Atari games"
    if name.startswith("MinAtar/"):
        return "minatar", load_recipe("minatar"), "for MinAtar"
    observation, action = spaces_of(environment)
    if AGENTS in (getattr(observation, "spaces", None) or {}):
        return "qmix", load_recipe("qmix"), "for teams"
    if isinstance(action, Box):
        return "sac", load_recipe("sac"), "for continuous actions"
    vectors = load_recipe("gymnasium")
    if has_images(observation):
        games = load_recipe("atari")
        agent = replace(games.agent, network="auto")
        return "atari", replace(games, env=vectors.env, replay=vectors.replay, agent=agent), "for images"
    return "gymnasium", vectors, "for discrete actions"


def spaces_of(environment: Environment) -> tuple[Space[Any], Space[Any]]:
    """Return the observation and the action space of one environment, which is made for that unless it is an object.

    Raises: ValueError: an unknown environment.
    """
    if isinstance(environment, OwnEnvironment) and environment.given is not None:
        spaces: tuple[Space[Any], Space[Any]] = environment.given.spaces()
        return spaces
    with closing(environment.make(1)) as made:
        return made.single_observation_space, made.single_action_space


def has_images(observation: Space[Any]) -> bool:
    """Return whether observations are images, or have some among their parts."""
    from sharpwave.agents.inputs import image_shape

    parts = getattr(observation, "spaces", None)
    if parts is None:
        return image_shape(observation) is not None
    return any(map(has_images, parts.values() if isinstance(parts, Mapping) else parts))


def is_general(name: str, environment: Environment) -> bool:
    """Return whether a recipe's settings are an algorithm's, and not ones that were made for the run's environment.

    Args:
        name: of the recipe, or of an algorithm.
    """
    if name in OF_ENVIRONMENTS:
        return False
    own = load_recipe(name).env
    if name not in tables() or own.kind != environment.kind:
        return True
    return own.kind != "atari" and own.name != environment.name


def fitted(recipe: Recipe, changes: Mapping[tuple[str, ...], Any]) -> Recipe:
    """Return an algorithm's settings with those of ``SHARES`` for the steps of a run, where it is shorter than usual.

    At the recipe's own length, and where the shares are larger than its own settings, nothing changes.

    Args:
        changes: settings by path that the run will have; they are not made here, and none of theirs is fitted.
    """
    own: int = recipe.training.steps
    steps = changes.get(("training", "steps"), own)
    if steps >= own:
        return recipe
    known, fit = {one.key: one for one in leaves(recipe)}, {}
    softmax = changes.get(("agent", "explore"), getattr(recipe.agent, "explore", "")) == "softmax"
    for key, share in SHARES.items():
        if key in known and (path := known[key].path) not in changes and ("softmax" not in path or softmax):
            before = known[key].value
            share = max(share, before / own)
            fit[path] = min(before, max(int(share * steps), 1 if before else 0))
    return changed(recipe, fit)
