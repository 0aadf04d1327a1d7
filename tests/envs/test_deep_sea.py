"""The deep sea: who finds the treasure, what else there is to gain, and that no action means right everywhere."""

import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from sharpwave.envs import make_env
from sharpwave.envs.small_tasks import DeepSea


def play(env, moves):
    """Return the sum of rewards and the columns of an episode of moves, True for right, by looking into the sea."""
    cell, _ = env.reset()
    total, columns, ended = 0.0, [], False
    for right in moves:
        row, column = divmod(int(cell), env._size)
        columns.append(column)
        assert row == len(columns) - 1 and not ended
        action = env._right[row, column] if right else 1 - env._right[row, column]
        cell, reward, ended, truncated, _ = env.step(np.int64(action))
        total += reward
        assert not truncated and env.observation_space.contains(cell)
    assert ended and cell == env._size**2
    return total, columns


def test_only_steps_to_the_right_from_first_to_last_find_the_treasure():
    returns = {moves: play(DeepSea(size=6), moves)[0] for moves in itertools.product([False, True], repeat=6)}
    assert returns.pop((True,) * 6) == pytest.approx(0.99)
    assert all(total == pytest.approx(-sum(moves) * 0.01 / 6) for moves, total in returns.items())


def test_walls_hold_on_both_sides():
    assert play(DeepSea(size=4), [False, False, True, False])[1] == [0, 0, 0, 1]
    assert play(DeepSea(size=4), [True] * 4)[1] == [0, 1, 2, 3]


def test_which_action_means_right_is_drawn_for_each_cell_and_stays():
    one, same, other = DeepSea(mapping=1), DeepSea(mapping=1), DeepSea(mapping=2)
    one.reset(seed=5)
    same.reset(seed=6)
    assert (one._right == same._right).all() and (one._right != other._right).any()
    assert 0.4 < one._right.mean() < 0.6


def test_it_is_an_environment_by_name():
    env: Any = make_env("sharpwave/DeepSea-v0", 2)
    assert env.single_observation_space.n == 401 and env.single_action_space.n == 2
    check_env(gymnasium.make("sharpwave/DeepSea-v0").unwrapped, skip_render_check=True)


def test_a_sea_without_cells_is_refused():
    with pytest.raises(ValueError, match="size=0, expected at least 1"):
        DeepSea(size=0)
