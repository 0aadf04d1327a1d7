"""The scale of rewards against Stable-Baselines3's, and by hand."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from sharpwave.agents.normalization import ReturnScale
from sharpwave.agents.rollouts import LaneOrder

LANES, STEPS, LENGTH, GAMMA = 3, 40, 8, 0.9


def windows(reward, done, first, last):
    """Return the order, rewards and ends of the windows of steps ``first`` ... ``last`` - 1 of lanes [STEPS, LANES]."""
    lane, step, rows, ended, counts = [], [], [], [], []
    for one in range(LANES):
        begin = first
        while begin < last:
            ends = np.flatnonzero(done[begin : min(begin + LENGTH, last), one])
            count = int(ends[0]) + 1 if len(ends) else min(LENGTH, last - begin)
            lane.append(one)
            step.append(begin)
            counts.append(count)
            rows.append(np.pad(reward[begin : begin + count, one], (0, LENGTH - count)))
            ended.append(bool(len(ends)))
            begin += count
    mask = np.arange(LENGTH) < np.array(counts)[:, None]
    shuffled = np.random.default_rng(0).permutation(len(lane))
    order = LaneOrder.of(np.array(lane)[shuffled], np.array(step)[shuffled], mask[shuffled])
    return order, np.array(rows)[shuffled], np.array(ended)[shuffled]


def test_the_scale_is_that_of_stable_baselines3():
    sb3: Any = pytest.importorskip("stable_baselines3.common.vec_env")
    rng = np.random.default_rng(1)
    reward, done = rng.normal(3, 2, (STEPS, LANES)), rng.random((STEPS, LANES)) < 0.1
    theirs = sb3.VecNormalize(sb3.DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * LANES))
    theirs.gamma, theirs.returns = GAMMA, np.zeros(LANES)
    for step in range(STEPS):
        theirs._update_reward(reward[step])
        theirs.returns[done[step]] = 0
    ours = ReturnScale(GAMMA)
    for first, last in ((0, 16), (16, STEPS)):
        for _ in range(2):  # windows that are learned from again are not counted again
            ours.observe(*windows(reward, done, first, last))
        saved = ours.carried()
        again = ReturnScale(GAMMA)
        again.load_state_dict(ours.state_dict())
        again.carry(saved)
        ours = again
    np.testing.assert_allclose((ours.mean, ours.squares / ours.count), (theirs.ret_rms.mean, theirs.ret_rms.var))
    np.testing.assert_allclose(ours.count, theirs.ret_rms.count)
    given = np.array([0.5, -2.0, 1e3])
    np.testing.assert_allclose(ours(torch.from_numpy(given)), theirs.normalize_reward(given), rtol=1e-7)


def test_a_return_begins_anew_after_lost_steps():
    scale, one = ReturnScale(0.5), np.ones((1, 2))
    for step in (0, 2, 9):  # steps 4 to 8 are lost
        scale.observe(LaneOrder.of(np.array([4]), np.array([step]), one > 0), one, np.array([False]))
    returns = np.array([1, 1.5, 1.75, 1.875, 1, 1.5])
    np.testing.assert_allclose(scale.mean * scale.count, returns.sum())
    assert scale.carried() == [[0, 4, 11, 1.5]]
