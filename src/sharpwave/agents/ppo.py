"""PPO: the clipped surrogate objective lets each window be learned from several times before it is dropped.

Whole windows: reuse is the store's. ``sharpwave.Store.sequences(..., sampler=Fifo(), max_times_sampled=k)`` gives the
oldest windows k times in a row, which are k epochs over one batch. Advantages are estimated again in every epoch, by
the present value (Andrychowicz et al. 2021, What matters for on-policy deep actor-critic methods, section 3.5).
Observations are measured once, after the last epoch.

Minibatches (``--minibatch-size``): an update is a rollout: all windows that wait. Its advantages are estimated once,
along lanes. Then its single steps are shuffled and learned from in minibatches, k times. That is the form of the
paper's algorithm 1 that its code and most others have.

In both the ratio is that to the policy that acted, whose log-probabilities were stored with the steps.

Source: Schulman et al. (2017), Proximal policy optimization algorithms; advantages: Schulman et al. (2016), generalized
advantage estimation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np

from sharpwave.agents.a2c import LOG_PROBABILITY, ActorCritic, ActorCriticSettings, Objectives, Seen, flat
from sharpwave.agents.actions import legal_in, with_legal
from sharpwave.agents.distilling import DistillingAgent, NoveltySettings
from sharpwave.agents.losses import lambda_returns
from sharpwave.agents.protocol import Learned
from sharpwave.agents.replay import EXPLORATION, LEARNING, linear
from sharpwave.agents.rollouts import LaneOrder, MinibatchSettings, advantages, minibatches
from sharpwave.configuration import expect, setting
from sharpwave.extras import Tensor, nn, torch
from sharpwave.nesting import map_leaves


@dataclass(frozen=True)
class PPOSettings(NoveltySettings, ActorCriticSettings):
    kind: ClassVar[str] = "ppo"

    replay: MinibatchSettings = field(default_factory=lambda: MinibatchSettings(batch_size=8, length=32, epochs=4))

    trace: float = setting(
        0.95, "lambda of generalized advantage estimation, and of the value's targets", LEARNING, at_least=0, at_most=1
    )
    clip: float = setting(0.2, "epsilon: change of a probability beyond which nothing is gained", LEARNING, above=0)
    clip_end: float | None = setting(
        None, "final epsilon, after learning-rate-steps; empty: constant", LEARNING, above=0
    )
    clip_value: float | None = setting(
        None,
        "minibatches: change of a value since the rollout beyond which its error is clipped; empty: never",
        LEARNING,
        above=0,
    )
    standardize_advantages: bool = setting(
        True, "give the advantages of a batch, or of each minibatch, mean 0 and deviation 1", LEARNING
    )
    target_divergence: float | None = setting(
        None,
        "minibatches: an update ends when the policy's divergence from the one that acted is 1.5 times that; empty: "
        "after its epochs",
        LEARNING,
        above=0,
    )

    novelty_gamma: float = setting(
        0.99,
        "discount factor of rewards for novelty, whose returns go on in the next episode",
        EXPLORATION,
        at_least=0,
        below=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.novelty == "none" or self.replay.minibatch_size > 0
        expect(self, "novelty", fits, "none without --minibatch-size")
        expect(self, "clip_end", self.clip_end is None or self.lr_end is not None, "none without --learning-rate-end")

    def unused(self) -> Iterator[tuple[str, str]]:
        yield from super().unused()
        yield from self.unused_novelty()
        if self.novelty == "none":
            yield "novelty_gamma", "--novelty rnd"
        if not self.replay.minibatch_size:
            yield "clip_value", "--minibatch-size"
            yield "target_divergence", "--minibatch-size"


@dataclass(frozen=True)
class Rollout:
    """Steps of a rollout, or of a minibatch of it; [N, ...] each.

    Attributes:
        fields: of the policy's actions, and the log-probability by the policy that acted.
        value: v(s) when the update began.  advantage: generalized, estimated then.
        novelty: those of rewards for novelty, [N, 2], values and advantages, and ``next_obs``; None: there are none.
    """

    obs: Any
    action: Tensor
    fields: dict[str, Tensor]
    value: Tensor
    advantage: Tensor
    novelty: Tensor | None = None
    next_obs: Any = None

    def __getitem__(self, name: str) -> Tensor:
        return self.fields[name]

    def of(self, number: Any) -> Rollout:
        """Return the steps of those numbers, or of those windows and columns."""

        def chosen(part: Any) -> Any:
            return None if part is None else map_leaves(lambda one: one[number], part)

        return Rollout(**{one.name: chosen(getattr(self, one.name)) for one in fields(self)})


class PPO(DistillingAgent, ActorCritic):
    Settings = PPOSettings
    settings: PPOSettings

    def build(self) -> None:
        super().build()
        self._clip = self.settings.clip
        if self.distillation is not None:
            from sharpwave.agents.normalization import ReturnScale

            self.novelty_value = self.network_of(lambda units: nn.Linear(units, 1), 1.0).to(self.device)
            self.novelty_scale = ReturnScale(self.settings.novelty_gamma, clip=math.inf).to(self.device)

    def trained(self) -> dict[str, nn.Module]:
        return super().trained() | ({} if self.distillation is None else {"novelty_value": self.novelty_value})

    def modules(self) -> dict[str, nn.Module]:
        return super().modules() | ({} if self.distillation is None else {"novelty_scale": self.novelty_scale})

    def state(self) -> dict[str, Any]:
        return super().state() | ({} if self.distillation is None else {"novelty": self.novelty_scale.carried()})

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        if self.distillation is not None:
            self.novelty_scale.carry(state["novelty"])

    def objectives(self, batch: Any, seen: Seen) -> Objectives:
        settings = self.settings
        returns = lambda_returns(self.rewards(batch), batch.discount, seen.next_value, seen.ends, settings.trace)
        advantage = (returns - seen.value).detach()
        if settings.standardize_advantages:
            advantage = standardized(advantage, seen.mask)
        outside = ((seen.ratio.detach() - 1).abs() > self._clip) & seen.mask
        metrics = {"clipped": outside.sum() / seen.mask.sum()}
        return clipped_surrogate(seen.ratio, advantage, self._clip), returns, metrics

    def learn(self, batch: Any, step: int) -> Learned:
        settings = self.settings
        self._clip = settings.clip
        if settings.clip_end is not None:
            self._clip = linear(step, settings.clip, settings.clip_end, settings.lr_steps)
        return super().learn(batch, step)

    def update(self, batch: Any) -> dict[str, Tensor]:
        if self.settings.replay.minibatch_size:
            return self.learn_rollout(self.rollout(batch))
        return super().update(batch)

    # minibatches

    def rollout(self, batch: Any) -> Rollout:
        """Return the real steps of a batch of windows, by lane and then by time."""
        places = LaneOrder.of_batch(batch)
        with torch.no_grad():
            value = self.value(self.inputs(flat(batch.obs))).view(len(batch.mask), -1)
        reward, discount, now, after = (
            one.double().cpu().numpy() for one in (self.rewards(batch), batch.discount, value[:, :-1], value[:, 1:])
        )
        cut = (batch.terminated | batch.truncated).cpu().numpy()
        found = advantages(reward, discount, now, after, cut, self.settings.trace, places)
        windows = np.repeat(places.order, places.steps[places.order])
        columns = np.concatenate([np.arange(count) for count in places.steps[places.order].tolist()])
        at = torch.from_numpy(windows).to(value.device), torch.from_numpy(columns).to(value.device)
        stored = {name: batch[name] for name in (LOG_PROBABILITY, *self.distribution.step_fields())}
        advantage = torch.from_numpy(found).float().to(value.device)
        rollout = Rollout(batch.obs, batch.action, stored, value, advantage)
        if self.distillation is not None:
            later = map_leaves(lambda obs: obs[:, 1:], batch.obs)
            rollout = replace(rollout, novelty=self.novelty_of(batch, places), next_obs=later)
        return rollout.of(at)

    def novelty_of(self, batch: Any, places: LaneOrder) -> Tensor:
        """Return values and advantages of rewards for novelty, float [B, T, 2].

        Their returns go on in a lane's next episode, so the value after a window is that of the one that follows it.
        """
        settings, real = self.settings, batch.mask
        later = map_leaves(lambda obs: obs[:, 1:][real], batch.obs)
        self.distillation.observe(later)
        reward = torch.zeros(real.shape, dtype=torch.float64, device=real.device)
        with torch.no_grad():
            reward[real] = self.distillation.errors(later).double()
            value = self.novelty_value(self.inputs(flat(batch.obs))).view(len(real), -1).double()
        never = np.zeros(len(real), bool)
        self.novelty_scale.observe(places, reward.cpu().numpy(), never)
        now = value[:, :-1].cpu().numpy()
        after, goes_on = value[:, 1:].cpu().numpy().copy(), np.flatnonzero(places.follower >= 0)
        after[goes_on, places.steps[goes_on] - 1] = now[places.follower[goes_on], 0]
        scaled, discount = self.novelty_scale(reward).cpu().numpy(), np.full(now.shape, settings.novelty_gamma)
        found = advantages(scaled, discount, now, after, np.zeros(now.shape, bool), settings.trace, places)
        return torch.from_numpy(np.stack([now, found], axis=2)).float().to(real.device)

    def learn_rollout(self, steps: Rollout) -> dict[str, Tensor]:
        """Make the steps of the optimizer over all minibatches; return the means of their metrics."""
        settings, kept = self.settings, list[dict[str, Tensor]]()
        for _ in range(settings.replay.epochs):
            parts = minibatches(len(steps.value), settings.replay.minibatch_size, self._rng)
            shuffled, begin = steps.of(torch.from_numpy(np.concatenate(parts)).to(self.device)), 0
            for part in parts:
                minibatch, begin = shuffled.of(slice(begin, begin + len(part))), begin + len(part)
                loss, metrics = self.minibatch_loss(minibatch)
                kept.append({"loss": loss.detach(), **metrics})
                limit = settings.target_divergence
                if limit is not None and metrics["divergence"].item() > 1.5 * limit:
                    break
                self.minimize(loss, *self.clipped)
                if self.distillation is not None:
                    kept[-1]["novelty_loss"] = self.learn_novelty(minibatch.next_obs)
            else:
                continue
            break
        return {name: torch.stack([one[name] for one in kept if name in one]).mean() for name in kept[0]}

    def minibatch_loss(self, steps: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the mean over steps of all that is minimized, and metrics."""
        settings = self.settings
        inputs = self.inputs(steps.obs)
        predicted = with_legal(self.policy(inputs), legal_in(self.spaces, steps.obs))
        ratio = (self.distribution.log_probability(predicted, steps) - steps[LOG_PROBABILITY]).exp()
        value, target, advantage = self.value(inputs).squeeze(1), steps.value + steps.advantage, steps.advantage
        if settings.clip_value is not None:
            value = steps.value + (value - steps.value).clamp(-settings.clip_value, settings.clip_value)
        if steps.novelty is not None:
            advantage = advantage + settings.novelty_weight * steps.novelty[:, 1]
        if settings.standardize_advantages and len(advantage) > 1:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy_loss = clipped_surrogate(ratio, advantage, self._clip).mean()
        value_loss = 0.5 * (target - value).square().mean()
        entropy = self.distribution.entropy(predicted if settings.entropy_cost else predicted.detach()).mean()
        if steps.novelty is not None:
            error = steps.novelty.sum(dim=1) - self.novelty_value(inputs).squeeze(1)
            value_loss = value_loss + 0.5 * error.square().mean()
        loss = policy_loss + settings.value_cost * value_loss - settings.entropy_cost * entropy
        with torch.no_grad():
            clipped = ((ratio - 1).abs() > self._clip).float().mean()
            divergence = (ratio - 1 - ratio.log()).mean()
        metrics = {"value_loss": value_loss, "entropy": entropy, "divergence": divergence, "clipped": clipped}
        return loss, {name: one.detach() for name, one in metrics.items()}


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Compute PPO's loss of each step: -min(ratio * A, clip(ratio, 1 - epsilon, 1 + epsilon) * A). Any shape.

    Its gradient is zero where the policy has moved by more than epsilon in the advantage's direction.

    Args:
        ratio: probability of the action by the policy over that by the policy that acted, with gradient.
        advantage: of the action that was taken.
        clip: epsilon.
    Source: Schulman et al. (2017), Proximal policy optimization algorithms, eq. 7.
    """
    assert ratio.shape == advantage.shape, (ratio.shape, advantage.shape)
    advantage = advantage.detach()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def standardized(advantage: Tensor, mask: Tensor) -> Tensor:
    """Subtract the mean of the advantages where ``mask`` holds, and divide by their standard deviation.

    Args:
        advantage: float [B, T].  mask: bool [B, T].
    Returns:
        float [B, T], 0 where ``mask`` does not hold; of a single step, or of equal ones, zeros.
    """
    assert advantage.shape == mask.shape, (advantage.shape, mask.shape)
    real = advantage[mask]
    scaled = (advantage - real.mean()) / (real.std(correction=0) + 1e-8)
    return scaled.masked_fill(~mask, 0.0)
