"""Gymnasium environments as vectors whose observations are arrays or flat dicts of arrays."""

from __future__ import annotations

import copy
import os
import sys
import warnings
from collections.abc import Iterator
from functools import cache, partial, reduce
from typing import Any

import ale_py
import gymnasium
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import SyncVectorEnv, VectorEnv

from sharpwave.envs.action_masks import masks_in_infos, with_action_mask
from sharpwave.envs.lanes import LaneEnvs
from sharpwave.envs.small_tasks import register_tasks
from sharpwave.envs.team_games import register_mpe, register_packages, with_team
from sharpwave.extras import install
from sharpwave.spaces import stored_parts_of, variable_parts

ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
"""Spaces whose observations are arrays of a fixed shape."""

EXTRAS = ("mujoco", "box2d")
"""Extras of this package that stand for Gymnasium's extras of the same name."""


def register() -> None:
    """Register ale-py's environments (``ALE/Pong-v5``) and this package's (``sharpwave/TMaze-v0``) with Gymnasium."""
    register_tasks()
    if "sharpwave/TwoStep-v0" not in gymnasium.registry:
        gymnasium.register("sharpwave/TwoStep-v0", "sharpwave.envs.team_games:two_step")
        gymnasium.register("sharpwave/Meeting-v0", "sharpwave.envs.team_games:Meeting")
    if "ALE/Pong-v5" not in gymnasium.registry:
        gymnasium.register_envs(ale_py)


def register_for(name: str) -> None:
    """Register the environments that an id may belong to: those of :func:`register`, and those of MinAtar, mpe2,
    lbforaging or rware if the id names them.

    Raises:
        ValueError: the id is one of a package that is not installed.
    """
    register()
    register_mpe(name)
    register_packages(name)
    if name.startswith("MinAtar/") and "MinAtar/Breakout-v1" not in gymnasium.registry:
        try:
            import minatar.gym
        except ModuleNotFoundError as error:
            raise ValueError(f"env {name!r} needs MinAtar: {install('minatar')}") from error
        minatar.gym.register_envs()


def known(name: str) -> bool:
    """Return whether Gymnasium knows an id; one that names a module to import counts as known."""
    register_for(name)
    try:
        return ":" in name or gymnasium.spec(name) is not None
    except gymnasium.error.Error:
        return False


def make_gym(
    name: str, num_envs: int, *, render: bool = False, stack: int = 1, action_masks: bool = True, hint: str = ""
) -> VectorEnv[Any, Any, Any]:
    """Make ``num_envs`` copies of a registered environment, stepped in this process.

    Tuples and nested dicts of observations become flat dicts, whose keys are joined with "/"; an environment that takes
    and observes a tuple with a part for each of several agents becomes a team (``TeamEnv``).

    Args:
        name: its Gymnasium id, "CartPole-v1". The module of "module:Name-v0" is imported first; it may lie in the
            current folder.
        render: let ``env.render()`` return one picture per environment.
        stack: observations that are stacked, the newest last; at an episode's start the first one is repeated.
        action_masks: observe legal actions, if the environment declares them (``ActionMasks``).
        hint: text of the error for an unknown name; default: Gymnasium's.
    Raises:
        ValueError: an unknown name, an environment that cannot be made here (a package is missing), or one whose
            observations are not arrays.
    """
    register_for(name)
    module, colon, _ = name.partition(":")
    if colon and os.getcwd() not in sys.path:  # last, so that no module in this folder hides an installed one
        sys.path.append(os.getcwd())
    wrappers: list[Any] = [with_team, with_whole_resets, flat_observations]
    if stack > 1:
        wrappers.append(partial(gymnasium.wrappers.FrameStackObservation, stack_size=stack, padding_type="reset"))
    if action_masks:  # outermost, so that masks are not stacked
        wrappers.append(partial(with_action_mask, in_infos=cache(partial(masks_in_infos, name))))
    options: dict[str, Any] = {"render_mode": "rgb_array"} if render else {}

    def single() -> Any:
        return reduce(lambda env, wrap: wrap(env), wrappers, gymnasium.make(_with_own_limit(name), **options))

    if render and sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        os.environ.setdefault("MUJOCO_GL", "egl")  # without a screen MuJoCo's default fails at the first picture
    try:
        lanes = LaneEnvs([single] * num_envs)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:  # the latter: of "module:Name-v0"
        if getattr(error.__cause__ or error, "name", "") == module:
            hint = f"there is no module {module!r} in the current folder, on PYTHONPATH, or installed"
        for extra in EXTRAS:
            if f"gymnasium[{extra}]" in str(error):
                raise ValueError(f"env {name!r} needs {extra}: {install(extra)}") from error
        raise ValueError(
            f"env {name!r} cannot be made: {hint or error} "
            "(expected an Atari game such as pong or breakout, or a Gymnasium id such as CartPole-v1)"
        ) from error
    lanes.spec = lanes.envs[0].spec
    if render:
        _check_rendering(name, lanes)
    return lanes


