"""Agents learn a maze whose walls are illegal actions, and make none: the environment fails if one is made."""

import io
from contextlib import closing

import numpy as np
import pytest
import torch
from rich.console import Console

import sharpwave as sw
from sharpwave.teams import random_actions
from sharpwave.training import setup
from sharpwave.training.evaluation import evaluate
from sharpwave.training.folder import checkpoints
from sharpwave.training.recipes import load_recipe
from sharpwave.training.run import resume, run
from sharpwave.training.scores import play

from .made_up import Maze
from .test_resume import go, metrics, stopped_copy
from .trainer import Trained

MAZE = "tests.training.made_up:Maze-v0"
PICTURE = {"env": "tests.training.made_up:MazePicture-v0"}
QUICK = {
    "env": MAZE, "num_envs": 2, "steps": 400, "capacity": 1_000, "hidden_units": 16, "evaluate_every": 0,
    "report_every": 100, "device": "cpu", "threads": 1,
}  # fmt: skip
ON_POLICY = {"num_envs": 8, "stop_reward": None}
REPLAYED = QUICK | {"warmup_steps": 100, "batch_size": 8}


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        ("gymnasium", {"prioritized": True, "n_step": 3, "double": False}),
        ("gymnasium", {"explore": "softmax"}),
        ("gymnasium", {"env": MAZE.replace("Maze", "MazeMethod")}),
        ("gymnasium", {**PICTURE, "stack": 4}),
        ("minatar-rainbow", {**PICTURE, "head": "c51", "munchausen": 0.9, "noisy": True}),
        ("minatar-rainbow", {**PICTURE, "head": "qr", "noisy": False}),
        ("minatar-iqn", {**PICTURE, "munchausen": 0.0}),
        ("r2d2", {"core_units": 16, "length": 8, "burn_in": 4, "stride": 4}),
    ],
)
def test_no_agent_makes_an_illegal_action_in_warm_up_training_or_evaluation(recipe, changes):
    made = load_recipe(recipe).override(**REPLAYED | changes)
    trained = Trained(made)
    with closing(trained):
        assert trained.last["updates"] > 15 and np.isfinite(trained.last["avg_loss"])
        _measured(made, trained)


@pytest.mark.parametrize("recipe", ["minatar-pqn", "cartpole-ppo", "cartpole-impala", "cartpole-a2c"])
def test_nor_does_one_whose_windows_are_used_up(recipe):
    made = load_recipe(recipe).override(
        **QUICK | ON_POLICY | {"steps": 1_200} | (PICTURE if "minatar" in recipe else {})
    )
    trained = Trained(made)
    with closing(trained):
        assert trained.last["updates"] > 2 and np.isfinite(trained.last["avg_loss"])
        assert all(torch.isfinite(one).all() for one in trained.weights.values())
        _measured(made, trained)


def _measured(recipe, trained):
    """Play by the policy, with and without random actions; its Q of what was played is -infinity where illegal."""
    vector = recipe.env.make(2)
    with closing(vector):
        player = setup.player(recipe, vector, trained.agent.policy_tensors())
        batch = trained.store.transitions(name="test").sample(6)
        valued = player.values_along(batch.obs, batch.action, batch.reward, player.begin(1))
        if valued is not None:
            np.testing.assert_array_equal(np.isfinite(valued.values), batch.obs["action_mask"])
            assert np.isfinite(valued.values[np.arange(6), valued.taken]).all()
        for epsilon in (0.0, 1.0):
            scores = play(player, vector, 2, epsilon, seed=3)
            assert all(-Maze.LONGEST <= score < 0 for score in scores)


def test_the_maze_fails_without_masks():
    with pytest.raises(ValueError, match="is illegal in cell"):
        Trained(load_recipe("gymnasium").override(**REPLAYED, action_masks=False))


@pytest.mark.slow
def test_actors_make_legal_actions_and_give_first_priorities_by_them():
    made = load_recipe("gymnasium").override(**REPLAYED | {"steps": 600}, actors=1, segment_steps=8, prioritized=True)
    trained = Trained(made)
    with closing(trained):
        assert trained.last["updates"] > 20 and trained.last["episodes"] > 5
        batch = trained.store.transitions(name="test").sample(200)
        assert batch.obs["action_mask"][np.arange(200), batch.action - 1].all()


