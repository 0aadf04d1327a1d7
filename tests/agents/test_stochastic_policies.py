"""Policies: probabilities, draws and entropies by hand, and against torch's distributions."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from sharpwave.agents.a2c import RAW, Gaussian, normal_log_density, policy_for
from sharpwave.agents.protocol import Spaces

OBS = Box(-1, 1, (3,), np.float32)


class Fields(dict):
    """A batch with an action and further fields."""

    def __init__(self, action, **fields):
        super().__init__(**fields)
        self.action = action


def test_categorical_by_hand():
    policy = policy_for(Spaces(OBS, Discrete(2, start=5)), "test")
    predicted = torch.tensor([[0.0, np.log(3.0)]], dtype=torch.float32)  # probabilities 1/4 and 3/4
    action, log_probability, fields = policy.choose(predicted, None)
    assert action.tolist() == [6] and not fields
    np.testing.assert_allclose(log_probability, np.log([0.75]), rtol=1e-6)
    batch = Fields(torch.tensor([[5, 6]]))
    got = policy.log_probability(predicted.expand(1, 2, 2), batch)
    torch.testing.assert_close(got, torch.tensor([[0.25, 0.75]]).log())
    expected = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    torch.testing.assert_close(policy.entropy(predicted), torch.tensor([expected], dtype=torch.float32))


def test_categorical_draws_by_its_probabilities():
    policy, count = policy_for(Spaces(OBS, MultiDiscrete([2, 2])), "test"), 20_000
    probabilities = np.array([0.1, 0.2, 0.3, 0.4])
    predicted = torch.from_numpy(np.log(probabilities)).float().expand(count, 4)
    action, log_probability, _ = policy.choose(predicted, np.random.default_rng(0))
    number = action[:, 0] * 2 + action[:, 1]
    share = np.bincount(number, minlength=4) / count
    assert np.abs(share - probabilities).max() < 4 * np.sqrt(0.25 / count)  # four deviations
    np.testing.assert_allclose(log_probability, np.log(probabilities)[number], rtol=1e-6)


def test_normal_log_density_by_hand():
    # -(1 - 0)^2 / (2 * 4) - log 2 - log(2 pi) / 2, and -log(2 pi) / 2 at the mean of a unit normal.
    predicted = torch.tensor([[0.0, 3.0, np.log(2.0), 0.0]], dtype=torch.float32)
    expected = -1 / 8 - np.log(2) - np.log(2 * np.pi)
    got = normal_log_density(predicted, torch.tensor([[1.0, 3.0]]))
    torch.testing.assert_close(got, torch.tensor([expected], dtype=torch.float32))


def test_gaussian_is_torch_s():
    policy, rng = Gaussian(Box(-1, 1, (3,), np.float32)), np.random.default_rng(1)
    predicted, raw = torch.from_numpy(rng.normal(size=(4, 5, 6))), torch.from_numpy(rng.normal(size=(4, 5, 3)))
    mean, log_std = predicted.chunk(2, dim=-1)
    other = torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
    torch.testing.assert_close(policy.log_probability(predicted, Fields(None, **{RAW: raw})), other.log_prob(raw))
    torch.testing.assert_close(policy.entropy(predicted), other.entropy())


def test_gaussian_actions_are_scaled_to_the_bounds_and_clipped():
    box = Box(np.array([[-3.0], [0.0], [-np.inf]], np.float32), np.array([[1.0], [np.inf], [np.inf]], np.float32))
    policy = Gaussian(box)
    predicted = torch.tensor([[0.5, -2.0, 5.0, 0, 0, 0], [7.0, 2.0, -5.0, 0, 0, 0]])
    action, _, fields = policy.choose(predicted, None)
    # -1 + 2 * .5 = 0, and 13 is clipped to 1; below 0 there is nothing; the last is unbounded.
    np.testing.assert_array_equal(action, [[[0.0], [0.0], [5.0]], [[1.0], [2.0], [-5.0]]])
    np.testing.assert_array_equal(fields[RAW], predicted[:, :3])  # before clipping: what the density is of


def test_gaussian_draws_by_its_deviations():
    policy, count = Gaussian(Box(-1, 1, (1,), np.float32)), 20_000
    predicted = torch.tensor([[0.3, np.log(0.5)]], dtype=torch.float32).expand(count, 2)
    _, log_probability, fields = policy.choose(predicted, np.random.default_rng(0))
    raw = fields[RAW][:, 0]
    assert abs(raw.mean() - 0.3) < 4 * 0.5 / np.sqrt(count) and abs(raw.std() - 0.5) < 4 * 0.5 / np.sqrt(2 * count)
    expected = torch.distributions.Normal(0.3, 0.5).log_prob(torch.from_numpy(raw))
    np.testing.assert_allclose(log_probability, expected, atol=1e-5)


def test_a_fresh_policy_takes_all_actions_alike():
    head = policy_for(Spaces(OBS, Discrete(4)), "test").head(64)
    probabilities = head(torch.randn(100, 64)).softmax(dim=1)
    assert (probabilities - 0.25).abs().max() < 0.02
    head = Gaussian(Box(-1, 1, (2,), np.float32)).head(64)
    mean, log_std = head(torch.randn(100, 64)).chunk(2, dim=1)
    assert mean.abs().max() < 0.1 and (log_std == 0).all()


def test_other_actions_are_refused():
    with pytest.raises(ValueError, match="ppo needs discrete actions; the environment has Dict"):
        from gymnasium.spaces import Dict

        policy_for(Spaces(OBS, Dict(a=Discrete(2))), "ppo")
