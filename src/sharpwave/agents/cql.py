"""Discrete conservative Q-learning: double Q-learning whose loss also lowers the values of actions that the data lack.

Offline, nothing corrects a value that is too high: nobody tries the action. So the values of all actions are pushed
down, most where they are highest, and those of the data's own actions up.

Source: Kumar et al. (2020), Conservative Q-learning for offline reinforcement learning, eq. 4: CQL(H).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from sharpwave.agents.dqn import DQN, DQNSettings
from sharpwave.agents.losses import action_cross_entropy
from sharpwave.agents.replay import LEARNING, OfflineSettings, TransitionsSettings
from sharpwave.configuration import again, setting
from sharpwave.extras import Tensor


@dataclass(frozen=True)
class CQLSettings(DQNSettings, OfflineSettings):
    """Settings of discrete CQL: those of a deep Q-network, and the weight of its penalty."""

    kind: ClassVar[str] = "cql"

    replay: TransitionsSettings = field(default_factory=lambda: TransitionsSettings(batch_size=64))
    hidden_units: int = again(DQNSettings, hidden_units=128)
    lr: float = again(DQNSettings, lr=5e-4)
    target_tau: float = again(DQNSettings, target_tau=0.01)

    conservatism: float = setting(
        1.0, "weight of the penalty on values of actions that the data lack; 0: plain Q-learning", LEARNING, at_least=0
    )

    def unused(self) -> Iterator[tuple[str, str]]:
        yield from super().unused()
        yield from dict.fromkeys(("explore", "exploration", "softmax"), "an agent that acts while it learns").items()


class CQL(DQN):
    """Discrete CQL agent: a deep Q-network with a further term in its loss."""

    Settings = CQLSettings
    settings: CQLSettings

    def losses(self, q: Tensor, action: Tensor, td_error: Tensor) -> Tensor:
        weight = self.settings.conservatism
        return super().losses(q, action, td_error) + weight * action_cross_entropy(q, action)
