"""RLPD: batches of demonstrations and own steps, whole runs that learn from a few of them, and what is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.agents.demonstrations import DemonstratedReplay
from sharpwave.training import setup
from sharpwave.training.recipes import load_recipe
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.run import resume, run

from .test_resume import go, metrics, stopped_copy
from .trainer import Trained

SHORT: dict[str, Any] = {
    "env": "tests.training.made_up:FarGoal-v0", "num_envs": 1, "steps": 900, "warmup_steps": 300,
    "random_steps": 300, "capacity": 4_000, "checkpoint_every": 300, "report_every": 300, "batch_size": 64,
    "hidden_units": 32, "utd": 1.0, "policy_delay": 1, "learning_rate": 3e-3, "evaluate_every": 900, "gamma": 0.97,
    "precision": "float32", "temperature": 0.01, "target_tau": 0.05, "n_step": 3, "threads": 1,
}  # fmt: skip


def recorded(folder: Path, episodes: int = 5, action: float = 1.0) -> Path:
    """Episodes of a point that goes straight to the goal."""
    with sw.Store(sw.Spec(obs=sw.Field((1,), "float32"), action=sw.Field((1,), "float32")), capacity=1_000) as store:
        for _ in range(episodes):
            at = np.zeros(1, np.float32)
            for step in range(20):
                after = at + np.float32(0.1)
                store.append(
                    obs=at, action=np.full(1, action), reward=float(step == 19), terminated=step == 19, truncated=False,
                    final_obs=after,
                )  # fmt: skip
                at = after
        store.checkpoint(folder)
    return folder


def recipe(folder: Path, **changes: Any) -> Recipe:
    return load_recipe("rlpd").override(**{**SHORT, "critics": 4, **changes}, demonstrations=str(folder))


def test_the_settings_are_those_of_the_paper() -> None:
    own = load_recipe("rlpd")
    agent = own.agent
    assert (agent.critics, agent.target_critics, agent.layer_norm, agent.utd) == (10, 2, True, 20.0)
    assert (agent.demonstration_share, agent.replay.batch_size, agent.replay.gamma, agent.lr) == (0.5, 256, 0.99, 3e-4)
    assert agent.ascends_mean and own.update_ratio == 20


@pytest.mark.nightly
def test_a_goal_that_chance_does_not_find_is_learned_from_five_demonstrations(tmp_path: Path) -> None:
    trained = Trained(recipe(recorded(tmp_path / "demos")))
    assert isinstance(trained.view, DemonstratedReplay)
    np.testing.assert_allclose(trained.view.shares(), [0.5, 0.5])
    assert trained.last["updates"] == 900 - 300
    assert np.mean(trained.kept.evaluations[-1]["scores"]) == 1.0
    trained.close()
    changes = {key: value for key, value in SHORT.items() if key != "utd"}
    alone = Trained(load_recipe("sac").override(**changes, utd=1.0, critics=4, target_critics=2, layer_norm=True))
    assert max(episode["reward"] for episode in alone.kept.episodes) == 0
    alone.close()


@pytest.mark.slow
def test_a_resumed_run_repeats_the_run_that_was_not_stopped(tmp_path: Path) -> None:
    own = recipe(recorded(tmp_path / "demos"), utd=0.3)
    whole, summary, _ = go(run, "rlpd", own, tmp_path / "whole")
    assert summary["updates"] == 180
    stopped = stopped_copy(whole, tmp_path / "stopped", 600)
    go(partial(resume, trust=True), stopped, {})  # its environment is a module of the tests
    assert metrics(whole) == metrics(stopped)
    for name in ("weights", "optimizer"):
        found = [next((one / "checkpoints").glob(f"*900/{name}.safetensors")).read_bytes() for one in (whole, stopped)]
        assert found[0] == found[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"demonstrations": ""}, "rlpd needs --demonstrations FOLDER"),
        ({"action": 1.5}, r"demonstrations: '.*' has action \[1\.5\], expected those of .*FarGoal-v0, Box"),
    ],
)
def test_missing_and_impossible_demonstrations_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = recorded(tmp_path / "demos", action=changes.get("action", 1.0))
    own = recipe(folder).override(**{k: v for k, v in changes.items() if k == "demonstrations"})
    env = own.env.make(1)
    with pytest.raises(ValueError, match=message):
        setup.memory(own, env, setup.agent(own, env))
    env.close()
