"""Heads of networks: features -> values of actions."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def dueling_combine(value: Tensor, advantage: Tensor) -> Tensor:
    """Combine value and advantage: Q = V + A - mean A.

    Args:
        value: float [B, 1].  advantage: float [B, A].
    Returns:
        float [B, A].
    Source: Wang et al. (2016), Dueling network architectures, eq. 9.
    """
    assert value.shape == (advantage.shape[0], 1), (value.shape, advantage.shape)
    return value + advantage - advantage.mean(dim=1, keepdim=True)


class QHead(nn.Module):
    """Hidden layer and output of action values; dueling: two hidden layers in parallel, one for V and one for A.

    The output layers are computed in float32 whatever autocast says: in bfloat16's 8 significant bits the values of
    two actions may become equal.
    """

    def __init__(self, features: int, hidden_units: int, num_actions: int, dueling: bool) -> None:
        super().__init__()
        self.hidden = nn.Linear(features, hidden_units * (2 if dueling else 1))  # one product for both streams
        self.advantage = nn.Linear(hidden_units, num_actions)
        self.value = nn.Linear(hidden_units, 1) if dueling else None

    def forward(self, features: Tensor) -> Tensor:
        """Map features, float [B, features], to Q, float32 [B, A]."""
        hidden: Tensor = self.hidden(features).relu_()
        with torch.autocast(hidden.device.type, enabled=False):
            hidden = hidden.float()
            if self.value is None:
                values: Tensor = self.advantage(hidden)
                return values
            for_advantage, for_value = hidden.chunk(2, dim=1)
            return dueling_combine(self.value(for_value), self.advantage(for_advantage))


class QNetwork(nn.Module):
    """Network of a torso and a Q-head on its features."""

    def __init__(self, torso: nn.Module, head: QHead) -> None:
        super().__init__()
        self.torso, self.head = torso, head

    def forward(self, inputs: Tensor | dict[str, Tensor]) -> Tensor:
        """Map the output of the agent's inputs to Q, float32 [B, A]."""
        q: Tensor = self.head(self.torso(inputs))
        return q
