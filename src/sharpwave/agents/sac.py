"""Soft actor-critic: a stochastic policy that maximizes return and entropy, learned off-policy from several critics.

The weight of the entropy, the temperature, is learned too, so that the policy keeps a given entropy. Critics may
predict quantiles of the return, as in TQC: of all their quantiles the largest are left out of the target.

Sources: Haarnoja et al. (2018), Soft actor-critic algorithms and applications, algorithm 1; Kuznetsov et al. (2020),
Controlling overestimation bias with truncated mixture of continuous distributional quantile critics, algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sharpwave.agents.continuous import ContinuousAgent, ContinuousSettings
from sharpwave.agents.learner import move_towards
from sharpwave.agents.protocol import Learned
from sharpwave.agents.replay import LEARNING, NETWORK
from sharpwave.configuration import expect, setting
from sharpwave.extras import Tensor, nn, torch

LOG_STD = (-20.0, 2.0)
"""Bounds of a policy's logarithmic standard deviation, those of Haarnoja et al.'s own code."""


@dataclass(frozen=True)
class SACSettings(ContinuousSettings):
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

    policy_value: str = setting(
        "auto", "value that the policy ascends: the smallest of the critics', or their mean; auto: the mean with "
        "target-critics, dropout or quantiles, as in their papers, otherwise the smallest", LEARNING,
        choices=("auto", "smallest", "mean"),
    )  # fmt: skip
    quantiles: int = setting(
        0, "quantiles of the return that each critic predicts; 0: its mean only", NETWORK, at_least=0
    )
    dropped_quantiles: int = setting(
        2, "quantiles: of all critics' together, so many for each critic, the largest, are left out of the target",
        LEARNING, at_least=0,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantiles:
            fits = self.dropped_quantiles < self.quantiles
            expect(self, "dropped_quantiles", fits, f"less than --quantiles {self.quantiles}")
            expect(self, "target_critics", self.target_critics is None, "none with --quantiles: all critics are mixed")
            expect(self, "policy_value", self.policy_value != "smallest", "auto or mean with --quantiles")

    def unused(self) -> Iterator[tuple[str, str]]:
        yield from super().unused()
        if self.temperature is not None:
            yield "target_entropy", "--set agent.temperature=null"
        if not self.quantiles:
            yield "dropped_quantiles", "--quantiles"

    @property
    def ascends_mean(self) -> bool:
        """Whether the policy ascends the mean of the critics' values, not the smallest."""
        if self.policy_value == "auto":
            return bool(self.target_critics or self.dropout or self.quantiles)
        return self.policy_value == "mean"


