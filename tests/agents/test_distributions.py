"""The mathematics of distributional Q-learning against numbers worked out by hand, and against naive loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sharpwave.agents.distributions import cross_entropy, kl_divergence, midpoints, project, quantile_huber


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


def test_cross_entropy_and_divergence():
    # Predicted 1/4, 3/4; target 1/2, 1/2: -(log(1/4) + log(3/4)) / 2; less the target's entropy log 2.
    logits, target = torch.tensor([[0.0, math.log(3)]]), torch.tensor([[0.5, 0.5]])
    expected = -(math.log(0.25) + math.log(0.75)) / 2
    torch.testing.assert_close(cross_entropy(logits, target), torch.tensor([expected]))
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