@pytest.mark.parametrize("recipe", ["gymnasium", "cartpole-ppo"])
def test_a_run_resumes_bit_for_bit_and_is_evaluated(recipe, tmp_path):
    made = load_recipe(recipe).override(
        **(REPLAYED if recipe == "gymnasium" else QUICK | ON_POLICY), checkpoint_every=200
    )
    whole, _, _ = go(run, recipe, made, tmp_path / "whole")
    stopped = stopped_copy(whole, tmp_path / "stopped", 200)
    resume(stopped, {}, Console(file=io.StringIO()), trust=True)
    assert metrics(whole) == metrics(stopped)
    ours, theirs = checkpoints(whole)[-1], checkpoints(stopped)[-1]
    for name in ("weights.safetensors", "optimizer.safetensors", "random.safetensors"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name
    played = evaluate(sw.Policy.load(whole, trust=True), episodes=4, seed=9, epsilon=1.0)  # random actions only
    assert len(played.scores) == 4


def test_data_without_masks_are_refused_or_learned_from_without(tmp_path):
    maze, rng = Maze(), np.random.default_rng(0)
    with sw.Store(sw.step_spec(maze), capacity=500, disk=tmp_path / "data") as store:
        recorder = sw.Recorder(maze, store)
        _, info = recorder.reset(seed=0)
        for _ in range(200):
            _, _, terminated, truncated, info = recorder.step(1 + random_actions(info["action_mask"], rng))
            if terminated or truncated:
                _, info = recorder.reset()
    changes = {"data": str(tmp_path / "data"), "env": MAZE, "steps": 5, "evaluate_every": 0, "device": "cpu"}
    with pytest.raises(ValueError, match=r"has no obs.action_mask, expected .*; --no-action-masks learns without"):
        Trained(load_recipe("offline").override(**changes))
    made = load_recipe("offline").override(**changes, action_masks=False)
    vector = made.env.make()
    with closing(vector):
        learned_from, view = setup.memory(made, vector, setup.agent(made, vector))
        with learned_from:
            assert view.sample(8).obs.shape == (8,)


@pytest.mark.parametrize("algorithm", ["cql", "iql", "bc"])
def test_offline_agents_learn_from_masked_data(algorithm, tmp_path):
    """And their policies, which see what the data never did, make legal actions."""
    vector = load_recipe("gymnasium").override(env=MAZE).env.make(2)
    with closing(vector), sw.Store(sw.step_spec(vector), capacity=500, disk=tmp_path / "data") as store:
        recorder, rng = sw.Recorder(vector, store), np.random.default_rng(0)
        obs, _ = recorder.reset(seed=0)
        for _ in range(100):
            obs, *_ = recorder.step(1 + random_actions(obs["action_mask"], rng))
    made = load_recipe(algorithm).override(
        data=str(tmp_path / "data"), env=MAZE, steps=20, evaluate_every=0, device="cpu"
    )
    trained = Trained(made)
    with closing(trained):
        assert np.isfinite(trained.last["avg_loss"])
        _measured(made, trained)


LEARNING = {
    "env": MAZE, "evaluate_every": 0, "device": "cpu", "threads": 1, "hidden_units": 32, "gamma": 0.97,
    "capacity": 3_000,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        (
            "gymnasium",
            {
                "steps": 3_000, "warmup_steps": 300, "num_envs": 4, "batch_size": 32, "n_step": 3,
                "epsilon_steps": 2_000, "learning_rate": 2e-3, "target_tau": 0.02,
            },
        ),
        pytest.param("cartpole-ppo", {"steps": 12_000, **ON_POLICY}, marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_the_maze_is_learned(recipe, changes):
    """The greedy policy takes the shortest way from every cell; legal random play reaches the goal in 31 steps or not
    within the 40 that there are."""
    made = load_recipe(recipe).override(**LEARNING | changes)
    trained = Trained(made)
    vector = made.env.make(1)
    with closing(trained), closing(vector):
        player = setup.player(made, vector, trained.agent.policy_tensors())
        maze = Maze()
        for cell in range(16):
            if cell != Maze.GOAL:
                maze.cell = cell
                obs = {"obs": np.array([cell]), "action_mask": maze.legal()[None].astype(np.int8)}
                action = player.act(obs, player.begin(1), 0, explore=False).action[0]
                assert Maze.distance(cell + Maze.MOVES[action - 1]) == Maze.distance(cell) - 1, cell
