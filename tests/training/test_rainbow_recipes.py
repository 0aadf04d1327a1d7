"""Recipes of Rainbow and its relatives train, from pixels and from MinAtar's small ones, and their policies play."""

import numpy as np
import pytest

from sharpwave.training import setup
from sharpwave.training.recipes import load_recipe
from sharpwave.training.scores import play

from .trainer import Trained

TINY = {"steps": 160, "warmup_steps": 120, "capacity": 1_000, "update_every": 8, "batch_size": 4, "threads": 1}


@pytest.mark.parametrize(
    "name",
    [
        *("minatar", "minatar-rainbow", "minatar-iqn"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("rainbow", "drq", "iqn")),
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("data-efficient-rainbow", "der")),
    ],
)
def test_it_trains_and_its_policy_plays(name):
    recipe = load_recipe(name).override(**TINY, hidden_units=16, evaluate_every=0, precision="float32")
    trained = Trained(recipe)
    assert trained.last["updates"] == 5 and np.isfinite(trained.last["loss"])
    assert any((trained.weights[name] != before).any() for name, before in trained.before.items())
    if name.startswith("minatar"):  # a game of Breakout without learning has no end
        player = setup.player(recipe, trained.env, trained.agent.policy_tensors())
        assert len(play(player, trained.env, 3, 0.0, 0)) == 3
    trained.close()


@pytest.mark.slow
def test_drqn_learns_from_single_frames():
    recipe = load_recipe("drqn").override(**TINY, hidden_units=16, core_units=16, evaluate_every=0)
    trained = Trained(recipe)
    assert trained.last["updates"] == 5 and np.isfinite(trained.last["loss"])
    assert trained.view.sample(4).obs.shape == (4, 11, 1, 84, 84)  # ten steps, and the frame behind them
    trained.close()


def test_pqn_learns_from_each_window_a_fixed_number_of_times():
    recipe = load_recipe("minatar-pqn").override(steps=4_000, hidden_units=16, evaluate_every=0)
    trained = Trained(recipe)
    windows, replay = len(trained.view), recipe.agent.replay  # fewer than a batch remain
    assert windows < replay.batch_size and trained.last["updates"] > 2 * 4_000 // (replay.batch_size * replay.length)
    trained.close()


def test_noise_explores_in_place_of_random_actions():
    recipe = load_recipe("minatar-rainbow").override(**TINY, num_envs=8, noisy=True)
    env = recipe.env.make()
    agent = setup.agent(recipe, env)
    obs, state = env.reset(seed=0)[0], agent.begin(8)
    assert agent.schedules(0)["epsilon"] == 0 and agent.scored_lanes(8).all()
    explored = {tuple(agent.act(obs, state, 0).action) for _ in range(50)}
    greedy = {tuple(agent.act(obs, state, 0, explore=False).action) for _ in range(50)}
    assert len(explored) > 1 and len(greedy) == 1
    env.close()
