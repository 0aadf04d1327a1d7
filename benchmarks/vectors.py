"""Small steps: what a call costs with vectors of 17 floats, and a million steps of Hopper in memory.

    python benchmarks/vectors.py [--rounds 9] [--steps 1000000]
    python benchmarks/vectors.py --worst [--calls 977] [--lanes 1024] [--pause 0]
    python benchmarks/vectors.py --episodes

Sharpwave beside a plain numpy ring, stable-baselines3, cpprb and TorchRL, in one process, measured in turn: each
round times a block of calls of every contender, and the table shows medians of the rounds. A ratio is the median of
the rounds' ratios. Times are the processor's, of all threads: on an idle machine those of the clock. Memories are full,
so each step replaces another, and segments are sealed and evicted. Bytes are the growth of a process of its own for
each contender, which holds ``--steps`` steps.

``--worst``: the worst calls. Steps of 1,024 Humanoids are added to memories that are empty at first, each in a process
of its own, in turn, by the clock: whatever holds the caller up counts. The columns of processor time leave out what
other processes take. The first call opens the lanes, and is shown apart. Until a memory is full the system clears each
page that is written for the first time, which takes longer than the copy: the plain numpy ring shows how long. Where a
virtual machine gives free pages back to its host, each takes some 8 us more, or 4 ms for a huge page. ``--pause`` is
for environments: milliseconds between two calls, in which threads go on.

``--episodes``: whole episodes by ``add_episode``, and rollouts of eight lanes by one ``extend``, beside the same step
by step.
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
    """Print a table, and ratios to the numpy ring and to the fastest."""
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


# the worst calls

FILLED = ("sharpwave", "numpy ring", "SB3", "cpprb")


def humanoids(lanes: int, steps: int) -> list[Steps]:
    """Return steps of Humanoids that act at random: those of 8, each lane from another step on."""
    same = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
    envs = gymnasium.make_vec("Humanoid-v5", 8, vector_kwargs=same)
    envs.action_space.seed(0)
    obs, _ = envs.reset(seed=0)
    rows, lasting = [], 512
    for _ in range(lasting):
        action = envs.action_space.sample()
        following, reward, terminated, truncated, infos = envs.step(action)
        ended, after = terminated | truncated, following.copy()
        for env in np.flatnonzero(ended):
            after[env] = infos["final_obs"][env]
        rows.append((obs, action, reward, ended, after))
        obs = following
    columns = [np.stack(some) for some in zip(*rows, strict=True)]
    which, shift = np.arange(lanes) % 8, np.arange(lanes) * 31
    no = np.zeros(lanes, np.bool_)
    nothing: list[dict[str, Any]] = [{} for _ in range(lanes)]
    found = []
    for step in range(steps):
        at = (shift + step) % lasting
        obs, action, reward, ended, after = (column[at, which] for column in columns)
        obs, action, reward, after = (one.astype(np.float32) for one in (obs, action, reward, after))
        found.append(Steps(obs, action, reward, ended, no, after, nothing))
    return found


def filled(name: str, lanes: int, calls: int, pause_s: float) -> list[list[float]]:
    """Return milliseconds of each call, and of the calling thread's processor time."""
    steps = humanoids(lanes, 64)
    contender = CONTENDERS[name]()
    contender.build(calls * lanes, lanes, steps[0].obs.shape[1], steps[0].action.shape[1])
    items, spent = [contender.item(one) for one in steps], []
    for call in range(calls):
        if pause_s:
            time.sleep(pause_s)
        began, used = time.perf_counter(), time.thread_time()
        contender.add(items[call % len(items)])
        spent.append([1e3 * (time.perf_counter() - began), 1e3 * (time.thread_time() - used)])
    return spent


def show_worst(arguments: argparse.Namespace) -> None:
    """Fill each contender several times, and print medians of the rounds."""
    spent: dict[str, list[list[list[float]]]] = {name: [] for name in FILLED}
    for _ in range(arguments.rounds):
        for name in FILLED:
            command = [sys.executable, __file__, "--worst", "--one", name, "--calls", str(arguments.calls)]
            command += ["--lanes", str(arguments.lanes), "--pause", str(arguments.pause)]
            found = runner.last_line(command, name)
            if found is None:
                sys.exit(1)
            spent[name].append(found)
    title = f"{arguments.calls:,} calls of {arguments.lanes:,} Humanoids, milliseconds a call"
    heads = ("mean", "median", "99 %", "worst", "above 3x", "processor: mean", "median", "worst", "above 3x", "first")
    table = runner.table(title, "", *heads)
    for name, rounds in spent.items():
        some = [np.array(one[1:]).T for one in rounds]

        def middle(figure: Callable[[Any, Any], Any], some: list[Any] = some) -> str:
            return f"{statistics.median(float(figure(clock, used)) for clock, used in some):.2f}"

        cells = [
            middle(lambda clock, used: np.mean(clock)),
            middle(lambda clock, used: np.median(clock)),
            middle(lambda clock, used: np.percentile(clock, 99)),
            middle(lambda clock, used: np.max(clock)),
            middle(lambda clock, used: np.count_nonzero(clock > 3 * np.median(clock))),
            middle(lambda clock, used: np.mean(used)),
            middle(lambda clock, used: np.median(used)),
            middle(lambda clock, used: np.max(used)),
            middle(lambda clock, used: np.count_nonzero(used > 3 * np.median(used))),
        ]
        first = statistics.median(one[0][0] for one in rounds)
        table.add_row(name, *(cell.removesuffix(".00") for cell in cells), f"{first:.2f}")
    runner.console(120).print(table)


