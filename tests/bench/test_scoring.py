"""IQM and its interval against rliable's definitions, and by hand."""

import numpy as np
import pytest

from sharpwave.bench import scoring


def test_the_iqm_is_the_mean_of_the_middle_half():
    # Of eight scores two are cut at each end: (3 + 4 + 5 + 6) / 4.
    assert scoring.interquartile_mean([1, 2, 3, 4, 5, 6, 7, 1000]) == 4.5
    # Five: int(.25 * 5) = 1 at each end.
    assert scoring.interquartile_mean([0.0, 1, 1, 1, 5]) == 1.0
    # Tasks are pooled: rliable flattens (seeds, tasks).
    assert scoring.interquartile_mean([[1, 2, 3, 4], [5, 6, 7, 1000]]) == 4.5


def test_the_interval_resamples_seeds_within_tasks():
    """As rliable's StratifiedBootstrap: an index a seed and task, each drawn from the task's own seeds."""
    rng = np.random.default_rng(1)
    scores = np.stack([rng.normal(0, 1, 5), rng.normal(10, 1, 5)])
    low, high = scoring.interval(scores.tolist())
    means = []
    for _ in range(20_000):
        drawn = np.stack([task[rng.integers(0, 5, 5)] for task in scores])
        means.append(np.mean(sorted(drawn.ravel())[2:8]))  # of ten, two are cut at each end
    np.testing.assert_allclose([low, high], np.percentile(means, [2.5, 97.5]), atol=0.06)
    assert low < scoring.interquartile_mean(scores.tolist()) < high
    # Resampled over tasks as well, the interval would reach from 0 to 10.
    assert high - low < 2


def test_scipy_agrees():
    """rliable's IQM is ``scipy.stats.trim_mean(scores, proportiontocut=.25, axis=None)``."""
    stats = pytest.importorskip("scipy.stats")
    for count in range(1, 30):
        scores = np.random.default_rng(count).normal(size=count)
        assert scoring.interquartile_mean(scores.tolist()) == pytest.approx(stats.trim_mean(scores, 0.25))


def test_equal_scores_have_no_width():
    assert scoring.interval([[1.0] * 5]) == (1.0, 1.0)


def test_the_same_seed_gives_the_same_interval():
    scores = [[0.1, 0.5, 0.9, 0.2, 0.4]]
    assert scoring.interval(scores, 50) == scoring.interval(scores, 50) != scoring.interval(scores, 50, seed=1)
