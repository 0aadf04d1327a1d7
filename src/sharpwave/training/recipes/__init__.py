"""Recipes by name: settings that are known to learn. One file each, imported on demand."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from sharpwave.agents.registry import kinds

if TYPE_CHECKING:
    from sharpwave.training.recipes.recipe import Recipe

RECIPES: dict[str, str] = {
    "cartpole": "CartPole-v1 to a held-out mean of 490 (475 count as solved): the quick look, about a minute.",
    "pong": "Atari Pong to a held-out mean of 18 with no game lost, sized for two CPU cores.",
    "pong-dqn": "The same by a plain DQN, which takes longer.",
    "apex": "Pong as Ape-X does it: two actors with a ladder of epsilons give each step its initial priority.",
    "cartpole-ppo": "CartPole-v1 by PPO, which learns from each window four times (--epochs).",
    "cartpole-a2c": "The same by A2C, which learns from each window once.",
    "cartpole-a3c": "The same by A3C with two actor processes.",
    "cartpole-impala": "The same by IMPALA, whose V-trace corrects for weights that are old.",
    "lunarlander": "LunarLander-v3 to a held-out mean of 240, which is well above the 200 that count as solved.",
    "tmaze": "Memory: R2D2 learns to recall a cue over a corridor of 20 steps, in a minute or two.",
    "drqn": "Any Atari game by DRQN: one frame at a time, with a recurrent core in place of the stack.",
    "r2d2-atari": "Any Atari game by R2D2 with the settings of its paper, its rewards unclipped.",
    "r2d3-atari": "The same with demonstrations, R2D3: --demonstrations FOLDER, as sharpwave record makes it.",
    "lock": "Demonstrations: R2D3 opens eight doors in a row, of which random play opens none.",
    "deep-sea": "Exploration: Agent57 in bsuite's deep sea, whose treasure is 20 steps away; solved on most seeds.",
    "minatar": "A game of MinAtar, 500,000 steps in minutes; others with --env MinAtar/Seaquest-v1.",
    "minatar-rainbow": "The same by Rainbow.",
    "minatar-iqn": "The same by implicit quantile networks.",
    "minatar-pqn": "The same by PQN, without replay.",
    "minatar-ppo": "The same by PPO, which learns from each window four times.",
    "rainbow": "Any Atari game by Rainbow with the settings of its paper.",
    "data-efficient-rainbow": "Any Atari game by Rainbow with an update at every step, for 100,000 steps.",
    "iqn": "Any Atari game by implicit quantile networks with the settings of their paper.",
    "atari": "Any Atari game, whole screen and all actions; name it with --env breakout.",
    "sac": "Continuous actions by soft actor-critic: MuJoCo's HalfCheetah-v5, others with --env Hopper-v5.",
    "td3": "The same by TD3, whose policy is deterministic.",
    "crossq": "The same by CrossQ: normalized critics without target networks.",
    "vdn": "A team by VDN: mpe2's simple_spread, where three agents cover three landmarks; others with --env.",
    "qmix": "The same by QMIX, whose mixing network is told the state.",
    "masac": "The same by multi-agent soft actor-critic.",
    "offline": "From a store, run or data set: sharpwave train offline --data runs/cart --algorithm cql (or iql, bc).",
    "gymnasium": "Any Gymnasium environment with discrete actions; name it with --env LunarLander-v3.",
}
"""Summary of each recipe, by name; ``RECIPE`` in the file of that name here ("_" for "-") is the recipe itself."""


OFFLINE = ("cql", "iql", "bc")
"""Algorithms of recipe ``offline``, which differ in their settings; the first is its default."""


def recipe_names() -> dict[str, str]:
    """Return the names that can be trained, each with a summary: recipes, and algorithms with their own defaults."""
    other = [kind for kind in kinds() if kind not in RECIPES and kind not in OFFLINE]
    about = "Algorithm {} with its own defaults, in any Gymnasium environment: --env ID."
    return RECIPES | {kind: about.format(kind) for kind in other}


def load_recipe(name: str) -> Recipe:
    """Return the recipe of a name of ``recipe_names``, or of an algorithm.  Raises: ValueError: an unknown name."""
    if name in RECIPES:
        recipe: Recipe = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").RECIPE
        return recipe
    if name in kinds():
        from sharpwave.training.recipes.recipe import default_recipe

        return default_recipe(name)
    raise ValueError(f"unknown recipe {name!r}, expected one of {', '.join(recipe_names())}")