# whole episodes

KINDS: dict[str, tuple[tuple[int, ...], str]] = {
    "vector of 17 floats": ((17,), "float32"),
    "frame of 84x84, noise in a tenth": ((84, 84), "uint8"),
}
EPISODE_STEPS, EPISODE_ROUNDS = 1000, 15


def show_episodes() -> None:
    """Time all ways in turn, and print how they compare."""
    rng, count = np.random.default_rng(0), EPISODE_STEPS
    for name, (shape, dtype) in KINDS.items():
        obs: Any = rng.normal(size=(count + 1, *shape)).astype(dtype)
        if dtype == "uint8":
            obs = np.where(rng.random(obs.shape) < 0.1, rng.integers(0, 255, obs.shape), 87).astype(np.uint8)
        action, reward = rng.normal(size=(count, 6)).astype(np.float32), np.ones(count, np.float32)
        spec = sw.Spec(obs=sw.Field(shape, dtype), action=sw.Field((6,), "float32"))
        adds = [reshaped(8, arrays) for arrays in (obs[:-1], action, reward)]
        flags = np.zeros(adds[2].shape, np.bool_)
        stores = {way: sw.Store(spec, capacity=20 * count) for way in ("add_episode", "append", "block", "extend")}
        times: dict[str, list[float]] = {way: [] for way in stores}
        for _ in range(EPISODE_ROUNDS):
            began = time.perf_counter()
            stores["add_episode"].add_episode(obs=obs, action=action, reward=reward, terminated=True)
            times["add_episode"].append(time.perf_counter() - began)
            began = time.perf_counter()
            for t in range(count):
                stores["append"].append(
                    obs=obs[t], action=action[t], reward=1.0, terminated=t == count - 1, truncated=False
                )  # fmt: skip
            times["append"].append(time.perf_counter() - began)
            began = time.perf_counter()
            stores["block"].extend(obs=adds[0], action=adds[1], reward=adds[2], terminated=flags, truncated=flags)
            times["block"].append(time.perf_counter() - began)
            began = time.perf_counter()
            for t in range(len(flags)):
                stores["extend"].extend(
                    obs=adds[0][t], action=adds[1][t], reward=adds[2][t], terminated=flags[t], truncated=flags[t]
                )  # fmt: skip
            times["extend"].append(time.perf_counter() - began)
        micros = {way: 1e6 * statistics.median(found[1:]) / count for way, found in times.items()}
        print(f"{name}:")
        for one, other in (("add_episode", "append"), ("block", "append"), ("block", "extend")):
            ratio = statistics.median(b / a for a, b in zip(times[one], times[other], strict=True))
            print(f"  {one} {micros[one]:.2f} us a step, {other} {micros[other]:.2f}: {ratio:.1f} times as fast")


def reshaped(lanes: int, values: Any) -> Any:
    """Return [T, lanes, ...] of the first values."""
    times = len(values) // lanes
    return values[: times * lanes].reshape(times, lanes, *values.shape[1:])


def main() -> None:
    """Measure all contenders in turn, print a table, and write the figures."""
    parser = runner.parser(__doc__)
    parser.add_argument("--rounds", type=int, help="9; with --worst 3")
    parser.add_argument("--steps", type=int, default=1_000_000, help="of Hopper; 0: none")
    parser.add_argument("--quick", action="store_true", help="smaller memories, one round, no Hopper")
    parser.add_argument("--out", type=Path, default=runner.RESULTS / "vectors.json")
    parser.add_argument("--show", type=Path, help="print earlier results")
    parser.add_argument("--worst", action="store_true", help="the worst calls of adding to empty memories")
    parser.add_argument("--calls", type=int, default=977, help="--worst: a million steps")
    parser.add_argument("--lanes", type=int, default=1024, help="--worst")
    parser.add_argument("--pause", type=float, default=0.0, help="--worst: milliseconds between two calls")
    parser.add_argument("--episodes", action="store_true", help="whole episodes beside single steps")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (3 if arguments.worst else 9)
    if arguments.worst and arguments.one:
        pause_s = arguments.pause / 1e3
        print(json.dumps(filled(arguments.one, arguments.lanes, arguments.calls, pause_s)))
        return
    if arguments.worst or arguments.episodes:
        show_worst(arguments) if arguments.worst else show_episodes()
        return
    if arguments.one:
        print(json.dumps(memory(arguments.one, arguments.steps)))
        return
    if arguments.show:
        show(json.loads(arguments.show.read_text()))
        return
    if arguments.quick:
        CAPACITY.update({1: 2_000, 8: 4_000, MANY: 8 * MANY})
        arguments.rounds, arguments.steps = 1, 0
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
