"""Agents learn a maze whose walls are illegal actions, and make none: the environment fails if one is made."""

import io
from contextlib import closing

import numpy as np
import pytest
import torch
from rich.console import Console

from sharpwave.training import setup
from sharpwave.training.checkpoints import checkpoints
from sharpwave.training.evaluation import evaluate
from sharpwave.training.measuring import play
from sharpwave.training.recipes import load_recipe
from sharpwave.training.resume import resume
from sharpwave.training.run import run

from .made_up import Maze
from .test_resume import go, metrics, stopped_copy
from .trainer import Trained

MAZE = "tests.training.made_up:Maze-v0"
PICTURE = {"env": "tests.training.made_up:MazePicture-v0"}
QUICK = {
    "env": MAZE, "num_envs": 2, "steps": 400, "capacity": 1_000, "hidden_units": 16, "evaluate_every": 0,
    "report_every": 100, "device": "cpu",
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
        ("agent57", {"core_units": 16, "length": 8, "burn_in": 4, "stride": 4, "policies": 3}),
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
    vector = setup.environments(recipe, 2)
    with closing(vector):
        for epsilon in (0.0, 1.0):
            scores = play(setup.player(recipe, vector, trained.agent.policy_tensors()), vector, 2, epsilon, seed=3)
            assert all(-Maze.LONGEST <= score < 0 for score in scores)


def test_the_maze_fails_without_masks():
    with pytest.raises(ValueError, match="is illegal in cell"):
        Trained(load_recipe("gymnasium").override(**REPLAYED, action_masks=False))


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
    _, scores = evaluate(whole, 4, 1.0, seed=9, trust=True)  # random actions only
    assert len(scores) == 4


LEARNING = {"env": MAZE, "evaluate_every": 0, "device": "cpu", "hidden_units": 32, "gamma": 0.97, "capacity": 3_000}


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
        ("cartpole-ppo", {"steps": 12_000, **ON_POLICY}),
    ],
)  # fmt: skip
def test_the_maze_is_learned(recipe, changes):
    """The greedy policy takes the shortest way from every cell; legal random play reaches the goal in 31 steps or not
    within the 40 that there are."""
    made = load_recipe(recipe).override(**LEARNING | changes)
    trained = Trained(made)
    vector = setup.environments(made, 1)
    with closing(trained), closing(vector):
        player = setup.player(made, vector, trained.agent.policy_tensors())
        maze = Maze()
        for cell in range(16):
            if cell != Maze.GOAL:
                maze.cell = cell
                obs = {"obs": np.array([cell]), "action_mask": maze.legal()[None].astype(np.int8)}
                action = player.act(obs, player.begin(1), 0, explore=False).action[0]
                assert Maze.distance(cell + Maze.MOVES[action - 1]) == Maze.distance(cell) - 1, cell
