"""Environments that a program made itself, as vectors that reset in the step that ends an episode."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import closing
from functools import cache, partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from sharpwave.environment_kinds import kind_of
from sharpwave.envs.action_masks import in_infos_of, with_action_mask
from sharpwave.envs.gym import flat_observations, with_whole_episodes, with_whole_resets
from sharpwave.envs.lanes import LaneEnvs
from sharpwave.nesting import map_leaves

NOT_ANEW = (
    "cannot be made again, and evaluations need an environment of their own: it has no spec; give a function that "
    "makes it instead"
)
NEEDED = ("single_observation_space", "single_action_space", "num_envs", "reset", "step")
"""Attributes by which an object of another class counts as a vector of environments."""


def is_environment(made: Any) -> bool:
    """Return whether ``made`` is an environment or a vector of them, rather than what makes one."""
    if isinstance(made, type):
        return False
    return isinstance(made, (gymnasium.Env, VectorEnv)) or all(hasattr(made, name) for name in NEEDED)


def is_vector(made: Any) -> bool:
    """Return whether an environment is a vector; EnvPool's are both."""
    return isinstance(made, VectorEnv) or not isinstance(made, gymnasium.Env)


def lanes_of(made: Any) -> int:
    """Return the number of environments of an environment or a vector."""
    return int(made.num_envs) if is_vector(made) else 1


def environment_name(made: Any) -> str:
    """Return a name for an environment, or for what makes one: its Gymnasium id, or that of its class or function."""
    if not is_environment(made):
        made = getattr(made, "func", made)
        return str(getattr(made, "__qualname__", type(made).__name__))
    found = getattr(getattr(made, "spec", None), "id", None)
    inner = getattr(made, "unwrapped", made)
    return str(found or getattr(inner, "name", None) or type(inner).__name__)


def _made_anew(made: Any) -> list[Callable[[], Any]]:
    """Return functions that make environments like those of an object; []: nothing says how.

    An environment is made from its ``spec``, those of Gymnasium's vectors by the functions that the vector was given.
    Objects are not copied: a copy may share a simulator or a process with its original.
    """
    if type(made) in (SyncVectorEnv, AsyncVectorEnv):
        return list(made.env_fns)
    if is_vector(made) or made.spec is None:
        return []
    spec = made.spec
    try:
        with closing(gymnasium.make(spec)) as other:
            same = (other.observation_space, other.action_space) == (made.observation_space, made.action_space)
    except Exception:  # a wrapper that the spec cannot describe, or any error of the environment
        return []
    return [partial(gymnasium.make, spec)] if same else []


