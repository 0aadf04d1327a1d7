"""TD3+BC: TD3 from recorded data alone, whose policy also imitates the data's actions.

The values are scaled to the size of the imitation, so that one weight suits tasks of any reward.

Source: Fujimoto and Gu (2021), A minimalist approach to offline reinforcement learning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from sharpwave.agents.episode_outcomes import MeasuredData
from sharpwave.agents.losses import squared
from sharpwave.agents.replay import LEARNING, OnlineSettings, standardized
from sharpwave.agents.sac import dpg_loss
from sharpwave.agents.td3 import TD3, TD3Settings
from sharpwave.configuration import again, setting
from sharpwave.extras import Tensor


@dataclass(frozen=True)
class TD3BCSettings(TD3Settings, OnlineSettings):
    """Settings of TD3+BC; the defaults are those of Fujimoto and Gu (2021), table 3."""

    kind: ClassVar[str] = "td3bc"

    standardize: bool = standardized(True)
    value_weight: float = setting(
        2.5, "alpha: weight of the values, scaled to mean size 1, beside the squared error of the actions", LEARNING,
        at_least=0,
    )  # fmt: skip

    random_steps: int = again(TD3Settings, random_steps=0)

    def unused(self) -> Iterator[tuple[str, str]]:
        yield from super().unused()
        if self.online_after is None:
            yield from dict.fromkeys(("random_steps", "action_noise"), "--online-after").items()


class TD3BC(MeasuredData, TD3):
    """TD3+BC agent."""

    Settings = TD3BCSettings

    def policy_loss(self, inputs: Any, batch: Any) -> Tensor:
        with self.autocast():
            action = self.actor(inputs).tanh()
            value, gradient = self.valued(inputs, action, members=1)
        return value_and_imitation_loss(
            action, self.actions.scaled(batch.action), value, gradient, self.settings.value_weight
        )


def value_and_imitation_loss(action: Tensor, data: Tensor, value: Tensor, dq_da: Tensor, weight: float) -> Tensor:
    """Compute a loss whose gradient is that of -lambda Q(s, a) + mean squared error, lambda = weight / mean |Q|.

    Args:
        action: float [B, n], of the policy, with gradient.  data: float [B, n], the actions that were made.
        value: float [B], Q(s, a), a constant.  dq_da: float [B, n], its gradient by the action, a constant.
    Returns:
        float [B].
    Source: Fujimoto and Gu (2021), eq. 4 and 5; squared errors are the mean of an action's numbers, as in their code.
    """
    assert action.shape == data.shape == dq_da.shape and value.shape == action.shape[:1], (action.shape, value.shape)
    scale = weight / value.abs().mean()
    return dpg_loss(action, scale * dq_da) + squared(action - data).mean(dim=1)
