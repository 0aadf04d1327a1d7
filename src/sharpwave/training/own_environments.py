"""Environments that a program gives to a run, as parts of its recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sharpwave.envs import games
from sharpwave.envs.given import NOT_ANEW, Given
from sharpwave.training.callbacks import check_sendable
from sharpwave.training.recipes.recipe import Atari, Environment, Gymnasium, OwnEnvironment, Recipe
from sharpwave.training.setup import import_path

EVALUATING = (
    "evaluate_every",
    "evaluate_beside",
    "stop_reward",
    "stop_worst",
    "video_every",
    "saliency_every",
    "patience",
)
"""Options that need an environment beside the one that is trained in."""


def with_environment(recipe: Recipe, env: Any, lanes: int | None = None, actors: int | None = None) -> Recipe:
    """Return a recipe with an environment: a name, an object, or a function that makes one.

    Args:
        lanes: number of environments that was asked for; None: the recipe's, or as many as an object has.
        actors: number of actor processes; None: the recipe's.
    Raises:
        ValueError: it is none of these, or has another number of environments.
    """
    if isinstance(env, str):
        return replace(recipe, env=_by_name(recipe.env, env))
    given = env if isinstance(env, Given) else Given(env)
    count = recipe.actors.count if actors is None else actors
    if count and given.object is not None:
        raise _only_here(f"--actors: got {count}", given.name)
    expected = _lanes(given, count)
    if lanes is not None and expected is not None and lanes != expected:
        raise ValueError(
            f"--num-envs: got {lanes}, but {given.name} has {expected}; leave --num-envs out, or give a function that "
            "makes a single environment"
        )
    number = lanes or expected or recipe.env.num_envs
    usual = Gymnasium() if isinstance(recipe.env, Atari) else recipe.env
    path = "" if given.factory is None else import_path(given.factory)
    own = OwnEnvironment(given.name, number, usual.stack, usual.action_masks, path, given)
    return replace(recipe, env=own)


def _lanes(given: Given, actors: int) -> int | None:
    """Return the number of environments that a run of an object, or of a function in each actor, has; None: any."""
    fixed = given.fixed_lanes()
    return fixed if fixed is None or given.object is not None else fixed * max(actors, 1)


def _by_name(usual: Environment, name: str) -> Environment:
    """Return the settings of the environment ``name``, with the recipe's usual ones where they are of its kind."""
    if name in games():
        return replace(usual, name=name) if isinstance(usual, Atari) else Atari(name=name)
    if isinstance(usual, OwnEnvironment):
        return Gymnasium(name)
    return replace(usual, name=name)


def given_again(recipe: Recipe, env: Any) -> Recipe:
    """Return the recipe of a run with its environment, which its program gives again.

    Raises:
        ValueError: the run's settings make its environment themselves, or this one has another number of lanes.
    """
    before = recipe.env
    if not isinstance(before, OwnEnvironment):
        raise ValueError(f"env: got {env!r}, expected none: the run's settings make its {before.name}")
    if isinstance(env, str):
        raise ValueError(f"env: got {env!r}, expected an environment such as the run's {before.name!r}, or a function")
    given = Given(env)
    fixed = given.fixed_lanes()
    if (
        fixed is not None
        and fixed * (1 if given.object is not None else max(recipe.actors.count, 1)) != before.num_envs
    ):
        raise ValueError(f"env: {given.name} has {fixed} environments, the run has {before.num_envs}")
    return replace(recipe, env=replace(before, given=given))


def check_given(recipe: Recipe) -> None:
    """Check before a run begins that its further processes can make an environment that was given.

    Raises: ValueError.
    """
    if not isinstance(recipe.env, OwnEnvironment) or recipe.env.given is None:
        return
    beside = recipe.evaluation.evaluate_beside and recipe.evaluation.evaluate_every
    if not recipe.actors.count and not beside:
        return
    given = recipe.env.given
    if given.object is not None:
        option = f"--actors: got {recipe.actors.count}" if recipe.actors.count else "--evaluate-beside: got True"
        raise _only_here(option, given.name)
    check_sendable("env", given.factory)


def _only_here(option: str, name: str) -> ValueError:
    return ValueError(
        f"{option}, but other processes cannot use the environment object {name}; give a function that makes it, at "
        "the top level of a module"
    )


def without_evaluations(recipe: Recipe, asked: set[str]) -> Recipe:
    """Return a recipe whose environment can only be trained in, without evaluations and what depends on them.

    Args:
        asked: options that the caller set.
    Raises:
        ValueError: one of them needs evaluations.
    """
    wanted = [name for name in EVALUATING if name in asked and getattr(recipe.evaluation, name)]
    if wanted:
        raise ValueError(
            f"{wanted[0]}: got {getattr(recipe.evaluation, wanted[0])!r}, but {recipe.env.name} {NOT_ANEW}"
        )
    none = dict.fromkeys(("evaluate_every", "video_every", "saliency_every", "patience"), 0)
    off = replace(recipe.evaluation, stop_reward=None, stop_worst=None, evaluate_beside=False, **none)
    return replace(recipe, evaluation=off)
