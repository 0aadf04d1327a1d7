"""Training as a call: ``sharpwave.train``."""

from __future__ import annotations

import dataclasses
import difflib
import multiprocessing
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from sharpwave.agents import registry
from sharpwave.configuration import leaves
from sharpwave.envs import games
from sharpwave.envs.given import NOT_ANEW, Given
from sharpwave.training.callbacks import Callback, MakeActorCallback, end_by_signal
from sharpwave.training.own_environments import with_environment, without_evaluations
from sharpwave.training.recipes import default_recipe, load_recipe, recipe_names
from sharpwave.training.recipes.recipe import Atari, OwnEnvironment, Recipe
from sharpwave.training.recipes.suited import fitted, is_general, suited
from sharpwave.training.results import TrainingRun
from sharpwave.training.run import run


def train(
    env: Any = None,
    agent: Any = None,
    *,
    recipe: str | Recipe | None = None,
    steps: int | None = None,
    seed: int | None = None,
    actors: int | None = None,
    out: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Callback] = (),
    actor_callbacks: Sequence[MakeActorCallback] = (),
    progress: bool = True,
    **settings: Any,
) -> TrainingRun:
    """Train an agent in a new run folder, as ``sharpwave train`` does: the same settings give the same run and files.

    Args:
        env: a Gymnasium id (``"CartPole-v1"``); an Atari game (``"pong"``); an environment; a vector of environments,
            of any autoreset mode, ale-py's and EnvPool's included; or a function that makes one, called without
            arguments, or with ``num_envs`` if it has that parameter. None: the recipe's.
        agent: an algorithm by name (``"sac"``), its settings (``agents.SAC.Settings(...)``), or its class. Settings
            that are not given are those of ``sharpwave train NAME``, its warm-up and schedules shortened for runs of
            few ``steps``; where that is a recipe for Atari games and ``env`` is none, or the other way round, they are
            the algorithm's defaults. None: the recipe's.
        recipe: a recipe by name (``"cartpole"``), or a ``Recipe``, whose settings apply where none are given, as they
            are. None, and no ``agent`` either: one that suits the environment, which is printed.
        steps: environment steps to make in all, of all environments. seed: of environments, exploration, network and
            sampling. actors: processes that step environments while this one learns. None: the recipe's.
        out: the run's folder; None: ``runs/<name>-<time>-<seed>``.
        callbacks, actor_callbacks: as for ``sharpwave.training.run.run``.
        progress: show progress, on a terminal, in a notebook or as lines.
        settings: further settings by the names of their options: ``num_envs=8``, ``learning_rate=1e-4``, ``utd=4``.

    An environment that is given is trained in itself, and stays open. Held-out evaluations never play in it: they make
    others, from its ``spec`` (as ``gymnasium.make`` sets it), or as a ``SyncVectorEnv`` or ``AsyncVectorEnv`` made its
    own; if nothing says how, there are none: give a function then. Actors need a function, too, which other processes
    can import.

    Ctrl-C ends the run with a checkpoint, and returns it. After SIGTERM or SIGHUP the program ends with the run, as it
    does without one. In other threads than the main one no signal is handled.

    No process is started unless ``actors``, ``evaluate_beside`` or the like ask for it; a script that does so calls
    this under ``if __name__ == "__main__":``.

    Returns:
        the run: ``run.summary``, ``run.metrics``, ``run.policy``, ``run.store``, ``run.resume(steps=...)``;
        ``folder, summary = train(...)`` as well.
    Raises:
        ValueError: an unknown name or setting, an invalid value, an environment that does not fit the agent, or a
            folder that is in use; nothing was written.
        RuntimeError: the main module, without a guard, called this again in a process that an earlier call began.
        OSError, ProcessDiedError, CallbackError, NotSavedError: as ``sharpwave.training.run.run``.
        Exception: the environment's, once the run has ended with a checkpoint if it had made updates.
    """
    given = {"steps": steps, "seed": seed, "actors": actors}
    settings |= {name: value for name, value in given.items() if value is not None}
    name, chosen, why = chosen_recipe(env, agent, recipe, settings)
    check_guarded(chosen)
    console = Console(quiet=not progress)
    if why:
        choice = "agent= or recipe= choose another"
        console.print(f"Recipe {name}, {why}, by {chosen.agent.kind}; {choice}", soft_wrap=True, highlight=False)
    if isinstance(chosen.env, OwnEnvironment) and not chosen.env.given.repeatable:
        chosen = without_evaluations(chosen, set(settings))
        console.print(
            f"No held-out evaluations: {chosen.env.name} {NOT_ANEW}",
            soft_wrap=True,
            highlight=False,
        )
    folder = None if out is None else Path(out).expanduser()
    own = chosen.env.given if isinstance(chosen.env, OwnEnvironment) else None
    made = run(name, chosen, folder, console, callbacks=callbacks, actor_callbacks=actor_callbacks)
    end_by_signal(made.summary["reason"])
    return made.of(None if own is None else own.factory or own.object)


