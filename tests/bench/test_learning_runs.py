"""Runs of agents from seeds: a file of lines that grows, normalization by the best, and an ablation end to end."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from sharpwave.bench import learning_runs
from sharpwave.bench.learning_runs import all_runs, by_agent, lines_of, normalized
from sharpwave.training.interquartile import interquartile_mean, interval

LINE = "import json, sys; print('noise'); print(json.dumps(dict(task=sys.argv[1], agent='a', seed=3, score=2.0)))"


def test_only_runs_that_the_file_lacks_are_made(tmp_path):
    out, made = tmp_path / "lines.jsonl", []
    out.write_text(json.dumps({"task": "old", "agent": "a", "seed": 3, "score": 1.0}) + "\n")

    def command(key, folder):
        made.append((key, folder.name))
        return [sys.executable, "-c", LINE, key[0]]

    for _ in range(2):
        lines = all_runs([("old", "a", 3), ("new", "a", 3)], command, tmp_path / "runs", out, 1)
        assert [line["score"] for line in lines] == [1.0, 2.0]
    assert made == [(("new", "a", 3), "new-a-3")] and len(lines_of(out)) == 2


def test_a_run_that_fails_ends_the_rest(tmp_path):
    made = []

    def command(key, folder):
        made.append(key)
        return [sys.executable, "-c", "import sys; sys.exit(3)"]

    with pytest.raises(RuntimeError, match="ended with 3"):
        all_runs([("t", "a", seed) for seed in range(3)], command, tmp_path / "runs", tmp_path / "lines.jsonl", 1)
    assert made == [("t", "a", 0)]


def test_scores_are_divided_by_the_best_mean_of_each_task():
    lines = [
        {"task": task, "agent": agent, "score": score}
        for agent, task, score in [("a", "x", 1.0), ("a", "x", 3.0), ("b", "x", 4.0), ("a", "y", 10.0), ("b", "y", 5.0)]
    ]
    assert normalized(by_agent(lines)) == {"a": {"x": [0.25, 0.75], "y": [1.0]}, "b": {"x": [1.0], "y": [0.5]}}
    with pytest.raises(ValueError, match=r"y: the best mean is 0, expected one above 0"):
        normalized({"a": {"x": [1.0], "y": [0.0]}})


def test_each_arm_lacks_its_part_or_has_another():
    whole = learning_runs.recipe_of("MinAtar/Breakout-v1", learning_runs.WHOLE, 1, 10_000).agent
    assert 0 < whole.munchausen < 0.9 and whole.head == "qr" and whole.replay.n_step == 1
    assert not (whole.dueling or whole.noisy or whole.replay.prioritized)
    agents = {arm: learning_runs.recipe_of("MinAtar/Breakout-v1", arm, 1, 10_000).agent for arm in learning_runs.ARMS}
    assert len(set(agents.values())) == 11
    none, noise, dueling = agents[learning_runs.NONE], agents["with noise"], agents["with dueling"]
    assert not (none.double or none.munchausen) and none.head == "expected"
    assert agents["without Munchausen"].double and agents["with n-step"].replay.n_step == 3
    assert agents["without Munchausen"].munchausen == 0 and agents["with more Munchausen"].munchausen == 0.9
    assert noise.noisy and noise.noisy_epsilon and agents["with priorities"].replay.prioritized
    assert agents["with priorities"].replay.beta(10_000) == 1.0 > agents["with priorities"].replay.beta(9_999)
    heads = [agents[arm].head for arm in ("without quantiles", "with c51", "with iqn")]
    assert heads == ["expected", "c51", "iqn"]
    assert dueling.dueling and 2 * dueling.hidden_units == whole.hidden_units


def test_an_ablation_has_a_row_for_each_arm_and_a_picture(tmp_path):
    lines = [
        {"task": "t", "agent": arm, "seed": seed, "score": 20.0 - place + seed, "limit": 5}
        for place, arm in enumerate(learning_runs.ARMS)
        for seed in range(2)
    ]
    out = tmp_path / "learning_runs.jsonl"
    out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    again = learning_runs.ablate(["t"], range(2), 5, 1, out)
    found = learning_runs.rows(again)
    assert found["rainbow"] == {"runs": 2, "iqm": 20.5, "low": 20.0, "high": 21.0, "ratio": 1.0}
    assert found["none of them"]["ratio"] == pytest.approx(10.5 / 20.5)
    learning_runs.draw(found, "score", tmp_path / "learning_runs.png")
    assert (tmp_path / "learning_runs.png").stat().st_size > 5_000
    with pytest.raises(ValueError, match="holds runs of 5 steps, expected 6"):
        learning_runs.ablate(["t"], range(2), 6, 1, out)


def test_the_iqm_is_the_mean_of_the_middle_half():
    # Of eight scores two are cut at each end: (3 + 4 + 5 + 6) / 4.
    assert interquartile_mean([1, 2, 3, 4, 5, 6, 7, 1000]) == 4.5
    # Five: int(.25 * 5) = 1 at each end.
    assert interquartile_mean([0.0, 1, 1, 1, 5]) == 1.0
    # Tasks are pooled: rliable flattens (seeds, tasks).
    assert interquartile_mean([[1, 2, 3, 4], [5, 6, 7, 1000]]) == 4.5


def test_the_interval_resamples_seeds_within_tasks():
    """As rliable's StratifiedBootstrap: an index a seed and task, each drawn from the task's own seeds."""
    rng = np.random.default_rng(1)
    scores = np.stack([rng.normal(0, 1, 5), rng.normal(10, 1, 5)])
    low, high = interval(scores.tolist())
    means = []
    for _ in range(20_000):
        drawn = np.stack([task[rng.integers(0, 5, 5)] for task in scores])
        means.append(np.mean(sorted(drawn.ravel())[2:8]))  # of ten, two are cut at each end
    np.testing.assert_allclose([low, high], np.percentile(means, [2.5, 97.5]), atol=0.06)
    assert low < interquartile_mean(scores.tolist()) < high
    # Resampled over tasks as well, the interval would reach from 0 to 10.
    assert high - low < 2


def test_scipy_agrees():
    """rliable's IQM is ``scipy.stats.trim_mean(scores, proportiontocut=.25, axis=None)``."""
    stats = pytest.importorskip("scipy.stats")
    for count in range(1, 30):
        scores = np.random.default_rng(count).normal(size=count)
        assert interquartile_mean(scores.tolist()) == pytest.approx(stats.trim_mean(scores, 0.25))


def test_equal_scores_have_no_width():
    assert interval([[1.0] * 5]) == (1.0, 1.0)


def test_the_same_seed_gives_the_same_interval():
    scores = [[0.1, 0.5, 0.9, 0.2, 0.4]]
    assert interval(scores, 50) == interval(scores, 50) != interval(scores, 50, seed=1)
