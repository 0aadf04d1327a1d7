"""Networks for continuous actions: an actor, and critics Q(s, a) of one shape that are computed together.

Output layers are computed in float32 whatever autocast says, as in ``QHead``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn


class Actor(nn.Module):
    """Policy network: a torso, two hidden layers, and the output.

    Args:
        torso: outputs of the agent's inputs -> features [B, torso.features].
        outputs: numbers that describe the policy's action.
    """

    def __init__(self, torso: Any, units: int, outputs: int) -> None:
        super().__init__()
        hidden = (nn.Linear(torso.features, units), nn.ReLU(), nn.Linear(units, units), nn.ReLU())
        self.hidden = nn.Sequential(torso, *hidden)
        self.output = nn.Linear(units, outputs)

    def forward(self, inputs: Any) -> Tensor:
        """Map the output of the agent's inputs to float32 [B, outputs]."""
        hidden = self.hidden(inputs)
        with torch.autocast(hidden.device.type, enabled=False):
            output: Tensor = self.output(hidden.float())
        return output


class EnsembleLinear(nn.Module):
    """Linear layers of several networks as one product of matrices, each initialized as ``nn.Linear`` is.

    Args:
        members: K, number of networks.
    """

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor, members: int | None = None) -> Tensor:
        """Map [B, inputs], the same for all, or [K, B, inputs] to [K, B, outputs].

        Args:
            members: K, only so many of the first networks; None: all.
        """
        weight = self.weight[:members]
        return torch.baddbmm(self.bias[:members], x.expand(len(weight), -1, -1), weight)


class Critics(nn.Module):
    """Two critics: a torso for observations that both share, then two hidden layers and an output of each one's own.

    Args:
        torso: outputs of the agent's inputs -> features [B, torso.features].
        actions: numbers of an action.
    """

    MEMBERS = 2

    def __init__(self, torso: Any, actions: int, units: int) -> None:
        super().__init__()
        self.torso = torso
        self.first = EnsembleLinear(self.MEMBERS, torso.features + actions, units)
        self.second = EnsembleLinear(self.MEMBERS, units, units)
        self.output = nn.Parameter(torch.empty(self.MEMBERS, 1, units).uniform_(-1, 1) / math.sqrt(units))
        self.output_bias = nn.Parameter(torch.empty(self.MEMBERS, 1).uniform_(-1, 1) / math.sqrt(units))

    def forward(self, features: Tensor, action: Tensor, members: int | None = None) -> Tensor:
        """Map features of the torso [B, n] and scaled actions [B, actions] to values, float32 [2, B].

        Args:
            members: only the values of so many critics; None: of both.
        """
        hidden = self.first(torch.cat([features, action], dim=1), members).relu_()
        hidden = self.second(hidden, members).relu_()
        # Five times as fast as a product of matrices that are one column wide.
        q: Tensor = (hidden * self.output[:members]).sum(dim=2, dtype=torch.float32) + self.output_bias[:members]
        return q
