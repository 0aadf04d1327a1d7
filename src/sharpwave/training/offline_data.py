"""Data of offline runs: where they are, which environment they are of, and how they come into a run's replay memory.

A store's folder is read without opening it: nothing there is locked or changed, and another process may be writing it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import sharpwave as sw
from sharpwave.agents.actions import NumberedActions
from sharpwave.agents.demonstrations import SPARE_STEPS, add_recorded, check_episodes
from sharpwave.agents.protocol import Spaces
from sharpwave.configuration import from_table
from sharpwave.data.formats import ENDINGS, SOURCES, open_source
from sharpwave.disk.store_folder import MANIFEST
from sharpwave.offline.recorded import RecordedEpisodes, best_of
from sharpwave.offline.scan import describe
from sharpwave.persistence.checkpoint_file import folder_of, is_file_name, opened
from sharpwave.training.checkpoints import REPLAY, latest_checkpoint
from sharpwave.training.config import CONFIG
from sharpwave.training.recipes.environments import Atari, Gymnasium, environment_settings
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.recorded_env import KEY

READABLE = (OSError, sw.DamagedError)


class Data(NamedTuple):
    """Data of an offline run: the number of their steps, and a function that appends them to a store."""

    steps: int
    add_to: Callable[[sw.Store], None]


def with_environment(recipe: Recipe) -> Recipe:
    """Return an offline recipe with the environment of its data, unless it names another; other recipes as they are.

    Raises:
        ValueError: there are no such data, or they do not say which environment they are of.
    """
    if not recipe.offline:
        return recipe
    source = recipe.agent.data
    if not source:
        raise ValueError("--data: got nothing, expected what to learn from: the folder of a store or of a run, npz:...")
    said, name = recorded_environment(source), recipe.env.name
    if not name and said is None:
        raise ValueError(
            f"--data: {source!r} does not say which environment it is of; name one with --env, in which the policy "
            "is measured"
        )
    if not name:
        assert said is not None
        if ":" in said.name:
            raise ValueError(
                f"--data: {source!r} is of environment {said.name!r}, which would import a module and run its code; if "
                f"you trust that module, give --env {said.name}"
            )
        return replace(recipe, env=replace(said, num_envs=1))
    from sharpwave.envs import games

    if name in games():
        return replace(recipe, env=replace(said if isinstance(said, Atari) else Atari(), name=name, num_envs=1))
    stack = recipe.env.stack if recipe.env.stack > 1 or not isinstance(said, Gymnasium) else said.stack
    return replace(recipe, env=Gymnasium(name, num_envs=1, stack=stack))


def recorded_environment(source: str) -> Atari | Gymnasium | None:
    """Return the settings of the environment that a store says it was recorded in; None: it says nothing.

    Raises:
        ValueError: there is no store or data set of this name.
    """
    path = store_path(source)
    if path is None:
        return None
    try:
        if path.is_file():
            with opened(path) as archive, tempfile.TemporaryDirectory() as folder:
                archive.extract(MANIFEST, folder)
                said = describe(Path(folder)).annotations.store.get(KEY)
        else:
            said = describe(path).annotations.store.get(KEY)
    except READABLE as error:
        raise _unreadable(source, error) from error
    if not isinstance(said, dict):
        return None
    try:
        found: Atari | Gymnasium = from_table(environment_settings(said["kind"])(), said)
    except (ValueError, TypeError, KeyError):  # of another release, or a user's own annotation
        return None
    return found


def store_path(source: str) -> Path | None:
    """Return the path of a store, of that of a run's newest checkpoint, or None: ``source`` is a data set's name.

    Raises:
        ValueError: neither.
    """
    path = Path(source)
    if path.is_dir() and (path / CONFIG).is_file():
        replay = latest_checkpoint(path) / REPLAY
        if not replay.is_dir():
            raise ValueError(f"--data: the newest checkpoint of run {source!r} has no replay memory ({replay})")
        return replay
    if path.is_dir() or is_file_name(path):
        return path
    if source.partition(":")[0] in SOURCES or path.suffix.lower() in ENDINGS:
        return None
    wanted = ", ".join(f"{kind}:..." for kind in SOURCES)
    raise ValueError(
        f"--data: {source!r} is no folder, expected that of a store or of a run, a .sharpwave file, {wanted}"
    )


@contextmanager
def open_data(recipe: Recipe, spaces: Spaces, spec: sw.Spec) -> Iterator[Data]:
    """Open the data of an offline recipe.

    Args:
        spaces: those of the environment, whose actions the data's must be.
        spec: of the store that they will be appended to.
    Raises:
        ValueError: there are no such data, they are damaged, or do not fit.
    """
    source, share = recipe.agent.data, recipe.agent.best_share
    path = store_path(source)
    try:
        if path is None:
            opened_source = open_source(source)
            steps = opened_source.steps
            opened_source.close()
            yield Data(_fitting(recipe, steps), lambda store: _import(source, steps, share, store, spaces))
            return
        with folder_of(path) as folder:
            episodes = RecordedEpisodes(folder, share)
            check_episodes(episodes, spec, f"--data: {source!r}")
            yield Data(_fitting(recipe, episodes.steps), lambda store: _copy(episodes, store, source, spaces))
    except READABLE as error:
        raise _unreadable(source, error) from error


def _fitting(recipe: Recipe, steps: int) -> int:
    if steps > recipe.replay.capacity:
        raise ValueError(
            f"--capacity: got {recipe.replay.capacity:,}, expected at least the {steps:,} steps of "
            f"{recipe.agent.data!r}: all are learned from"
        )
    return steps + SPARE_STEPS


def _copy(episodes: RecordedEpisodes, store: sw.Store, source: str, spaces: Spaces) -> None:
    for one in episodes:
        for name in store.spec.action_names:
            _check_actions(one.fields[name], spaces, source)
        add_recorded(store, one, {})


def _import(source: str, steps: int, share: float, store: sw.Store, spaces: Spaces) -> None:
    if share == 1.0:
        sw.load(source, into=store, progress=False)
    else:
        with sw.Store(store.spec, capacity=steps + SPARE_STEPS) as every:
            sw.load(source, into=every, progress=False)
            whole = [one for one in every.episodes() if one.whole]
            for one in (whole[index] for index in best_of([one.total_reward for one in whole], share)):
                store.add_episode(
                    obs=one.obs, action=one.action, reward=one.reward, terminated=one.ended == "terminated"
                )
    for episode in store.episodes():
        _check_actions(np.asarray(episode.action), spaces, source)


def _check_actions(actions: Any, spaces: Spaces, source: str) -> None:
    """Check that numbered actions belong to the environment: others would be learned as some action of it."""
    try:
        valid = NumberedActions(spaces, "offline").valid(actions)
    except ValueError:  # continuous ones
        return
    if not valid.all():
        raise ValueError(
            f"--data: {source!r} has action {actions[~valid][0]}, expected those of {spaces.env}, {spaces.action}"
        )


def _unreadable(source: str, error: Exception) -> ValueError:
    return ValueError(f"--data: {source!r} cannot be read: {error}")
