"""Small steps: what a call costs with vectors of 17 floats, and a million steps of Hopper in memory.

    python benchmarks/vectors.py [--rounds 9] [--steps 1000000]

Sharpwave beside a plain numpy ring, stable-baselines3, cpprb and TorchRL, in one process, measured in turn: each
round times a block of calls of every contender, and the table shows medians of the rounds. A ratio is the median of
the rounds' ratios. Times are the processor's, of all threads: on an idle machine those of the clock. Memories are full,
so each step replaces another, and segments are sealed and evicted. Bytes are the growth of a process of its own for
each contender, which holds ``--steps`` steps.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt
import runner

import sharpwave as sw
from sharpwave.bench.machine import environment
from sharpwave.bench.measured import private_bytes

OBS, ACTION, MANY = 17, 6, 1024
BATCHES = 32, 256, 1024
CAPACITY = {1: 20_000, 8: 100_000, MANY: 512 * MANY}
CALLS = {1: 1000, 8: 500, MANY: 100}
"""Calls timed together, by lanes."""
GOALS_US = {
    "append": 10.0, "extend 8": 15.0, "sample 32": 3.0, "sample 256": 9.0, "sample 1024": 30.0,
    f"extend {MANY}": MANY / 4.0, "recorder": 15.0,
}  # fmt: skip
"""At most so many microseconds a call: of 1,024 lanes, 4 million steps a second."""

Times = dict[str, dict[str, list[float]]]
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Steps:
    """One step of each of n lanes: arrays [n, ...]; ``infos`` as stable-baselines3 wants them."""

    obs: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    next_obs: Array
    infos: list[dict[str, Any]]


class Contender(Protocol):
    """Replay memory under test."""

    def build(self, capacity: int, lanes: int, obs: int, action: int) -> None:
        """Make it, for vectors of so many floats."""

    def item(self, steps: Steps) -> Any:
        """Return what ``add`` takes, untimed."""

    def add(self, item: Any) -> None:
        """Add a step of each lane."""

    def sample(self, batch: int) -> Any:
        """Return transitions: observations, actions, rewards, ends, next observations."""


class Sharpwave:
    """``Store.append`` for one lane, ``Store.extend`` for several."""

    def build(self, capacity: int, lanes: int, obs: int, action: int) -> None:
        spec = sw.Spec(obs=sw.Field((obs,), "float32"), action=sw.Field((action,), "float32"))
        self.store, self.single = sw.Store(spec, capacity=capacity), lanes == 1
        self.view = self.store.transitions()

    def item(self, steps: Steps) -> Any:
        ends = steps.truncated.any()
        if not self.single:
            arrays = {"obs": steps.obs, "action": steps.action, "reward": steps.reward}
            arrays |= {"terminated": steps.terminated, "truncated": steps.truncated}
            return arrays | ({"final_obs": steps.next_obs} if ends or steps.terminated.any() else {})
        one: dict[str, Any] = {"obs": steps.obs[0], "action": steps.action[0], "reward": float(steps.reward[0])}
        one |= {"terminated": bool(steps.terminated[0]), "truncated": bool(steps.truncated[0])}
        return one | ({"final_obs": steps.next_obs[0]} if ends or one["terminated"] else {})

    def add(self, item: Any) -> None:
        if self.single:
            self.store.append(**item)
        else:
            self.store.extend(**item)

    def sample(self, batch: int) -> Any:
        return self.view.sample(batch)


class Ring:
    """Arrays of numpy with a position, as single-file implementations have them."""

    def build(self, capacity: int, lanes: int, obs: int, action: int) -> None:
        self.capacity, self.at, self.size = capacity, 0, 0
        self.rng = np.random.default_rng(0)
        self.obs, self.next_obs = np.zeros((2, capacity, obs), np.float32)
        self.action, self.reward = np.zeros((capacity, action), np.float32), np.zeros(capacity, np.float32)
        self.terminated = np.zeros(capacity, np.bool_)
        self.single = lanes == 1

    def item(self, steps: Steps) -> Any:
        arrays = steps.obs, steps.action, steps.reward, steps.terminated, steps.next_obs
        return tuple(array[0] for array in arrays) if self.single else arrays

    def add(self, item: Any) -> None:
        obs, action, reward, terminated, next_obs = item
        count = 1 if self.single else len(reward)
        there: Any = self.at if self.single else (self.at + np.arange(count)) % self.capacity
        self.obs[there], self.action[there], self.reward[there] = obs, action, reward
        self.terminated[there], self.next_obs[there] = terminated, next_obs
        self.at, self.size = (self.at + count) % self.capacity, min(self.capacity, self.size + count)

    def sample(self, batch: int) -> Any:
        chosen = self.rng.integers(0, self.size, batch)
        return (
            self.obs[chosen], self.action[chosen], self.reward[chosen], self.terminated[chosen], self.next_obs[chosen]
        )  # fmt: skip


class SB3:
    """``ReplayBuffer`` with as many environments; batches are tensors.

    Args:
        optimized: with ``optimize_memory_usage``.
    """

    def __init__(self, optimized: bool = False) -> None:
        self.optimized = optimized

    def build(self, capacity: int, lanes: int, obs: int, action: int) -> None:
        from gymnasium.spaces import Box
        from stable_baselines3.common.buffers import ReplayBuffer

        self.buffer = ReplayBuffer(
            capacity,
            Box(-np.inf, np.inf, (obs,), np.float32),
            Box(-1, 1, (action,), np.float32),
            device="cpu",
            n_envs=lanes,
            optimize_memory_usage=self.optimized,
            handle_timeout_termination=not self.optimized,
        )

    def item(self, steps: Steps) -> Any:
        return steps.obs, steps.next_obs, steps.action, steps.reward, steps.terminated, steps.infos

    def add(self, item: Any) -> None:
        self.buffer.add(*item)

    def sample(self, batch: int) -> Any:
        return self.buffer.sample(batch)


class Cpprb:
    """``ReplayBuffer``.

    Args:
        next_of: the next observation is the next row: only for one lane, whose episodes' ends must be told.
    """

    def __init__(self, next_of: bool = False) -> None:
        self.next_of = next_of

    def build(self, capacity: int, lanes: int, obs: int, action: int) -> None:
        from cpprb import ReplayBuffer

        fields: dict[str, Any] = {"obs": {"shape": obs}, "act": {"shape": action}, "rew": {}, "done": {}}
        self.next_of &= lanes == 1
        if self.next_of:
            self.buffer = ReplayBuffer(capacity, fields, next_of="obs")
        else:
            self.buffer = ReplayBuffer(capacity, fields | {"next_obs": {"shape": obs}})

    def item(self, steps: Steps) -> Any:
        arrays = {"obs": steps.obs, "act": steps.action, "rew": steps.reward, "next_obs": steps.next_obs}
        return arrays | {"done": steps.terminated}, bool(steps.terminated.any() or steps.truncated.any())

    def add(self, item: Any) -> None:
        arrays, ended = item
        self.buffer.add(**arrays)
        if ended:
            self.buffer.on_episode_end()

    def sample(self, batch: int) -> Any:
        return self.buffer.sample(batch)


class TorchRL:
    """``TensorDictReplayBuffer`` over a ``LazyTensorStorage``; steps come as tensordicts, made untimed."""

    def build(self, capacity: int, lanes: int, obs: int, action: int) -> None:
        from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

        self.buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=256)

    def item(self, steps: Steps) -> Any:
        import torch
        from tensordict import TensorDict

        end = torch.from_numpy(steps.terminated)[:, None]
        after = {
            "observation": torch.from_numpy(steps.next_obs), "reward": torch.from_numpy(steps.reward)[:, None],
            "done": end, "terminated": end,
        }  # fmt: skip
        arrays = {"observation": torch.from_numpy(steps.obs), "action": torch.from_numpy(steps.action), "next": after}
        return TensorDict(arrays, [len(steps.reward)])

    def add(self, item: Any) -> None:
        self.buffer.extend(item)

    def sample(self, batch: int) -> Any:
        return self.buffer.sample(batch)


CONTENDERS: dict[str, Callable[[], Contender]] = {
    "sharpwave": Sharpwave,
    "numpy ring": Ring,
    "SB3": SB3,
    "SB3, optimize_memory_usage": lambda: SB3(optimized=True),
    "cpprb": Cpprb,
    "cpprb, next_of": lambda: Cpprb(next_of=True),
    "TorchRL": TorchRL,
}


def random_steps(rng: np.random.Generator, lanes: int, times: int) -> list[Steps]:
    """Return steps of random walks, an episode's end in 250."""
    obs = np.cumsum(rng.normal(size=(times + 1, lanes, OBS)), axis=0).astype(np.float32)
    action = rng.normal(size=(times, lanes, ACTION)).astype(np.float32)
    reward, terminated = rng.normal(size=(times, lanes)).astype(np.float32), rng.random((times, lanes)) < 0.004
    no = np.zeros(lanes, np.bool_)
    infos: list[dict[str, Any]] = [{} for _ in range(lanes)]
    return [Steps(obs[t], action[t], reward[t], terminated[t], no, obs[t + 1], infos) for t in range(times)]


