"""Novelty, within the episode by hand and over training by which observations were learned."""

import copy

import numpy as np
import pytest
import torch
from agent57.novelty import CONSTANT, EpisodicMemory, Novelty, episodic_reward
from torch import nn


def test_the_episodic_reward_by_hand():
    """Rates 1.008 and .008, less .008: kernels 1e-4 / 1.0001 and 1."""
    mean = 2.0
    distance = np.array([[1.008, 0.008]]) * (mean + CONSTANT)
    similarity = np.sqrt(1e-4 / 1.0001 + 1.0) + 1e-3
    np.testing.assert_allclose(episodic_reward(distance, np.array([mean])), [1 / similarity], rtol=1e-5)
    # 64 neighbours just the same: sqrt(64) + .001 is above the largest similarity.
    assert episodic_reward(np.zeros((1, 64)), np.array([mean])).tolist() == [0.0]
    assert episodic_reward(np.zeros((1, 63)), np.array([mean]))[0] == pytest.approx(1 / (np.sqrt(63) + 1e-3))


def by_hand(embeddings, neighbours, capacity):
    """Yield the rewards of one episode: distances to all that are remembered, sorted in full."""
    held, total, number = [np.zeros(embeddings.shape[1])] * neighbours, 0.0, 0
    for t, one in enumerate(embeddings):
        nearest = sorted(float(np.square(other - one).sum()) for other in held)[:neighbours]
        total, number = total + sum(nearest), number + neighbours
        yield float(episodic_reward(np.array([nearest]), np.array([total / number]))[0])
        if t < neighbours:
            held[t] = one  # the zeros only stand for what is missing
        else:
            held = [*held, one][-capacity:]


@pytest.mark.parametrize("capacity", [3, 5, 50])
def test_a_memory_rewards_as_a_list_does(capacity):
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(2, 20, 4)).astype(np.float32)
    embeddings[:, 10:] = embeddings[:, :10]  # the second half has been seen
    memory, got = EpisodicMemory.empty(2, capacity, 4), []
    for t in range(20):
        reward, memory = memory.add(embeddings[:, t], 3)
        got.append(reward)
    expected = [list(by_hand(lane, 3, capacity)) for lane in embeddings]
    np.testing.assert_allclose(np.transpose(got), expected, rtol=1e-4)
    if capacity == 50:
        assert np.max(got[10:]) < 1.1 < np.min(got[:10])


def test_lanes_that_end_begin_anew_and_states_can_be_gone_on_from_twice():
    rng = np.random.default_rng(1)
    embeddings = rng.normal(size=(6, 2, 4)).astype(np.float32)
    memory = EpisodicMemory.empty(2, 4, 4)
    for one in embeddings:
        before = memory
        reward, memory = before.add(one, 2)
        again, memory = before.add(one, 2)
        np.testing.assert_array_equal(reward, again)
    ended, fresh = memory.without(np.array([True, False])), EpisodicMemory.empty(2, 4, 4)
    rewards = [one.add(embeddings[0], 2)[0] for one in (ended, fresh, memory)]
    assert rewards[0][0] == rewards[1][0] != rewards[2][0] and rewards[0][1] == rewards[2][1]


@pytest.fixture
def novelty():
    class Torso(nn.Linear):
        features = 32

    torch.manual_seed(0)
    return Novelty(lambda: Torso(10, 32), 8, 2)


def trained(novelty, inputs, next_inputs, action, updates=300):
    optimizer = torch.optim.Adam([p for p in novelty.parameters() if p.requires_grad], lr=3e-3)
    for _ in range(updates):
        loss = novelty.loss(inputs, next_inputs, action, torch.ones(len(inputs)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def test_observations_that_were_not_learned_are_novel(novelty):
    """Of ten, five are seen often and one seldom; four never."""
    before = {name: one.clone() for name, one in novelty.random.state_dict().items()}
    all_of_them = torch.eye(10)
    seen = torch.cat([all_of_them[:5].repeat(40, 1), all_of_them[5:6]])
    trained(novelty, seen, seen, torch.zeros(len(seen), dtype=torch.int64), 1000)
    with torch.no_grad():
        modulators = novelty.modulators(all_of_them, 5.0)
    assert modulators[:5].max() < 1.5 and modulators[6:].min() == 5.0
    assert modulators.min() >= 1.0 and modulators[5] >= modulators[:5].max()
    assert all((one == before[name]).all() for name, one in novelty.random.state_dict().items())


def test_the_embedding_tells_what_actions_do(novelty):
    """Action 1 swaps the first two inputs; the others change by chance, and the loss falls below that of guessing."""
    drawn = torch.Generator().manual_seed(0)
    inputs = torch.rand(256, 10, generator=drawn)
    action = torch.randint(2, (256,), generator=drawn)
    behind = torch.rand(256, 10, generator=drawn)
    behind[:, :2] = torch.where(action[:, None] == 1, inputs[:, [1, 0]], inputs[:, :2])
    assert trained(novelty, inputs, behind, action, 500) < 0.3 < np.log(2)


def test_errors_are_standardized_by_their_own_mean_and_deviation(novelty):
    """Before the first loss there are none, and nothing is more novel than the rest."""
    inputs = torch.eye(10)
    with torch.no_grad():
        assert (novelty.modulators(inputs, 1.5) == 1.0).all()
        errors = novelty.errors(inputs).numpy()
        novelty.loss(inputs, inputs, torch.zeros(10, dtype=torch.int64), torch.ones(10))
        got = novelty.modulators(inputs, 1.5)
    expected = (1 + (errors - errors.mean()) / errors.std()).clip(1.0, 1.5)
    np.testing.assert_allclose(got, expected, rtol=1e-4)


def test_what_is_replayed_more_often_than_it_was_seen_stays_as_novel(novelty):
    """An observation three times with a third of the weight: loss, statistics and gradients are as if it came once."""
    once = torch.eye(10)[:4]
    often, weights = torch.cat([once, once[:1], once[:1]]), torch.tensor([1 / 3, 1.0, 1.0, 1.0, 1 / 3, 1 / 3])
    twin = copy.deepcopy(novelty)
    for one, inputs, of in ((novelty, once, torch.full((4,), 0.5)), (twin, often, weights)):
        one.loss(inputs, inputs, torch.zeros(len(inputs), dtype=torch.int64), of).backward()
    for name in ("error_mean", "error_square"):
        torch.testing.assert_close(getattr(novelty, name), getattr(twin, name))
    grads = [[parameter.grad for parameter in one.predictor.parameters()] for one in (novelty, twin)]
    torch.testing.assert_close(*grads)


def test_random_features_begin_orthogonal_and_without_bias(novelty):
    """Of no input there are no features, and lengths are kept but for the gain."""
    with torch.no_grad():
        assert not novelty.random(torch.zeros(1, 10)).any() and not novelty.predictor(torch.zeros(1, 10)).any()
        first = novelty.random[0].weight
    torch.testing.assert_close(first.T @ first, 2 * torch.eye(10))
