"""Updates of agents of continuous actions beside other libraries': ``python benchmarks/updates.py --continuous``.

Each contender is a process of its own on one thread, this file as its program: for each line that it reads it makes
some updates, and writes the milliseconds of processor time that one took. An update is what training at one update a
step calls: ``sample`` and ``learn`` here, ``train(1, 256)`` there. Contenders take turns. Only the standard library,
gymnasium and the library itself are imported by a contender of another library.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

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


def contend(given: dict[str, Any]) -> None:
    """Make some updates for each number that is read, and write the milliseconds of processor time of one."""
    library, settings = given.get("library"), given.get("settings", {})
    if library == "stable_baselines3":
        import torch

        torch.set_num_threads(1)
    update = (
        own_update(given["algorithm"], settings)
        if library is None
        else peer_update(library, given["algorithm"], given.get("policy", "MlpPolicy"), settings)
    )
    for _ in range(WARM):
        update()
    print("ready", flush=True)
    for line in sys.stdin:
        count = int(line)
        begun = time.process_time()
        for _ in range(count):
            update()
        print((time.process_time() - begun) / count * 1e3, flush=True)


class Contender:
    """Process of a contender."""

    def __init__(self, given: dict[str, Any], python: str) -> None:
        threads = {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
        self.process = subprocess.Popen(
            [python, __file__, json.dumps(given)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | threads | {"JAX_PLATFORMS": "cpu"},
        )  # fmt: skip
        self.measured: list[float] = []

    def started(self) -> bool:
        """Wait until the first updates were made; return whether they were."""
        assert self.process.stdout is not None
        return self.process.stdout.readline() == "ready\n"

    def measure(self, updates: int) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{updates}\n")
        self.process.stdin.flush()
        self.measured.append(float(self.process.stdout.readline()))

    def close(self) -> None:
        self.process.communicate()  # closes its input, after which it ends


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
            name: Contender(given, sbx if name == "SBX" else sys.executable)
            for name, given in CONTENDERS[algorithm].items()
        }
        contenders = {name: one for name, one in made.items() if one.started()}
        for _ in range(rounds):
            for one in contenders.values():
                one.measure(updates)
        for one in made.values():
            one.close()
        found = {name: one.measured for name, one in contenders.items()}
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
    contend(json.loads(sys.argv[1]))
