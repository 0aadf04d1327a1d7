"""PPO: the clipped surrogate objective lets each window be learned from several times before it is dropped.

Reuse is the store's: ``sharpwave.Store.sequences(..., sampler=Fifo(), max_times_sampled=k)`` gives the oldest windows k
times in a row, which are k epochs over one batch. The ratio is that to the policy that acted, whose log-probabilities
were stored with the steps. Advantages are estimated anew by the present value in every epoch (Andrychowicz et al. 2021,
What matters for on-policy deep actor-critic methods, section 3.5).

Source: Schulman et al. (2017), Proximal policy optimization algorithms; advantages: Schulman et al. (2016), generalized
advantage estimation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from sharpwave.agents.actor_critic import ActorCritic, ActorCriticSettings, Objectives, Seen
from sharpwave.agents.losses import lambda_returns
from sharpwave.agents.policy_losses import clipped_surrogate, standardized
from sharpwave.agents.replay import LEARNING, RolloutSettings
from sharpwave.configuration import setting


@dataclass(frozen=True)
class PPOSettings(ActorCriticSettings):
    """Settings of PPO."""

    kind: ClassVar[str] = "ppo"

    replay: RolloutSettings = field(default_factory=lambda: RolloutSettings(batch_size=8, length=32, epochs=4))

    trace: float = setting(
        0.95, "lambda of generalized advantage estimation, and of the value's targets", LEARNING, at_least=0, at_most=1
    )
    clip: float = setting(0.2, "epsilon: change of a probability beyond which nothing is gained", LEARNING, above=0)


class PPO(ActorCritic):
    """PPO agent."""

    Settings = PPOSettings

    def objectives(self, batch: Any, seen: Seen) -> Objectives:
        settings = self.settings
        returns = lambda_returns(batch.step_reward, batch.discount, seen.next_value, seen.ends, settings.trace)
        advantage = standardized((returns - seen.value).detach(), seen.mask)
        outside = ((seen.ratio.detach() - 1).abs() > settings.clip) & seen.mask
        metrics = {"clipped": outside.sum() / seen.mask.sum()}
        return Objectives(clipped_surrogate(seen.ratio, advantage, settings.clip), returns, metrics)
