"""Recipes of actor-critic agents train, use their windows up, and their policies play."""

import time

import numpy as np
import pytest

from sharpwave.training import setup
from sharpwave.training.callbacks import Callback
from sharpwave.training.recipes import load_recipe
from sharpwave.training.scores import play

from .trainer import Trained


@pytest.mark.parametrize("name", ["cartpole-ppo", "cartpole-a2c", "cartpole-impala", "minatar-ppo"])
def test_it_learns_from_each_window_as_often_as_epochs_say(name):
    recipe = load_recipe(name).override(
        steps=1_500, hidden_units=16, batch_size=4, length=16, stop_reward=None, evaluate_every=0
    )
    trained = Trained(recipe)
    assert np.isfinite(trained.last["loss"]) and len(trained.view) < 4  # fewer than a batch remain
    assert any((trained.weights[name] != before).any() for name, before in trained.before.items())
    whole = sum(-(-episode["episode_steps"] // 16) for episode in trained.kept.episodes)
    under_way = recipe.env.num_envs * -(-1_500 // recipe.env.num_envs // 16)  # of episodes that have not ended
    updates, epochs = trained.last["updates"], recipe.agent.replay.epochs
    assert (whole // 4 - 1) * epochs <= updates <= (whole + under_way) // 4 * epochs and updates % epochs == 0
    player = setup.player(recipe, trained.env, trained.agent.policy_tensors())
    assert len(play(player, trained.env, 3, 0.0, 0)) == 3
    trained.close()


class Divergences(Callback):
    """Keeps how far the policy was from the one that acted, by update."""

    def __init__(self):
        self.found = []

    def on_update(self, training, learned):
        self.found.append(learned.metrics["divergence"].item())


def test_the_divergence_is_zero_until_the_policy_has_moved_since_it_acted():
    """What is stored are the probabilities of the policy that acted; the second epoch's is another."""
    recipe = load_recipe("cartpole-ppo").override(
        steps=500, hidden_units=16, batch_size=4, length=16, epochs=2, stop_reward=None, evaluate_every=0
    )
    kept = Divergences()
    Trained(recipe, kept).close()
    assert kept.found[0] == pytest.approx(0.0, abs=1e-9) and kept.found[1] > 1e-7


def test_ppo_learns_continuous_actions():
    recipe = load_recipe("ppo").override(
        env="Pendulum-v1", num_envs=4, steps=600, hidden_units=16, batch_size=4, length=16, evaluate_every=0
    )
    trained = Trained(recipe)  # from the first batch on, as any agent that uses its windows up
    assert trained.last["updates"] == 4 * (600 // 16 // 4) and np.isfinite(trained.last["loss"])
    player = setup.player(recipe, trained.env, trained.agent.policy_tensors())
    assert len(play(player, trained.env, 2, 0.0, 0)) == 2
    trained.close()


class Rollouts(Callback):
    """Keeps which steps each update learns from, by lane."""

    def __init__(self):
        self.found = []

    def on_learner_begin(self, training):
        rollout = training.agent.rollout

        def kept(batch):
            count = batch.mask.sum(dim=1)
            self.found.append({
                (int(lane), int(first) + i)
                for lane, first, steps in zip(batch.lane, batch.step, count, strict=True) for i in range(steps)
            })  # fmt: skip
            return rollout(batch)

        training.agent.rollout = kept


def test_an_update_in_minibatches_learns_from_all_steps_that_wait_and_from_each_once():
    recipe = load_recipe("pendulum-ppo").override(
        num_envs=2, steps=1_300, warmup_steps=2, update_every=320, batch_size=20, length=16, minibatch_size=32,
        epochs=2, hidden_units=16,
    )  # fmt: skip
    kept = Rollouts()
    trained = Trained(recipe, kept)
    assert trained.last["updates"] == len(kept.found) == 4
    # Of 160 steps of a lane a window's worth may still wait: its episode's last window has 8 steps.
    assert kept.found[0] == {(lane, step) for lane in range(2) for step in range(160)}
    assert sum(map(len, kept.found)) == len(set().union(*kept.found)) >= 1_300 - 2 * 16 - 20
    trained.close()


@pytest.mark.nightly
def test_minibatches_learn_from_actors_whose_short_episodes_make_many_windows():
    recipe = load_recipe("cartpole-ppo").override(
        actors=1, num_envs=2, steps=1_500, hidden_units=8, batch_size=16, length=32, minibatch_size=64,
        update_every=512, stop_reward=None, evaluate_every=0, device="cpu",
    )  # fmt: skip
    trained = Trained(recipe)
    assert trained.last["steps"] >= 1_500 and trained.last["updates"] == trained.last["steps"] // 512
    trained.close()


class SlowLearner(Callback):
    """Keeps how many windows wait; updates last so long that it is the actors that have to wait."""

    def __init__(self):
        self.waiting = []

    def on_update(self, training, learned):
        self.waiting.append(len(training.view))
        time.sleep(0.01)


@pytest.mark.slow
def test_a3c_learns_from_actors_and_they_wait_where_short_episodes_make_many_windows():
    recipe = load_recipe("cartpole-a3c").override(
        actors=1, num_envs=2, steps=1_500, hidden_units=8, length=16, stop_reward=None, evaluate_every=0, device="cpu"
    )
    slow = SlowLearner()
    trained = Trained(recipe, slow)
    windows = sum(-(-episode["episode_steps"] // 16) for episode in trained.kept.episodes)
    assert trained.last["steps"] >= 1_500 and np.isfinite(trained.last["loss"])
    assert windows - 2 <= trained.last["updates"] <= windows + 2 * 16
    # Some 4 may wait, and two segments that arrive then make as many; would actors count 16 steps a window, it were 20.
    assert 0 < max(slow.waiting) <= 12
    trained.close()