class Given:
    """Environment, vector or factory of a program, from which a run's vectors are made.

    An object is trained in itself, and stays open; what is played beside, such as evaluations, is made anew, where its
    spec or its vector says how. A factory takes no argument and makes an environment or a whole vector, or it takes
    ``num_envs`` and makes a vector of as many.

    Raises:
        ValueError: it is none of these.
    """

    def __init__(self, made: Any) -> None:
        self.object = made if is_environment(made) else None
        self.factory: Callable[..., Any] | None = None if self.object is not None else made
        if self.object is None and not callable(made):
            raise ValueError(
                f"env: got {made!r}, expected a Gymnasium id, an Atari game, an environment, a vector of them, or a "
                "function that makes one"
            )
        self.name = environment_name(made)
        self._anew = [] if self.object is None else _made_anew(made)
        self._first: Any = None

    def __reduce__(self) -> tuple[type[Given], tuple[Any]]:
        if self.factory is None:
            raise TypeError("it is an object of this process; give a function that makes it")
        return Given, (self.factory,)

    @property
    def repeatable(self) -> bool:
        """Whether further environments can be made."""
        return self.factory is not None or bool(self._anew)

    def fixed_lanes(self) -> int | None:
        """Return the number of environments that it decides by itself; None: any number can be made.

        Raises: ValueError: the factory makes no environment.
        """
        if self.object is not None:
            return lanes_of(self.object)
        if self._takes_lanes():
            return None
        if self._first is None:
            self._first = self._made()
            self.name = environment_name(self._first)
        return lanes_of(self._first) if is_vector(self._first) else None

    def spaces(self) -> tuple[Any, Any]:
        """Return the observation and the action space of one environment; a factory may be called for it."""
        made = self.object or self._first or self._made()
        if self.object is None and self._first is None:
            made.close()
        if is_vector(made):
            return made.single_observation_space, made.single_action_space
        return made.observation_space, made.action_space

    def make(
        self, usual: int, lanes: int | None, stack: int, action_masks: bool, *, render: bool = False
    ) -> VectorEnv[Any, Any, Any]:
        """Make a vector of ``lanes`` environments; None: the one to train in, of the ``usual`` number.

        Raises:
            ValueError: the object cannot be made anew, or its environment makes no pictures.
        """
        if self.object is not None and lanes is None:
            made = [self.object if is_vector(self.object) else LeftOpen(self.object)]
        elif self.object is not None:
            if not self._anew:
                raise ValueError(f"env: {self.name} {NOT_ANEW}")
            made = [self._anew[number % len(self._anew)]() for number in range(lanes or 1)]
            if is_vector(self.object):
                return LaneEnvs([partial(with_whole_resets, one) for one in made])
        else:
            first, self._first = self._first or self._made(lanes or usual), None
            count = 1 if is_vector(first) else lanes or usual
            made = [first, *(self._made() for _ in range(count - 1))]
        if render and getattr(made[0], "render_mode", None) != "rgb_array":
            raise ValueError(
                f"env: {self.name} makes no pictures: its render_mode is {getattr(made[0], 'render_mode', None)!r}, "
                "expected 'rgb_array'"
            )
        if is_vector(made[0]):
            if stack > 1:
                raise ValueError(
                    f"--stack: got {stack} for a vector, expected 1; wrap its environments by "
                    "gymnasium.wrappers.FrameStackObservation(padding_type='reset')"
                )
            return GivenVector(with_whole_episodes(made[0]), kept=made[0] is self.object)
        return _together(made, stack, action_masks)

    def _takes_lanes(self) -> bool:
        try:
            return "num_envs" in inspect.signature(self.factory).parameters  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return False

    def _made(self, lanes: int = 1) -> Any:
        assert self.factory is not None
        made = self.factory(num_envs=lanes) if self._takes_lanes() else self.factory()
        if not is_environment(made):
            raise ValueError(
                f"env: {self.name} made {made!r}, expected a gymnasium.Env or a VectorEnv; the function takes no "
                "argument, or num_envs"
            )
        return made


def _together(made: list[Any], stack: int, action_masks: bool) -> VectorEnv[Any, Any, Any]:
    def wrapped(env: Any) -> Any:
        env = flat_observations(with_whole_resets(env))
        if stack > 1:
            env = gymnasium.wrappers.FrameStackObservation(env, stack_size=stack, padding_type="reset")
        return with_action_mask(env, in_infos=masks) if action_masks else env

    masks = cache(partial(in_infos_of, made[0]))  # what follows resets the environment by a seed anyway
    return LaneEnvs([partial(wrapped, one) for one in made])


