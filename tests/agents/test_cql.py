"""Conservative Q-learning beside the double Q-learning that it extends."""

from types import SimpleNamespace

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from sharpwave.agents.cql import CQL
from sharpwave.agents.dqn import DQN
from sharpwave.agents.protocol import Spaces

SPACES = Spaces(Box(-1.0, 1.0, (2,), np.float32), Discrete(3))


def made(agent, **settings):
    torch.manual_seed(0)
    return agent(SPACES, agent.Settings(hidden_units=8, **settings))


def batch():
    """Items that only ever take action 1, ended with reward 2."""
    drawn = torch.Generator().manual_seed(1)
    obs, next_obs = torch.rand(2, 64, 2, generator=drawn)
    return SimpleNamespace(
        obs=obs, next_obs=next_obs, action=torch.ones(64, dtype=torch.int64), reward=torch.full((64,), 2.0),
        discount=torch.zeros(64), weights=torch.linspace(0.5, 1.5, 64),
    )  # fmt: skip


def test_its_loss_is_that_of_dqn_and_the_weighted_penalty():
    items = batch()
    plain, error = made(DQN).loss(items)
    agent = made(CQL, conservatism=0.25)
    loss, same_error = agent.loss(items)
    with torch.no_grad():
        log_policy = agent.online(agent.inputs(items.obs)).log_softmax(dim=1)
    penalty = -(items.weights * log_policy[:, 1]).mean()
    torch.testing.assert_close(loss, plain + 0.25 * penalty)
    torch.testing.assert_close(same_error, error)
    torch.testing.assert_close(made(CQL, conservatism=0.0).loss(items)[0], plain)


def test_actions_that_the_data_lack_are_valued_lower():
    items = batch()
    for conservatism, all_lower in ((0.0, False), (1.0, True)):
        agent = made(CQL, conservatism=conservatism, lr=1e-2)
        with torch.no_grad():
            agent.online.head.advantage.bias += torch.tensor([5.0, 0.0, 5.0])  # as if they were worth more
        for step in range(150):
            agent.learn(items, step)
        q = agent.values(items.obs.numpy())
        assert bool((q.argmax(axis=1) == 1).all()) == all_lower, q.mean(axis=0)
