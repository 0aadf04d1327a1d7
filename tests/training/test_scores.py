"""Scores and running means, by hand."""

import numpy as np
import pytest

from sharpwave.training.scores import EpisodeScore, EpisodeSums, Scores, running_mean


def test_running_mean_starts_at_the_first_value():
    assert running_mean(None, 5.0) == 5.0
    assert running_mean(5.0, 10.0) == pytest.approx(5.1)  # .98 * 5 + .02 * 10
    assert running_mean(2.0, 4.0, alpha=0.5) == pytest.approx(3.0)


def test_each_lane_adds_up_its_own_episode():
    sums, scores = EpisodeSums(2), Scores(np.ones(2, np.bool_))
    assert sums.add(np.array([1.0, 10.0]), np.array([False, False])) == []
    first = sums.add(np.array([2.0, 20.0]), np.array([True, False]))
    rest = sums.add(np.array([5.0, 30.0]), np.array([True, True]))
    assert first == [EpisodeScore(3.0, 2, 0)] and rest == [EpisodeScore(5.0, 1, 0), EpisodeScore(60.0, 3, 1)]
    for episode in (*first, *rest):
        scores.add(episode)
    assert scores.count == 3
    assert scores.mean_reward == pytest.approx((3 + 5 + 60) / 3)
    assert scores.avg_reward == pytest.approx(0.98 * (0.98 * 3 + 0.02 * 5) + 0.02 * 60)


def test_episodes_that_are_broken_off_leave_nothing():
    sums = EpisodeSums(1)
    sums.add(np.array([7.0]), np.array([False]))
    sums.break_off()
    assert sums.add(np.array([2.0]), np.array([True])) == [EpisodeScore(2.0, 1, 0)]


def test_the_window_moves():
    scores = Scores(np.ones(1, np.bool_), window=3)
    for reward in (9.0, 9.0, 0.0, 9.3):
        scores.add(EpisodeScore(reward, 1, 0))
    assert scores.mean_reward == pytest.approx(6.1)


def test_lanes_that_explore_much_do_not_count_for_the_means():
    scores = Scores(np.array([False, True]), window=2)
    scores.add(EpisodeScore(-21.0, 1, 0))
    assert scores.count == 1 and scores.mean_reward is None and scores.avg_reward is None
    scores.add(EpisodeScore(19.0, 2, 1))
    assert scores.mean_reward == scores.avg_reward == 19.0
    scores.add(EpisodeScore(-42.0, 2, 0))
    scores.add(EpisodeScore(20.0, 1, 1))
    assert scores.count == 4 and scores.mean_reward == 19.5


def test_nothing_played_yet():
    scores = Scores(np.ones(1, np.bool_))
    assert scores.mean_reward is None and scores.avg_reward is None
