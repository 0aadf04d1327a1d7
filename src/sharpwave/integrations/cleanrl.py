"""Replay buffer for CleanRL's programs (dqn_atari, c51_atari, sac_continuous_action, ...) over a Sharpwave store.

Import ``ReplayBuffer`` from ``sharpwave.integrations.cleanrl`` instead of ``cleanrl_utils.buffers``; the rest of a
program stays. See docs/frameworks/cleanrl.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sharpwave.arrays import Array
from sharpwave.extras import install

try:
    import torch
    from gymnasium import spaces
except ModuleNotFoundError as error:
    missing = f"CleanRL's buffer needs {error.name}: {install('train')}"
    raise ModuleNotFoundError(missing, name=error.name) from error

from sharpwave.integrations.whole_transitions import WholeTransitions
from sharpwave.sampling.prioritized import Prioritized
from sharpwave.sampling.sampler_protocol import Sampler
from sharpwave.sampling.uniform import Uniform
from sharpwave.spaces import refuse_variable
from sharpwave.spec import Field
from sharpwave.step_infos import FINALS
from sharpwave.views.step_views import NStep


class Samples(NamedTuple):
    """Batch in the form that CleanRL's programs read.

    Attributes:
        observations, next_observations: [B, *shape], of a discrete space [B, 1]. ``actions``: [B, dimensions].
        dones, rewards: float32 [B, 1]. ``discounts``: float32 [B, 1], ``gamma ** n``.
        weights: float32 [B, 1]. ``ids``: int64 [B], for ``update_priorities``.
    """

    observations: torch.Tensor
    actions: torch.Tensor
    next_observations: torch.Tensor
    dones: torch.Tensor
    rewards: torch.Tensor
    discounts: torch.Tensor
    weights: torch.Tensor
    ids: Array


class ReplayBuffer:
    """Replay buffer with the constructor, ``add`` and ``sample`` of ``cleanrl_utils.buffers.ReplayBuffer``.

    Args:
        optimize_memory_usage: has no effect; observations are stored once in any case.
        handle_timeout_termination: ``infos`` is a list that marks time limits among ``dones`` as SB3's environments do.
            CleanRL's programs pass False, and terminations as ``dones``: then a time limit is detected by Gymnasium's
            ``infos``, or else by a next observation that does not follow from the episode.
        frame_stack: "auto": detect stacks of frames in the first transitions, and store each frame once; a number:
            frames in a stack; ``None``: store whole observations.
        n_steps, gamma: n-step returns; ``samples.discounts`` is the next value's discount.
        alpha, beta: draw by priority (Schaul et al. 2016); ``None``: uniformly.
        seed: seed of sampling.
        store: arguments of ``sharpwave.Store``: ``ram``, ``disk``, ``disk_limit``, ``codec``, .... If ``disk`` holds a
            store of such transitions, it is opened.

    Raises:
        ValueError, TypeError: an invalid argument.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "cpu",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        frame_stack: int | str | None = "auto",
        n_steps: int = 1,
        gamma: float = 0.99,
        alpha: float | None = None,
        beta: float = 0.4,
        seed: int = 0,
        **store: Any,
    ) -> None:
        refuse_variable("ReplayBuffer", obs=observation_space, action=action_space)
        self.n_envs, self.gamma = n_envs, gamma
        self.device = torch.device(device)
        self.handle_timeout_termination = handle_timeout_termination
        self._step = NStep(n_steps, gamma, newest=True)
        self._alpha, self._beta = alpha, beta
        self._new_sampler()  # refuses invalid arguments
        self._action_shape = (int(np.prod(action_space.shape or ())),)
        kind = np.dtype(action_space.dtype)
        action = Field(self._action_shape, "float32" if kind == np.float64 else kind.name)
        obs: Any = (observation_space.shape or (1,), observation_space.dtype)
        if isinstance(observation_space, spaces.Dict):
            obs = {name: (space.shape or (1,), space.dtype) for name, space in observation_space.spaces.items()}
        self._obs_shape = {name: one[0] for name, one in obs.items()} if isinstance(obs, dict) else obs[0]
        self.transitions = WholeTransitions(
            obs,
            action,
            n_envs,
            frame_stack,
            ends_are_true=False,
            capacity=max(2 * n_envs, buffer_size),
            seed=seed,
            **store,
        )
        self._view: tuple[Any, Any] | None = None

    @property
    def view(self) -> Any:
        """View for sampling."""
        store = self.transitions.store
        if self._view is None or self._view[0] is not store:  # the store is replaced if its frame stacks were misjudged
            step = NStep(self._step.n_step, self.gamma, newest=True)
            self._view = store, store.view(step, sampler=self._new_sampler())
        return self._view[1]

    def _new_sampler(self) -> Sampler:
        return Uniform() if self._alpha is None else Prioritized(alpha=self._alpha, beta=self._beta)

    def close(self) -> None:
        """Write all data, and release memory and disk."""
        self.transitions.close()

    def __len__(self) -> int:
        """Return the number of stored transitions."""
        return self.transitions.held

    def size(self) -> int:
        """Return the number of stored transitions of each environment."""
        return len(self) // self.n_envs

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Add a transition of each environment. Rows in which a vector of Gymnasium's mode NEXT_STEP resets are no
        transitions and are skipped; ``transitions.resets.dropped`` counts them.

        Args:
            done: bool [n_envs], terminations. ``infos``: Gymnasium's, or a list of SB3's.
        """
        done = np.asarray(done, np.bool_).reshape(self.n_envs)
        truncated = np.zeros(self.n_envs, np.bool_)
        if self.handle_timeout_termination:
            given = infos if isinstance(infos, (list, tuple)) else [{}] * self.n_envs
            truncated = done & [bool(info.get("TimeLimit.truncated", False)) for info in given]
        told = None
        if isinstance(infos, dict):  # 0.29 and 1.0 name them differently
            last = infos.get("_final_obs", infos.get("_final_observation"))
            truncated |= False if last is None else np.asarray(last, np.bool_) & ~done
            told = np.full(self.n_envs, any(name in infos for name in FINALS))
            if "_episode" in infos and not told.any():  # of RecordEpisodeStatistics: the only sign of a time limit
                truncated |= np.asarray(infos["_episode"], np.bool_).reshape(self.n_envs) & ~done
        self.transitions.add(
            self._shaped(obs),
            self._shaped(next_obs),
            np.asarray(action).reshape(self.n_envs, *self._action_shape),
            np.asarray(reward, np.float32).reshape(self.n_envs),
            done & ~truncated,
            truncated,
            tells_finals=told,
        )

    def _shaped(self, obs: Any) -> Any:
        if isinstance(self._obs_shape, dict):
            return {name: np.reshape(obs[name], (self.n_envs, *shape)) for name, shape in self._obs_shape.items()}
        return np.reshape(obs, (self.n_envs, *self._obs_shape))

    def sample(self, batch_size: int) -> Samples:
        """Draw a batch. On the CPU its tensors share the batch's memory.  Raises: EmptyError."""
        batch = self.view.sample(batch_size)
        columns = batch.reward, batch.weights, batch.terminated.astype(np.float32)
        reward, weights, dones = (self._tensor(one[:, None]) for one in columns)
        discounts = self._tensor((self.gamma ** batch.n.astype(np.float32)).astype(np.float32)[:, None])
        obs, next_obs = (self._tensor(self.transitions.whole(one)) for one in (batch.obs, batch.next_obs))
        return Samples(obs, self._tensor(batch.action), next_obs, dones, reward, discounts, weights, batch.ids)

    def update_priorities(self, ids: Array, td_error: torch.Tensor) -> None:
        """Set the priorities of sampled transitions by their TD errors [B] or [B, 1]."""
        self.view.update_priorities(ids, td_error.detach().cpu().numpy().reshape(-1))

    def _tensor(self, array: Any) -> Any:
        if isinstance(array, dict):
            return {name: self._tensor(one) for name, one in array.items()}
        return torch.as_tensor(array, device=self.device)
