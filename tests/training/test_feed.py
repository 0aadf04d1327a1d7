"""Batches on their way to the learner: in what order they come, and that one under way does not spoil the one in use.

``ahead=True`` is what CUDA does; it needs no device.
"""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

import sharpwave as sw
from sharpwave.agents.pqn import PQN
from sharpwave.agents.rollouts import RolloutSettings
from sharpwave.training.loop import Feed
from sharpwave.training.recipes import load_recipe

from ..serve.serving import fill, served
from .trainer import Trained

CPU = torch.device("cpu")
WITHOUT_REPLAY = replace(
    load_recipe("cartpole").override(warmup_steps=0, update_every=1, stop_reward=None, evaluate_every=0),
    agent=PQN.Settings(network="mlp", hidden_units=8, replay=RolloutSettings(length=4)),
)


def taken_from(feed, beta=None):
    taken = feed.take(beta)
    assert taken is not None
    return taken


def filled(sampler):
    spec = sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=1_000, seed=0)
    numbers = np.arange(500, dtype=np.float32)
    for number in numbers:
        store.append(obs=np.full(3, number, np.float32), action=0, reward=number, terminated=False, truncated=False)
    return store, store.transitions(sampler=sampler, seed=5)


@pytest.mark.parametrize(("sampler", "beta"), [(sw.Uniform, None), (sw.Prioritized, 0.5)])
def test_batches_prepared_are_those_that_would_be_drawn(sampler, beta):
    store, replay = filled(sampler())
    other, oracle = filled(sampler())
    feed = Feed(replay, 32, CPU, ahead=True)
    for _ in range(20):
        batch, tensors = taken_from(feed, beta)
        expected = oracle.sample(32, beta=beta)
        feed.prepare(beta)
        assert np.array_equal(batch.ids, expected.ids) and np.array_equal(batch.weights, expected.weights)
        assert torch.equal(tensors.obs, torch.from_numpy(expected.obs))
        assert torch.equal(tensors.reward, torch.from_numpy(expected.reward))
    store.close()
    other.close()


def test_on_the_cpu_nothing_is_prepared():
    store, replay = filled(sw.Uniform())
    other, oracle = filled(sw.Uniform())
    feed = Feed(replay, 10, CPU)
    feed.take()
    feed.prepare()
    oracle.sample(10)
    assert np.array_equal(replay.sample(10).ids, oracle.sample(10).ids)  # as if prepare had not been called
    store.close()
    other.close()


def test_shards_draw_the_next_batch_while_this_one_is_learned_from(tmp_path):
    with served(2, tmp_path) as there:
        for number, store in enumerate(there.stores):
            fill(store, 1, 60, number)
        replay = there.cluster.transitions(sampler=sw.Prioritized(), name="learner")
        known = {
            shard.incarnation: store.transitions(name="known")
            for shard, store in zip(there.shards, there.stores, strict=True)
        }

        def drawn():
            return sum(view.source.items.samples for shard in there.shards for view in shard.views.replays.values())

        feed = Feed(replay, 32, CPU)
        for taken in range(1, 20):
            batch, tensors = taken_from(feed, 0.4)
            asked = sum(link.sent_bytes for link in replay._of.links.values())
            assert feed.ready and sum(link.sent_bytes for link in replay._of.links.values()) == asked  # it asks nobody
            assert replay.asked == 1 and len(replay) and drawn() == 32 * (taken + 1)  # the shards have answered len()
            for incarnation, view in known.items():
                rows = np.flatnonzero(batch.shards == incarnation)
                expected = view.fetch(np.asarray(batch.ids)[rows])
                assert np.array_equal(tensors.obs.numpy()[rows], expected.obs)
                assert np.array_equal(tensors.reward.numpy()[rows], expected.reward)
            assert replay.update_priorities(batch, np.full(32, float(taken))) == 0
        other = replay.sample(10)  # of another size: what was asked for is let go
        assert len(other.ids) == 10 and replay.asked == 0 and len(replay) and drawn() == 32 * 20 + 10


def test_a_feed_of_empty_shards_is_not_ready(tmp_path):
    with served(2, tmp_path) as there:
        feed = Feed(there.cluster.transitions(), 8, CPU, fewest=30)
        assert not feed.ready
        fill(there.stores[1], 1, 20, 0)
        assert not feed.ready
        fill(there.stores[0], 1, 40, 0)
        assert feed.ready


def test_a_shard_that_was_empty_is_drawn_from_once_it_has_items(tmp_path, monkeypatch):
    monkeypatch.setattr("sharpwave.serve.remote_replay.KNOWN_S", 0.02)
    with served(2, tmp_path) as there:
        fill(there.stores[0], 1, 60, 0)
        feed, streamed = Feed(there.cluster.transitions(), 32, CPU), there.cluster.transitions(name="other").stream(32)

        def incarnations():
            batch, _ = taken_from(feed)
            return {*batch.shards.tolist()}, {*next(streamed).shards.tolist()}

        first = {there.shards[0].incarnation}
        assert [incarnations() for _ in range(3)] == [(first, first)] * 3
        fill(there.stores[1], 1, 60, 1)
        time.sleep(0.05)
        found = [incarnations() for _ in range(8)]
        assert [max(len(one[k]) for one in found) for k in range(2)] == [2, 2]


@pytest.mark.parametrize(
    "prioritized", [pytest.param(False, marks=pytest.mark.nightly), pytest.param(True, marks=pytest.mark.slow)]
)
def test_a_learner_with_batches_prepared_learns_as_often(prioritized):
    """The whole loop as on CUDA: as many updates, from as many steps, and repeatable."""

    def run():
        recipe = load_recipe("cartpole").override(steps=2_000, seed=1, prioritized=prioritized)
        trained = Trained(recipe, ahead=True)
        trained.close()
        return trained.last, trained.weights

    (last, one), (_, two) = run(), run()
    assert last["updates"] == 1_000 // 4 and np.isfinite(last["avg_loss"])
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("epochs", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_no_batch_is_prepared_of_windows_that_are_used_up(epochs):
    """As many updates as without preparing, but for one whose batch is still prepared at the end."""

    def updates(ahead):
        recipe = WITHOUT_REPLAY.override(epochs=epochs, steps=1_000, num_envs=4, seed=1)
        trained = Trained(recipe, ahead=ahead)
        trained.close()
        return trained.last["updates"]

    assert 0 <= updates(False) - updates(True) <= 1 and updates(False) > 10
