"""Implicit Q-learning: values of the data's own actions only, and a policy that imitates the better ones.

Offline, the value of an action that the data lack cannot be trusted. So none is ever computed: V(s) is an expectile of
Q(s, a) over the data's actions, near their best, and Q is learned from r + gamma V(s'). The policy is cloned from the
data, each action weighted by exp(beta (Q - V)), beta the inverse temperature. Rewards are scaled by the spread of the
data's returns, so that one beta suits data of any scale.

Source: Kostrikov, Nair and Levine (2021), Offline reinforcement learning with implicit Q-learning.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sharpwave.agents.bc import BC, BCSettings
from sharpwave.agents.episode_outcomes import EPISODE_RETURN, OutcomeSettings
from sharpwave.agents.learner import move_towards
from sharpwave.agents.losses import squared
from sharpwave.agents.protocol import Learned
from sharpwave.agents.replay import LEARNING, TransitionsSettings
from sharpwave.configuration import again, setting
from sharpwave.extras import Tensor, nn, torch


@dataclass(frozen=True)
class IQLTransitions(OutcomeSettings):
    """Settings of the view of implicit Q-learning: transitions, with the returns by which rewards are scaled."""

    OUTCOMES = (EPISODE_RETURN,)


@dataclass(frozen=True)
class IQLSettings(BCSettings):
    """Settings of implicit Q-learning; the defaults are those of Kostrikov et al. (2021), appendix B, for MuJoCo."""

    kind: ClassVar[str] = "iql"

    replay: TransitionsSettings = field(default_factory=lambda: IQLTransitions(batch_size=256))

    hidden_units: int = again(BCSettings, hidden_units=256)
    standardize: bool = again(BCSettings, standardize=True)
    lr: float = again(BCSettings, lr=3e-4)
    likelihood: str = setting(
        "gaussian", "loss of continuous actions, as of behaviour cloning", LEARNING,
        choices=("squared", "gaussian", "tanh"),
    )  # fmt: skip

    expectile: float = setting(
        0.7,
        "which expectile of the data's actions V is; 0.5: their mean, near 1: their best",
        LEARNING,
        above=0,
        below=1,
    )
    inverse_temperature: float = setting(
        3.0,
        "beta: an action is weighted by exp(beta * advantage) in the policy's loss; 0: behaviour cloning",
        LEARNING,
        at_least=0,
    )
    max_weight: float = setting(100.0, "largest weight of an action in the policy's loss", LEARNING, above=0)
    normalize_rewards: bool = setting(
        True, "scale rewards so that the returns of the data's episodes spread over 1,000", LEARNING
    )
    target_tau: float = setting(
        0.005, "share by which each update moves the target critics", LEARNING, above=0, at_most=1
    )


class IQL(BC):
    """Implicit Q-learning agent: the policy of behaviour cloning, V, two critics and their targets."""

    Settings = IQLSettings

    def build(self) -> None:
        super().build()
        self.value = self.value_network().to(self.device)
        self.critics: Any = self.critic_network().to(self.device)
        self.targets: Any = self.follower("targets", copy.deepcopy(self.critics), self.critics)

    # network

    def value_network(self) -> nn.Module:
        """Make a fresh network: outputs of ``inputs`` -> value [B]."""
        from sharpwave.agents.actor_networks import ValueNetwork

        units = self.settings.hidden_units
        return ValueNetwork(self.make_torso(units), 0, units)

    def critic_network(self) -> nn.Module:
        """Make two fresh critics: features of their torso, and actions as vectors -> Q [2, B]."""
        from sharpwave.agents.actor_networks import Critics

        return Critics(self.make_torso(units=0), self.action_size, self.settings.hidden_units)

    def trained(self) -> dict[str, nn.Module]:
        return {**super().trained(), "value": self.value, "critics": self.critics}

    # learn

    def loss(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Compute the sum of the losses of V, critics and policy, each the weighted mean over items; and the critics'
        mean TD errors, unweighted, float32 [B]."""
        settings, action = self.settings, self.vectors(batch.action)
        inputs = self.inputs(batch.obs)
        with torch.no_grad():
            best = self.targets(self.targets.torso(inputs), action).amin(dim=0)
            targets = self.rewards(batch.reward) + batch.discount * self.value(self.inputs(batch.next_obs))
        advantage = best - self.value(inputs)
        weight = advantage_weight(advantage.detach(), settings.inverse_temperature, settings.max_weight)
        errors = targets - self.critics(self.critics.torso(inputs), action)
        losses = expectile_loss(advantage, settings.expectile) + weight * self.imitation(inputs, batch)
        losses = losses + squared(errors).sum(dim=0)
        return (batch.weights * losses).mean(), errors.detach().mean(dim=0)

    def vectors(self, action: Tensor) -> Tensor:
        """Return actions as critics take them, float32 [B, n]: scaled to -1 ... 1 where there are bounds, numbered ones
        as one-hot vectors."""
        if self.numbered is None:
            return action.reshape(len(action), -1).float() if self.bounds is None else self.bounds.scaled(action)
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


def advantage_weight(advantage: Tensor, inverse_temperature: float, largest: float) -> Tensor:
    """Compute the weights of actions in the policy's loss: exp(beta A), at most ``largest``. Any shape.

    Source: Kostrikov, Nair and Levine (2021), eq. 7; the bound is that of their code.
    """
    return (inverse_temperature * advantage).exp().clamp(max=largest)
