"""Recorded data that a run learns from: demonstrations, and all data of an offline run; and their environment.

A store has the settings of its environment as an annotation. Its folder is read without opening it: nothing there is
locked or changed, and another process may be writing it.
"""

from __future__ import annotations

import hashlib
import shlex
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box

import sharpwave as sw
from sharpwave.agents.actions import NumberedActions
from sharpwave.agents.demonstrations import (
    LEARNED_FROM,
    SPARE_STEPS,
    DemonstratedReplay,
    add_recorded,
    check_episodes,
)
from sharpwave.agents.protocol import Spaces
from sharpwave.configuration import from_table, leaves, to_table
from sharpwave.data.formats import ENDINGS, SOURCES, open_source
from sharpwave.disk.store_folder import MANIFEST
from sharpwave.format.annotations import BROKEN_OFF
from sharpwave.offline.recorded import RecordedEpisodes, best_of
from sharpwave.offline.scan import describe
from sharpwave.persistence.checkpoint_file import folder_of, is_file_name, opened
from sharpwave.training.beside_data import note_behavior
from sharpwave.training.folder import CONFIG, REPLAY, checkpoints
from sharpwave.training.recipes.recipe import (
    Atari,
    Environment,
    Gymnasium,
    OwnEnvironment,
    Recipe,
    environment_settings,
)

KEY = "environment"
"""Annotation of a recording's store: the settings of its environment."""
COMPARED = {"atari": ("name", "crop", "actions", "full_actions", "frame_skip", "clip_rewards", "life_loss_ends")}
"""Settings on which the meaning of actions, rewards and pictures depends; the sizes of frames are the store's own."""
ROUNDING = 1e-5
"""Share of a bound by which a continuous action may exceed it, as rounding makes them."""
READABLE = (OSError, sw.DamagedError)


def with_environment(recipe: Recipe) -> Recipe:
    """Return an offline recipe with the environment of its data, unless it names another; other recipes as they are.

    Raises:
        ValueError: there are no such data, or they do not say which environment they are of.
    """
    if not recipe.offline or isinstance(recipe.env, OwnEnvironment):
        return recipe
    source = recipe.agent.data
    if not source:
        raise ValueError("--data: got nothing, expected data: the folder of a store or of a run, npz:...")
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
                return _annotated(Path(folder))
        return _annotated(path)
    except READABLE as error:
        raise _unreadable(source, error) from error


def _annotated(folder: Path) -> Atari | Gymnasium | None:
    """Return the environment of a store's annotation; None: it has none.  Raises: OSError, DamagedError."""
    said: Any = describe(folder).annotations.store.get(KEY)
    try:
        found: Environment = from_table(environment_settings(said["kind"])(), said)
    except (ValueError, TypeError, KeyError):  # none, of another release, or a user's own annotation
        return None
    return None if isinstance(found, OwnEnvironment) else found  # which no file describes


def store_path(source: str) -> Path | None:
    """Return the path of a store, or of a run's newest checkpoint's; None: a data set.  Raises: ValueError: neither."""
    path = Path(source)
    if path.is_dir() and (path / CONFIG).is_file():
        replay = checkpoints(path)[-1] / REPLAY
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


def read_data(recipe: Recipe, spaces: Spaces, spec: sw.Spec, make: Callable[[int], sw.Store]) -> sw.Store:
    """Read the data of an offline recipe into a store.

    Args:
        spaces: those of the environment, whose actions the data's must be.
        make: function, capacity -> an empty store of ``spec``.
    Raises:
        ValueError: there are no such data, they are damaged, or do not fit.
    """
    source, share = recipe.agent.data, recipe.agent.best_share
    path = store_path(source)
    try:
        if path is None:
            with closing(open_source(source)) as data:
                steps = data.steps
            store = _made(recipe, steps, make)
            if share == 1.0:
                sw.load(source, into=store, progress=False)
            else:
                with sw.Store(spec, capacity=steps + SPARE_STEPS) as every:
                    sw.load(source, into=every, progress=False)
                    whole = [one for one in every.episodes() if one.whole and not one.info.get(BROKEN_OFF)]
                    for one in (whole[index] for index in best_of([one.total_reward for one in whole], share)):
                        store.add_episode(
                            obs=one.obs, action=one.action, reward=one.reward, terminated=one.ended == "terminated"
                        )
            returns, digest = [], hashlib.sha256()
            for episode in store.episodes():
                actions = np.asarray(episode.action)
                _check_actions(actions, spaces, source)
                for array in (*map(episode.observations, spec.obs_names), actions, episode.reward):
                    digest.update(array.tobytes())
                digest.update(str(episode.ended).encode())
                if not episode.info.get(BROKEN_OFF):
                    returns.append(episode.total_reward)
            origin = {"path": source, "version": None, "steps": steps, "sha256": digest.hexdigest()}
            return _noted(store, recipe, origin, returns)
        with folder_of(path) as folder:
            episodes = RecordedEpisodes(folder, share)
            check_episodes(episodes, spec, f"--data: {source!r}")
            store, returns = _made(recipe, episodes.steps, make), []
            for recorded in episodes:
                if not recorded.episode.broken_off:
                    returns.append(float(recorded.reward.sum(dtype=np.float64)))
                for name in spec.action_names:
                    _check_actions(recorded.fields[name], spaces, source)
                add_recorded(store, recorded, {})
            said = _annotated(folder)
            comparable = said is None or said.name == recipe.env.name
            return _noted(store, recipe, episodes.origin(path), returns if comparable else [])
    except READABLE as error:
        raise _unreadable(source, error) from error


