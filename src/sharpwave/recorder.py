"""Records what passes through an environment: wrap it, and play as before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .store import Store
from .writer import SegmentWriter

MODES = ("NextStep", "SameStep", "Disabled")


def autoreset_mode(env: Any) -> str:
    """How a vector environment resets sub-environments that are done: "NextStep", "SameStep" or "Disabled".

    Read from the instance where it says so (ale-py keeps its metadata on the class, where instances overwrite one
    another's), else from ``env.metadata["autoreset_mode"]``; a single environment without either is "Disabled".

    Raises:
        ValueError: a vector environment that does not say, or says something else.
    """
    inner = getattr(env, "unwrapped", env)
    found = getattr(inner, "autoreset_mode", None) or (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    name = str(getattr(found, "value", found)) if found is not None else None
    if name is None and not hasattr(env, "num_envs"):
        return "Disabled"
    if name not in MODES:
        raise ValueError(
            f"Recorder: {type(inner).__name__} has autoreset mode {found!r}, expected one of {MODES} in "
            "env.metadata['autoreset_mode'] (gymnasium.vector.AutoresetMode)"
        )
    return name


class Recorder:
    """An environment whose steps go into a store.

    Works with a Gymnasium ``Env`` (lane ``first_lane``), a ``VectorEnv`` of any autoreset mode, and ale-py's
    ``AtariVectorEnv`` (a lane for each sub-environment). Observations are handed through unchanged; everything else of
    the environment is reached as before. Where the environment stacks frames itself, ``[stack, *field.shape]``, the
    newest is stored. A row whose action the environment ignored because it was resetting (NextStep) is not a step and
    is not stored. ``reset`` in mid-episode, of all lanes or by ``options={"reset_mask": ...}``, truncates the episode.

    Args:
        env: the environment.
        store: where its steps go; a :class:`SegmentWriter` will do.
        first_lane: number of the first lane, for several environments on one store.

    Raises:
        ValueError: an autoreset mode that is not known, or observations that do not fit the store's spec.
    """

    def __init__(self, env: Any, store: Store | SegmentWriter, *, first_lane: int = 0) -> None:
        self.env = env
        self.store = store
        self.mode = autoreset_mode(env)
        self._vector = hasattr(env, "num_envs")
        # Of the environment itself: a wrapper that hands on what it does not know would be gone around.
        self._steps_async = hasattr(type(env), "step_async")
        self._begun: tuple[Any, npt.NDArray[Any], dict[str, Any]] | None = None
        count = int(env.num_envs) if self._vector else 1
        self._lanes = np.arange(first_lane, first_lane + count)
        self._obs: dict[
            str, npt.NDArray[Any]
        ] = {}  # newest frames before the coming step, [lanes, *shape]; our own copy
        self._running = np.zeros(count, np.bool_)  # a step of the lane's present episode is in the store
        self._done = np.ones(count, np.bool_)  # the lane's episode has ended and no new one has begun

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not set yet: __init__ failed
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """``env.reset``; an episode that this breaks off is truncated at its last step."""
        mask = (options or {}).get("reset_mask") if self._vector else None
        chosen = np.ones(len(self._lanes), np.bool_) if mask is None else np.asarray(mask, np.bool_)
        last = {name: frames.copy() for name, frames in self._obs.items()}
        if self._begun is not None:
            raise ValueError("Recorder.reset: a step is under way; call step_wait() first")
        obs, info = self.env.reset(seed=seed, options=options)
        for i in np.flatnonzero(chosen & self._running):
            final = {name: frames[i] for name, frames in last.items()}
            self.store.end_episode(int(self._lanes[i]), self.store.spec.join_obs(final))
        self._running[chosen] = False
        self._done[chosen] = False
        self._remember(obs)
        return obs, info

    def step(self, action: Any, **fields: Any) -> tuple[Any, Any, Any, Any, Any]:
        """``env.step``, recorded.

        Args:
            fields: values of the spec's further fields for this step; with a leading axis for a vector environment.

        Raises:
            ValueError: before the first reset; and what ``Store.extend`` raises.
        """
        self.step_async(action, **fields)
        return self.step_wait()

    def step_async(self, action: Any, **fields: Any) -> None:
        """Begin :meth:`step`. An environment with a ``step_async`` of its own (Gymnasium's ``AsyncVectorEnv``,
        ``AtariFrames``) steps until :meth:`step_wait`; any other begins there.

        Raises:
            ValueError: before the first reset, or while a step is under way.
        """
        if not self._obs:
            raise ValueError("Recorder.step: called before reset(); reset the environment first")
        if self._begun is not None:
            raise ValueError("Recorder.step: the step before has not ended; call step_wait() first")
        if self.mode == "Disabled" and self._done.any():
            how = "reset(options={'reset_mask': mask})" if self._vector else "reset()"
            lanes = self._lanes[self._done].tolist()
            raise ValueError(f"Recorder.step: the episode of lane {lanes} has ended; call {how} first")
        # Copied now: some environments write into it, and the caller may reuse it.
        taken = np.array(action) if self._vector else np.array(action)[None]
        if self._steps_async:
            self.env.step_async(action)
        elif isinstance(action, np.ndarray):
            action = action.copy()
        self._begun = (action, taken, fields)

    def step_wait(self) -> tuple[Any, Any, Any, Any, Any]:
        """What :meth:`step` returns, recorded.

        Raises:
            ValueError: no step was begun; and what ``Store.extend`` raises.
        """
        if self._begun is None:
            raise ValueError("Recorder.step_wait: no step is under way; call step_async() first")
        (action, taken, fields), self._begun = self._begun, None
        result: tuple[Any, Any, Any, Any, Any] = self.env.step_wait() if self._steps_async else self.env.step(action)
        obs, reward, terminated, truncated, info = result
        te, tr = np.atleast_1d(np.asarray(terminated, np.bool_)), np.atleast_1d(np.asarray(truncated, np.bool_))
        ended = te | tr
        rows = slice(None) if not self._done.any() else np.flatnonzero(~self._done)
        final = self._finals(obs, info, ended) if ended.any() else None
        values: dict[str, Any] = {
            name: np.asarray(v) if self._vector else np.asarray(v)[None] for name, v in fields.items()
        }
        join = self.store.spec.join_obs
        self.store.extend(
            obs=join({name: frames[rows] for name, frames in self._obs.items()}),
            action=taken[rows],
            reward=np.atleast_1d(np.asarray(reward))[rows],
            terminated=te[rows],
            truncated=tr[rows],
            final_obs=None if final is None else join({name: frames[rows] for name, frames in final.items()}),
            lanes=self._lanes[rows],
            **{name: value[rows] for name, value in values.items()},
        )
        self._running = ~ended & ~self._done
        # After a NextStep reset row the lane is in a new episode; after SameStep it is at once.
        self._done = ended if self.mode != "SameStep" else np.zeros_like(ended)
        self._remember(obs)
        return result

    def close(self) -> Any:
        """``env.close``; episodes that are not over stay open in the store."""
        return self.env.close()

    def _finals(self, obs: Any, info: Any, ended: npt.NDArray[np.bool_]) -> dict[str, npt.NDArray[Any]]:
        """True final observations, newest frames [lanes, *shape] by field; only rows that ended mean anything."""
        if self.mode != "SameStep":
            return self._newest(obs)
        given = info.get("final_obs", info.get("final_observation"))
        given = given if self._vector else [given]
        if given is None:
            raise ValueError("Recorder: a SameStep environment ended an episode without info['final_obs']")
        if isinstance(given, Mapping) or (isinstance(given, np.ndarray) and given.dtype != object):
            return self._newest(given)
        finals = {name: np.zeros_like(frames) for name, frames in self._obs.items()}
        for i in np.flatnonzero(ended):
            one = given[i]
            if self._vector:
                one = (
                    {k: np.asarray(v)[None] for k, v in one.items()}
                    if isinstance(one, Mapping)
                    else np.asarray(one)[None]
                )
            for name, frame in self._newest(one).items():
                finals[name][i] = frame[0]
        return finals

    def _remember(self, obs: Any) -> None:
        """Copy the newest frames: some environments hand out the same memory again."""
        for name, frames in self._newest(obs).items():
            if name in self._obs and self._obs[name].shape == frames.shape:
                self._obs[name][...] = frames
            else:
                self._obs[name] = np.array(frames, dtype=self.store.spec.fields[name].dtype)

    def _newest(self, obs: Any) -> dict[str, npt.NDArray[Any]]:
        """The newest frame of each lane, [lanes, *shape] by field, of an observation as the environment gives it."""
        newest = {}
        for name, value in self.store.spec.split_obs(obs).items():
            field, array = self.store.spec.fields[name], np.asarray(value)
            if not self._vector:
                array = array[None]
            if array.shape[1:] == field.shape:
                newest[name] = array
            elif array.shape[2:] == field.shape and array.ndim >= 2:
                newest[name] = array[:, -1]
            else:
                raise ValueError(
                    f"Recorder: {name} has shape {array.shape[1:]}, expected {field.shape}, or a stack of those; "
                    "declare the field as the environment's single frame"
                )
        return newest
