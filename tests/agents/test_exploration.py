"""Schedules and epsilon-greedy actions."""

import numpy as np
import pytest

from sharpwave.agents.exploration import EpsilonGreedy, epsilon_greedy, epsilon_ladder
from sharpwave.agents.schedules import linear


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 1.0), (25, 0.775), (50, 0.55), (100, 0.1), (1_000, 0.1)],  # 1 - .9 * step / 100
)
def test_epsilon_goes_down_in_a_straight_line_and_stays(step, expected):
    assert linear(step, 1.0, 0.1, 100) == pytest.approx(expected)


@pytest.mark.parametrize(("step", "expected"), [(0, 0.4), (50, 0.7), (100, 1.0), (101, 1.0)])
def test_beta_goes_up_to_one(step, expected):
    assert linear(step, 0.4, 1.0, 100) == pytest.approx(expected)


def test_a_way_of_no_steps_is_at_its_end():
    assert linear(0, 1.0, 0.1, 0) == 0.1


def test_ladder_of_ape_x():
    # .4^1, .4^(1 + 7/2), .4^8
    np.testing.assert_allclose(epsilon_ladder(0.4, 3, 7.0), [0.4, 0.4**4.5, 0.4**8])


def test_ladder_without_exponent_is_level():
    np.testing.assert_allclose(epsilon_ladder(0.3, 4, 0.0), [0.3] * 4)
    np.testing.assert_allclose(epsilon_ladder(0.3, 1, 7.0), [0.3])


def test_epsilon_zero_is_greedy_and_epsilon_one_is_even():
    greedy = np.full(30_000, 2)
    rng = np.random.default_rng(0)
    assert (epsilon_greedy(greedy, 3, 0.0, rng) == 2).all()
    counts = np.bincount(epsilon_greedy(greedy, 3, 1.0, rng), minlength=3)
    np.testing.assert_allclose(counts / 30_000, 1 / 3, atol=0.015)  # five standard deviations: .0136


def test_each_lane_has_its_own_epsilon():
    actions = epsilon_greedy(np.zeros(2, np.int64), 1_000_000, np.array([0.0, 1.0]), np.random.default_rng(0))
    assert actions[0] == 0 and actions[1] != 0


def test_who_shows_what_was_learned():
    # .4 ** (1, 2, ... 8): .4, .16, .064, .0256, ...
    def scored(end, lanes, ladder):
        return EpsilonGreedy(end=end, ladder=ladder).scored(lanes)

    assert scored(0.4, 8, 7.0).tolist() == [False] * 3 + [True] * 5
    assert scored(0.4, 3, 1.0).tolist() == [False, False, True]  # .4, .253, .16: none explores little
    assert scored(0.4, 3, 0.0).all() and scored(0.01, 3, 7.0).all() and scored(0.0, 1, 0.0).all()