class LeftOpen(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Environment of the caller, which a run does not close."""

    def close(self) -> None:
        """Do nothing: its owner closes it."""


class GivenVector(VectorEnv[Any, Any, Any]):
    """Vector of a program, of any autoreset mode, as one that resets in the step that ends an episode.

    Finished environments are reset by ``reset(options={"reset_mask": ...})`` where the vector does not do it in the
    same step; ``infos["final_obs"]`` then has the true final observations. Rewards and flags become arrays of floats
    and booleans.

    Args:
        kept: leave the vector open when this one is closed.
    Raises:
        ValueError: an unknown autoreset mode, environments that do not step all at once, or none that can be reset
            alone.
    """

    def __init__(self, env: Any, *, kept: bool = False) -> None:
        self.env, self._kept = env, kept
        self.num_envs = int(env.num_envs)
        self.mode = kind_of(env).mode
        self.render_mode = getattr(env, "render_mode", None)
        self.metadata = {**(getattr(env, "metadata", None) or {}), "autoreset_mode": AutoresetMode.SAME_STEP}
        self.autoreset_mode = AutoresetMode.SAME_STEP
        self.spec = getattr(env, "spec", None)
        self.single_observation_space, self.single_action_space = env.single_observation_space, env.single_action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        # EnvPool's seeds are given when it is made, and it warns of others.
        self._seeded = not any(one.__name__ == "EnvPoolMixin" for one in type(env).__mro__)
        inner = getattr(env, "unwrapped", env)
        if getattr(inner, "batch_size", self.num_envs) not in (0, self.num_envs):
            raise ValueError(
                f"env: batch_size={inner.batch_size} of {self.num_envs} environments; make it so that all step at once"
            )
        if self.mode == "NextStep" and getattr(inner, "shared_memory", None) is False:
            raise ValueError(
                "env: an AsyncVectorEnv with shared_memory=False resets environments again that were reset alone; make "
                "it with autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP"
            )
        if self.mode != "SameStep":
            self._check_alone()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        settings: dict[str, Any] = {} if options is None else {"options": options}
        if self._seeded:
            settings["seed"] = seed
        result: tuple[Any, dict[str, Any]] = self.env.reset(**settings)
        return result

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, infos = self.env.step(actions)
        reward = np.asarray(reward, np.float64)
        terminated, truncated = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        ended = terminated | truncated
        if self.mode != "SameStep" and ended.any():
            infos = {**infos, "final_obs": map_leaves(np.array, obs)}
            obs = self._with_reset(obs, ended)
        return obs, reward, terminated, truncated, infos

    def render(self) -> Any:
        return self.env.render()

    def close(self, **settings: Any) -> None:
        """Close the vector, unless it is its owner's."""
        if not self._kept:
            self.env.close(**settings)

    def _with_reset(self, obs: Any, ended: Any) -> Any:
        """Reset the environments that have ``ended``; return all observations."""
        begun, _ = self.reset(options={"reset_mask": ended.copy()})

        def joined(before: Any, after: Any) -> Any:
            whole = np.array(before)
            whole[ended] = after if len(after) != len(whole) else after[ended]  # EnvPool gives those alone
            return whole

        if isinstance(obs, dict):
            return {name: joined(obs[name], begun[name]) for name in obs}
        return joined(obs, begun)

    def _check_alone(self) -> None:
        """Check that the vector resets single environments, by resetting the first one."""
        if self.num_envs == 1:
            return
        first = np.arange(self.num_envs) == 0
        self.action_space.seed(0)
        try:
            self.reset(seed=0)
            obs, _, terminated, truncated, _ = self.env.step(self.action_space.sample())
            others = ~(first | np.asarray(terminated, np.bool_) | np.asarray(truncated, np.bool_))
            before = _rows(obs, others)
            begun, _ = self.reset(options={"reset_mask": first.copy()})
        except (TypeError, ValueError, NotImplementedError) as error:
            raise ValueError(f"{self._cannot()}: {error}") from error
        if len(next(iter(_rows(begun, slice(None))))) != self.num_envs:  # EnvPool gives those alone
            return
        if not all(np.array_equal(*both) for both in zip(before, _rows(begun, others), strict=True)):
            raise ValueError(f"{self._cannot()}: it resets all of them")

    def _cannot(self) -> str:
        return (
            f"env: {type(self.env).__name__} resets a finished environment {_WHEN[self.mode]}, and cannot reset "
            "single environments by reset(options={'reset_mask': ...}); make it with "
            "autoreset_mode=AutoresetMode.SAME_STEP, by gymnasium.make_vec(..., vectorization_mode='sync'), or give a "
            "function that makes one environment"
        )


def _rows(obs: Any, rows: Any) -> list[Any]:
    """Return copies of rows of a vector's observations, part by part."""
    found: list[Any] = []
    map_leaves(lambda part: found.append(np.array(part)[rows]), obs)
    return found


_WHEN = {"NextStep": "with the step after an episode's end", "Disabled": "only when it is told to"}
