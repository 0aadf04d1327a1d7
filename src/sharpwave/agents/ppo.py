"""PPO: the clipped surrogate objective lets each window be learned from several times before it is dropped.

Reuse is the store's: ``sharpwave.Store.sequences(..., sampler=Fifo(), max_times_sampled=k)`` gives the oldest windows k
times in a row, which are k epochs over one batch. The ratio is that to the policy that acted, whose log-probabilities
were stored with the steps. Advantages are estimated again in every epoch, by the present value (Andrychowicz et al.
2021, What matters for on-policy deep actor-critic methods, section 3.5).

Source: Schulman et al. (2017), Proximal policy optimization algorithms; advantages: Schulman et al. (2016), generalized
advantage estimation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from sharpwave.agents.a2c import ActorCritic, ActorCriticSettings, Objectives, RolloutSettings, Seen
from sharpwave.agents.losses import lambda_returns
from sharpwave.agents.replay import LEARNING
from sharpwave.configuration import setting
from sharpwave.extras import Tensor, torch


@dataclass(frozen=True)
class PPOSettings(ActorCriticSettings):
    kind: ClassVar[str] = "ppo"

    replay: RolloutSettings = field(default_factory=lambda: RolloutSettings(batch_size=8, length=32, epochs=4))

    trace: float = setting(
        0.95, "lambda of generalized advantage estimation, and of the value's targets", LEARNING, at_least=0, at_most=1
    )
    clip: float = setting(0.2, "epsilon: change of a probability beyond which nothing is gained", LEARNING, above=0)


class PPO(ActorCritic):
    Settings = PPOSettings

    def objectives(self, batch: Any, seen: Seen) -> Objectives:
        settings = self.settings
        returns = lambda_returns(batch.step_reward, batch.discount, seen.next_value, seen.ends, settings.trace)
        advantage = standardized((returns - seen.value).detach(), seen.mask)
        outside = ((seen.ratio.detach() - 1).abs() > settings.clip) & seen.mask
        metrics = {"clipped": outside.sum() / seen.mask.sum()}
        return clipped_surrogate(seen.ratio, advantage, settings.clip), returns, metrics


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
