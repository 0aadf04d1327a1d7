"""Self-prediction: windows that begin with each transition, losses by hand, and runs that resume exactly."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

import sharpwave as sw
from sharpwave.agents.protocol import Spaces
from sharpwave.agents.rainbow import Rainbow
from sharpwave.agents.replay import FollowedTransitions, TransitionsSettings
from sharpwave.agents.self_prediction import first_transitions, prediction_losses, renormalized
from tests.training.test_resume import go, stopped_copy

SETTINGS = TransitionsSettings(n_step=3, gamma=0.9, prioritized=True, priority_alpha=0.5)


@pytest.fixture
def store():
    """Episodes of 1 to 9 steps, ended by either way and in the middle."""
    rng = np.random.default_rng(0)
    with sw.Store(sw.Spec(obs=sw.Field((), "float32", stack=2), action=sw.Field((), "int64")), capacity=500) as store:
        for length in (1, 9, 2, 5, 3):
            store.add_episode(
                obs=rng.normal(size=length + 1).astype(np.float32),
                action=rng.integers(0, 4, length),
                reward=rng.normal(size=length).astype(np.float32),
                terminated=bool(length % 2),
            )
        yield store


def views(store, following=4):
    followed = FollowedTransitions(**vars(SETTINGS), following=following)
    return SETTINGS.open(store, "plain", 0), followed.open(store, "followed", 0)


def by_step(batch):
    return {int(step): row for row, step in enumerate(batch.step)}


@pytest.mark.parametrize("following", [1, 4, 12])
def test_each_transition_begins_a_window(store, following):
    plain, followed = views(store, following)
    assert len(plain) == len(followed) == 20
    transitions, windows = plain.sample(400).torch(), followed.sample(400).torch()
    ours, theirs = first_transitions(windows), by_step(transitions)
    assert set(by_step(windows)) == set(theirs)
    rows = [theirs[int(step)] for step in windows.step]
    for name in ("obs", "next_obs", "action", "reward", "discount"):
        torch.testing.assert_close(getattr(ours, name), getattr(transitions, name)[rows], rtol=0, atol=1e-6)


def test_the_steps_of_a_window_are_followed_by_what_came_after_them(store):
    """Where the mask says so, the observation behind a step is that of the step's own transition."""
    _, followed = views(store)
    single = replace(SETTINGS, n_step=1).open(store, "single", 0).sample(400).torch()
    windows, at = followed.sample(400).torch(), by_step(single)
    for row, step in enumerate(windows.step.tolist()):
        for column in range(int(windows.mask[row].sum())):
            after = single.next_obs[at[step + column]]
            torch.testing.assert_close(windows.obs[row, column + 1], after)
            assert windows.action[row, column] == single.action[at[step + column]]


def test_priorities_are_those_of_the_first_steps(store):
    plain, followed = views(store)
    transitions, windows = plain.sample(200).copy(), followed.sample(200).copy()
    error = {step: 1.0 + step for step in range(20)}
    plain.update_priorities(transitions, np.array([error[step] for step in transitions.step.tolist()], np.float32))
    padded = np.zeros((200, 4), np.float32)
    padded[:, 0] = [-error[step] for step in windows.step.tolist()]
    followed.update_priorities(windows, padded)
    expected, found = (
        dict(zip(batch.step.tolist(), batch.probabilities.tolist(), strict=True))
        for batch in (plain.sample(2_000), followed.sample(2_000))
    )
    assert found == pytest.approx(expected)


def test_features_reach_from_0_to_1():
    found = renormalized(torch.tensor([[1.0, 3.0, 2.0], [5.0, 5.0, 5.0]]))
    torch.testing.assert_close(found, torch.tensor([[0.0, 1.0, 0.5], [0.0, 0.0, 0.0]]), rtol=0, atol=1e-5)


