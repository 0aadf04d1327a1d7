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
SAME_STEP, NEXT_STEP, DISABLED = (gym.vector.AutoresetMode[name] for name in ("SAME_STEP", "NEXT_STEP", "DISABLED"))


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


@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize("name", ["CartPole-v1", "FrozenLake-v1", pytest.param("Breakout", marks=pytest.mark.nightly)])
def test_rows_in_which_a_vector_resets_are_passed_over(name: str, statistics: bool) -> None:
    """Gymnasium's default mode in the loop of 0.29: what is stored is every step, and no row of a reset."""

    def make() -> gym.Env[Any, Any]:
        env = atari(1000) if name == "Breakout" else gym.make(name, max_episode_steps=15 if statistics else None)
        return gym.wrappers.RecordEpisodeStatistics(env) if statistics else env

    count, steps = 3, 400
    envs = gym.vector.SyncVectorEnv([make] * count, autoreset_mode=NEXT_STEP)
    rb = ReplayBuffer(
        10_000, envs.single_observation_space, envs.single_action_space, torch.device("cpu"), n_envs=count,
        handle_timeout_termination=False, strict=True,
    )  # fmt: skip
    envs.action_space.seed(0)
    obs, _ = envs.reset(seed=1)
    over, kept = np.zeros(count, bool), list[tuple[Any, Any, Any]]()
    for _ in range(steps):
        actions = envs.action_space.sample()
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        rb.add(obs, next_obs.copy(), actions, rewards, terminations, infos)
        happened = zip(obs[~over], next_obs[~over], terminations[~over], strict=True)
        kept += [(np.array(a).tobytes(), np.array(b).tobytes(), bool(c)) for a, b, c in happened]
        over, obs = terminations | truncations, next_obs
    batch = rb.view.fetch(rb.view.sampleable_ids())
    before, after = rb.transitions.whole(batch.obs), rb.transitions.whole(batch.next_obs)
    found = [(a.tobytes(), b.tobytes(), bool(c)) for a, b, c in zip(before, after, batch.terminated, strict=True)]
    assert rb.transitions.resets.dropped == count * steps - len(kept) > 3 or name == "Breakout"
    assert len(rb) == len(kept) and sorted(found) == sorted(kept)


class Walk(gym.Env[Any, Any]):
    """Walk on a line that ends where it began, or after some steps; nothing is earned."""

    observation_space, action_space = gym.spaces.Box(-9, 9, (1,), np.float32), gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at, self.steps = 0, 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        self.at, self.steps = self.at + 2 * int(action) - 1, self.steps + 1
        return np.full(1, self.at, np.float32), 0.0, self.at == 0, self.steps == 8, {}


@pytest.mark.parametrize("gives_final", [True, False])
@pytest.mark.parametrize("name", ["Walk", "FrozenLake-v1", "CartPole-v1"])
def test_no_step_is_passed_over_where_the_loop_resets(name: str, gives_final: bool) -> None:
    envs = gym.vector.SyncVectorEnv(
        [Walk if name == "Walk" else lambda: gym.make(name, max_episode_steps=8)] * 2, autoreset_mode=DISABLED
    )
    spaces = envs.single_observation_space, envs.single_action_space
    rb = ReplayBuffer(10_000, *spaces, n_envs=2, handle_timeout_termination=False, strict=True)
    envs.action_space.seed(0)
    obs, _ = envs.reset(seed=1)
    for _ in range(300):
        actions = envs.action_space.sample()
        next_obs, rewards, terminations, truncations, _ = envs.step(actions)
        over = terminations | truncations
        infos = {"_final_obs": over, "final_obs": next_obs} if gives_final and over.any() else {}
        true = next_obs.copy()
        if over.any():
            next_obs, _ = envs.reset(options={"reset_mask": over})
        if not gives_final and name == "CartPole-v1":
            true = np.where(terminations[:, None], next_obs, true)  # as its loop has it after terminations
        rb.add(obs, true, actions, rewards, terminations, infos)
        obs = next_obs.copy()
    assert rb.transitions.resets.dropped == 0 and len(rb) == 600
