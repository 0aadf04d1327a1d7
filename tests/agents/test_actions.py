"""Numbers of actions, and back."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space

from sharpwave.agents.actions import NumberedActions
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
