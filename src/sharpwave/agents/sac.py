"""Soft actor-critic: a stochastic policy that maximizes return and entropy, learned off-policy from two critics.

The weight of the entropy, the temperature, is learned too, so that the policy keeps a given entropy.

Source: Haarnoja et al. (2018), Soft actor-critic algorithms and applications, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from sharpwave.agents.lazy_torch import nn, torch
from sharpwave.agents.learner import move_towards
from sharpwave.agents.policy_losses import LOG_STD, dpg_loss, squash, temperature_loss, twin_targets
from sharpwave.agents.protocol import Learned, Spaces
from sharpwave.agents.replay import LEARNING
from sharpwave.agents.twin_critics import TwinCritics, TwinCriticsSettings
from sharpwave.configuration import setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SACSettings(TwinCriticsSettings):
    """Settings of soft actor-critic; the defaults are those of Haarnoja et al. (2018), table 1."""

    kind: ClassVar[str] = "sac"

    temperature: float | None = setting(
        None, "weight of the entropy beside the reward; empty: it is learned", LEARNING, at_least=0
    )
    target_entropy: float | None = setting(
        None, "entropy, of actions scaled to -1 ... 1, that the temperature keeps up; empty: -1 for each number of an "
        "action", LEARNING,
    )  # fmt: skip
    target_tau: float = setting(
        0.005, "share by which each update moves the target critics", LEARNING, above=0, at_most=1
    )

    def unused(self) -> Iterator[tuple[str, str]]:
        """Yield the settings that have no effect beside the others, each with what it needs."""
        if self.temperature is not None:
            yield "target_entropy", "--set agent.temperature=null"


class SAC(TwinCritics):
    """Soft actor-critic agent. The policy explores by its own noise, and is evaluated without: tanh of the mean."""

    Settings: type[SACSettings] = SACSettings
    OUTPUTS = 2  # mean and logarithm of the standard deviation

    def __init__(self, spaces: Spaces, settings: Any = None, device: torch.device | str = "cpu", seed: Any = 0) -> None:
        super().__init__(spaces, settings, device, seed)
        self.target: Any = self.target_network()
        self.log_temperature = nn.ParameterList([torch.zeros(1, device=self.device)])
        given = self.settings.target_entropy
        self._target_entropy = -float(self.actions.size) if given is None else given

    def target_network(self) -> nn.Module | None:
        """Make the network that follows the critics; None: there is none."""
        target = self.critic_network().to(self.device).requires_grad_(False)
        move_towards(target, self.critics, 1.0)
        return target

    # act

    def choose(self, output: npt.NDArray[np.float32], rng: np.random.Generator | None) -> npt.NDArray[np.floating]:
        mean, log_std = np.split(output, 2, axis=1)
        if rng is not None:
            mean = mean + np.exp(log_std.clip(*LOG_STD)) * rng.standard_normal(mean.shape, np.float32)
        action: npt.NDArray[np.floating] = np.tanh(mean)
        return action

    # learn

    def draw(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """Draw an action of the policy for each item: scaled actions [B, size], and log pi of them [B]."""
        mean, log_std = self.actor(inputs).chunk(2, dim=1)
        return squash(mean, log_std.clamp(*LOG_STD), torch.randn_like(mean))

    def temperature(self) -> Tensor:
        """Return the weight of the entropy, a constant, float32 [1]."""
        given = self.settings.temperature
        return self.log_temperature[0].detach().exp() if given is None else torch.tensor([given], device=self.device)

    def targets(self, batch: Any) -> Tensor:
        """Return the targets of the critics' values, float32 [B]."""
        assert self.target is not None
        with torch.no_grad():
            inputs = self.inputs(batch.next_obs)
            action, log_prob = self.draw(inputs)
            next_q = self.target(self.target.torso(inputs), action)
            return twin_targets(next_q, -self.temperature() * log_prob, batch.reward, batch.discount)

    def policy_loss(self, action: Tensor, log_prob: Tensor, gradient: Tensor) -> Tensor:
        """Return the loss of the policy, and of the temperature if it is learned.

        Args:
            action, log_prob: of ``draw``, with gradient.  gradient: of the action's value, float [B, size].
        """
        loss = (self.temperature() * log_prob + dpg_loss(action, gradient)).mean()
        if self.settings.temperature is not None:
            return loss
        return loss + temperature_loss(self.log_temperature[0], log_prob, self._target_entropy).mean()

    def learn(self, batch: Any, step: int) -> Learned:
        """Make one update. Critics, policy and temperature move together, each along its gradient at the same weights,
        as in the authors' code."""
        inputs = self.inputs(batch.obs)
        with self.autocast():
            q = self.critics(self.critics.torso(inputs), self.actions.scaled(batch.action))
            action, log_prob = self.draw(inputs)
        with self.autocast():  # of its own: autocast caches rounded weights, and these carry no gradient
            targets = self.targets(batch)
            gradient = self.value_gradient(inputs, action)
        loss, td_error = self.critic_loss(q, targets, batch.weights)
        metrics = {"loss": loss.detach(), **self.policy_metrics(log_prob)}
        self.minimize(loss + self.policy_loss(action, log_prob, gradient))
        assert self.target is not None
        move_towards(self.target, self.critics, self.settings.target_tau)
        return Learned(td_error, metrics)

    def policy_metrics(self, log_prob: Tensor) -> dict[str, Tensor]:
        """Return the policy's entropy, and its weight."""
        return {"entropy": -log_prob.detach().mean(), "temperature": self.temperature()}

    # save

    def trained(self) -> dict[str, nn.Module]:
        return {**super().trained(), "log_temperature": self.log_temperature}

    def modules(self) -> dict[str, nn.Module]:
        return super().modules() if self.target is None else {**super().modules(), "target": self.target}
