"""Heads, distributions of returns, noisy layers and the network of quantile fractions."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sharpwave.agents.distributional import (
    C51,
    FORMED_ROWS,
    IQN,
    QR,
    Expected,
    Head,
    ImplicitQNetwork,
    NoisyLinear,
    factor,
    kl_divergence,
    midpoints,
    project,
    quantile_huber,
    resample,
    silence,
)
from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.networks import QHead
from sharpwave.agents.protocol import Spaces
from sharpwave.agents.rainbow import Rainbow


@pytest.mark.parametrize("head", [Expected(), C51(), QR(16), IQN(16)], ids=lambda head: type(head).__name__)
def test_values_are_the_same_under_autocast(head: Head) -> None:
    """Near 9, bfloat16 has steps of 1/16, in which actions whose values differ by .03 become equal."""
    torch.manual_seed(0)
    value = 9 + 0.03 * torch.randn(512, 6, 1)
    predicted = value.squeeze(2)
    if isinstance(head, C51):
        predicted = -((torch.linspace(-10, 10, 51) - value) ** 2) / 2
    elif isinstance(head, QR):
        predicted = value + torch.randn(16)
    exact = head.values(predicted)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = head.values(predicted)
    assert values.dtype == torch.float32 and torch.equal(values, exact)


def naive_projection(returns, probabilities, low, high):
    """Algorithm 1 of Bellemare et al. (2017), one probability at a time."""
    count, width = len(returns), (high - low) / (len(returns) - 1)
    out = np.zeros(count)
    for value, probability in zip(returns, probabilities, strict=True):
        position = min((min(max(value, low), high) - low) / width, count - 1)  # rounding may exceed the last
        lower, upper = math.floor(position), math.ceil(position)
        if lower == upper:
            out[lower] += probability
        else:
            out[lower] += probability * (upper - position)
            out[upper] += probability * (position - lower)
    return out


def test_projection_shares_between_neighbours():
    # Atoms -1, 0, 1. .25 lies a quarter of the way from 0 to 1; 5 is clipped to 1; -1 is an atom.
    got = project(torch.tensor([[0.25, 5.0, -1.0]]), torch.tensor([[0.4, 0.5, 0.1]]), -1.0, 1.0)
    torch.testing.assert_close(got, torch.tensor([[0.1, 0.3, 0.6]]))  # .4 * .75; .4 * .25 + .5


def test_projection_of_a_certain_return_on_each_atom_is_that_atom():
    atoms = torch.linspace(-10, 10, 51)
    got = project(atoms.unsqueeze(1).expand(51, 51), torch.full((51, 51), 1 / 51), -10.0, 10.0)
    torch.testing.assert_close(got, torch.eye(51), atol=1e-5, rtol=0)


@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.floats(-20, 5), st.floats(0.1, 30))
def test_projection_is_that_of_the_naive_loop(seed, atoms, low, span):
    rng = np.random.default_rng(seed)
    returns = rng.uniform(low - span, low + 2 * span, (4, atoms))
    returns[0] = np.linspace(low, low + span, atoms)  # on the atoms
    probabilities = rng.dirichlet(np.ones(atoms), 4)
    got = project(torch.from_numpy(returns), torch.from_numpy(probabilities), low, low + span).numpy()
    expected = [naive_projection(*rows, low, low + span) for rows in zip(returns, probabilities, strict=True)]
    np.testing.assert_allclose(got, expected, atol=1e-9)
    np.testing.assert_allclose(got.sum(axis=1), 1)


def test_projection_preserves_the_mean_within_the_atoms():
    rng = np.random.default_rng(0)
    returns, probabilities = rng.uniform(-10, 10, (8, 51)), rng.dirichlet(np.ones(51), 8)
    got = project(torch.from_numpy(returns), torch.from_numpy(probabilities), -10.0, 10.0).numpy()
    np.testing.assert_allclose(got @ np.linspace(-10, 10, 51), (returns * probabilities).sum(axis=1))


def test_divergence_is_cross_entropy_less_entropy():
    # Predicted 1/4, 3/4; target 1/2, 1/2: -(log(1/4) + log(3/4)) / 2; less the target's entropy log 2.
    logits, target = torch.tensor([[0.0, math.log(3)]]), torch.tensor([[0.5, 0.5]])
    expected = -(math.log(0.25) + math.log(0.75)) / 2
    torch.testing.assert_close(kl_divergence(logits, target), torch.tensor([expected - math.log(2)]))


def test_divergence_of_equal_distributions_and_of_certain_targets():
    logits = torch.tensor([[0.0, math.log(3)], [0.0, 0.0]], requires_grad=True)
    got = kl_divergence(logits, torch.tensor([[0.25, 0.75], [0.0, 1.0]]))
    torch.testing.assert_close(got, torch.tensor([0.0, math.log(2)]))
    got.sum().backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[0.0, 0.0], [0.5, -0.5]]))  # softmax less target


def test_midpoints():
    torch.testing.assert_close(midpoints(4), torch.tensor([[0.125, 0.375, 0.625, 0.875]]))


def test_quantile_huber():
    # Quantile 0 at fraction .25: errors 2 (Huber 1.5, weight .25) and -.5 (Huber .125, weight |.25 - 1| = .75).
    # Quantile 1 at .75: errors 1 (.5, weight .75) and -1.5 (1, weight .25).
    quantiles, target = torch.tensor([[0.0, 1.0]]), torch.tensor([[2.0, -0.5]])
    expected = (0.25 * 1.5 + 0.75 * 0.125) / 2 + (0.75 * 0.5 + 0.25 * 1.0) / 2
    got = quantile_huber(quantiles, torch.tensor([[0.25, 0.75]]), target)
    torch.testing.assert_close(got, torch.tensor([expected]))
    # Delta 2: Huber 2 (all inner), .125, .5, 1.125, each over 2; delta 0: sizes 2, .5, 1, 1.5.
    half = ((0.25 * 2 + 0.75 * 0.125) + (0.75 * 0.5 + 0.25 * 1.125)) / 4
    torch.testing.assert_close(quantile_huber(quantiles, midpoints(2), target, 2.0), torch.tensor([half]))
    plain = ((0.25 * 2 + 0.75 * 0.5) + (0.75 * 1 + 0.25 * 1.5)) / 2
    torch.testing.assert_close(quantile_huber(quantiles, midpoints(2), target, 0.0), torch.tensor([plain]))


def test_quantile_regression_finds_the_quantiles():
    """Of the numbers 0 ... 99 the quantiles at 1/8, 3/8, 5/8, 7/8 are 12.5, 37.5, ..."""
    samples, quantiles = torch.arange(100.0).unsqueeze(0), torch.zeros(1, 4, requires_grad=True)
    optimizer = torch.optim.SGD([quantiles], lr=20.0)
    for _ in range(300):
        optimizer.zero_grad()
        quantile_huber(quantiles, midpoints(4), samples, 0.0).sum().backward()
        optimizer.step()
    torch.testing.assert_close(quantiles.detach(), torch.tensor([[12.5, 37.5, 62.5, 87.5]]), atol=1.5, rtol=0)


def test_losses_stay_per_item_and_shapes_are_checked():
    assert kl_divergence(torch.zeros(7, 5), torch.full((7, 5), 0.2)).shape == (7,)
    assert quantile_huber(torch.zeros(7, 5), midpoints(5), torch.zeros(7, 3)).shape == (7,)
    with pytest.raises(AssertionError):
        project(torch.zeros(3, 5), torch.zeros(3, 4), 0.0, 1.0)
    with pytest.raises(AssertionError):
        quantile_huber(torch.zeros(7, 5), torch.zeros(3, 5), torch.zeros(7, 5))


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
