"""Recipes by name: settings that are known to learn, as tables in one TOML file a family.

A table names the settings in which it differs from ``recipe``, another one, or from the defaults.
"""

from __future__ import annotations

import functools
import math
import tomllib
from importlib import resources
from typing import TYPE_CHECKING, Any

from sharpwave.agents.registry import agent_settings, is_known, kinds

if TYPE_CHECKING:
    from sharpwave.training.recipes.recipe import Recipe

FAMILIES = ("vectors", "on_policy", "atari", "minatar", "puzzles", "continuous", "teams", "offline")
OFFLINE = ("cql", "iql", "bc", "td3bc", "rebrac", "calql")
"""Algorithms of recipe ``offline``, which differ in their settings; the first is its default."""
EXPERIMENTAL = "Experimental: not yet run to a score."


@functools.cache
def tables() -> dict[str, dict[str, Any]]:
    """Return the table of each recipe, by name, in the order in which they are shown."""
    found: dict[str, dict[str, Any]] = {}
    for family in FAMILIES:
        found |= tomllib.loads((resources.files(__name__) / f"{family}.toml").read_text("utf-8"))
    return found


def recipe_names() -> dict[str, str]:
    """Return the names that can be trained, each with a summary: recipes, and algorithms with their own defaults."""
    known = {
        name: f"{table['about']} {EXPERIMENTAL}" if table.get("experimental") else table["about"]
        for name, table in tables().items()
    }
    about = "Algorithm {} with its own defaults, in the Gymnasium environment of --env ID."
    return known | {kind: about.format(kind) for kind in kinds() if kind not in known and kind not in OFFLINE}


def load_recipe(name: str) -> Recipe:
    """Return the recipe of a name of ``recipe_names``, or of an algorithm.  Raises: ValueError: an unknown name."""
    from sharpwave.configuration import from_table
    from sharpwave.training.recipes.recipe import Recipe

    if name in tables():
        table = {key: value for key, value in tables()[name].items() if key not in ("about", "experimental")}
        base = table.pop("recipe", None)
        return from_table(Recipe() if base is None else load_recipe(base), table)
    if is_known(name):
        return default_recipe(name)
    raise ValueError(f"unknown recipe {name!r}, expected one of {', '.join(recipe_names())}")


def default_recipe(kind: str) -> Recipe:
    """Make a recipe from an algorithm's own defaults; offline, with the other settings of recipe ``offline``."""
    from sharpwave.agents.replay import OfflineSettings
    from sharpwave.configuration import from_table
    from sharpwave.training.recipes.recipe import Gymnasium, Recipe, TrainingSettings

    agent = agent_settings(kind)()
    if isinstance(agent, OfflineSettings):
        return from_table(load_recipe("offline"), {"agent": {"kind": kind}})
    replay = getattr(agent, "replay", None)
    if replay is not None and math.isfinite(replay.most_samples):
        # Items are used up. Without a warm-up: steps that wait for one are old when they are used.
        return Recipe(env=Gymnasium(), agent=agent, training=TrainingSettings(warmup_steps=0, update_every=1))
    return Recipe(env=Gymnasium(), agent=agent)
