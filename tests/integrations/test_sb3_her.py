"""Stable-Baselines3's hindsight buffer and ours: the same goals equally often, the same rewards, the same lives."""

from __future__ import annotations

import gc
import pickle
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, SAC
from stable_baselines3 import HerReplayBuffer as Theirs
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize
from stable_baselines3.her.goal_selection_strategy import GoalSelectionStrategy

from sharpwave.integrations.sb3 import HerReplayBuffer
from tests.support.examples import every_two

Array = np.ndarray[Any, Any]
BOX = spaces.Box(-np.inf, np.inf, (2,), np.float64)


class Numbered(gym.Env[Any, Any]):
    """Each state has its own number, which is the achieved goal; episodes of 1 to 9 steps end in either way."""

    observation_space = spaces.Dict({name: BOX for name in ("observation", "achieved_goal", "desired_goal")})
    action_space = spaces.Discrete(3)

    def __init__(self, lane: int = 0) -> None:
        self.lane, self.number, self.rng = lane, 0, np.random.default_rng(lane)

    def _observed(self) -> dict[str, Array]:
        here = np.array([self.lane, self.number], np.float64)
        return {"observation": here, "achieved_goal": here.copy(), "desired_goal": np.array([self.lane, -1.0])}

    def reset(self, **more: Any) -> tuple[Any, dict[str, Any]]:
        self.number, self.left = self.number + 1, int(self.rng.integers(1, 10))
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.number, self.left = self.number + 1, self.left - 1
        ends, terminated = self.left == 0, bool(self.number % 2)
        return self._observed(), 0.25, ends and terminated, ends and not terminated, {"number": self.number}

    def compute_reward(self, achieved: Array, desired: Array, infos: Any) -> Array:
        told = np.array([info.get("number", 0) for info in infos], np.float64)
        return 1000 * (desired[:, 1] - achieved[:, 1]) + told


def envs_of(count: int = 2) -> DummyVecEnv:
    return DummyVecEnv([lambda lane=lane: Numbered(lane) for lane in range(count)])


def step(buffers: Any, envs: Any, obs: Any) -> Any:
    """One step of the environments, added to each buffer as SB3 adds it; returns the new observations."""
    actions = np.array([envs.action_space.sample() for _ in range(envs.num_envs)])
    new_obs, rewards, dones, infos = envs.step(actions)
    after = {name: one.copy() for name, one in new_obs.items()}
    for lane in np.flatnonzero(dones):
        for name in after:
            after[name][lane] = infos[lane]["terminal_observation"][name]
    for buffer in buffers:
        buffer.add(obs, after, actions, rewards, dones, infos)
    return new_obs


def both(rows: int, size: int = 2000, **more: Any) -> tuple[HerReplayBuffer, Any, Any, Any]:
    envs = envs_of()
    arguments = (size, envs.observation_space, envs.action_space, envs, "cpu", envs.num_envs)
    mine, other, obs = HerReplayBuffer(*arguments, **more), Theirs(*arguments, **more), envs.reset()
    for _ in range(rows):
        obs = step((mine, other), envs, obs)
    return mine, other, envs, obs


def told(samples: Any) -> list[tuple[float, ...]]:
    """What each sampled transition says: lane, number of the state, goal, reward and done, as one row."""
    here, goal = samples.observations["achieved_goal"], samples.observations["desired_goal"]
    after = samples.next_observations
    assert (after["desired_goal"] == goal).all() and (after["achieved_goal"] == here + torch.tensor([0.0, 1.0])).all()
    rows = torch.cat([here, goal[:, 1:], samples.rewards, samples.dones], dim=1)
    return [tuple(row) for row in rows.tolist()]


@pytest.mark.parametrize(("strategy", "copy_info_dict"), every_two([*GoalSelectionStrategy, "Future"], [False, True]))
def test_the_same_transitions_equally_often(strategy: Any, copy_info_dict: bool) -> None:
    mine, other, *_ = both(60, goal_selection_strategy=strategy, n_sampled_goal=3, copy_info_dict=copy_info_dict)
    np.random.seed(0)
    counts = [Counter(row for _ in range(40) for row in told(one.sample(1000))) for one in (mine, other)]
    assert counts[0].total() == counts[1].total() == 40_000
    cells = np.array([[counts[0][row], counts[1][row]] for row in {*counts[0], *counts[1]}], np.float64)
    assert not ((cells == 0).any(axis=1) & (cells.max(axis=1) > 30)).any(), "all that one makes, the other makes too"
    often = cells[cells.sum(axis=1) > 10]
    chi_square = ((often[:, 0] - often[:, 1]) ** 2 / often.sum(axis=1)).sum()
    assert chi_square < len(often) + 5 * np.sqrt(2 * len(often))
    virtual = sum(count for row, count in counts[0].items() if row[2] >= 0)
    assert abs(virtual / 40_000 - 0.75) < 0.02


def test_infos_are_those_of_the_steps_also_when_the_buffer_is_full() -> None:
    mine, _, envs, obs = both(400, size=120, copy_info_dict=True, n_sampled_goal=50)
    again = pickled(mine)
    again.set_env(envs)
    for _ in range(30):
        obs = step((mine, again), envs, obs)
    for one in (mine, again):
        rows = told(one.sample(500))
        assert all(row[3] == 1000 * (row[2] - row[1] - 1) + row[1] + 1 for row in rows if row[2] >= 0)


