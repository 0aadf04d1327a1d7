"""Stable-Baselines3 with its own replay buffer, with ours, and with sb3-extra-buffers where it is installed.

    python benchmarks/integrations.py [--steps 50000] [--rounds 3] [--env PongNoFrameskip-v4]

SB3's Atari wrappers, eight environments, stacks of four frames, random actions. Each buffer in a process of its own,
in turn, ``--rounds`` times; medians. Memory is the growth of the process from before the buffer was made until
``--steps`` transitions are in it. ``add`` and ``sample`` are timed as SB3 calls them; an update is one of its DQN on a
CPU with one thread, sampling included.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import psutil
import torch
from rich.console import Console
from rich.table import Table
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


def rate(call: Callable[[], Any], seconds: float) -> float:
    """Return how often ``call`` is done a second: the median over batches of ten calls."""
    call()
    rates: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not rates:
        began = time.perf_counter()
        for _ in range(10):
            call()
        rates.append(10 / (time.perf_counter() - began))
    return statistics.median(rates)


def measure(name: str, env: str, steps: int) -> dict[str, float]:
    """Fill a buffer and measure it; in a process of its own."""
    torch.set_num_threads(1)
    gym.register_envs(ale_py)
    envs = VecTransposeImage(VecFrameStack(make_atari_env(env, n_envs=LANES, seed=1), 4))
    rng, actions = np.random.default_rng(0), envs.action_space
    obs = envs.reset()
    ours(envs.observation_space, actions, 100).view  # noqa: B018  # kernels and libraries are loaded
    gc.collect()
    before = psutil.Process().memory_info().rss
    buffer = BUFFERS[name](envs.observation_space, actions, steps)
    spent = []
    for _ in range(steps // LANES):
        chosen = rng.integers(0, actions.n, LANES)
        new_obs, rewards, dones, infos = envs.step(chosen)
        after = new_obs.copy()
        for i in np.flatnonzero(dones):
            after[i] = infos[i]["terminal_observation"]
        began = time.perf_counter()
        buffer.add(obs, after, chosen, rewards, dones, infos)
        spent.append(time.perf_counter() - began)
        obs = new_obs
    gc.collect()
    grown = psutil.Process().memory_info().rss - before
    found = {"bytes": grown / steps, "adds": LANES / statistics.mean(spent[len(spent) // 2 :])}
    for size in (32, 256):
        found[f"sample {size}"] = size * rate(partial(buffer.sample, size), 3.0)
    model = DQN("CnnPolicy", envs, buffer_size=LANES, learning_starts=10**9, device="cpu", seed=1)
    model.replay_buffer, model._logger = buffer, _Quiet()
    model.train(2, 32)
    began = time.perf_counter()
    model.train(UPDATES, 32)
    return found | {"updates": UPDATES / (time.perf_counter() - began)}


class _Quiet:
    """Logger of nothing."""

    def record(self, *args: Any, **kwargs: Any) -> None: ...


def main() -> None:
    """Measure each buffer in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--env", default="PongNoFrameskip-v4")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "integrations.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.env, arguments.steps)))
        return
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in BUFFERS}
    for _ in range(arguments.rounds):
        for name in BUFFERS:
            command = [sys.executable, __file__, "--one", name, "--steps", str(arguments.steps), "--env", arguments.env]
            ran = subprocess.run(command, capture_output=True, text=True)
            if ran.returncode:
                print(f"{name}: {(ran.stderr.strip() or 'no message').splitlines()[-1]}", file=sys.stderr)
                continue
            runs[name].append(json.loads(ran.stdout.splitlines()[-1]))
    table = Table(title=f"{arguments.env}, {arguments.steps:,} transitions, medians of {arguments.rounds}")
    heads = {"bytes": "bytes each", "adds": "adds/s", "sample 32": "sampled/s, 32", "sample 256": "256"}
    for head in ("buffer", *heads.values(), "updates/s"):
        table.add_column(head, justify="left" if head == "buffer" else "right")
    medians = {
        name: {key: statistics.median(run[key] for run in found) for key in found[0]}
        for name, found in runs.items()
        if found
    }
    for name, found in medians.items():
        table.add_row(name, *(f"{found[key]:,.0f}" for key in heads), f"{found['updates']:.1f}")
    Console(width=110).print(table)
    base = medians["SB3"]
    ratios = {key: (base[key] / medians["ours"][key]) ** (1 if key == "bytes" else -1) for key in base}
    print("ours to SB3's: " + ", ".join(f"{key} {value:.2f}" for key, value in ratios.items()))
    arguments.out.write_text(
        json.dumps({"env": arguments.env, "steps": arguments.steps, "runs": runs}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
