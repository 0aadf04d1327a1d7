"""Forms of actions, and back."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space

from sharpwave.agents.actions import NumberedActions
from sharpwave.agents.continuous import BoxActions
from sharpwave.agents.protocol import Spaces


def numbered(space: Space) -> NumberedActions:
    return NumberedActions(Spaces(Box(-1, 1, (2,)), space, "the toy"), "dqn")


def test_the_last_part_counts_fastest():
    """Sizes 3 and 2 from (1, -1): (1, -1), (1, 0), (2, -1), (2, 0), (3, -1), (3, 0)."""
    actions = numbered(MultiDiscrete([3, 2], start=[1, -1]))
    expected = np.array([[1, -1], [1, 0], [2, -1], [2, 0], [3, -1], [3, 0]])
    assert actions.count == 6
    np.testing.assert_array_equal(actions.actions(np.arange(6)), expected)
    np.testing.assert_array_equal(actions.numbers(expected), np.arange(6))


SPACES = [
    Discrete(4),
    Discrete(4, start=5),
    Discrete(4, start=-9),
    Discrete(3, start=2, dtype=np.int32),
    Discrete(6, start=250, dtype=np.uint8),
    MultiDiscrete([7]),
    MultiDiscrete([16, 16, 16], dtype=np.int8),  # 4,096 numbers: more than an int8 holds
    MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 1], [-2, 3]])),
    MultiBinary(5),
    MultiBinary((2, 3)),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_numbers_and_actions_are_inverse(space):
    actions = numbered(space)
    numbers = np.arange(actions.count)
    made = actions.actions(numbers)
    assert made.shape == (actions.count, *space.shape)
    assert all(space.contains(one[()]) for one in made[:: max(1, actions.count // 100)])
    assert len(np.unique(made.reshape(actions.count, -1), axis=0)) == actions.count and actions.valid(made).all()
    np.testing.assert_array_equal(actions.numbers(made), numbers)
    windows = torch.from_numpy(np.stack([made, made[::-1]]))  # [B, T, ...], as a batch has them
    np.testing.assert_array_equal(actions.numbers(windows), np.stack([numbers, numbers[::-1]]))


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_padding_has_a_number(space):
    actions = numbered(space)
    number = actions.numbers(torch.zeros((1, *space.shape), dtype=torch.int64))
    assert number.shape == (1,) and 0 <= number.item() < actions.count


def test_what_is_no_action_is_not_valid():
    assert numbered(Discrete(3, start=1)).valid(np.array([0, 1, 3, 4])).tolist() == [False, True, True, False]
    made = np.array([[1, -1], [1, 1], [0, 0], [3, 0]])
    assert numbered(MultiDiscrete([3, 2], start=[1, -1])).valid(made).tolist() == [True, False, False, True]


def test_too_many_actions_are_refused_by_their_number():
    with pytest.raises(ValueError, match=r"dqn: the toy has MultiBinary\(13\), 8,192 actions in all, expected at most"):
        numbered(MultiBinary(13))
    assert numbered(Discrete(10_000)).count == 10_000


def box(low, high, dtype=np.float32) -> BoxActions:
    return BoxActions(Spaces(Box(-1, 1, (2,)), Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)), "sac")


def test_continuous_actions_are_scaled_to_their_bounds():
    actions = box([-2.0, 0.5], [2.0, 3.5])
    made = actions.actions(np.array([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [0.5, -0.5]], np.float32))
    np.testing.assert_array_equal(made, np.array([[-2.0, 0.5], [0.0, 2.0], [2.0, 3.5], [1.0, 1.25]], np.float32))
    back = actions.scaled(torch.from_numpy(made))
    assert back.dtype == torch.float32 and back.tolist() == [[-1, -1], [0, 0], [1, 1], [0.5, -0.5]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-0.3, 0.7), (1e-3, 1e3)])
def test_scaled_actions_keep_to_the_space_and_come_back(low, high, dtype):
    rng = np.random.default_rng(0)
    actions = box(np.full((3, 2), low), np.full((3, 2), high), dtype)
    scaled = np.concatenate([rng.uniform(-1, 1, (1_000, 6)), np.ones((1, 6)), -np.ones((1, 6))]).astype(np.float32)
    made = actions.actions(scaled)
    space = Box(low, high, (3, 2), dtype)
    assert made.shape == (1_002, 3, 2) and made.dtype == dtype and all(space.contains(one) for one in made)
    np.testing.assert_allclose(actions.scaled(torch.from_numpy(made)), scaled, rtol=0, atol=3e-7)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Discrete(3), "sac needs continuous actions; the toy has Discrete.3.; expected a Box of floats"),
        (Box(0, 9, (2,), np.int64), "expected a Box of floats"),
        (Box(-1, np.inf, (1,)), "sac: the toy has actions from .-1.0. to .inf., expected finite bounds"),
        (Box(1, 1, (1,)), "expected finite bounds, the lower below the upper"),
    ],
    ids=str,
)
def test_actions_that_cannot_be_scaled_are_refused(space, message):
    with pytest.raises(ValueError, match=message):
        BoxActions(Spaces(Box(-1, 1, (2,)), space, "the toy"), "sac")