def pickled(buffer: HerReplayBuffer) -> HerReplayBuffer:
    """As SB3 saves and loads it."""
    other = pickle.loads(pickle.dumps(buffer))
    assert isinstance(other, HerReplayBuffer)
    return other


def test_it_waits_for_an_episodes_end_and_for_its_environment() -> None:
    mine, _, envs, _ = both(0)
    with pytest.raises(ValueError, match="already initialized"):
        mine.set_env(envs)
    other = pickled(mine)
    assert other.env is None
    obs = envs.reset()
    for env in envs.envs:
        env.unwrapped.left = 100
    for _ in range(20):
        obs = step((mine, other), envs, obs)
    with pytest.raises(Exception, match="once its episode has ended"):
        mine.sample(4)
    for buffer in (mine, other):
        with pytest.warns(UserWarning, match="last trajectory in the replay buffer will be truncated"):
            buffer.truncate_last_trajectory()
    assert not mine.sample(64).dones.any() and len(mine.view) == 40
    with pytest.raises(RuntimeError, match="set_env"):
        other.sample(64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mine.truncate_last_trajectory()
    other.set_env(envs)
    assert len({row[1] for row in told(other.sample(200))}) > 15


@pytest.mark.parametrize("truncated", [False, True])
def test_a_saved_buffer_goes_on_or_begins_anew(truncated: bool) -> None:
    mine, _, envs, obs = both(50, n_sampled_goal=100)
    for env in envs.envs:
        env.unwrapped.left = 9
    for _ in range(4):
        obs = step((mine,), envs, obs)
    last = [env.unwrapped.number for env in envs.envs]
    other, before = pickled(mine), len(mine.view)
    other.set_env(envs)
    if truncated:
        with pytest.warns(UserWarning, match="will be truncated"):
            other.truncate_last_trajectory()
        assert len(other.view) > before
    for _ in range(20):
        obs = step((other,), envs, obs)
    stored = other.transitions.store.transitions(name="all", gamma=1.0)
    batch = stored.fetch(stored.sampleable_ids())
    for lane, number in enumerate(last):
        (row,) = np.flatnonzero((batch.next_obs["achieved_goal"] == [lane, number]).all(axis=1))
        assert batch.truncated[row] == truncated and not batch.terminated[row]


def test_on_disk(tmp_path: Path) -> None:
    mine, _, envs, obs = both(0)
    for _ in range(60):
        obs = step((mine,), envs, obs)
    arguments = (2000, envs.observation_space, envs.action_space, envs, "cpu", 2)
    disk = HerReplayBuffer(*arguments, disk=tmp_path / "replay", seed=0)
    with pytest.raises(ValueError, match="copy_info_dict"):
        HerReplayBuffer(*arguments, disk=tmp_path / "other", copy_info_dict=True)
    for _ in range(60):
        obs = step((disk,), envs, obs)
    many = len(disk.view)
    saved = pickle.dumps(disk)
    disk.close()
    again = pickle.loads(saved)
    again.set_env(envs)
    assert len(again.view) >= many and len({row[2] for row in told(again.sample(500))}) > 20
    again.close()


def test_a_dropped_buffer_is_freed_at_once() -> None:
    mine, *_ = both(30)
    mine.sample(8)
    store = mine.transitions.store
    gc.collect()
    gc.disable()
    try:
        del mine
        assert not list(store._views)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"goal_selection_strategy": "random"}, "'random', expected one of"),
        ({"n_sampled_goal": -1}, "k=-1"),
        ({"n_steps": 3, "gamma": 0.9}, "n_step=3 with relabel"),
        ({"optimize_memory_usage": True}, "optimize_memory_usage"),
    ],
)
def test_arguments_that_are_refused(arguments: Any, match: str) -> None:
    envs = envs_of()
    with pytest.raises(ValueError, match=match):
        HerReplayBuffer(100, envs.observation_space, envs.action_space, envs, "cpu", 2, **arguments)
    with pytest.raises(ValueError, match="desired_goal"):
        HerReplayBuffer(100, BOX, envs.action_space, envs)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [{}, {"discrete_obs_space": True}, {"image_obs_space": True}])
def test_models_learn_from_it(kind: Any, tmp_path: Path) -> None:
    """Observations of every kind, normalized rewards; saved and loaded."""
    env: Any = make_vec_env(lambda: BitFlippingEnv(n_bits=3, continuous=not kind, **kind), 2)
    if "image_obs_space" in kind:
        env = VecFrameStack(env, 2)  # goals are stacks too, which are stored whole
    elif not kind:
        env = VecNormalize(env, norm_obs=False)
    model = (DQN if kind else SAC)(
        "MultiInputPolicy",
        env,
        learning_starts=20,
        batch_size=16,
        train_freq=8,
        policy_kwargs={"net_arch": [8]},
        replay_buffer_class=HerReplayBuffer,
        replay_buffer_kwargs={"goal_selection_strategy": "final", "copy_info_dict": True},
        seed=0,
    )
    model.learn(60)
    assert model._n_updates > 0
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    model.load_replay_buffer(tmp_path / "buffer.pkl", truncate_last_traj=False)
    model.learn(20, reset_num_timesteps=False)
