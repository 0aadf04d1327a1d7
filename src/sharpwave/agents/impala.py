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

from sharpwave.agents.actor_critic import ActorCritic, ActorCriticSettings, Objectives, Seen
from sharpwave.agents.lazy_torch import torch
from sharpwave.agents.policy_losses import policy_gradient, vtrace
from sharpwave.agents.replay import LEARNING, RolloutSettings
from sharpwave.configuration import setting


@dataclass(frozen=True)
class IMPALASettings(ActorCriticSettings):
    """Settings of IMPALA."""

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
    """IMPALA agent."""

    Settings = IMPALASettings

    def objectives(self, batch: Any, seen: Seen) -> Objectives:
        settings = self.settings
        ratio = seen.ratio.detach() if settings.vtrace else torch.ones_like(seen.ratio)
        found = vtrace(
            batch.step_reward, batch.discount, seen.value, seen.next_value, seen.ends, ratio, settings.max_ratio
        )
        mean_ratio = (ratio.clamp(max=settings.max_ratio) * seen.mask).sum() / seen.mask.sum()
        policy = policy_gradient(seen.log_probability, found.advantage)
        return Objectives(policy, found.target, {"clipped_ratio": mean_ratio})
