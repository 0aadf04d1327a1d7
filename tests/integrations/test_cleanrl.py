"""CleanRL's loop, with the store's buffer beside a plain list: what is stored is that, and all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest
import torch

from sharpwave.integrations.cleanrl import ReplayBuffer

gym.register_envs(ale_py)
SAME_STEP = gym.vector.AutoresetMode.SAME_STEP


def atari(limit: int) -> gym.Env[Any, Any]:
    env: gym.Env[Any, Any] = gym.make("ALE/Breakout-v5", frameskip=1)
    env = gym.wrappers.AtariPreprocessing(env, terminal_on_life_loss=True)
    return gym.wrappers.TimeLimit(gym.wrappers.FrameStackObservation(env, 4), limit)


def envs_of(name: str, count: int, limit: int) -> gym.vector.VectorEnv[Any, Any, Any]:
    make = (lambda: atari(limit)) if name == "Breakout" else (lambda: gym.make(name, max_episode_steps=limit))
    return gym.vector.SyncVectorEnv([make] * count, autoreset_mode=SAME_STEP)


def play(rb: ReplayBuffer, envs: Any, steps: int) -> list[list[tuple[Any, ...]]]:
    """The loop of its programs, which tell the buffer of terminations only; returns each environment's transitions."""
    kept: list[list[tuple[Any, ...]]] = [[] for _ in range(envs.num_envs)]
    envs.action_space.seed(0)
    obs, _ = envs.reset(seed=1)
    for _ in range(steps):
        actions = envs.action_space.sample()
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        real_next_obs = next_obs.copy()
        for idx, trunc in enumerate(truncations):
            if trunc:
                real_next_obs[idx] = infos["final_obs"][idx]
        rb.add(obs, real_next_obs, actions, rewards, terminations, infos)
        for lane, row in enumerate(zip(obs, real_next_obs, actions, rewards, terminations, strict=True)):
            kept[lane].append(tuple(np.array(one) for one in row))
        obs = next_obs
    return kept


@pytest.mark.parametrize(
    ("name", "limit", "steps"), [("CartPole-v1", 12, 100), ("Pendulum-v1", 9, 60), ("Breakout", 20, 250)]
)
@pytest.mark.parametrize("count", [1, 3])
def test_transitions_are_those_of_the_loop(name: str, limit: int, steps: int, count: int) -> None:
    envs = envs_of(name, count, limit)
    rb = ReplayBuffer(
        10_000, envs.single_observation_space, envs.single_action_space, torch.device("cpu"), n_envs=count,
        optimize_memory_usage=True, handle_timeout_termination=False,
    )  # fmt: skip
    kept = play(rb, envs, steps)
    assert len(rb) == count * steps and len(rb.view) == count * steps
    if name == "Breakout":
        assert rb.transitions.store.spec.fields["obs"].stack == 4
    lanes, numbers = np.repeat(np.arange(count), steps), np.tile(np.arange(steps), count)
    batch = rb.view.fetch(rb.transitions.store.ids(lanes, numbers))
    found = [rb.transitions.whole(batch.obs), rb.transitions.whole(batch.next_obs), batch.action, batch.reward]
    broken = 0
    for row, (lane, number) in enumerate(zip(lanes.tolist(), numbers.tolist(), strict=True)):
        obs, next_obs, action, reward, terminated = kept[lane][number]
        np.testing.assert_array_equal(found[0][row], obs)
        if not terminated:  # its loop has an observation of the next episode there
            np.testing.assert_array_equal(found[1][row], next_obs)
        np.testing.assert_array_equal(found[2][row].reshape(action.shape), action)
        assert found[3][row] == np.float32(reward) and batch.terminated[row] == terminated
        goes_on = number + 1 < steps and not terminated and np.array_equal(kept[lane][number + 1][0], next_obs)
        assert batch.truncated[row] == (number + 1 < steps and not terminated and not goes_on)
        broken += bool(batch.truncated[row])
    assert broken > 0
    sample = rb.sample(32)
    assert sample.observations.shape == (32, *kept[0][0][0].shape)
    assert sample.actions.shape == (32, *(batch.action.shape[1:]))
    assert sample.dones.shape == sample.rewards.shape == sample.weights.shape == (32, 1)
    assert sample.rewards.dtype == sample.dones.dtype == torch.float32


@pytest.mark.parametrize("name", ["_final_obs", "_final_observation"])
def test_a_time_limit_that_only_infos_tell_of(name: str) -> None:
    """What the episode led to, and what the next one begins with, are the same."""
    space = gym.spaces.Discrete(6)
    rb = ReplayBuffer(
        100, space, gym.spaces.Discrete(2), n_steps=2, gamma=1.0, handle_timeout_termination=False
    )  # fmt: skip
    state = np.array([0])
    rb.add(state, state, state, np.array([1.0]), np.array([False]), {name: np.array([True])})
    rb.add(state, np.array([3]), state, np.array([100.0]), np.array([False]), {})
    assert set(rb.sample(50).rewards.ravel().tolist()) == {1.0}
    assert rb.sample(5).observations.shape == (5, 1)


def test_n_steps_and_priorities() -> None:
    envs = envs_of("CartPole-v1", 2, 12)
    rb = ReplayBuffer(
        1000,
        envs.single_observation_space,
        envs.single_action_space,
        n_envs=2,
        n_steps=3,
        alpha=1.0,
        handle_timeout_termination=False,
    )
    play(rb, envs, 100)
    ids = rb.view.sampleable_ids()
    rb.update_priorities(ids, torch.zeros(len(ids)))
    rb.update_priorities(ids[:1], torch.ones(1, 1))
    data = rb.sample(64)
    assert set(data.ids.tolist()) == {ids[0]}
    n = int(rb.view.fetch(ids[:1]).n[0])
    assert data.discounts[0] == torch.tensor(0.99**n) and data.rewards[0] == sum(0.99**k for k in range(n))


def test_it_goes_on_on_disk(tmp_path: Path) -> None:
    envs = envs_of("CartPole-v1", 2, 30)
    spaces = envs.single_observation_space, envs.single_action_space
    rb = ReplayBuffer(1000, *spaces, n_envs=2, disk=tmp_path / "rb", handle_timeout_termination=False)
    play(rb, envs, 50)
    rb.transitions.close()
    again = ReplayBuffer(1000, *spaces, n_envs=2, disk=tmp_path / "rb", handle_timeout_termination=False)
    assert again.size() == 50
    play(again, envs, 20)
    assert again.size() == 70 and again.sample(200).observations.shape == (200, 4)
