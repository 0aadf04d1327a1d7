"""Updates of agents of continuous actions beside other libraries': ``python benchmarks/updates.py --continuous``.

Each contender is a process of its own on one thread, this file as its program, which answers by the milliseconds of
processor time that an update took. Training at one update a step calls ``sample`` and ``learn`` here, and
``train(1, 256)`` there. Contenders take turns. One of another library imports numpy, gymnasium and that library only.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from sharpwave.bench.machine import ChildError, answer

OBSERVATION, ACTION, BATCH, STEPS, WARM = 17, 6, 256, 2000, 20
"""Sizes of HalfCheetah's, of a batch, steps in the replay memory, and updates before the first that is measured."""
WIDE = {"policy_kwargs": {"net_arch": {"pi": [256, 256], "qf": [2048, 2048]}}}
"""Hidden layers of CrossQ in Bhatt et al. (2024)."""
CONTENDERS: dict[str, dict[str, dict[str, Any]]] = {
    "sac": {
        "float32": {"algorithm": "SAC"},
        "bfloat16": {"algorithm": "SAC", "settings": {"precision": "bfloat16"}},
        "SBX": {"library": "sbx", "algorithm": "SAC"},
        "SB3": {"library": "stable_baselines3", "algorithm": "SAC"},
    },
    "td3": {
        "float32": {"algorithm": "TD3"},
        "bfloat16": {"algorithm": "TD3", "settings": {"precision": "bfloat16"}},
        "SBX": {"library": "sbx", "algorithm": "TD3"},
        "SB3": {"library": "stable_baselines3", "algorithm": "TD3"},
    },
    "tqc": {
        "float32": {"algorithm": "SAC", "settings": {"quantiles": 25}},
        "bfloat16": {"algorithm": "SAC", "settings": {"quantiles": 25, "precision": "bfloat16"}},
        "SBX": {"library": "sbx", "algorithm": "TQC"},
    },
    "crossq": {
        "float32": {"algorithm": "CrossQ"},
        "bfloat16": {"algorithm": "CrossQ", "settings": {"precision": "bfloat16"}},
        "SBX": {"library": "sbx", "algorithm": "CrossQ", "settings": WIDE},
    },
    "simba": {
        "float32": {"algorithm": "SAC", "settings": {"blocks": "simba"}},
        "bfloat16": {"algorithm": "SAC", "settings": {"blocks": "simba", "precision": "bfloat16"}},
        "SBX": {"library": "sbx", "algorithm": "SAC", "policy": "SimbaPolicy"},
    },
}
"""Contenders by algorithm; without a library they are Sharpwave's."""
PEERS = ("SBX", "SB3")


class Noise(gym.Env[Any, Any]):
    """Environment of HalfCheetah's sizes: everything is random, and episodes have 1000 steps."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float64)
    action_space = gym.spaces.Box(-1.0, 1.0, (ACTION,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.normal(size=OBSERVATION), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.np_random.normal(size=OBSERVATION), self.np_random.normal(), False, self.steps % 1000 == 0, {}


def own_update(algorithm: str, settings: dict[str, Any]) -> Callable[[], None]:
    """Return a function that makes an update of one of Sharpwave's agents."""
    import sharpwave as sw
    from sharpwave.agents.protocol import Spaces
    from sharpwave.training import setup

    held = ExitStack()
    held.enter_context(setup.arithmetic(setup.ONE_THREAD))
    atexit.register(held.close)  # a context that nothing holds ends at once
    env = gym.vector.SyncVectorEnv([Noise])
    kind = getattr(sw.agents, algorithm)
    agent = kind(Spaces(env.single_observation_space, env.single_action_space), kind.Settings(**settings))
    replay = agent.replay()
    store = sw.Store(setup.step_spec(env, agent), capacity=STEPS)
    view, recorder = replay.open(store, "learner", 0), sw.Recorder(env, store)
    recorder.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(STEPS):
        recorder.step(env.action_space.sample())
    return lambda: agent.learn(view.sample(replay.batch_size).torch(), STEPS)


def peer_update(library: str, algorithm: str, policy: str, settings: dict[str, Any]) -> Callable[[], None]:
    """Return a function that makes an update of another library's agent."""
    kind = getattr(importlib.import_module(library), algorithm)
    model = kind(policy, Noise(), seed=0, device="cpu", learning_starts=STEPS, batch_size=BATCH, **settings)
    model.learn(STEPS)
    return lambda: model.train(1, BATCH)


class Contender:
    """Agent in a process of its own, of Sharpwave or of another library, after its first updates."""

    def __init__(self, given: dict[str, Any]) -> None:
        os.environ |= {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "JAX_PLATFORMS": "cpu"}
        library, settings = given.get("library"), given.get("settings", {})
        if library == "stable_baselines3":
            import torch

            torch.set_num_threads(1)
        self._update = (
            own_update(given["algorithm"], settings)
            if library is None
            else peer_update(library, given["algorithm"], given.get("policy", "MlpPolicy"), settings)
        )
        self.measure(WARM)

    def measure(self, updates: int) -> float:
        """Make updates; return the milliseconds of processor time that one took."""
        begun = time.process_time()
        for _ in range(updates):
            self._update()
        return (time.process_time() - begun) / updates * 1e3


def compare(algorithms: list[str], sbx: str, rounds: int, updates: int, out: Path | None) -> None:
    """Measure the contenders of ``algorithms`` in turns, print a table, and write ``continuous_updates.json``.

    Rows of other algorithms, which are in the file already, stay.

    Args:
        sbx: interpreter that has SBX.  rounds, updates: of each contender, and of one of its rounds.
    """
    import runner

    from sharpwave.bench.machine import environment

    rows: list[dict[str, Any]] = []
    for algorithm in algorithms:
        runner.say(algorithm)
        made = {
            name: runner.worker(
                "continuous_updates.py", json.dumps(given), python=sbx if name == "SBX" else sys.executable, threads=1
            )
            for name, given in CONTENDERS[algorithm].items()
        }
        found: dict[str, list[float]] = {}
        for name, one in made.items():
            with suppress(ChildError):  # it said why: a library is missing, for one
                one.receive()
                found[name] = []
        for _ in range(rounds):
            for name, measured in found.items():
                made[name].send(do="measure", updates=updates)
                measured.append(float(made[name].receive()))  # type: ignore[arg-type]
        for one in made.values():
            one.close()
        for name, measured in found.items():
            ratios = {
                peer: statistics.median(theirs / own for theirs, own in zip(found[peer], measured, strict=True))
                for peer in PEERS
                if peer in found
            }
            middle = statistics.median(measured)
            rows.append({"algorithm": algorithm, "contender": name, "milliseconds": middle, "ratios": ratios})
    print("| algorithm | contender | ms an update | updates/s | to SBX | to SB3 |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for row in rows:
        beside = [f"{row['ratios'][peer]:.2f}" if peer in row["ratios"] else "" for peer in PEERS]
        figures = (f"{row['milliseconds']:.2f}", f"{1e3 / row['milliseconds']:.1f}", *beside)
        print(f"| {row['algorithm']} | {row['contender']} | {' | '.join(figures)} |")
    if out:
        path = out / "continuous_updates.json"
        written = json.loads(path.read_text())["rows"] if path.exists() else []
        kept = [row for row in written if row["algorithm"] not in algorithms]
        runner.write(path, {"environment": environment(), "rows": kept + rows})


if __name__ == "__main__":
    answer(lambda: Contender(json.loads(sys.argv[1])), lambda contender: {})
