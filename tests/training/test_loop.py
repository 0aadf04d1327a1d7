"""Training for real: it learns, it repeats itself for a seed, and it ends when it should."""

import resource

import numpy as np
import pytest
import torch

from sharpwave.training import setup
from sharpwave.training.callbacks import Callback, StopWhen
from sharpwave.training.progress import Progress
from sharpwave.training.recipes import load_recipe
from sharpwave.training.scores import play

from .trainer import Trained


def run(*callbacks, **changes):
    trained = Trained(load_recipe("cartpole").override(**changes), *callbacks)
    trained.close()
    return trained


@pytest.mark.parametrize("prioritized", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_the_same_seed_gives_the_same_weights(prioritized):
    changes = {"steps": 2_000, "seed": 3, "prioritized": prioritized}
    one, two = run(**changes).weights, run(**changes).weights
    other = run(**{**changes, "seed": 4}).weights
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_the_arithmetic_of_a_recipe_is_set_back():
    def subnormals():
        return np.finfo(np.float32).tiny / np.float32(2) > 0

    threads = torch.get_num_threads()
    recipe = load_recipe("cartpole")
    with setup.arithmetic(recipe.override(threads=1)):
        assert torch.get_num_threads() == 1 and not subnormals()
        with setup.arithmetic(recipe):
            pass
        assert torch.get_num_threads() == 1 and not subnormals()
    assert torch.get_num_threads() == threads and subnormals()


def test_freed_arrays_are_reused_and_not_mapped_anew():
    """An array of 4 MiB has 1024 pages, which the system would map at each of ten uses."""

    def faults():
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    with setup.arithmetic(load_recipe("cartpole")):
        torch.ones(1 << 20)
        before = faults()
        for _ in range(10):
            torch.ones(1 << 20)
        assert faults() - before < 5 * 1024


@pytest.mark.nightly
def test_cartpole_improves_clearly():
    """Random play scores some 22. After 10,000 steps the greedy agent holds the pole for hundreds of steps."""
    trained = run(steps=10_000)
    agent, summary, kept = trained.agent, trained.last, trained.kept
    assert summary["steps"] == 10_000 and "limit of 10,000 steps" in summary["reason"]
    first = sum(episode["reward"] for episode in kept.episodes[:20]) / 20
    assert first < 40
    recipe = load_recipe("cartpole")
    env = recipe.env.make(5)
    scores = play(agent, env, episodes=10, epsilon=0.0, seed=100)
    env.close()
    assert len(scores) == 10
    assert sum(scores) / 10 > 120, scores


def test_the_update_ratio_holds():
    trained = run(steps=2_000, warmup_steps=1_000, update_every=8, report_every=500)
    summary, kept = trained.last, trained.kept
    assert summary["updates"] == 1_000 // 8
    assert [report["steps"] for report in kept.reports] == [500, 1_000, 1_500, 2_000]
    assert kept.reports[0]["loss"] is None and kept.reports[-1]["avg_loss"] > 0
    assert kept.reports[-1]["replay_steps"] == 2_000


def test_it_ends_at_the_reward_and_when_interrupted():
    summary = run(steps=50_000, stop_reward=5.0, evaluate_every=1_000, evaluate_from=10.0, warmup_steps=40_000).last
    assert summary["reason"] == "a held-out mean of 5 or more, confirmed" and summary["steps"] == 1_000
    trained = run(StopWhen(lambda: "interrupted by SIGINT"), report_every=1_000)
    assert trained.last["reason"] == "interrupted by SIGINT" and len(trained.kept.reports) == 1


def test_callbacks_are_told_of_everything():
    class Halfway(Callback):
        """Wants a checkpoint when half of the steps are made."""

        def wants_checkpoint(self, training):
            return training.state.progress.steps == 1_000

    trained = run(Halfway(), steps=2_000, warmup_steps=600, evaluate_every=1_000, evaluate_from=0.0)
    kept = trained.kept
    assert (kept.begins, kept.steps, kept.updates) == (1, 2_000 // 4, 1_400 // 4)
    assert [metrics["steps"] for metrics in kept.checkpoints] == [1_000]
    assert [metrics["steps"] for metrics in kept.evaluations] == [1_000, 2_000]
    assert len(kept.episodes) == kept.end["episodes"] and kept.end["reason"] == "the limit of 2,000 steps"


def test_periods_are_passed_once_whatever_the_number_of_environments():
    progress = Progress(load_recipe("cartpole").override(num_envs=3))
    passed = []
    for _ in range(10):
        progress.advance(3)
        if progress.passed(10):
            passed.append(progress.steps)
    assert passed == [12, 21, 30]


def test_dueling_single_double_off_and_hard_targets_learn_too():
    summary = run(steps=1_500, dueling=True, double=False, target_tau=0.0, target_every=100, loss="mse").last
    assert summary["updates"] == 125 and summary["avg_loss"] > 0
