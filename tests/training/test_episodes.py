"""Scores and running means, by hand."""

import numpy as np
import pytest

from sharpwave.training.episodes import Episode, Episodes, running_mean


def test_running_mean_starts_at_the_first_value():
    assert running_mean(None, 5.0) == 5.0
    assert running_mean(5.0, 10.0) == pytest.approx(5.1)  # .98 * 5 + .02 * 10
    assert running_mean(2.0, 4.0, alpha=0.5) == pytest.approx(3.0)


def test_each_lane_adds_up_its_own_episode():
    episodes = Episodes(2)
    assert episodes.add(np.array([1.0, 10.0]), np.array([False, False])) == []
    assert episodes.add(np.array([2.0, 20.0]), np.array([True, False])) == [Episode(3.0, 2, 0)]
    assert episodes.add(np.array([5.0, 30.0]), np.array([True, True])) == [Episode(5.0, 1, 0), Episode(60.0, 3, 1)]
    assert episodes.count == 3
    assert episodes.mean_reward == pytest.approx((3 + 5 + 60) / 3)
    assert episodes.avg_reward == pytest.approx(0.98 * (0.98 * 3 + 0.02 * 5) + 0.02 * 60)


def test_the_window_moves():
    episodes = Episodes(1, window=3)
    for reward in (9.0, 9.0, 0.0, 9.3):
        episodes.add(np.array([reward]), np.array([True]))
    assert episodes.mean_reward == pytest.approx(6.1)


def test_environments_that_explore_much_do_not_count_for_the_means():
    episodes = Episodes(2, window=2, scored=np.array([False, True]))
    ended = np.array([True, False])
    assert episodes.add(np.array([-21.0, 0.0]), ended) == [Episode(-21.0, 1, 0)]
    assert episodes.count == 1 and episodes.mean_reward is None and episodes.avg_reward is None
    episodes.add(np.array([-21.0, 19.0]), ~ended)
    assert episodes.mean_reward == episodes.avg_reward == 19.0
    episodes.add(np.array([-21.0, 20.0]), np.array([True, True]))
    assert episodes.count == 4 and episodes.mean_reward == 19.5


def test_nothing_played_yet():
    assert Episodes(1).mean_reward is None and Episodes(1).avg_reward is None
