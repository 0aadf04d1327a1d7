"""Prioritized replay for Stable-Baselines3, which has none of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.vec_env import VecNormalize
from torch.nn import functional

from sharpwave.arrays import Array
from sharpwave.integrations.sb3.sb3_buffer import ReplayBuffer
from sharpwave.sampling.prioritized import Prioritized
from sharpwave.sampling.sampler_protocol import Sampler
from sharpwave.views.batch import Batch


class PrioritizedSamples(NamedTuple):
    """SB3's samples, with importance weights [B, 1] and the ids that ``update_priorities`` takes."""

    observations: Any
    actions: torch.Tensor
    next_observations: Any
    dones: torch.Tensor
    rewards: torch.Tensor
    weights: torch.Tensor
    ids: Array
    discounts: torch.Tensor | None = None


class PrioritizedReplayBuffer(ReplayBuffer):
    """Replay buffer that draws by priority (Schaul et al. 2016), for algorithms that return TD errors to it.

    Args:
        alpha, beta: as for ``sharpwave.Prioritized``. Other arguments: as for ``ReplayBuffer``.
    """

    def __init__(self, *args: Any, alpha: float = 0.6, beta: float = 0.4, **kwargs: Any) -> None:
        self.alpha, self.beta = alpha, beta
        self._new_sampler()  # refuses invalid values
        super().__init__(*args, **kwargs)

    def _new_sampler(self) -> Sampler:
        return Prioritized(alpha=self.alpha, beta=self.beta)

    def _samples(self, batch: Batch, env: VecNormalize | None) -> PrioritizedSamples:
        weights = self._tensor(batch.weights[:, None])
        return PrioritizedSamples(**self._arrays(batch, env), weights=weights, ids=batch.ids)

    def update_priorities(self, ids: Array, td_error: torch.Tensor) -> None:
        """Set the priorities of sampled transitions by their TD errors [B] or [B, 1]."""
        self.view.update_priorities(ids, td_error.detach().cpu().numpy().reshape(-1))


class PrioritizedDQN(DQN):  # type: ignore[misc]
    """SB3's DQN with a ``PrioritizedReplayBuffer``: the loss is weighted, and TD errors become priorities.

    Args:
        n_steps, gamma: also for the buffer, unless ``replay_buffer_kwargs`` has others.
    """

    def __init__(self, policy: Any, env: Any, *args: Any, gamma: float = 0.99, n_steps: int = 1, **kwargs: Any) -> None:
        kind = kwargs.pop("replay_buffer_class", None) or PrioritizedReplayBuffer
        if not (isinstance(kind, type) and issubclass(kind, PrioritizedReplayBuffer)):
            raise TypeError(f"PrioritizedDQN: replay_buffer_class={kind!r}, expected a PrioritizedReplayBuffer")
        asked = {"gamma": gamma, "n_steps": n_steps} | (kwargs.pop("replay_buffer_kwargs", None) or {})
        more = {"replay_buffer_class": kind, "replay_buffer_kwargs": asked}
        super().__init__(policy, env, *args, gamma=gamma, **more, **kwargs)

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Update the network as DQN does, with weights."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        losses = []
        for _ in range(gradient_steps):
            data = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            discounts = self.gamma if data.discounts is None else data.discounts
            with torch.no_grad():
                best = self.q_net_target(data.next_observations).max(dim=1, keepdim=True).values
                target = data.rewards + (1 - data.dones) * discounts * best
            current = torch.gather(self.q_net(data.observations), dim=1, index=data.actions.long())
            loss = (data.weights * functional.smooth_l1_loss(current, target, reduction="none")).mean()
            losses.append(loss.item())
            self.policy.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
            self.replay_buffer.update_priorities(data.ids, target - current)
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))