def chosen_recipe(
    env: Any, agent: Any, recipe: str | Recipe | None, settings: dict[str, Any]
) -> tuple[str, Recipe, str]:
    """Return the name and the recipe of a run of ``train``, and what it was chosen by if nobody named it.

    Raises: ValueError.
    """
    lanes, actors, why = settings.get("num_envs"), settings.get("actors"), ""
    atari = None if env is None else isinstance(env, str) and env in games()
    if env is not None and not isinstance(env, str):
        env = Given(env)
    if isinstance(recipe, Recipe):
        name, base = recipe.agent.kind, recipe
    elif recipe is not None:
        name, base = recipe, _recipe(recipe)
    elif agent is not None:
        name = _kind(agent)
        base = _of_algorithm(name, atari)
    elif env is None:
        raise ValueError("env: got none, expected an environment such as 'CartPole-v1', or recipe=")
    else:
        usual = load_recipe("atari" if atari else "gymnasium")
        name, base, why = suited(with_environment(usual, env, lanes, actors).env)
    if recipe is None and env is None and not base.offline:
        raise ValueError("env: got none, expected an environment such as 'CartPole-v1', or recipe=")
    given: dict[tuple[str, ...], Any] = {}
    if agent is not None:
        kind = _kind(agent)
        usual = registry.agent_settings(kind)()
        if _is_settings(agent):
            base = dataclasses.replace(base, agent=agent)
            before = {one.path: one.value for one in leaves(usual)}
            given |= {("agent", *one.path): one.value for one in leaves(agent) if before.get(one.path) != one.value}
        elif base.agent.kind != kind:
            base = dataclasses.replace(base, agent=usual)
    if env is not None:
        base = with_environment(base, env, lanes, actors)
    if recipe is None and not base.offline and is_general(name, base.env):
        base = fitted(base, given | base.paths(settings))
    return name, base.override(**settings), why


def check_guarded(recipe: Recipe, *, starts: bool = False) -> None:
    """Check that this process may start those that a recipe asks for, or further ones if it ``starts`` some.

    Raises:
        RuntimeError: it is one of them, and imports the main module, which trains without a guard.
    """
    beside = recipe.evaluation.evaluate_beside and recipe.evaluation.evaluate_every
    if (starts or recipe.actors.count or beside or recipe.replay.ray) and getattr(
        multiprocessing.current_process(), "_inheriting", False
    ):
        raise RuntimeError(
            "train: a child process of the run imports the script, which would train again; in the script, put the "
            'training under if __name__ == "__main__":'
        )


def _of_algorithm(kind: str, atari: bool | None) -> Recipe:
    """Return the recipe of an algorithm's name if its environments are of the kind that is wanted, or its defaults."""
    named = load_recipe(kind)
    fits = atari is None or isinstance(named.env, Atari) == atari
    return named if named.agent.kind == kind and fits else default_recipe(kind)


def _is_settings(agent: Any) -> bool:
    return dataclasses.is_dataclass(agent) and not isinstance(agent, type)


def _kind(agent: Any) -> str:
    """Return the name of an algorithm, which is registered if it is a class.  Raises: ValueError: there is none."""
    if isinstance(agent, type) and hasattr(agent, "Settings"):
        registry.register(agent)
        return str(agent.Settings.kind)
    if _is_settings(agent) and registry.is_known(getattr(agent, "kind", "")):
        return str(agent.kind)
    if isinstance(agent, str) and registry.is_known(agent):
        return agent
    known = registry.kinds()
    if isinstance(agent, str) and agent in recipe_names():
        raise ValueError(f"agent: {agent!r} is a recipe, expected an algorithm; give it as recipe={agent!r}")
    close = difflib.get_close_matches(agent.lower(), known) if isinstance(agent, str) else []
    meant = f"did you mean {' or '.join(close)}? Expected" if close else "expected"
    raise ValueError(
        f"agent: got {agent!r}, {meant} one of {', '.join(known)}, settings such as agents.SAC.Settings(), or a class"
    )


def _recipe(name: str) -> Recipe:
    if name in recipe_names():
        return load_recipe(name)
    close = difflib.get_close_matches(name, recipe_names()) if isinstance(name, str) else []
    meant = f"did you mean {' or '.join(close)}? Expected" if close else "expected"
    raise ValueError(f"recipe: got {name!r}, {meant} one of {', '.join(recipe_names())}")
