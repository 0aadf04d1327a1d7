"""Teams are trained, measured, resumed and played by actors, and make no illegal action, or their environment fails."""

import io
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from sharpwave.spec import Field
from sharpwave.training import setup
from sharpwave.training.evaluation import evaluate
from sharpwave.training.folder import checkpoints
from sharpwave.training.policies import Policy
from sharpwave.training.recipes import load_recipe
from sharpwave.training.run import resume, run
from sharpwave.training.scores import play

from .test_resume import go, metrics, stopped_copy
from .trainer import Trained

TEAM = "tests.training.made_up:Team-v0"
QUICK = {
    "env": TEAM, "num_envs": 2, "steps": 600, "warmup_steps": 100, "update_every": 4, "capacity": 1_000,
    "batch_size": 8, "hidden_units": 16, "evaluate_every": 0, "checkpoint_every": 200, "report_every": 100,
    "device": "cpu",
}  # fmt: skip


def quick(algorithm, **changes):
    return load_recipe(algorithm).override(**QUICK, **changes)


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("vdn", {"epsilon_steps": 400}),
        ("qmix", {"n_step": 3, "prioritized": True}),
        ("masac", {"own_rewards": True}),
    ],
)
def test_a_team_is_trained_and_its_rewards_are_stored(algorithm, changes):
    """A step pays agent n n times its number; the bee, number 2, leaves after three of six."""
    recipe = quick(algorithm, **changes)
    trained = Trained(recipe)
    with closing(trained):
        assert trained.last["updates"] == (600 - 100) // 4 and trained.last["episodes"] == 600 // 6
        batch = trained.store.transitions(name="test").sample(300)
        step = batch.obs["state"][:, 0] + 1
        pay = step[:, None] * np.stack([np.ones(300), 2 * (step <= 3), np.full(300, 3)], axis=1)
        np.testing.assert_array_equal(batch["rewards"], pay)
        np.testing.assert_array_equal(batch.reward, pay.sum(axis=1))
        vector = recipe.env.make(2)
        with closing(vector):
            for epsilon in (0.0, 0.5, 1.0):  # every return is 6 + 12 + 18 + 16 + 20 + 24, whatever is done
                assert play(trained.agent, vector, 4, epsilon, seed=3) == [96.0] * 4


REMEMBERING = {"recurrent": True, "length": 4, "standardize_rewards": True}


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("qmix", {}),
        pytest.param("qmix", REMEMBERING, marks=pytest.mark.slow),
        pytest.param("masac", {}, marks=pytest.mark.nightly),
        pytest.param("masac", REMEMBERING, marks=pytest.mark.slow),
    ],
)
def test_a_team_s_run_resumes_bit_for_bit_and_is_evaluated(algorithm, changes, tmp_path):
    recipe = quick(algorithm, **changes)
    whole, _, _ = go(run, algorithm, recipe, tmp_path / "whole")
    stopped = stopped_copy(whole, tmp_path / "stopped", 400)
    resume(stopped, {}, Console(file=io.StringIO()), trust=True)
    assert metrics(whole) == metrics(stopped)
    ours, theirs = checkpoints(whole)[-1], checkpoints(stopped)[-1]
    for name in ("weights.safetensors", "optimizer.safetensors", "random.safetensors"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name
    policy = Policy.load(whole, trust=True)
    assert policy.steps == 600 and evaluate(policy, episodes=5, seed=9, epsilon=0.3).scores == [96.0] * 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="", marks=pytest.mark.nightly),
        pytest.param({**REMEMBERING, "inference": "central"}, id="remembering"),
    ],
)
def test_actors_play_for_a_team(changes):
    """With priorities, and the agents' own rewards in the segments that they send; with what agents remember, too."""
    trained = Trained(quick("masac", own_rewards=True, prioritized=True, actors=1, segment_steps=8, **changes))
    with closing(trained):
        assert trained.last["updates"] > 0 and trained.last["episodes"] > 50
        batch = trained.store.transitions(name="test").sample(100)
        np.testing.assert_array_equal(batch.reward, batch["rewards"].sum(axis=1))


@pytest.mark.nightly
@pytest.mark.parametrize(("algorithm", "recurrent"), [("vdn", True), ("qmix", True), ("masac", True), ("qmix", False)])
def test_agents_that_remember_solve_what_others_cannot(algorithm, recurrent):
    """Without memory a team is paid at best every other time: what it was shown is no longer to be seen."""
    exploring = {} if algorithm == "masac" else {"epsilon_end": 0.3, "epsilon_steps": 0}
    memory = {"recurrent": True, "length": 3, "batch_size": 32} if recurrent else {}
    recipe = load_recipe(algorithm).override(
        env="tests.envs.tuple_world:Recall-v0", num_envs=8, steps=4_000, warmup_steps=400, update_every=8,
        capacity=4_000, hidden_units=32, learning_rate=3e-3, n_step=1, target_tau=0.05, gamma=0.95, evaluate_every=0,
        checkpoint_every=4_000, device="cpu", **memory, **exploring,
    )  # fmt: skip
    trained = Trained(recipe)
    with closing(trained):
        vector = recipe.env.make(8)
        with closing(vector):
            mean = np.mean(play(trained.agent, vector, 64, 0.0, seed=3))
    assert mean == 1 if recurrent else mean < 0.8


def test_fields_of_the_agent_stand_beside_those_of_the_infos():
    """As of a recurrent agent for teams, which stores its state."""
    recipe = quick("qmix")
    vector = recipe.env.make(1)
    with closing(vector):
        agent: Any = SimpleNamespace(step_fields=lambda: {"core": Field((3, 8), "float32", every=10)})
        assert setup.step_spec(vector, agent).extra_names == ("rewards", "core")
