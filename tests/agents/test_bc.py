"""Behaviour cloning: which weights act, and by what observations are standardized."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from sharpwave.agents.bc import BC
from sharpwave.agents.protocol import Spaces

SPACES = Spaces(Box(-100.0, 100.0, (2,), np.float32), Box(-2.0, 2.0, (1,), np.float32))


def batch(rng, items=64):
    obs = torch.from_numpy(rng.normal([50.0, 0.0], [0.1, 10.0], (items, 2)).astype(np.float32))
    return SimpleNamespace(obs=obs, action=10.0 * (obs[:, :1] - 50.0))


@pytest.mark.parametrize(("decay", "shares"), [(0.998, [1.0, 1 / 2, 1 / 3]), (0.4, [1.0, 0.6, 0.6]), (0.0, [1.0] * 3)])
def test_the_mean_of_the_weights_acts_and_is_saved(decay, shares):
    """It is the mean of all updates until that is an exponential mean's."""
    torch.manual_seed(0)
    agent, rng = BC(SPACES, BC.Settings(hidden_units=8, average_decay=decay)), np.random.default_rng(0)
    expected = torch.zeros(8, 8, dtype=torch.float64)
    for update, share in enumerate(shares):
        items = batch(rng)
        agent.learn(items, update)
        expected += share * (agent.policy.get_parameter("1.weight").detach().double() - expected)
    torch.testing.assert_close(agent.average.get_parameter("1.weight").double(), expected, rtol=0, atol=1e-6)
    assert decay == 0 or not torch.equal(
        agent.average.get_parameter("1.weight"), agent.policy.get_parameter("1.weight")
    )
    other = BC(SPACES, agent.settings)
    other.load_policy(agent.policy_tensors())
    obs = items.obs.numpy()
    np.testing.assert_array_equal(other.act(obs, None, 0).action, agent.act(obs, None, 0).action)


def test_vectors_are_standardized_by_the_data():
    """The action depends on a number that varies by a tenth around 50, beside one that varies by ten."""
    errors = {}
    for standardize in (True, False):
        torch.manual_seed(0)
        agent, rng = BC(SPACES, BC.Settings(hidden_units=32, standardize=standardize)), np.random.default_rng(0)
        assert bool(agent.first_look) == standardize
        if standardize:
            agent.prepare(batch(rng, agent.first_look))
        for update in range(300):
            agent.learn(batch(rng), update)
        items = batch(rng, 500)
        errors[standardize] = float(
            np.square(agent.act(items.obs.numpy(), None, 0).action - items.action.numpy()).mean()
        )
    assert errors[True] < 0.15 < 0.5 < errors[False]


def test_imitation_of_continuous_actions_is_the_mean_squared_error_of_their_numbers():
    # ((1 - 3)^2 + (2 - 2)^2) / 2 = 2; ((0 - 1)^2 + (0 + 3)^2) / 2 = 5
    agent = BC(Spaces(SPACES.observation, Box(-9.0, 9.0, (2,), np.float32)))
    agent.policy = lambda inputs: torch.tensor([[1.0, 2.0], [0.0, 0.0]])  # type: ignore[assignment]
    items = SimpleNamespace(action=torch.tensor([[3.0, 2.0], [1.0, -3.0]]))
    torch.testing.assert_close(agent.imitation(torch.zeros(2, 2), items), torch.tensor([2.0, 5.0]))
