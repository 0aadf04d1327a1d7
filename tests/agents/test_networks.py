"""Implicit quantile networks: where the fractions are multiplied in."""

import math

import torch
from torch import nn

from sharpwave.agents.networks import ImplicitQNetwork, QHead


def test_late_fractions_multiply_the_hidden_layer():
    torch.manual_seed(0)
    head = QHead(6, 5, 2, dueling=True)
    network = ImplicitQNetwork(nn.Identity(), head.units, head, behind_hidden=True)
    features, fractions = torch.randn(3, 6), torch.rand(3, 4)
    cosines = torch.stack([(math.pi * i * fractions).cos() for i in range(64)], dim=2)
    hidden = head.hidden(features).relu()
    for n in range(4):
        expected = head.predict(hidden * network.embedding(cosines[:, n]).relu())
        torch.testing.assert_close(network(features, fractions)[:, :, n], expected)
