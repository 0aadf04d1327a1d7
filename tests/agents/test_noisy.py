"""Noisy layers: the noise's form, its scale, and what it leaves alone."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.noisy import FORMED_ROWS, NoisyLinear, factor, resample, silence
from sharpwave.agents.protocol import Spaces
from sharpwave.agents.rainbow import Rainbow


def test_factor_is_the_signed_root():
    np.testing.assert_allclose(factor(np.array([4.0, -9.0, 0.0], np.float32)), [2, -3, 0])


def test_noise_is_factorised():
    """Two inputs, one output, worked out by hand."""
    layer = NoisyLinear(2, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0]]))
        layer.bias.fill_(0.5)
        layer.weight_sigma.copy_(torch.tensor([[0.1, 0.2]]))
        layer.bias_sigma.fill_(0.3)
    layer.noise = (torch.tensor([3.0, -1.0]), torch.tensor([2.0]))
    # Weights 1 + .1 * 3 * 2 and 2 + .2 * -1 * 2, bias .5 + .3 * 2.
    torch.testing.assert_close(layer(torch.tensor([[1.0, 10.0]])), torch.tensor([[1.6 + 16.0 + 1.1]]))
    silence(layer)
    torch.testing.assert_close(layer(torch.tensor([[1.0, 10.0]])), torch.tensor([[21.5]]))


def test_batches_and_single_items_see_the_same_noisy_weights():
    layer, x = NoisyLinear(5, 3).double(), torch.randn(2 * FORMED_ROWS, 5, dtype=torch.float64)
    layer.noise = (torch.randn(5, dtype=torch.float64), torch.randn(3, dtype=torch.float64))
    formed = layer(x)
    formed.square().sum().backward()
    gradients = [one.grad for one in layer.parameters()]
    layer.zero_grad()
    alone = torch.cat([layer(one) for one in x.split(1)])
    alone.square().sum().backward()
    torch.testing.assert_close(formed, alone)
    torch.testing.assert_close([one.grad for one in layer.parameters()], gradients)


def test_initial_scales():
    torch.manual_seed(0)
    layer = NoisyLinear(100, 400, sigma=0.5)
    assert layer.weight.abs().max() <= 0.1 and layer.weight.std().item() > 0.05  # uniform in +- 1 / sqrt(100)
    assert (layer.weight_sigma == 0.05).all() and (layer.bias_sigma == 0.05).all()


def test_noise_of_a_seed_is_the_same_and_each_draw_is_another():
    network = nn.Sequential(NoisyLinear(3, 4), nn.ReLU(), NoisyLinear(4, 2))
    x, rng = torch.ones(1, 3), np.random.default_rng(0)
    resample(network, rng)
    first = network(x)
    resample(network, rng)
    assert (network(x) != first).any()
    resample(network, np.random.default_rng(0))
    torch.testing.assert_close(network(x), first, rtol=0, atol=0)
    assert not any("noise" in name for name in network.state_dict())


def test_the_mean_over_noise_is_the_silent_layer():
    layer, rng = NoisyLinear(8, 3), np.random.default_rng(1)
    x = torch.randn(1, 8)
    silent, sums = layer(x), torch.zeros(1, 3)
    for _ in range(20_000):
        resample(layer, rng)
        sums += layer(x).detach()
    torch.testing.assert_close(sums / 20_000, silent.detach(), atol=0.03, rtol=0)


def test_both_scales_receive_gradients_and_silent_noise_none():
    layer = NoisyLinear(3, 2)
    resample(layer, np.random.default_rng(0))
    layer(torch.ones(4, 3)).sum().backward()
    assert layer.noise is not None
    noise_in, noise_out = layer.noise
    torch.testing.assert_close(layer.weight_sigma.grad, 4 * torch.outer(noise_out, noise_in))
    torch.testing.assert_close(layer.bias_sigma.grad, 4 * noise_out)
    silence(layer)
    layer.zero_grad()
    layer(torch.ones(4, 3)).sum().backward()
    assert layer.weight_sigma.grad is None


@pytest.mark.parametrize(
    ("settings", "share"),
    [({}, 0.0), ({"noisy_epsilon": True}, 0.5), ({"noisy": False}, 0.5)],
    ids=["noise alone", "both", "epsilon alone"],
)
def test_random_actions_beside_noise_are_asked_for(settings: dict[str, Any], share: float) -> None:
    """Noise of scale 0: an action that is not the best is a random one: 3 of 4 are others; epsilon 2/3."""
    chosen: dict[str, Any] = {
        "network": "mlp",
        "hidden_units": 8,
        "noisy_sigma": 0.0,
        "exploration": EpsilonGreedy(2 / 3, 2 / 3),
    }
    agent = Rainbow(Spaces(Box(-1, 1, (3,), np.float32), Discrete(4)), Rainbow.Settings(**chosen, **settings))
    obs = np.random.default_rng(0).standard_normal((4_000, 3)).astype(np.float32)
    state = agent.begin(len(obs))
    acted, best = agent.act(obs, state, 0), agent.act(obs, state, 0, explore=False)
    assert (acted.action != best.action).mean() == pytest.approx(share, abs=0.03)