def _made(recipe: Recipe, steps: int, make: Callable[[int], sw.Store]) -> sw.Store:
    """Make the store for the data's ``steps`` and those that the run plays later.  Raises: as ``_room``."""
    return make(_room(recipe, steps, 0) + SPARE_STEPS)


def make_room(recipe: Recipe, store: sw.Store | sw.Cluster, made: int) -> None:
    """Let the store of a resumed offline run, after ``made`` steps, hold what the run plays from now on, too.

    Raises: as ``_room``.
    """
    if recipe.offline and isinstance(store, sw.Store) and store.capacity is not None:
        store.resize(capacity=max(store.capacity, _room(recipe, len(store), made) + SPARE_STEPS))


def _room(recipe: Recipe, steps: int, made: int) -> int:
    """Return ``steps`` that are stored, and those that a run plays after ``made`` of its own.

    Raises:
        ValueError: they exceed the recipe's capacity.
    """
    after, capacity = getattr(recipe.agent, "online_after", None), recipe.replay.capacity
    played = 0 if after is None else max(0, recipe.training.steps - max(after, made))
    if steps + played > capacity:
        share = recipe.agent.best_share
        whose = f"{'' if share == 1.0 else f'the best {share:g} of '}{recipe.agent.data!r}"
        own = f" and the {played:,} that the run plays after --online-after" if played else ""
        raise ValueError(
            f"--capacity: got {capacity:,}, expected at least {steps + played:,}, the {steps:,} steps of {whose}{own}: "
            "all are learned from"
        )
    return steps + played


def _noted(store: sw.Store, recipe: Recipe, origin: dict[str, Any], returns: list[float]) -> sw.Store:
    """Annotate the store with the identity of the data, and with what they reached; return it."""
    if len(store) != origin["steps"]:
        origin["learned"] = len(store)
    store.annotate(None, {LEARNED_FROM: origin})
    note_behavior(store, recipe, returns)
    return store


def _check_actions(actions: Any, spaces: Spaces, source: str) -> None:
    """Check that actions belong to the environment: no policy makes others, so that numbered ones would be learned as
    some other action, and continuous ones as the nearest."""
    space: Any = spaces.action
    if isinstance(space, Box):
        near = ROUNDING * (np.abs(space.low) + np.abs(space.high))
        valid = (actions >= space.low - near) & (actions <= space.high + near)  # neither holds of NaN
        if not valid.all():
            low, high = (np.broadcast_to(bound, actions.shape)[~valid][0] for bound in (space.low, space.high))
            raise ValueError(
                f"--data: {source!r} has an action with {actions[~valid][0]:g}, expected {low:g} to {high:g} there, as "
                f"{spaces.env} has; scale or clip the data's actions"
            )
        return
    valid = NumberedActions(spaces, "offline").valid(actions)
    if not valid.all():
        raise ValueError(
            f"--data: {source!r} has action {actions[~valid][0]}, expected those of {spaces.env}, {spaces.action}"
        )


def _unreadable(source: str, error: Exception) -> ValueError:
    return ValueError(f"--data: {source!r} cannot be read: {error}")


def learned_from(store: sw.Store | sw.Cluster, view: Any) -> dict[str, Any] | None:
    """Return the identity of the recorded data that a run learns from (``RecordedEpisodes.origin``); None: there are
    none."""
    memory = view.demonstrations if isinstance(view, DemonstratedReplay) else store
    said = memory.annotations().get(LEARNED_FROM) if isinstance(memory, sw.Store) else None
    return said if isinstance(said, dict) else None


def about(env: Environment) -> dict[str, Any]:
    """Return the annotations of a recording made in ``env``."""
    return {KEY: to_table(env)}


def options(env: Environment) -> dict[str, str]:
    """Return the settings of ``env`` as on the command line, by name: "--env pong", "--no-clip-rewards"."""
    said = {}
    for leaf in leaves(env):
        if isinstance(leaf.value, bool):
            said[leaf.key] = leaf.flag if leaf.value else f"--no-{leaf.flag[2:]}"
        else:
            said[leaf.key] = f"{leaf.flag} {shlex.quote(str(leaf.value))}"
    return said


def check_recorded(folder: Path, env: Environment) -> None:
    """Check that demonstrations were recorded in an environment whose steps mean the same as those of ``env``.

    Stores that do not say where they were recorded pass.

    Raises:
        ValueError: another game, other actions or rewards.
    """
    try:
        recorded = _annotated(folder)
    except (ValueError, *READABLE):  # opening the store names the damage
        return
    if recorded is None or recorded.kind != env.kind:
        return
    before, now = _meaning(recorded), _meaning(env)
    other = [name for name in COMPARED.get(env.kind, ()) if before[name] != now[name]]
    actions = {"actions", "full_actions"}
    if not actions.isdisjoint(other) and "name" not in other and _action_names(recorded) == _action_names(env):
        other = [name for name in other if name not in actions]
    if other:
        theirs, ours = (" ".join(options(one)[name] for name in other) for one in (recorded, env))
        raise ValueError(
            f"demonstrations: {str(folder)!r} was recorded with {theirs}, but the run has {ours}; train with {theirs}, "
            f"or record anew with {ours}"
        )


def _action_names(env: Environment) -> tuple[str, ...] | None:
    """Return the names of an Atari agent's actions in order; None: its game lacks one of them."""
    try:
        with closing(env.make(1)) as made:
            names: tuple[str, ...] = made.action_names  # type: ignore[attr-defined]
            return names
    except ValueError:
        return None


def _meaning(env: Environment) -> dict[str, Any]:
    """Return the settings of ``env`` without differences in spelling: "noop, fire" is "NOOP,FIRE"."""
    return vars(env) | (vars(env.parsed()) if isinstance(env, Atari) else {})
