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
from sharpwave.agents.replay import LEARNING, NETWORK, OfflineSettings, TransitionsSettings
from sharpwave.configuration import setting
from sharpwave.extras import Tensor


@dataclass(frozen=True)
class CQLSettings(DQNSettings, OfflineSettings):
    """Settings of discrete CQL: those of a deep Q-network, and the weight of its penalty."""

    kind: ClassVar[str] = "cql"

    replay: TransitionsSettings = field(default_factory=lambda: TransitionsSettings(batch_size=64))
    hidden_units: int = setting(128, "units of the hidden layer", NETWORK, at_least=1)
    lr: float = setting(5e-4, "learning rate of Adam", LEARNING, flag="--learning-rate", above=0)
    target_tau: float = setting(
        0.01,
        "share by which each update moves the target instead of copies; 0: copies",
        LEARNING,
        at_least=0,
        at_most=1,
    )

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
