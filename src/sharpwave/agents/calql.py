"""Calibrated Q-learning: soft actor-critic from recorded data, conservative, and then in the environment.

Conservative Q-learning lowers the values of the policy's actions against those of the data. Lowered without end, they
are below what even the data's policy earns; online, any new action seems better, and what was learned is lost. So no
action of the policy is valued below a reference: the return that the data really had from there.

Sources: Nakamoto et al. (2023), Cal-QL: calibrated offline RL pre-training for efficient online fine-tuning; Kumar et
al. (2020), Conservative Q-learning for offline reinforcement learning, appendix F: CQL(H) of continuous actions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sharpwave.agents.episode_outcomes import EPISODE_RETURN, RETURN_TO_GO, MeasuredData, OutcomeSettings
from sharpwave.agents.learner import move_towards
from sharpwave.agents.protocol import Learned
from sharpwave.agents.replay import LEARNING, OnlineSettings, TransitionsSettings, standardized
from sharpwave.agents.sac import LOG_STD, SAC, SACSettings, squash, twin_targets
from sharpwave.configuration import again, expect, setting
from sharpwave.extras import Tensor, torch


@dataclass(frozen=True)
class CalQLTransitions(OutcomeSettings):
    """Settings of the view of calibrated Q-learning: transitions, with the returns that followed them."""

    OUTCOMES = (RETURN_TO_GO, EPISODE_RETURN)


@dataclass(frozen=True)
class CalQLSettings(SACSettings, OnlineSettings):
    """Settings of calibrated Q-learning; the defaults are those of Nakamoto et al. (2023), appendix D."""

    kind: ClassVar[str] = "calql"

    replay: TransitionsSettings = field(default_factory=lambda: CalQLTransitions(batch_size=256))

    standardize: bool = standardized(True)
    conservatism: float = setting(
        5.0, "weight of the penalty on values of actions that the data lack; 0: plain soft actor-critic", LEARNING,
        at_least=0,
    )  # fmt: skip
    calibrated: bool = setting(
        True, "no action of the policy is valued below the data's own return; without it, the method is CQL", LEARNING
    )
    sampled_actions: int = setting(
        10, "actions of each kind (random, the policy's here, and its at the next state) that the penalty sums over",
        LEARNING, at_least=1,
    )  # fmt: skip
    normalize_rewards: bool = setting(
        True, "scale rewards so that the returns of the data's episodes spread over 1,000", LEARNING
    )
    random_steps: int = again(SACSettings, random_steps=0)
    actor_lr: float = setting(1e-4, "learning rate of Adam for the policy and the temperature", LEARNING, above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        expect(self, "quantiles", not self.quantiles, "0: the penalty is on the mean of the return")

    def unused(self) -> Iterator[tuple[str, str]]:
        yield from super().unused()
        yield "weight_decay", "an agent whose policy learns at the critics' rate"
        if self.online_after is None:
            yield "random_steps", "--online-after"


class CalQL(MeasuredData, SAC):
    """Calibrated Q-learning agent: soft actor-critic, whose critics' loss has a further term."""

    Settings = CalQLSettings
    settings: CalQLSettings

    def make_optimizer(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        critics = {id(one) for one in self.critics.parameters()}
        rest = [one for one in parameters if id(one) not in critics]
        critics_first: list[dict[str, Any]] = [{"params": [*self.critics.parameters()]}]
        groups = [*critics_first, {"params": rest, "lr": self.settings.actor_lr}]
        return torch.optim.Adam(groups, lr=self.settings.lr, betas=self.BETAS, fused=True)

    # learn

    def targets(self, batch: Any) -> Tensor:
        """Compute the critics' targets, without the entropy's bonus, as in the authors' code."""
        assert self.target is not None
        with torch.no_grad():
            inputs = self.inputs(batch.next_obs)
            next_q = self.target(self.target.torso(inputs), self.draw(inputs)[0])
            return twin_targets(next_q, 0.0, self.rewards(batch.reward), batch.discount)

    def reference(self, batch: Any) -> Tensor:
        """Return the data's own returns from each item on, float32 [B]: -infinity where they aren't known yet."""
        returns: Tensor = self.rewards(batch[RETURN_TO_GO])
        return returns.masked_fill(~batch.mask_of(RETURN_TO_GO) | returns.isnan(), -math.inf)

    def sampled(self, inputs: Any, next_inputs: Any) -> tuple[Tensor, Tensor]:
        """Draw actions whose values the penalty sums: random ones, the policy's here and its at the next state.

        Returns:
            scaled actions, float32 [B, 3 * N, size]; logarithms of their densities, float32 [B, 3 * N]; constants.
        """
        count = self.settings.sampled_actions
        with torch.no_grad():
            here, there = (self.several(at, count) for at in (inputs, next_inputs))
            random = torch.rand_like(here[0]) * 2.0 - 1.0
            density = torch.full_like(here[1], -math.log(2.0) * self.actions.size)
            actions = torch.cat([random, here[0], there[0]], dim=1)
            return actions, torch.cat([density, here[1], there[1]], dim=1)

    def several(self, inputs: Any, count: int) -> tuple[Tensor, Tensor]:
        """Draw ``count`` actions of the policy for each item: as ``draw``, [B, count, size] and [B, count]."""
        mean, log_std = self.actor(inputs).repeat_interleave(count, dim=0).chunk(2, dim=1)
        action, log_prob = squash(mean, log_std.clamp(*LOG_STD), torch.randn_like(mean))
        return action.unflatten(0, (-1, count)), log_prob.unflatten(0, (-1, count))

    def penalty(self, batch: Any, inputs: Any, q: Tensor) -> Tensor:
        """Compute the conservative term of each critic and item, float [2, B].

        Args:
            q: float [2, B], values of the data's actions.
        """
        settings, features = self.settings, self.critics.torso(inputs)
        actions, log_density = self.sampled(inputs, self.inputs(batch.next_obs))
        each = actions.shape[1]
        values = self.critics(features.repeat_interleave(each, dim=0), actions.flatten(0, 1))
        values = values.unflatten(1, (len(q[0]), each))
        reference = self.reference(batch) if settings.calibrated else torch.full_like(batch.reward, -math.inf)
        return conservative_penalty(values, log_density, q, reference, settings.sampled_actions)

    def update(self, batch: Any, moves: bool) -> Learned:
        """Make one update. Critics, policy and temperature move together, each along its gradient at the same
        weights."""
        inputs = self.inputs(batch.obs)
        with self.autocast():
            q = self.values(inputs, self.actions.scaled(batch.action))
            drawn = self.draw(inputs) if moves else None
            penalty = self.penalty(batch, inputs, q)
        with self.autocast():
            targets = self.targets(batch)
            gradient = self.value_gradient(inputs, drawn[0]) if drawn else None
        loss, td_error = self.critic_loss(q, targets, batch.weights)
        penalized = (batch.weights * penalty).sum(dim=0).mean()
        metrics = {"loss": loss.detach(), "penalty": penalized.detach()}
        # The authors' errors are not halved; so the weight of the penalty is theirs.
        loss = 2.0 * loss + self.settings.conservatism * penalized
        if drawn is not None and gradient is not None:
            metrics |= self.policy_metrics(drawn[1])
            loss = loss + self.policy_loss(*drawn, gradient)
        self.minimize(loss)
        move_towards(self.target, self.critics, self.settings.target_tau)
        return Learned(td_error, metrics)


def conservative_penalty(
    values: Tensor, log_density: Tensor, q: Tensor, reference: Tensor, uncalibrated: int
) -> Tensor:
    """Compute log sum exp of sampled actions' values less the value of the data's action, for each critic and item.

    Values of the policy's actions count as at least the reference: below it, they aren't lowered further.

    Args:
        values: float [K, B, N], Q_k(s, a_j), of actions that were drawn with the densities exp(log_density), [B, N].
        q: float [K, B], values of the data's actions.
        reference: float [B], V of the data's policy; -infinity: none.
        uncalibrated: the first so many of the N actions are random ones, whose values have no reference.
    Returns:
        float [K, B].
    Source: Kumar et al. (2020), appendix F, with importance weights; Nakamoto et al. (2023), eq. 5.1.
    """
    assert values.shape[:2] == q.shape and values.shape[1:] == log_density.shape, (values.shape, log_density.shape)
    bounds = reference.unsqueeze(1).repeat(1, values.shape[2])
    bounds[:, :uncalibrated] = -math.inf
    return (torch.maximum(values, bounds) - log_density).logsumexp(dim=2) - q
