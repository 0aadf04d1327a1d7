"""Implicit Q-learning: which values it learns, and how they weight the policy."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from sharpwave.agents.iql import IQL
from sharpwave.agents.protocol import Spaces

SPACES = Spaces(Box(-1.0, 1.0, (2,), np.float32), Discrete(3))


def made(spaces=SPACES, **settings):
    torch.manual_seed(0)
    return IQL(spaces, IQL.Settings(hidden_units=16, **settings))


def batch(action, reward, **other):
    """Items of one state, whose episode ends with the action."""
    size = len(action)
    obs = torch.full((size, 2), 0.5)
    items = {"next_obs": obs, "discount": torch.zeros(size), "weights": torch.ones(size)} | other
    return SimpleNamespace(obs=obs, action=torch.as_tensor(action), reward=torch.as_tensor(reward), **items)


def learn(agent, items, updates=400):
    for step in range(updates):
        agent.learn(items, step)
    return agent.inputs(items.obs)


@pytest.mark.parametrize(("expectile", "value"), [(0.5, 1.0), (0.75, 1.5), (0.9, 1.8)])
def test_v_is_the_expectile_of_q_over_the_data_s_actions(expectile, value):
    """Of 0 and 2, equally often, it is the v with (1 - t) v = t (2 - v): v = 2 t. Action 2 was never made."""
    items = batch([0, 1], [0.0, 2.0])
    agent = made(expectile=expectile, lr=1e-2, target_tau=0.1)
    inputs = learn(agent, items)
    with torch.no_grad():
        np.testing.assert_allclose(agent.value(inputs), [value] * 2, atol=0.02)
        q = agent.critics(inputs, torch.eye(3)[[0, 1]])
        np.testing.assert_allclose(q, [[0.0, 2.0]] * 2, atol=0.02)


def test_the_policy_weighs_actions_by_the_exponential_of_their_advantage():
    """Around V = 1 the advantages are -1 and 1: odds of exp(2 beta), which the largest weight bounds."""
    half = {"inverse_temperature": 0.5}
    for settings, odds in ((half, np.e), (half | {"max_weight": 1.2}, 1.2 * np.exp(0.5))):
        agent = made(expectile=0.5, lr=1e-2, target_tau=0.1, **settings)
        inputs = learn(agent, batch([0, 1], [0.0, 2.0]))
        with torch.no_grad():
            policy = agent.policy(inputs)[0].softmax(dim=0)
        assert float(policy[1] / policy[0]) == pytest.approx(odds, rel=0.05)
        assert float(policy[2]) < 0.01


def test_continuous_actions_move_towards_the_better_ones():
    spaces = Spaces(SPACES.observation, Box(-2.0, 2.0, (1,), np.float32))
    items = batch([[-1.0], [1.0]], [0.0, 2.0])
    squared = {"lr": 1e-2, "likelihood": "squared"}
    clones = made(spaces, inverse_temperature=0.0, **squared)
    better = made(spaces, expectile=0.5, inverse_temperature=0.5, target_tau=0.1, **squared)
    for agent in (clones, better):
        learn(agent, items)
    mean = [float(agent.act(items.obs[:1].numpy(), None, 0).action[0, 0]) for agent in (clones, better)]
    # exp(-1/2) and exp(1/2) times -1 and 1: tanh(1/2).
    np.testing.assert_allclose(mean, [0.0, np.tanh(0.5)], atol=0.03)


class Constants:
    def __init__(self, values):
        self.torso, self._values = lambda inputs: inputs, torch.tensor(values)

    def __call__(self, features, action):
        return self._values


def test_its_loss_by_hand():
    """Of one item, with networks that say constants: Q 3 and 2, their targets 1.5 and 1, V .5 here and 4 there."""
    agent = made(expectile=0.7, inverse_temperature=2.0, max_weight=2.0)
    items = batch([1], [1.0], discount=torch.tensor([0.9]), weights=torch.tensor([0.5]), next_obs=-torch.ones(1, 2))
    agent.critics = Constants([[3.0], [2.0]])
    agent.targets = Constants([[1.5], [1.0]])
    agent.value = lambda inputs: torch.tensor([4.0 if inputs[0, 0] < 0 else 0.5])
    agent.policy = lambda inputs: torch.zeros(1, 3)
    loss, error = agent.loss(items)
    target = 1.0 + 0.9 * 4.0
    advantage = 1.0 - 0.5  # of the lower target; exp(2 * .5) is above the largest weight
    expected = 0.7 * advantage**2 + 2.0 * np.log(3) + (target - 3.0) ** 2 + (target - 2.0) ** 2
    assert float(loss) == pytest.approx(0.5 * expected, rel=1e-6)
    assert error.tolist() == pytest.approx([target - 2.5])