def timed(call: Callable[[], Any], calls: int) -> tuple[float, float]:
    """Return the processor time of a call in microseconds, and the 99th percentile of the time by the clock.

    Garbage is collected in between: else one of the contenders pays for what all have left.
    """
    gc.collect()
    gc.disable()
    try:
        spent, began = [], time.process_time()
        for _ in range(calls):
            before = time.perf_counter()
            call()
            spent.append(time.perf_counter() - before)
        return 1e6 * (time.process_time() - began) / calls, 1e6 * float(np.percentile(spent, 99))
    finally:
        gc.enable()


def adder(contender: Contender, lanes: int, steps: list[Steps]) -> Callable[[], None]:
    """Return a function that adds the next steps of each lane."""
    at, items = 0, [contender.item(one) for one in steps]

    def add() -> None:
        nonlocal at
        contender.add(items[at])
        at = (at + 1) % len(items)

    return add


def calls_in_turn(rounds: int) -> tuple[Times, Times]:
    """Return each contender's times by call, means and 99th percentiles in microseconds, of every round."""
    rng = np.random.default_rng(0)
    tasks: dict[str, dict[str, tuple[Callable[[], Any], int]]] = {}
    for lanes, capacity in CAPACITY.items():
        what = "append" if lanes == 1 else f"extend {lanes}"
        steps = random_steps(rng, lanes, 2048 if lanes < MANY else 32)
        tasks[what] = {}
        for name, make in CONTENDERS.items():
            contender = make()
            contender.build(capacity, lanes, OBS, ACTION)
            add = adder(contender, lanes, steps)
            for _ in range(capacity // lanes + 1000):  # full: from here on it replaces the oldest
                add()
            tasks[what][name] = add, CALLS[lanes]
            if lanes == 8:
                for size in BATCHES:
                    tasks.setdefault(f"sample {size}", {})[name] = partial(contender.sample, size), CALLS[8]
    means: Times = {what: {name: [] for name in CONTENDERS} for what in tasks}
    worst: Times = {what: {name: [] for name in CONTENDERS} for what in tasks}
    for _ in range(rounds):
        for what, some in tasks.items():
            for name, (call, calls) in some.items():
                mean, late = timed(call, calls)
                means[what][name].append(mean)
                worst[what][name].append(late)
    return means, worst


def recorder(rounds: int, steps: int = 2000) -> dict[str, list[float]]:
    """Return microseconds a step of CartPole, bare and recorded, resets included, of every round."""
    spec = sw.Spec(obs=sw.Field((4,), "float32"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=100_000)
    envs: dict[str, Any] = {
        "bare": gymnasium.make("CartPole-v1"),
        "recorded": sw.Recorder(gymnasium.make("CartPole-v1"), store),
    }
    actions = np.random.default_rng(0).integers(0, 2, steps)
    found: dict[str, list[float]] = {name: [] for name in envs}
    for _ in range(rounds + 1):
        for name, env in envs.items():
            env.reset(seed=0)
            began = time.process_time()
            for action in actions:
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
            found[name].append(1e6 * (time.process_time() - began) / steps)
    return {name: some[1:] for name, some in found.items()}


def hopper(count: int) -> list[Steps]:
    """Return steps of Hopper, random actions."""
    env = gymnasium.make("Hopper-v5")
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    found, no = [], np.zeros(1, np.bool_)
    for _ in range(count):
        action = env.action_space.sample()
        after, reward, terminated, truncated, _ = env.step(action)
        flags = np.array([terminated]), np.array([truncated]) if truncated else no
        rows = (np.asarray(row, np.float32)[None] for row in (obs, action, reward, after))
        before, acted, rewarded, following = rows
        found.append(Steps(before, acted, rewarded.reshape(1), *flags, following, [{}]))
        obs = env.reset()[0] if terminated or truncated else after
    return found


def memory(name: str, steps: int) -> dict[str, float]:
    """Fill a contender with steps of Hopper; return the growth of the process in bytes a step."""
    recorded = hopper(min(steps, 50_000))
    size, acted = recorded[0].obs.shape[1], recorded[0].action.shape[1]
    warm = CONTENDERS[name]()
    warm.build(5000, 1, size, acted)
    for one in recorded[:2000]:  # libraries are loaded, kernels compiled
        warm.add(warm.item(one))
    warm.sample(256)
    before = private_bytes()
    contender = CONTENDERS[name]()
    contender.build(steps, 1, size, acted)
    for k in range(steps):
        contender.add(contender.item(recorded[k % len(recorded)]))
    contender.sample(256)
    return {"bytes": (private_bytes() - before) / steps}


def in_processes(steps: int) -> dict[str, float]:
    """Return each contender's bytes a step."""
    found = {}
    for name in CONTENDERS:
        found[name] = runner.last_line([sys.executable, __file__, "--one", name, "--steps", str(steps)], name)
    return {name: one["bytes"] for name, one in found.items() if one is not None}


def show(results: dict[str, Any]) -> None:
    """Print a table, and Sharpwave's goals."""
    means, console = results["means_us"], runner.console(120)
    title = f"Vectors of {OBS} floats: processor time a call in us, medians of {results['rounds']} rounds"
    table = runner.table(title, "", *means, f"99 % of {MANY}", "bytes a step of Hopper")
    for name in CONTENDERS:
        cells = [f"{statistics.median(means[what][name]):.1f}" for what in means]
        cells.append(f"{statistics.median(results['p99_us'][f'extend {MANY}'][name]):.0f}")
        cells.append(f"{results['bytes'][name]:.1f}" if name in results["bytes"] else "-")
        table.add_row(name, *cells, style="bold cyan" if name == "sharpwave" else "")
    console.print(table)
    lanes = statistics.median(means[f"extend {MANY}"]["sharpwave"])
    console.print(f"{MANY:,} lanes: {MANY / lanes:.1f} million steps a second")
    bare, recorded = results["recorder_us"]["bare"], results["recorder_us"]["recorded"]
    over = statistics.median(b - a for a, b in zip(bare, recorded, strict=True))
    console.print(f"a step of CartPole: {statistics.median(bare):.1f} us, a Recorder adds {over:.1f}")
    for what, some in means.items():
        times = {name: statistics.median(rounds) for name, rounds in some.items() if name != "sharpwave"}
        for name in ("numpy ring", min(times, key=lambda one: times[one])):
            pairs = zip(some["sharpwave"], some[name], strict=True)
            ratio = statistics.median(theirs / ours for ours, theirs in pairs)
            console.print(f"{what}: {ratio:.2f} times as fast as {name}")
    reached = {what: statistics.median(means[what]["sharpwave"]) for what in means} | {"recorder": over}
    for what, goal in GOALS_US.items():
        met = "met" if reached[what] <= goal else "missed"
        console.print(f"goal: {what} at most {goal:g} us: {reached[what]:.1f}, {met}")


def main() -> None:
    """Measure all contenders in turn, print a table, and write the figures."""
    parser = runner.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=1_000_000, help="of Hopper; 0: none")
    parser.add_argument("--out", type=Path, default=runner.RESULTS / "vectors.json")
    parser.add_argument("--show", type=Path, help="print earlier results")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(memory(arguments.one, arguments.steps)))
        return
    if arguments.show:
        show(json.loads(arguments.show.read_text()))
        return
    runner.check_idle()
    means, worst = calls_in_turn(arguments.rounds)
    results = {
        "environment": environment(("sharpwave", "numpy", "stable-baselines3", "cpprb", "torchrl", "gymnasium")),
        "rounds": arguments.rounds,
        "means_us": means,
        "p99_us": worst,
        "recorder_us": recorder(arguments.rounds),
        "steps": arguments.steps,
        "bytes": in_processes(arguments.steps) if arguments.steps else {},
    }
    runner.write(arguments.out, results)
    show(results)


if __name__ == "__main__":
    main()
