"""Tianshou with its own replay buffers, and with ours.

    python benchmarks/integrations_tianshou.py [--steps 20000] [--rounds 3] [--env PongNoFrameskip-v4]

As benchmarks/integrations.py: eight environments, stacks of four frames, random actions; each buffer in a process of
its own, in turn; medians. An update is one of Tianshou's DQN on a CPU with one thread, sampling included. "NaN check":
milliseconds of ``hasnull``, which Tianshou 2's trainer calls after every collection.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import tianshou.data as theirs
import torch
from integration_runs import counted, held_bytes, main, rate
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack, VecTransposeImage
from tianshou.algorithm.algorithm_base import policy_within_training_step
from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch
from tianshou.env.atari.atari_network import DQNet

from sharpwave.integrations import tianshou as ours

LANES, UPDATES = 8, 40
STACKED: dict[str, Any] = {"stack_num": 4, "save_only_last_obs": True, "ignore_obs_next": True}
PRIORITIES: dict[str, Any] = {"alpha": 0.6, "beta": 0.4}
BUFFERS: dict[str, Callable[[int], Any]] = {
    "Tianshou": lambda size: theirs.VectorReplayBuffer(size, LANES),
    "Tianshou, only last frames": lambda size: theirs.VectorReplayBuffer(size, LANES, **STACKED),
    "ours": lambda size: ours.VectorReplayBuffer(size, LANES),
    "Tianshou, prioritized, last frames": lambda size: theirs.PrioritizedVectorReplayBuffer(
        size, LANES, **PRIORITIES, **STACKED
    ),
    "ours, prioritized": lambda size: ours.PrioritizedVectorReplayBuffer(size, LANES, **PRIORITIES),
}


def measure(name: str, env: str, steps: int) -> dict[str, float]:
    """Fill a buffer and measure it; in a process of its own."""
    torch.set_num_threads(1)
    gym.register_envs(ale_py)
    envs = VecTransposeImage(VecFrameStack(make_atari_env(env, n_envs=LANES, seed=1), 4))
    rng, actions, shape = np.random.default_rng(0), int(envs.action_space.n), envs.observation_space.shape
    warm, obs, none = BUFFERS[name](640), envs.reset(), np.zeros(LANES, np.bool_)

    def batch(obs: Any, after: Any, act: Any, rew: Any, terminated: Any, truncated: Any) -> Batch:
        ends = {"terminated": terminated, "truncated": truncated}
        return Batch({"obs": obs, "obs_next": after, "act": act, "rew": rew, "info": Batch(), "policy": Batch()} | ends)

    for _ in range(8):  # kernels and libraries are loaded; it stays, as memory that it let go of would be used again
        warm.add(batch(obs, obs, np.zeros(LANES, np.int64), none * 1.0, none, none))
    warm.sample(8)
    before = held_bytes()
    buffer, spent = BUFFERS[name](steps), []
    for _ in range(steps // LANES):
        act = rng.integers(0, actions, LANES)
        new_obs, rewards, dones, infos = envs.step(act)
        after = new_obs.copy()
        for i in np.flatnonzero(dones):
            after[i] = infos[i]["terminal_observation"]
        truncated = dones & [bool(info.get("TimeLimit.truncated", False)) for info in infos]
        whole = batch(obs, after, act, rewards, dones & ~truncated, truncated)
        began = time.process_time()
        buffer.add(whole)
        spent.append(time.process_time() - began)
        obs = new_obs
    grown = held_bytes() - before
    found = {"bytes": grown / steps, "adds": LANES / statistics.mean(spent[len(spent) // 2 :])}
    if isinstance(buffer, ours.buffers.StoredObservations):
        found |= counted(buffer.transitions.store, steps)
    for size in (32, 256):
        found[f"sample {size}"] = size * rate(partial(buffer.sample, size), 3.0)
    began = time.process_time()
    buffer.hasnull()
    found["NaN check"] = 1000 * (time.process_time() - began)
    policy = DiscreteQLearningPolicy(model=DQNet(*shape, action_shape=actions), action_space=envs.action_space)
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(1e-4), n_step_return_horizon=3, target_update_freq=500)
    with policy_within_training_step(policy):
        for count in (2, UPDATES):
            began = time.process_time()
            for _ in range(count):
                algorithm.update(buffer=buffer, sample_size=32)
    return found | {"updates": UPDATES / (time.process_time() - began)}


if __name__ == "__main__":
    main(__file__, __doc__, BUFFERS, measure, steps=20_000)
