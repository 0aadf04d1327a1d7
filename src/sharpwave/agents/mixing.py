"""Mixtures of agents' values: the value of a team's joint action from one value for each agent, and the state."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Sum(nn.Module):
    """Sum of the agents' values.  Source: Sunehag et al. (2018), Value-decomposition networks, eq. 3."""

    def forward(self, values: Tensor, state: Tensor) -> Tensor:
        """Map the values [B, N] of the actions taken to [B]."""
        return values.sum(dim=1)


class Mixer(nn.Module):
    """Mixing network of QMIX: two layers whose weights are made from the state by further networks.

    The weights are absolute values, so the result rises with every agent's value, or stays; biases are free.

    States are squashed to -1 ... 1. Where they have no bounds, as positions of agents that walk away, weights that are
    linear in the state make the values of far states grow from target to target without end.

    Args:
        agents: N.  state: S.  units: of the hidden layer.
    Source: Rashid et al. (2018), QMIX, section 4.1 and figure 2.
    """

    def __init__(self, agents: int, state: int, units: int) -> None:
        super().__init__()
        self.first_weights = nn.Linear(state, agents * units)
        self.first_bias = nn.Linear(state, units)
        self.last_weights = nn.Linear(state, units)
        self.last_bias = nn.Sequential(nn.Linear(state, units), nn.ReLU(), nn.Linear(units, 1))

    def forward(self, values: Tensor, state: Tensor) -> Tensor:
        """Map the values [B, N] of the actions taken and the state [B, S] to [B]."""
        state = nn.functional.softsign(state)
        first = self.first_weights(state).abs()
        last = self.last_weights(state).abs()
        return mixed(values, first, self.first_bias(state), last, self.last_bias(state))


def mixed(values: Tensor, first: Tensor, first_bias: Tensor, last: Tensor, last_bias: Tensor) -> Tensor:
    """Compute ELU(values W1 + b1) w2 + b2, float [B].

    Args:
        values: float [B, N].
        first: W1, float [B, N * E].  first_bias: b1, float [B, E].
        last: w2, float [B, E].  last_bias: b2, float [B, 1].
    """
    assert values.ndim == 2 and first.shape == (len(values), values.shape[1] * first_bias.shape[1]), first.shape
    assert last.shape == first_bias.shape and last_bias.shape == (len(values), 1), (last.shape, last_bias.shape)
    weights = first.reshape(*values.shape, -1)
    hidden = nn.functional.elu(torch.einsum("bn,bne->be", values, weights) + first_bias)
    return (hidden * last).sum(dim=1) + last_bias[:, 0]
