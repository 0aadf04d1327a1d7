"""Averages of networks: hard copies and moving averages of weights."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

from sharpwave.agents.learner import clip, move_towards

from .linear import make_dqn


def network(weight, running, batches):
    """One number that learns, one running statistic, and a count."""
    module = nn.Linear(1, 1, bias=False)
    module.weight.data.fill_(weight)
    module.register_buffer("running", torch.tensor(running))
    module.register_buffer("batches", torch.tensor(batches))
    return module


def numbers(module):
    return module.weight.item(), module.running.item(), module.batches.item()


def test_a_quarter_of_the_way_with_buffers_and_counts_copied():
    follower, source = network(2.0, 8.0, 3), network(4.0, 0.0, 7)
    move_towards(follower, source, 0.25)
    assert numbers(follower) == (2.5, 6.0, 7) and numbers(source) == (4.0, 0.0, 7)
    move_towards(follower, source, 0.25)
    assert numbers(follower) == (2.875, 4.5, 7)
    move_towards(follower, source, 0.0)
    assert numbers(follower) == (2.875, 4.5, 7)
    move_towards(follower, source, 1.0)
    assert numbers(follower) == (4.0, 0.0, 7)
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="expected from 0 to 1"):
            move_towards(follower, source, share)


class Batch:
    def __init__(self, seed):
        numbers = torch.Generator().manual_seed(seed)
        self.obs, self.next_obs = torch.randn(2, 8, 3, generator=numbers)
        self.action = torch.randint(0, 2, (8,), generator=numbers)
        self.reward, self.discount, self.weights = torch.ones(8), torch.full((8,), 0.9), torch.ones(8)


def test_the_policy_is_the_exponential_mean_of_all_networks_so_far():
    torch.manual_seed(0)
    agent = make_dqn(lambda: nn.Linear(3, 2), size=3, average_decay=0.75, lr=0.1)
    expected = agent.online.weight.detach().numpy().astype(np.float64)
    for update in range(6):
        agent.learn(Batch(update), 0)
        expected = 0.75 * expected + 0.25 * agent.online.weight.detach().numpy()
    policy = agent.policy_tensors()["policy.weight"]
    np.testing.assert_allclose(policy, expected, rtol=1e-5)
    assert not np.allclose(agent.online.weight.detach(), expected, rtol=1e-2)
    other = make_dqn(lambda: nn.Linear(3, 2), size=3, average_decay=0.75)
    other.load(agent.state())
    assert torch.equal(other.policy_tensors()["policy.weight"], policy)


def test_a_player_acts_by_the_policy_and_stays_as_it_is():
    torch.manual_seed(0)
    agent = make_dqn(lambda: nn.Linear(3, 2), size=3, average_decay=0.75, lr=0.1)
    for update in range(6):
        agent.learn(Batch(update), 0)
    weights = agent.policy_tensors()
    player = make_dqn(lambda: nn.Linear(3, 2), size=3)
    player.load_policy(weights)
    obs = np.eye(3, dtype=np.float32)
    values = torch.from_numpy(obs) @ weights["policy.weight"].T + weights["policy.bias"]
    np.testing.assert_allclose(player.values(obs), values, rtol=1e-6)
    agent.learn(Batch(9), 0)
    np.testing.assert_allclose(player.values(obs), values, rtol=1e-6)
    with pytest.raises(ValueError, match="do not fit the agent's policy module"):
        player.load_policy({"policy.weight": torch.zeros(2, 4)})


def test_without_a_mean_the_policy_is_the_network_itself():
    agent = make_dqn(lambda: nn.Linear(3, 2), size=3)
    assert torch.equal(agent.policy_tensors()["policy.weight"], agent.online.weight)


def test_actors_explore_by_the_network_itself():
    torch.manual_seed(0)
    agent = make_dqn(lambda: nn.Linear(3, 2), size=3, average_decay=0.75, lr=0.1)
    agent.learn(Batch(0), 0)
    assert torch.equal(agent.policy_tensors(explore=True)["policy.weight"], agent.online.weight)
    assert not torch.equal(agent.policy_tensors()["policy.weight"], agent.online.weight)


@pytest.mark.parametrize("limit", [0.1, 100.0])
def test_gradients_are_clipped_as_by_torch_to_the_bit(limit):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3), nn.Linear(3, 2))  # the last one has no gradient
    layers[:2](torch.randn(4, 7)).square().sum().backward()
    parameters, theirs = [*layers.parameters()], [*deepcopy(layers).parameters()]
    for own, other in zip(parameters[:4], theirs[:4], strict=True):
        assert own.grad is not None
        other.grad = own.grad.clone()
    clip(parameters, limit)
    torch.nn.utils.clip_grad_norm_(theirs, limit)
    ours, expected = ([one.grad for one in group if one.grad is not None] for group in (parameters, theirs))
    assert len(ours) == len(expected) == 4 and all(map(torch.equal, ours, expected))
