"""Implicit Q-learning: values of the data's own actions only, and a policy that imitates the better ones.

Offline, the value of an action that the data lack cannot be trusted. So none is ever computed: V(s) is an expectile of
Q(s, a) over the data's actions, near their best, and Q is learned from r + gamma V(s'). The policy is cloned from the
data, each action weighted by exp((Q - V) / temperature).

Source: Kostrikov, Nair and Levine (2021), Offline reinforcement learning with implicit Q-learning.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sharpwave.agents.bc import BC, BCSettings
from sharpwave.agents.learner import move_towards
from sharpwave.agents.losses import squared
from sharpwave.agents.protocol import Learned
from sharpwave.agents.replay import LEARNING, TransitionsSettings
from sharpwave.configuration import setting
from sharpwave.extras import Tensor, nn, torch

CRITICS = 2
"""Critics, the lower of which counts: each alone overestimates."""


@dataclass(frozen=True)
class IQLSettings(BCSettings):
    """Settings of implicit Q-learning: those of behaviour cloning, and of the values that weight it."""

    kind: ClassVar[str] = "iql"

    replay: TransitionsSettings = field(default_factory=lambda: TransitionsSettings(batch_size=64))

    expectile: float = setting(
        0.9,
        "which expectile of the data's actions V is; 0.5: their mean, near 1: their best",
        LEARNING,
        above=0,
        below=1,
    )
    temperature: float = setting(
        3.0,
        "advantage that makes an action e times as heavy in the policy's loss; large: behaviour cloning",
        LEARNING,
        above=0,
    )
    max_weight: float = setting(100.0, "largest weight of an action in the policy's loss", LEARNING, above=0)
    target_tau: float = setting(
        0.01, "share by which each update moves the target critics", LEARNING, above=0, at_most=1
    )


class IQL(BC):
    """Implicit Q-learning agent: the policy of behaviour cloning, V, two critics and their targets."""

    Settings = IQLSettings

    def build(self) -> None:
        super().build()
        self.value = self.value_network().to(self.device)
        self.critics = nn.ModuleList(self.value_network(self.action_size) for _ in range(CRITICS)).to(self.device)
        self.targets = self.follower("targets", copy.deepcopy(self.critics), self.critics)

    # network

    def value_network(self, beside: int = 0) -> nn.Module:
        """Make a fresh network: outputs of ``inputs``, and a vector of ``beside`` numbers -> value [B]."""
        from sharpwave.agents.actor_networks import ValueNetwork

        units = self.settings.hidden_units
        return ValueNetwork(self.make_torso(units), beside, units)

    def trained(self) -> dict[str, nn.Module]:
        return {**super().trained(), "value": self.value, "critics": self.critics}

    # learn

    def loss(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Compute the sum of the losses of V, critics and policy, each the weighted mean over items; and the first
        critic's TD errors, unweighted, float32 [B]."""
        settings, action = self.settings, self._vectors(batch.action)
        inputs = self.inputs(batch.obs)
        with torch.no_grad():
            best = torch.stack([target(inputs, action) for target in self.targets]).amin(dim=0)
            targets = batch.reward + batch.discount * self.value(self.inputs(batch.next_obs))
        advantage = best - self.value(inputs)
        weight = (advantage.detach() / settings.temperature).exp().clamp(max=settings.max_weight)
        errors = [targets - critic(inputs, action) for critic in self.critics]
        losses = expectile_loss(advantage, settings.expectile) + weight * self.imitation(inputs, batch)
        losses = losses + sum(squared(error) for error in errors)
        return (batch.weights * losses).mean(), errors[0].detach()

    def _vectors(self, action: Tensor) -> Tensor:
        """Return actions as critics take them, float32 [B, n]: numbered ones as one-hot vectors."""
        if self.numbered is None:
            return action.flatten(1).float()
        return nn.functional.one_hot(self.numbered.numbers(action), self.numbered.count).float()

    def learn(self, batch: Any, step: int) -> Learned:
        loss, td_error = self.loss(batch)
        self.minimize(loss)
        move_towards(self.targets, self.critics, self.settings.target_tau)
        self.follow(step)
        return Learned(td_error, {"loss": loss.detach()})


def expectile_loss(error: Tensor, expectile: float) -> Tensor:
    """Compute the asymmetric squared error |expectile - 1(error < 0)| * error^2 of each error. Any shape.

    The prediction that minimizes its mean is the targets' expectile: their mean for 0.5, near their maximum for 1.

    Args:
        error: target minus prediction.  expectile: between 0 and 1.
    Source: Kostrikov, Nair and Levine (2021), Offline reinforcement learning with implicit Q-learning, eq. 4.
    """
    return abs(expectile - (error < 0).to(error.dtype)) * error * error
