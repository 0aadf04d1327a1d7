"""IMPALA: an actor-critic whose actors may be behind. V-trace corrects for the difference of their policy.

Windows wait in a queue (``sharpwave.Store.sequences`` with ``sampler=Fifo(), max_times_sampled=1``) and are learned
from once, in order. By then the policy has moved on; the ratio of its probability of an action to the actor's, which
was stored with the step, weights errors and cuts traces.

Source: Espeholt et al. (2018), IMPALA: scalable distributed deep-RL with importance weighted actor-learner
architectures. Adam is in place of RMSProp, and the networks of policy and value are apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sharpwave.agents.a2c import ActorCritic, ActorCriticSettings, Objectives, Seen, policy_gradient
from sharpwave.agents.replay import LEARNING
from sharpwave.agents.rollouts import RolloutSettings
from sharpwave.configuration import setting
from sharpwave.extras import Tensor, torch


@dataclass(frozen=True)
class IMPALASettings(ActorCriticSettings):
    kind: ClassVar[str] = "impala"

    replay: RolloutSettings = field(default_factory=lambda: RolloutSettings(batch_size=8, length=20, epochs=1))

    vtrace: bool = setting(True, "correct for actors whose policy is older than the learner's", LEARNING)
    max_ratio: float = setting(
        1.0, "rho-bar: limit of the ratios that weight errors and advantages; traces are cut at 1", LEARNING, at_least=1
    )

    def unused(self) -> Iterator[tuple[str, str]]:
        yield from super().unused()
        if not self.vtrace:
            yield "max_ratio", "--vtrace"


class IMPALA(ActorCritic):
    Settings = IMPALASettings

    def objectives(self, batch: Any, seen: Seen) -> Objectives:
        settings = self.settings
        ratio = seen.ratio.detach() if settings.vtrace else torch.ones_like(seen.ratio)
        target, advantage = vtrace(
            self.rewards(batch), batch.discount, seen.value, seen.next_value, seen.ends, ratio, settings.max_ratio
        )
        mean_ratio = (ratio.clamp(max=settings.max_ratio) * seen.mask).sum() / seen.mask.sum()
        return policy_gradient(seen.log_probability, advantage), target, {"clipped_ratio": mean_ratio}


def vtrace(
    reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, ends: Tensor, ratio: Tensor, clip: float
) -> tuple[Tensor, Tensor]:
    """Compute the targets of V-trace: n-step returns of the learner's policy from steps of another one.

    With ratios of 1 the targets are the n-step returns up to the end.

    Args:
        reward, discount: float [B, T], r_{t+1} and gamma_{t+1} = gamma * (1 - terminated) for step t.
        value, next_value: float [B, T], v(s_t) and v(s_{t+1}).
        ends: bool [B, T], a step after which the trace is cut and bootstraps: an episode's last one, or the window's.
        ratio: float [B, T], probability of the action by the learner's policy over that by the actor's.
        clip: largest ratio of the targets and advantages, rho-bar; traces are cut at 1, c-bar.
    Returns:
        v_s, targets of the values of the steps, and advantages of the actions that were taken, times their clipped
        ratios; float [B, T], without gradients.
    Source: Espeholt et al. (2018), IMPALA, eqs. 1 and 4 and remark 1.
    """
    assert reward.shape == discount.shape == value.shape == next_value.shape == ends.shape == ratio.shape, ratio.shape
    value, next_value, ratio = value.detach(), next_value.detach(), ratio.detach()
    rho, cut = ratio.clamp(max=clip), ratio.clamp(max=1.0)
    error = rho * (reward + discount * next_value - value)
    moved = torch.empty_like(value)  # v_s - v(s_t): the trace's part of a step's target
    behind = torch.empty_like(value)  # the same of the next step; 0 where the trace is cut
    later = torch.zeros_like(value[:, 0])
    for t in reversed(range(reward.shape[1])):
        behind[:, t] = later.masked_fill(ends[:, t], 0.0)
        later = error[:, t] + discount[:, t] * cut[:, t] * behind[:, t]
        moved[:, t] = later
    return value + moved, rho * (reward + discount * (next_value + behind) - value)