def test_losses_are_one_minus_the_cosine_over_real_steps():
    """Angles of 0, 90 and 180 degrees, of vectors of any length; the third item has one real step."""
    predicted = torch.tensor([[[1.0, 1.0], [2.0, 0.0]], [[3.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [9.0, 9.0]]])
    target = torch.tensor([[[2.0, 2.0], [0.0, 5.0]], [[-1.0, 0.0], [1.0, math.sqrt(3)]], [[1.0, 0.0], [-9.0, -9.0]]])
    mask = torch.tensor([[True, True], [True, True], [True, False]])
    torch.testing.assert_close(prediction_losses(predicted, target, mask), torch.tensor([0 + 1.0, 2 + 0.5, 1.0]))


def test_it_needs_the_convolutions_of_one_image():
    image = Box(0, 255, (4, 12, 12), np.uint8)
    for space in (Box(-1, 1, (8,), np.float32), Dict(eye=image, arm=Box(-1, 1, (3,), np.float32))):
        with pytest.raises(ValueError, match="--self-prediction: got 5, expected 0, or observations of one image"):
            Rainbow(Spaces(space, Discrete(3)), Rainbow.Settings(self_prediction=5))
    with pytest.raises(ValueError, match="--self-prediction: got 5, expected 0 with --novelty"):
        Rainbow.Settings(self_prediction=5, novelty="rnd")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.slow
def test_the_model_and_the_torso_learn_in_either_precision(precision):
    """Frames drift to the right or to the left, as the action says; the model finds out which."""
    torch.manual_seed(0)
    spaces, rng = Spaces(Box(0, 255, (1, 12, 12), np.uint8), Discrete(2)), np.random.default_rng(0)
    settings: dict[str, Any] = {"network": "tiny", "hidden_units": 32, "lr": 1e-3, "precision": precision}
    agent = Rainbow(spaces, Rainbow.Settings(**settings, self_prediction=3, target_tau=0.05), seed=0)
    spec = sw.Spec(obs=sw.Field((1, 12, 12), "uint8"), action=sw.Field((), "int64"))
    with sw.Store(spec, capacity=2_000) as store:
        view = agent.replay().open(store, None, 0)
        for _ in range(50):
            action = rng.integers(0, 2, 20)
            column = np.cumsum(np.concatenate([[rng.integers(12)], 2 * action - 1])) % 12
            obs = np.zeros((21, 1, 12, 12), np.uint8)
            obs[np.arange(21), 0, 4:8, column] = 255
            store.add_episode(obs=obs, action=action, reward=np.zeros(20, np.float32), terminated=True)
        apart = [float(agent.learn(view.sample(32).torch(), 0).metrics["self_prediction"]) for _ in range(150)]
    assert np.mean(apart[-10:]) < 0.4 * np.mean(apart[:3])


@pytest.mark.slow
def test_a_resumed_run_is_the_run_that_was_not_stopped(tmp_path):
    """With all options at once, and a reset on either side of the checkpoint."""
    from sharpwave.training.recipes import load_recipe
    from sharpwave.training.run import resume, run

    recipe = load_recipe("sr-spr").override(
        env="pong", steps=180, checkpoint_every=60, report_every=60, capacity=500, warmup_steps=40, utd=0.5,
        batch_size=4, hidden_units=8, network="efficient", reset_every=25, reset_until=150, noisy=True,
        noisy_epsilon=True, evaluate_every=0, precision="float32", threads=1, augmentations=2, seed=5,
    )  # fmt: skip
    whole, summary, _ = go(run, "sr-spr", recipe, tmp_path / "whole")
    assert summary["updates"] == 70 and np.isfinite(summary["loss"]) and 0 < summary["learner"]["self_prediction"] < 2
    stopped = stopped_copy(whole, tmp_path / "stopped", 120)
    go(resume, stopped, {})
    for name in ("weights", "optimizer", "random"):
        ours, theirs = (folder / f"checkpoints/000000000180/{name}.safetensors" for folder in (whole, stopped))
        assert ours.read_bytes() == theirs.read_bytes()