def _with_own_limit(name: str) -> str | EnvSpec:
    """Return what ``make_vec`` makes an environment of, which else takes a ``max_episode_steps`` that is meant for the
    environment itself, as lbforaging's, for its own."""
    spec = gymnasium.registry.get(name.rpartition(":")[2])
    if spec is None or spec.entry_point is None or "max_episode_steps" not in spec.kwargs:
        return name
    spec, entry = copy.deepcopy(spec), spec.entry_point
    creator: Any = load_env_creator(entry) if isinstance(entry, str) else entry
    made: Any = partial(creator, max_episode_steps=spec.kwargs.pop("max_episode_steps"))
    spec.entry_point = made
    return spec


def _check_rendering(name: str, env: VectorEnv[Any, Any, Any]) -> None:
    """Check an environment's packages for rendering, which it imports for its first picture.

    Raises:
        ValueError: a package is missing; the environment is closed.
    """
    try:
        env.reset()
        env.render()
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        env.close()
        if "pygame" in str(error):  # Gymnasium suggests another package of that name, which hides ours
            raise ValueError(f"env {name!r} needs pygame for its pictures: {install('train')}") from error
        raise ValueError(f"env {name!r} can make no pictures: {error}") from error


class _WholeResets(gymnasium.Wrapper[Any, Any, Any, Any]):
    """MinAtar game that forgets the last action at a reset. Else the sticky action may repeat that of the episode
    before, and an episode would depend on more than its seed."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.unwrapped.game.last_action = 0  # type: ignore[attr-defined]
        return super().reset(seed=seed, options=options)


def with_whole_resets(env: gymnasium.Env[Any, Any]) -> Any:
    """Wrap a MinAtar game so that its episodes depend on their seeds only; return others as they are."""
    return _WholeResets(env) if type(env.unwrapped).__module__ == "minatar.gym" else env


def with_whole_episodes(vector: Any) -> Any:
    """Return a vector of a program like ``with_whole_resets`` of its environments, which stay the vector's own.

    Where they are out of reach, as in other processes, MinAtar games are returned as they are, with a warning.
    """
    if type(vector) is SyncVectorEnv and any(type(one.unwrapped).__module__ == "minatar.gym" for one in vector.envs):
        whole: Any = [partial(with_whole_resets, one) for one in vector.envs]
        return SyncVectorEnv(whole, autoreset_mode=vector.metadata["autoreset_mode"])
    name = str(getattr(getattr(vector, "spec", None), "id", ""))
    if name.startswith("MinAtar/"):
        warnings.warn(
            f"env {name!r}: a MinAtar game may repeat the last action of the episode before in a new one's first step, "
            f"so that an episode depends on more than its seed; give the id {name!r}, a function that makes one game, "
            "or a plain SyncVectorEnv, where that is repaired",
            UserWarning,
            stacklevel=2,
        )
    return vector


def flat_observations(env: gymnasium.Env[Any, Any]) -> Any:
    """Wrap an environment so that it observes an array or a flat dict of arrays.

    Parts of a dict or tuple that are text, or of varying length, are left out, with a warning that names them.

    Raises:
        ValueError: another part is no array, or no part is left.
    """
    space = env.observation_space
    left_out = variable_parts(space)
    parts = dict(_arrays(space, space))
    name = env.spec.id if env.spec is not None else "the environment"
    for key, part in parts.items():
        if not isinstance(part, ARRAYS):
            where = f"observation {key!r}" if key else "observations"
            raise ValueError(f"env {name!r}: {where} {part} cannot be stored; expected arrays, or dicts of arrays")
    if left_out:
        said = f"env {name!r}: {', '.join(left_out)}: of varying length"
        if not parts:
            raise ValueError(f"{said}, and no other part; expected arrays, or dicts of arrays")
        warnings.warn(f"{said}, and left out: the agent does not see it", UserWarning, stacklevel=2)
    if not isinstance(space, (spaces.Dict, spaces.Tuple)) or (isinstance(space, spaces.Dict) and parts == space.spaces):
        return env
    return gymnasium.wrappers.TransformObservation(env, lambda obs: dict(_arrays(space, obs)), spaces.Dict(parts))


def _arrays(space: Any, value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the arrays of an observation by key; with the space itself as ``value``, the spaces of its arrays."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        yield key, value
        return
    for name, part in stored_parts_of(space).items():
        yield from _arrays(part, value[name], f"{key}/{name}".removeprefix("/"))
