"""ReBRAC: TD3+BC, whose values are also lowered where the policy leaves the data, with layer norm and deeper networks.

Source: Tarasov et al. (2023), Revisiting the minimalist approach to offline reinforcement learning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from sharpwave.agents.episode_outcomes import NEXT_ACTION, OutcomeSettings
from sharpwave.agents.losses import squared
from sharpwave.agents.replay import LEARNING, TransitionsSettings
from sharpwave.agents.sac import dpg_loss
from sharpwave.agents.td3bc import TD3BC, TD3BCSettings
from sharpwave.configuration import again, setting
from sharpwave.extras import Tensor


@dataclass(frozen=True)
class ReBRACTransitions(OutcomeSettings):
    """Settings of the view of ReBRAC: transitions, with the actions that followed them."""

    OUTCOMES = (NEXT_ACTION,)


@dataclass(frozen=True)
class ReBRACSettings(TD3BCSettings):
    """Settings of ReBRAC; the defaults are those of Tarasov et al. (2023). Both weights of imitation, which they choose
    for each data set, are those that 9 of the 18 for MuJoCo have in their CORL (configs/offline/rebrac)."""

    kind: ClassVar[str] = "rebrac"

    replay: TransitionsSettings = field(default_factory=lambda: ReBRACTransitions(batch_size=1024))

    hidden_layers: int = again(TD3BCSettings, hidden_layers=3)
    layer_norm: bool = again(TD3BCSettings, layer_norm=True)
    standardize: bool = again(TD3BCSettings, standardize=False)
    lr: float = again(TD3BCSettings, lr=1e-3)
    value_weight: float = setting(
        1.0, "weight of the values, scaled to mean size 1, beside the imitation of the actions", LEARNING, at_least=0
    )
    actor_imitation: float = setting(
        0.01, "beta 1: weight of the policy's squared distance from the data's actions in its loss", LEARNING,
        at_least=0,
    )  # fmt: skip
    critic_imitation: float = setting(
        0.01, "beta 2: weight of the target policy's squared distance from the data's next action in the targets",
        LEARNING, at_least=0,
    )  # fmt: skip


class ReBRAC(TD3BC):
    """ReBRAC agent."""

    Settings = ReBRACSettings
    settings: ReBRACSettings

    def target_bonus(self, action: Tensor, batch: Any) -> Tensor:
        following = self.actions.scaled(batch[NEXT_ACTION])
        distance = squared(action - following).sum(dim=1)
        # Of the last step of a truncated episode, and of one that goes on, the next action is not known.
        known = batch.mask_of(NEXT_ACTION) & ~distance.isnan()
        return -self.settings.critic_imitation * distance.where(known, 0.0)

    def policy_loss(self, inputs: Any, batch: Any) -> Tensor:
        settings = self.settings
        with self.autocast():
            action = self.actor(inputs).tanh()
            value, gradient = self.valued(inputs, action)
        data = self.actions.scaled(batch.action)
        return penalized_value_loss(action, data, value, gradient, settings.value_weight, settings.actor_imitation)


def penalized_value_loss(
    action: Tensor, data: Tensor, value: Tensor, dq_da: Tensor, value_weight: float, imitation: float
) -> Tensor:
    """Compute a loss whose gradient is that of -value_weight Q / mean |Q| + imitation * squared distance.

    Args:
        action: float [B, n], of the policy, with gradient.  data: float [B, n], the actions that were made.
        value: float [B], min_k Q_k(s, a), a constant.  dq_da: float [B, n], its gradient by the action, a constant.
    Returns:
        float [B].
    Source: Tarasov et al. (2023), eq. 4; values are scaled and distances summed over an action's numbers as in their
        code.
    """
    assert action.shape == data.shape == dq_da.shape and value.shape == action.shape[:1], (action.shape, value.shape)
    scale = value_weight / value.abs().mean()
    return dpg_loss(action, scale * dq_da) + imitation * squared(action - data).sum(dim=1)
