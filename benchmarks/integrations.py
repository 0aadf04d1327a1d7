"""Stable-Baselines3 with its own replay buffer, with ours, and with sb3-extra-buffers where it is installed.

    python benchmarks/integrations.py [--steps 50000] [--rounds 3] [--env PongNoFrameskip-v4]

SB3's Atari wrappers, eight environments, stacks of four frames, random actions. Each buffer in a process of its own,
in turn, ``--rounds`` times; medians, and the lowest and highest. Speeds are by processor time. Memory is the growth of
what the process holds, from before the buffer was made until ``--steps`` transitions are in it, without what was freed
since; "counted" is what a store counts of it. ``add`` and ``sample`` are timed as SB3 calls them; an update is one of
its DQN on a CPU with one thread, sampling included.
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
import torch
from integration_runs import Found, counted, held_bytes, main, rate
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer as Theirs
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack, VecTransposeImage

from sharpwave.integrations.sb3 import PrioritizedReplayBuffer, ReplayBuffer

LANES, UPDATES = 8, 60


def ours(space: Any, actions: Any, size: int) -> Any:
    """Our buffer."""
    return ReplayBuffer(size, space, actions, n_envs=LANES, seed=1)


def prioritized(space: Any, actions: Any, size: int) -> Any:
    """Our buffer, with priorities, which SB3 has not."""
    return PrioritizedReplayBuffer(size, space, actions, n_envs=LANES, seed=1)


def theirs(space: Any, actions: Any, size: int) -> Any:
    """SB3's own."""
    return Theirs(size, space, actions, n_envs=LANES)


def halved(space: Any, actions: Any, size: int) -> Any:
    """SB3's own with each observation once."""
    more = {"optimize_memory_usage": True, "handle_timeout_termination": False}
    return Theirs(size, space, actions, n_envs=LANES, **more)


def extra(method: str) -> Callable[..., Any]:
    """Return a maker of sb3-extra-buffers' compressed one."""

    def make(space: Any, actions: Any, size: int) -> Any:
        from sb3_extra_buffers.compressed import CompressedReplayBuffer  # type: ignore[import-not-found]

        more = {"dtypes": {"elem_type": np.uint8, "runs_type": np.uint16}, "compression_method": method}
        return CompressedReplayBuffer(size, space, actions, n_envs=LANES, **more)

    return make


BUFFERS: dict[str, Callable[..., Any]] = {
    "SB3": theirs,
    "SB3, optimize_memory_usage": halved,
    "sb3-extra-buffers, zstd": extra("zstd-3"),
    "sb3-extra-buffers, rle": extra("rle"),
    "ours": ours,
    "ours, prioritized": prioritized,
}


def measure(name: str, env: str, steps: int) -> dict[str, float]:
    """Fill a buffer and measure it; in a process of its own."""
    torch.set_num_threads(1)
    gym.register_envs(ale_py)
    envs = VecTransposeImage(VecFrameStack(make_atari_env(env, n_envs=LANES, seed=1), 4))
    rng, actions = np.random.default_rng(0), envs.action_space
    obs = envs.reset()
    ours(envs.observation_space, actions, 100).view  # noqa: B018  # kernels and libraries are loaded
    before = held_bytes()
    buffer = BUFFERS[name](envs.observation_space, actions, steps)
    spent = []
    for _ in range(steps // LANES):
        chosen = rng.integers(0, actions.n, LANES)
        new_obs, rewards, dones, infos = envs.step(chosen)
        after = new_obs.copy()
        for i in np.flatnonzero(dones):
            after[i] = infos[i]["terminal_observation"]
        began = time.process_time()
        buffer.add(obs, after, chosen, rewards, dones, infos)
        spent.append(time.process_time() - began)
        obs = new_obs
    grown = held_bytes() - before
    found = {"bytes": grown / steps, "adds": LANES / statistics.mean(spent[len(spent) // 2 :])}
    if isinstance(buffer, ReplayBuffer):
        found |= counted(buffer.transitions.store, steps)
    for size in (32, 256):
        found[f"sample {size}"] = size * rate(partial(buffer.sample, size), 3.0)
    model = DQN("CnnPolicy", envs, buffer_size=LANES, learning_starts=10**9, device="cpu", seed=1)
    model.replay_buffer, model._logger = buffer, _Quiet()
    model.train(2, 32)
    began = time.process_time()
    model.train(UPDATES, 32)
    return found | {"updates": UPDATES / (time.process_time() - began)}


class _Quiet:
    """Logger of nothing."""

    def record(self, *args: Any, **kwargs: Any) -> None: ...


def compare(medians: dict[str, Found]) -> None:
    """Print ratios of ours to SB3's own, larger being better."""
    if "SB3" in medians and "ours" in medians:
        base = medians["SB3"]
        ratios = {key: (base[key] / medians["ours"][key]) ** (1 if key == "bytes" else -1) for key in base}
        print("ours to SB3's: " + ", ".join(f"{key} {value:.2f}" for key, value in ratios.items()))


if __name__ == "__main__":
    compare(main(__file__, __doc__, BUFFERS, measure, steps=50_000))