class SAC(ContinuousAgent):
    """Soft actor-critic agent. The policy explores by its own noise, and is evaluated without: tanh of the mean."""

    Settings: type[SACSettings] = SACSettings
    OUTPUTS = 2  # mean and logarithm of the standard deviation

    def build(self) -> None:
        super().build()
        given = self.settings.target_entropy
        self._target_entropy = -float(self.actions.size) if given is None else given

    def begin_networks(self) -> None:
        super().begin_networks()
        self.target: Any = self.target_network()
        self.log_temperature = nn.ParameterList([torch.zeros(1, device=self.device)])

    def target_network(self) -> nn.Module | None:
        """Make the critics' target network; None: the agent has none."""
        target: nn.Module = self.follower("target", self.critic_network(), self.critics)
        return target

    @property
    def quantiles(self) -> int:
        count: int = self.settings.quantiles
        return count

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
        """Compute the critics' targets, as ``bootstrapped``."""
        with torch.no_grad():
            inputs = self.inputs(batch.next_obs)
            action, log_prob = self.draw(inputs)
            return self.bootstrapped(self.target_values(self.target, inputs, action), log_prob, batch)

    def bootstrapped(self, next_q: Tensor, log_prob: Tensor, batch: Any) -> Tensor:
        """Compute the critics' targets by the values of next actions, and log pi of these [B].

        Args:
            next_q: float [K, B], or quantiles [K, B, N].
        Returns:
            float [B], or samples of the return's distribution [B, M].
        """
        bonus = -self.temperature() * log_prob
        if not self.quantiles:
            return twin_targets(next_q, bonus, batch.reward, batch.discount)
        return truncated_targets(next_q, self.settings.dropped_quantiles, bonus, batch.reward, batch.discount)

    def ascended(self, values: Tensor) -> Tensor:
        if self.quantiles:
            return values.mean(dim=(0, 2))
        return values.mean(dim=0) if self.settings.ascends_mean else values.amin(dim=0)

    def critic_loss(self, q: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        if not self.quantiles:
            return super().critic_loss(q, targets, weights)
        loss = (weights * quantile_critic_losses(q, targets)).sum(dim=0).mean()
        return loss, targets.mean(dim=1) - q.detach().mean(dim=(0, 2))

    def policy_loss(self, action: Tensor, log_prob: Tensor, gradient: Tensor) -> Tensor:
        """Return the loss of the policy, and of the temperature if it is learned.

        Args:
            action, log_prob: of ``draw``, with gradient.  gradient: of the action's value, float [B, size].
        """
        loss = (self.temperature() * log_prob + dpg_loss(action, gradient)).mean()
        if self.settings.temperature is not None:
            return loss
        return loss + temperature_loss(self.log_temperature[0], log_prob, self._target_entropy).mean()

    def update(self, batch: Any, moves: bool) -> Learned:
        """Make one update. Critics, policy and temperature move together, each along its gradient at the same weights,
        as in the authors' code."""
        inputs = self.inputs(batch.obs)
        with self.autocast():
            q = self.values(inputs, self.actions.scaled(batch.action))
            drawn = self.draw(inputs) if moves else None
            # After those with gradient: autocast caches rounded weights as their first use made them.
            targets = self.targets(batch)
            gradient = self.value_gradient(inputs, drawn[0]) if drawn else None
        loss, td_error = self.critic_loss(q, targets, batch.weights)
        metrics = {"loss": loss.detach()}
        if drawn is not None and gradient is not None:
            metrics |= self.policy_metrics(drawn[1])
            loss = loss + self.policy_loss(*drawn, gradient)
        self.minimize(loss)
        move_towards(self.target, self.critics, self.settings.target_tau)
        return Learned(td_error, metrics)

    def policy_metrics(self, log_prob: Tensor) -> dict[str, Tensor]:
        return {"entropy": -log_prob.detach().mean(), "temperature": self.temperature()}

    # save

    def trained(self) -> dict[str, nn.Module]:
        return {**super().trained(), "log_temperature": self.log_temperature}


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Draw actions of a Gaussian policy squashed by tanh, and compute their logarithmic densities.

    Args:
        mean, log_std: float [B, n], of the Gaussian, log_std within ``LOG_STD``.
        noise: float [B, n], standard normal.
    Returns:
        actions, float [B, n] in -1 ... 1: a = tanh(u) with u = mean + exp(log_std) * noise; and log pi(a), float [B].
    Source: Haarnoja et al. (2018), Soft actor-critic, appendix C, eq. 21. Of log(1 - tanh(u)^2) this is the form
        2 * (log 2 - u - softplus(-2u)), which is exact where tanh(u) rounds to 1.
    """
    assert mean.ndim == 2 and mean.shape == log_std.shape == noise.shape, (mean.shape, log_std.shape, noise.shape)
    u = mean + log_std.exp() * noise
    each = -0.5 * noise.square() - log_std + 2.0 * (u + nn.functional.softplus(-2.0 * u))
    constant = mean.shape[1] * (0.5 * math.log(2.0 * math.pi) + 2.0 * math.log(2.0))
    return u.tanh(), each.sum(dim=1) - constant


def twin_targets(next_q: Tensor, entropy_bonus: Tensor | float, reward: Tensor, discount: Tensor) -> Tensor:
    """Compute the targets of clipped double Q-learning: of all critics' values the smallest, plus an entropy bonus.

    Args:
        next_q: float [K, B], Q_k(s_{t+n}, a') for an action a' of the policy.
        entropy_bonus: float [B], -temperature * log pi(a'); 0: none.
        reward, discount: float [B], the n-step return from t and gamma^n * (1 - terminated).
    Returns:
        float [B].
    Source: Fujimoto et al. (2018), eq. 10; with the bonus Haarnoja et al. (2018), Soft actor-critic algorithms and
        applications, eq. 2-3.
    """
    assert next_q.ndim == 2 and reward.shape == discount.shape == next_q.shape[1:], (next_q.shape, reward.shape)
    return reward + discount * (next_q.amin(dim=0) + entropy_bonus)


def truncated_targets(
    next_quantiles: Tensor, dropped: int, entropy_bonus: Tensor, reward: Tensor, discount: Tensor
) -> Tensor:
    """Compute samples of the return's distribution: of all critics' quantiles the smaller ones, plus an entropy bonus.

    Args:
        next_quantiles: float [K, B, N], of the return of (s_{t+n}, a') for an action a' of the policy.
        dropped: of the K N quantiles the ``dropped`` * K largest are left out.
        entropy_bonus: float [B], -temperature * log pi(a').
        reward, discount: float [B], the n-step return from t and gamma^n * (1 - terminated).
    Returns:
        float [B, K * (N - dropped)].
    Source: Kuznetsov et al. (2020), Controlling overestimation bias with truncated mixture of continuous distributional
        quantile critics, eq. 11.
    """
    members, items, count = next_quantiles.shape
    assert reward.shape == discount.shape == entropy_bonus.shape == (items,), (next_quantiles.shape, reward.shape)
    mixed = next_quantiles.transpose(0, 1).flatten(1).sort(dim=1).values[:, : members * (count - dropped)]
    return reward.unsqueeze(1) + discount.unsqueeze(1) * (mixed + entropy_bonus.unsqueeze(1))


def quantile_critic_losses(quantiles: Tensor, targets: Tensor) -> Tensor:
    """Compute the quantile regression loss of each critic and item: the mean over its quantiles and the targets.

    Args:
        quantiles: float [K, B, N].  targets: float [B, M], samples of the return's distribution.
    Returns:
        float [K, B].
    Source: Kuznetsov et al. (2020), eq. 12-13.
    """
    from sharpwave.agents.distributional import midpoints, quantile_huber

    count = quantiles.shape[2]
    fractions = midpoints(count, quantiles.device)
    return torch.stack([quantile_huber(one, fractions, targets) for one in quantiles]) / count


def dpg_loss(action: Tensor, dq_da: Tensor) -> Tensor:
    """Compute a loss whose gradient by the action is -dq/da: ascent of the action's value through the action alone.

    So the critics' own gradients, which the policy's update does not need, are never computed.

    Args:
        action: float [B, n], of the policy, with gradient.
        dq_da: float [B, n], gradient of the action's value, a constant.
    Returns:
        float [B]: half the squared distance between the action and the action moved by dq_da.
    Source: Silver et al. (2014), Deterministic policy gradient algorithms, eq. 9; the form is rlax's.
    """
    assert action.ndim == 2 and action.shape == dq_da.shape, (action.shape, dq_da.shape)
    return 0.5 * ((action + dq_da).detach() - action).square().sum(dim=1)


def temperature_loss(log_temperature: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """Compute the loss that raises the temperature where the policy's entropy is below its target.

    Args:
        log_temperature: float, with gradient.
        log_prob: float [B], log pi(a), a constant.
    Returns:
        float [B]: -log_temperature * (log pi(a) + target_entropy).
    Source: Haarnoja et al. (2018), Soft actor-critic algorithms and applications, eq. 18, with the logarithm in place
        of the temperature as in its authors' code: gradients then do not vanish with it.
    """
    return -log_temperature * (log_prob.detach() + target_entropy)
