"""TD3: a deterministic policy that ascends the value of its own action, with the smaller of two critics as the target.

Source: Fujimoto, van Hoof and Meger (2018), Addressing function approximation error in actor-critic methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sharpwave.agents.continuous import ContinuousAgent, ContinuousSettings
from sharpwave.agents.learner import move_towards
from sharpwave.agents.protocol import Learned
from sharpwave.agents.replay import EXPLORATION, LEARNING
from sharpwave.agents.sac import dpg_loss, twin_targets
from sharpwave.configuration import setting
from sharpwave.extras import Tensor, torch


@dataclass(frozen=True)
class TD3Settings(ContinuousSettings):
    """Settings of TD3; the defaults are those of the authors' code. Noise is of actions scaled to -1 ... 1."""

    kind: ClassVar[str] = "td3"

    action_noise: float = setting(
        0.1, "standard deviation of the noise by which the policy explores", EXPLORATION, at_least=0
    )
    target_noise: float = setting(
        0.2, "standard deviation of the noise on the target policy's actions, which smooths the targets", LEARNING,
        at_least=0,
    )  # fmt: skip
    target_noise_limit: float = setting(0.5, "that noise is clipped to this size", LEARNING, at_least=0)
    policy_delay: int = setting(
        2, "updates of the critics for each of the policy and of all targets", LEARNING, at_least=1
    )
    target_tau: float = setting(0.005, "share by which updates of the targets move them", LEARNING, above=0, at_most=1)


class TD3(ContinuousAgent):
    """TD3 agent. It explores by Gaussian noise on its actions."""

    Settings: type[TD3Settings] = TD3Settings

    def begin_networks(self) -> None:
        super().begin_networks()
        self.target_actor = self.follower("target_actor", self.actor_network(), self.actor)
        self.target_critics = self.follower("target_critics", self.critic_network(), self.critics)

    # act

    def choose(self, output: npt.NDArray[np.float32], rng: np.random.Generator | None) -> npt.NDArray[np.floating]:
        action: npt.NDArray[np.floating] = np.tanh(output)
        if rng is None:
            return action
        action = action + self.settings.action_noise * rng.standard_normal(action.shape, np.float32)
        return action.clip(-1.0, 1.0)

    # learn

    def targets(self, batch: Any) -> Tensor:
        settings = self.settings
        with torch.no_grad():
            inputs = self.inputs(batch.next_obs)
            action = self.target_actor(inputs).tanh()
            noise = settings.target_noise * torch.randn_like(action)
            action = smoothed(action, noise, settings.target_noise_limit)
            next_q = self.target_values(self.target_critics, inputs, action)
            return twin_targets(next_q, self.target_bonus(action, batch), batch.reward, batch.discount)

    def target_bonus(self, action: Tensor, batch: Any) -> Tensor | float:
        """Return what is added to the value of the target policy's actions [B, size], float [B]: nothing."""
        return 0.0

    def policy_loss(self, inputs: Any, batch: Any) -> Tensor:
        """Compute the policy's loss of each item, float [B]."""
        with self.autocast():
            action = self.actor(inputs).tanh()
            gradient = self.value_gradient(inputs, action, members=1)
        return dpg_loss(action, gradient)

    def update(self, batch: Any, moves: bool) -> Learned:
        inputs = self.inputs(batch.obs)
        with self.autocast():
            targets = self.targets(batch)
            q = self.values(inputs, self.actions.scaled(batch.action))
        loss, td_error = self.critic_loss(q, targets, batch.weights)
        metrics = {"loss": loss.detach()}
        if moves:
            loss = loss + self.policy_loss(inputs, batch).mean()
        self.minimize(loss)
        if moves:
            move_towards(self.target_actor, self.actor, self.settings.target_tau)
            move_towards(self.target_critics, self.critics, self.settings.target_tau)
        return Learned(td_error, metrics)


def smoothed(action: Tensor, noise: Tensor, limit: float) -> Tensor:
    """Add noise, clipped to -limit ... limit, to actions, and clip to -1 ... 1: target policy smoothing.

    Args:
        action, noise: float [B, n].
    Source: Fujimoto, van Hoof and Meger (2018), Addressing function approximation error, eq. 14.
    """
    assert action.shape == noise.shape, (action.shape, noise.shape)
    return (action + noise.clamp(-limit, limit)).clamp(-1.0, 1.0)
