"""Schedules, epsilon-greedy and softmax actions."""

import numpy as np
import pytest

from sharpwave.agents.actions import epsilon_greedy, softmax_actions
from sharpwave.agents.exploration import EpsilonGreedy, Softmax, epsilon_ladder
from sharpwave.agents.replay import linear


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


@pytest.mark.parametrize(("step", "expected"), [(0, 1.0), (49, 1.0), (50, 1.0), (100, 0.55), (150, 0.1), (999, 0.1)])
def test_a_held_schedule_begins_after_the_warm_up(step, expected):
    assert EpsilonGreedy(end=0.1, steps=100, hold=50).level(step) == pytest.approx(expected)


def test_held_for_some_steps_then_at_its_end_at_once():
    assert [EpsilonGreedy(end=0.1, steps=0, hold=50).level(step) for step in (0, 49, 50)] == [1.0, 1.0, 0.1]


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


def test_softmax_probabilities():
    """e^0, e^(ln 2), e^(ln 5) are 1, 2 and 5, so at temperature 1 the actions have 1/8, 2/8 and 5/8."""
    values = np.tile(np.log([1.0, 2.0, 5.0]).astype(np.float32), (30_000, 1))
    rng = np.random.default_rng(0)
    counts = np.bincount(softmax_actions(values, np.ones(30_000), rng), minlength=3)
    np.testing.assert_allclose(counts / 30_000, [1 / 8, 2 / 8, 5 / 8], atol=0.014)  # five standard deviations
    counts = np.bincount(softmax_actions(values, np.full(30_000, 0.5), rng), minlength=3)
    np.testing.assert_allclose(counts / 30_000, [1 / 30, 4 / 30, 25 / 30], atol=0.014)  # squares


def test_softmax_is_greedy_at_zero_and_overflows_nowhere():
    values = np.array([[1e30, -1e30, 0.0], [0.0, 1e-3, -1.0]], np.float32)
    rng = np.random.default_rng(0)
    for _ in range(20):
        assert softmax_actions(values, np.zeros(2), rng).tolist() == [0, 1]
        assert softmax_actions(values, np.array([1e-300, 1e-9]), rng).tolist() == [0, 1]


def test_temperatures_fall_and_form_a_ladder():
    softmax = Softmax(start=2.0, end=0.5, steps=100, hold=10, ladder=4.0)
    assert [softmax.level(step) for step in (0, 10, 60, 110)] == [2.0, 2.0, 1.25, 0.5]
    np.testing.assert_allclose(softmax.temperatures(0, 3), [2.0, 1.0, 0.5])  # 2 / 4^0, 2 / 4^.5, 2 / 4
    assert softmax.scored(3).tolist() == [False, False, True] and Softmax().scored(3).all()
    assert softmax.scored(1).tolist() == [True]


@pytest.mark.parametrize("strategy", [EpsilonGreedy(start=0.5, ladder=7.0), Softmax(ladder=1e6)])
def test_a_part_of_the_lanes_has_its_own_rungs(strategy):
    """Lanes 2 and 3 of four hardly explore; lanes 0 and 1 do."""
    values, rng = np.tile([0.0, 1.0], (2, 1)), np.random.default_rng(0)
    first = [strategy.choose(values, 0, slice(0, 2), 4, rng)[0] for _ in range(100)]
    last = [strategy.choose(values, 0, slice(2, 4), 4, rng)[1] for _ in range(100)]
    assert 0 in first and np.mean(last) > 0.95


def test_values_are_ignored_only_where_every_action_is_random():
    epsilon = EpsilonGreedy(steps=100, hold=10)
    assert epsilon.ignores_values(10, slice(0, 2), 2) and not epsilon.ignores_values(11, slice(0, 2), 2)
    assert not Softmax(start=1e9).ignores_values(0, slice(0, 2), 2)
