"""Replay buffer of Stable-Baselines3 over a Sharpwave store."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3.common import buffers
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.utils import get_device
from stable_baselines3.common.vec_env import VecNormalize

from sharpwave.arrays import Array
from sharpwave.integrations.whole_transitions import WholeTransitions, packed, unpacked
from sharpwave.sampling.sampler_protocol import Sampler
from sharpwave.sampling.uniform import Uniform
from sharpwave.spaces import refuse_variable
from sharpwave.spec import Field
from sharpwave.step_infos import FINALS
from sharpwave.store import Store
from sharpwave.views.batch import Batch
from sharpwave.views.step_views import NStep
from sharpwave.views.view_replay import Replay

NO_FLOATS = np.zeros(0, np.float32)
PLACES = 0
"""Key of the view for reads by SB3's places; other views have their ``n_steps`` as keys."""


class ReplayBuffer(buffers.ReplayBuffer):  # type: ignore[misc]
    """Replay buffer of any off-policy algorithm, for arrays and dicts of arrays as observations, and any number of
    environments. SB3's arguments keep their meaning; the store's are given by name.

    Args:
        optimize_memory_usage: must be False: observations are stored once anyway, and ends of episodes exactly.
        frame_stack: "auto": detect stacks of frames in the first transitions, and store each frame once; a number:
            frames in a stack; ``None``: store whole observations.
        n_steps, gamma: n-step returns, with the model's gamma; SB3's own ``n_steps=`` reaches only its own buffers.
        seed: seed of sampling; ``None``: drawn from numpy's global state, which SB3's ``seed=`` sets.
        store: arguments of ``sharpwave.Store``: ``ram``, ``disk``, ``disk_limit``, ``codec``, .... If ``disk`` holds a
            store of such transitions, it is opened.

    Attributes:
        transitions: the store and its writer. ``view``: the view for sampling.

    Raises:
        ValueError, TypeError: an invalid argument.
    """

    _whole: frozenset[str] = frozenset()
    """Keys of observations that are never stored frame by frame."""

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        frame_stack: int | str | None = "auto",
        n_steps: int = 1,
        gamma: float | None = None,
        seed: int | None = None,
        **store: Any,
    ) -> None:
        if optimize_memory_usage:
            raise ValueError(
                "ReplayBuffer: optimize_memory_usage=True, expected False: observations are stored once in any case"
            )
        refuse_variable("ReplayBuffer", obs=observation_space, action=action_space)
        buffers.BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs=n_envs)
        self.buffer_size: int = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage, self.handle_timeout_termination = False, handle_timeout_termination
        if n_steps != 1 and gamma is None:
            raise ValueError(
                f"ReplayBuffer: n_steps={n_steps} without gamma; give the model's, as "
                f"replay_buffer_kwargs=dict(n_steps={n_steps}, gamma=0.99)"
            )
        self.n_steps, self.gamma = n_steps, 0.99 if gamma is None else gamma
        self._new_view(self.n_steps)  # refuses invalid values
        if seed is None:  # drawn from a copy: SB3's own draws do not change
            copy = np.random.RandomState()
            copy.set_state(np.random.get_state())
            seed = int(copy.randint(2**31))
        self._asked = dict(frame_stack=frame_stack, seed=seed, **store)
        self._begin()

    def _begin(self) -> None:
        self._action_dtype = np.dtype(self._maybe_cast_dtype(self.action_space.dtype))
        space = self.observation_space
        shapes: Any = (self.obs_shape, space.dtype)
        if isinstance(self.obs_shape, dict):
            shapes = {name: (shape, space[name].dtype) for name, shape in self.obs_shape.items()}
        self.transitions = WholeTransitions(
            shapes,
            Field((self.action_dim,), self._action_dtype.name),
            self.n_envs,
            whole=self._whole,
            capacity=max(2 * self.n_envs, self.buffer_size * self.n_envs),
            **self._asked,
        )
        self._views: tuple[Store, dict[int, Replay[Batch]]] | None = None

    @property
    def view(self) -> Replay[Batch]:
        """View for sampling."""
        return self._view(self.n_steps)

    def _view(self, n_steps: int) -> Replay[Batch]:
        store = self.transitions.store
        if self._views is None or self._views[0] is not store:  # replaced if frame stacks were misjudged
            self._views = store, {}
        views = self._views[1]
        if n_steps not in views:
            name = "transitions" if n_steps == self.n_steps else "first transitions"
            if n_steps == PLACES:
                views[n_steps] = store.view(NStep(1, 1.0, newest=True), name="places")
            else:
                views[n_steps] = store.view(self._new_view(n_steps), name=name, sampler=self._new_sampler())
        return views[n_steps]

    def _new_view(self, n_steps: int) -> NStep:
        return NStep(n_steps, self.gamma, newest=True)

    def _new_sampler(self) -> Sampler:
        return Uniform()

    # attributes that SB3 reads

    @property
    def pos(self) -> int:
        """Next place that SB3's buffer would write."""
        return self.transitions.added % self.buffer_size

    @pos.setter
    def pos(self, value: int) -> None:
        """Ignored: SB3's constructor sets it."""

    @property
    def full(self) -> bool:
        """Whether the buffer's whole size was added."""
        return self.transitions.added >= self.buffer_size

    @full.setter
    def full(self, value: bool) -> None:
        """Add zeros until the buffer is full, as in SB3's arrays, and warn. ``False`` is ignored, as ``pos`` is."""
        missing = self.buffer_size - self.transitions.added if value else 0
        if missing > 0:
            warnings.warn(f"full = True: adds {missing} transitions of zeros for each environment", stacklevel=2)
            obs = _each(self._no_obs(), lambda none: np.zeros((self.n_envs, *none.shape[1:]), none.dtype))
            zeros = np.zeros(self.n_envs)
            infos: list[dict[str, Any]] = [{} for _ in range(self.n_envs)]
            for _ in range(missing):
                self.add(obs, obs, np.zeros((self.n_envs, self.action_dim)), zeros, zeros, infos)

    # SB3's arrays, [buffer_size, n_envs, ...]: read-only, and zero for missing and evicted transitions

    @property
    def observations(self) -> Any:
        """Observations at SB3's places.  Cost: all are decoded."""
        return self._column(lambda batch: self.transitions.whole(batch.obs), self._no_obs())

    @property
    def next_observations(self) -> Any:
        """Observations after the steps at SB3's places.  Cost: all are decoded."""
        return self._column(lambda batch: self.transitions.whole(batch.next_obs), self._no_obs())

    @property
    def actions(self) -> Any:
        """Actions at SB3's places."""
        return self._column(lambda batch: batch.action, np.zeros((0, self.action_dim), self._action_dtype))

    @property
    def rewards(self) -> Any:
        """Rewards at SB3's places."""
        return self._column(lambda batch: batch.reward, NO_FLOATS)

    @property
    def dones(self) -> Any:
        """Ends of episodes at SB3's places, time limits included, as float32."""
        return self._column(lambda batch: (batch.terminated | batch.truncated).astype(np.float32), NO_FLOATS)

    @property
    def timeouts(self) -> Any:
        """Time limits at SB3's places, as float32."""
        return self._column(lambda batch: batch.truncated.astype(np.float32), NO_FLOATS)

    def _no_obs(self) -> Any:
        if isinstance(self.obs_shape, dict):
            return {name: np.zeros((0, *s), self.observation_space[name].dtype) for name, s in self.obs_shape.items()}
        return np.zeros((0, *self.obs_shape), self.observation_space.dtype)

    def _column(self, read: Callable[[Batch], Any], none: Any) -> Any:
        if not self.transitions.held:  # a store needs transitions to detect frames
            return _read_only(none, np.zeros((self.buffer_size, self.n_envs), np.bool_))
        view, store = self._view(PLACES), self.transitions.store
        before = (self.transitions.added - 1 - np.arange(self.buffer_size)) % self.buffer_size
        back, lanes = np.broadcast_arrays(before[:, None], np.arange(self.n_envs))
        steps = self.transitions.steps_back(back.reshape(-1), lanes.reshape(-1)).reshape(back.shape)
        held = (steps >= 0) & (back < self.transitions.added)
        ids = store.ids(lanes[held], steps[held], missing="mask")
        held[held] = ids >= 0
        return _read_only(read(view.fetch(ids[ids >= 0])), held)

    def size(self) -> int:
        """Return the number of stored transitions of each environment; the store evicts whole segments."""
        held: int = self.transitions.held // self.n_envs
        return held

    def close(self) -> None:
        """Write all data, and release memory and disk."""
        self.transitions.close()

    def reset(self) -> None:
        """Replace the store by an empty one.  Raises: ValueError: it is on disk, and would have to be deleted."""
        if self._asked.get("disk") is not None:
            raise ValueError(f"reset: the transitions are on disk, in {self._asked['disk']}; make another ReplayBuffer")
        self.transitions.close()
        self._begin()

    # writing

    def add(
        self, obs: Any, next_obs: Any, action: Array, reward: Array, done: Array, infos: list[dict[str, Any]]
    ) -> None:
        """Add a transition of each environment, as SB3 does after every step."""
        done = np.asarray(done, np.bool_)
        truncated = np.zeros(self.n_envs, np.bool_)
        if self.handle_timeout_termination:
            truncated[:] = [bool(info.get("TimeLimit.truncated", False)) for info in infos]
        told = None
        if isinstance(infos, dict):  # of a Gymnasium vector, in a user's loop; SB3's vectors reset with the last step
            told = np.full(self.n_envs, any(name in infos for name in FINALS))
        self.transitions.add(
            self._shaped(obs),
            self._shaped(next_obs),
            np.asarray(action, self._action_dtype).reshape(self.n_envs, self.action_dim),
            np.asarray(reward, np.float32).reshape(self.n_envs),
            done & ~truncated,
            truncated,
            tells_finals=told,
        )

    def _shaped(self, obs: Any) -> Any:
        if isinstance(self.obs_shape, dict):
            return {name: np.reshape(obs[name], (self.n_envs, *shape)) for name, shape in self.obs_shape.items()}
        return np.reshape(obs, (self.n_envs, *self.obs_shape))

    # sampling

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Draw a batch; with ``n_steps`` its ``discounts`` are ``gamma ** n``, n fewer at an episode's end."""
        view = self.view
        if self.n_steps > 1 and not len(view) and self.transitions.held:
            view = self._view(1)  # n steps are not stored yet; SB3 makes shorter returns too
        return self._samples(view.sample(batch_size), env)

    def _get_samples(self, batch_inds: Array, env: VecNormalize | None = None) -> Any:
        """Return the transitions at places of SB3's buffer, each of a random environment (numpy's global state)."""
        lanes = np.random.randint(0, high=self.n_envs, size=(len(batch_inds),))
        return self._samples(self.view.fetch(self.ids_at(batch_inds, lanes)), env)

    def ids_at(self, places: npt.ArrayLike, lanes: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the store's ids of the transitions at places of SB3's buffer.

        Raises:
            IndexError: a place is unfilled, or beyond the buffer.
            KeyError: a transition was evicted, or its row was skipped as a vector's reset.
        """
        added, places = min(self.transitions.added, self.buffer_size), np.asarray(places)
        wrong = (places < -self.buffer_size) | (places >= self.buffer_size) | (places % self.buffer_size >= added)
        if wrong.any():
            raise IndexError(
                f"ReplayBuffer: place {places[wrong].flat[0]} of {self.buffer_size:,}, of which {added:,} have "
                f"transitions; expected 0 to {added - 1:,}"
            )
        before = (self.transitions.added - 1 - places) % self.buffer_size
        back, where = np.broadcast_arrays(before, np.asarray(lanes))
        steps = self.transitions.steps_back(back.reshape(-1), where.reshape(-1)).reshape(back.shape)
        return self.transitions.store.ids(where, steps)

    def _samples(self, batch: Batch, env: VecNormalize | None) -> Any:
        kind = DictReplayBufferSamples if isinstance(self.obs_shape, dict) else ReplayBufferSamples
        return kind(**self._arrays(batch, env))

    def _arrays(self, batch: Batch, env: VecNormalize | None) -> dict[str, Any]:
        """Return the tensors of a batch; on the CPU they share its memory."""
        reward = self._normalize_reward(batch.reward, env)
        if env is not None and self.n_steps > 1 and env.norm_reward:  # it clips rewards; a return is a sum of several
            reward = (batch.reward / np.sqrt(env.ret_rms.var + env.epsilon)).astype(np.float32)
        whole = {"observations": batch.obs, "next_observations": batch.next_obs}
        arrays = {name: self._normalize_obs(self.transitions.whole(obs), env) for name, obs in whole.items()}
        arrays |= {"actions": batch.action, "rewards": reward[:, None]}
        arrays["dones"] = batch.terminated.astype(np.float32)[:, None]
        if self.n_steps > 1:
            arrays["discounts"] = (self.gamma ** batch.n.astype(np.float32)).astype(np.float32)[:, None]
        return {name: self._tensor(array) for name, array in arrays.items()}

    def _tensor(self, array: Any) -> Any:
        if isinstance(array, dict):
            return {name: self._tensor(one) for name, one in array.items()}
        return self.to_torch(array, copy=False)

    # saving: SB3 pickles its buffer, so this class defines its state

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings, and a checkpoint of the store as bytes; for a store on disk, only its folder."""
        state = {k: v for k, v in self.__dict__.items() if k not in ("transitions", "_views", "device")}
        state |= {"on": str(self.device), "rows": self.transitions.state(), "checkpoint": None}
        if self._asked.get("disk") is not None:
            self.transitions.flush()
            return state
        return state | {"checkpoint": packed(self.transitions.store)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make the store again. A store on disk is opened at first need."""
        content, rows, device = (state.pop(name) for name in ("checkpoint", "rows", "on"))
        self.__dict__.update(state)
        self.device = get_device(device)
        self._begin()
        if content is not None:
            self.transitions.adopt(unpacked(content), rows)


class NStepReplayBuffer(ReplayBuffer, buffers.NStepReplayBuffer):  # type: ignore[misc]
    """SB3's ``NStepReplayBuffer``: a ``ReplayBuffer`` with three steps by default."""

    def __init__(self, *args: Any, n_steps: int = 3, gamma: float = 0.99, **kwargs: Any) -> None:
        super().__init__(*args, n_steps=n_steps, gamma=gamma, **kwargs)


def _each(value: Any, function: Callable[[Any], Any]) -> Any:
    return {name: function(one) for name, one in value.items()} if isinstance(value, dict) else function(value)


def _read_only(found: Any, held: npt.NDArray[np.bool_]) -> Any:
    """Spread the values [n, ...] of stored transitions into an array [places, lanes, ...], or a dict of those."""

    def spread(values: Array) -> Array:
        column = np.zeros((*held.shape, *values.shape[1:]), values.dtype)
        column[held] = values
        column.flags.writeable = False
        return column

    return _each(found, spread)
