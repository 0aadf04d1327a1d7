"""Loads and memories of ``workloads.py``: Sharpwave's, TorchRL's and Reverb's, which are imported when one is made.

Steps are kept as .npy files outside git, of real games where there are. ``qbert``: frames of ale-py under random play.
``humanoid``: MuJoCo's Humanoid-v5 under random actions, 348 numbers, so that a transition has the 3 KB of the table
(Hopper's 11 numbers have .1). ``smac`` and ``gobigger`` are synthetic, as neither game installs here: units that
walk, fight and die, of which an agent sees the near ones (the others are zeros, as in the real tasks), one-hot types,
masks; and balls on a map, of which some hundreds are in sight. Positions are full float32 numbers, which no codec can
shorten by much.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from frames import CACHE
from frames import load as load_frames

import sharpwave as sw

Array = npt.NDArray[Any]
Columns = dict[str, Any]
TIMES = {"qbert": 8_192, "humanoid": 4_096, "smac": 4_096, "gobigger": 256}
"""Distinct steps of each lane; larger memories hold them several times."""

LANES = 8


@dataclass(frozen=True)
class Load:
    """A memory as an algorithm needs it.

    Attributes:
        name: algorithm and environment.
        elements: capacity.
        kind: "prioritized", "uniform", or "use-counted".
        element_bytes: of an element, as the table of the loads says. Its elements of frames are float32, a stack of
            four at each step; frames are bytes, so bytes are stored and sampled here, a quarter of the size.
        adds, samples: elements a second.
        data: source of its steps, of ``MAKE``.
        window: steps of an element; 0: a transition.
        burn_in: steps before the window.
        uses: how often an element is sampled at most.
        batch: elements of a batch.
    """

    name: str
    elements: int
    kind: str
    element_bytes: int
    adds: float
    samples: float
    data: str
    window: int = 0
    burn_in: int = 0
    uses: int | None = None
    batch: int = 64

    @property
    def steps(self) -> int:
        """Steps that an element adds to the memory."""
        return self.window or 1

    @property
    def stack(self) -> int | None:
        """Frames of an observation."""
        return 4 if self.data == "qbert" else None


LOADS = {
    "dqn-atari": Load("DQN, Atari Qbert", 400_000, "prioritized", 110_000, 400, 1650, "qbert"),
    "ppo-atari": Load("PPO, Atari Qbert", 100_000, "use-counted", 120_000, 50, 87, "qbert", uses=2),
    "r2d2-atari": Load(
        "R2D2, Atari Qbert", 10_000, "prioritized", 10_000_000, 3, 45, "qbert", window=80, burn_in=8, batch=16
    ),
    "impala-atari": Load(
        "IMPALA, Atari Qbert", 100_000, "use-counted", 3_000_000, 4, 253, "qbert", window=26, uses=64, batch=32
    ),
    "sac-mujoco": Load("SAC, MuJoCo", 1_000_000, "uniform", 3_000, 71, 138, "humanoid"),
    "qmix-smac": Load("QMIX, SMAC 3s5z", 50_000, "uniform", 290_000, 19, 60, "smac", window=10, batch=32),
    "masac-smac": Load("MASAC, SMAC 3s5z", 1_000_000, "uniform", 29_000, 116, 63, "smac"),
    "dqn-gobigger": Load("DQN, GoBigger", 100_000, "prioritized", 400_000, 30, 83, "gobigger", batch=32),
}  # fmt: skip


def folder_of(data: str, say: Callable[[str], None] = print) -> Path:
    """Return the folder of a source's columns: obs, action, reward and terminated, each [times, lanes, ...].

    Every episode terminates, so nothing but these is needed to store it.
    """
    folder = CACHE / f"workload-{data}@{TIMES[data]}"
    if not (folder / "info.json").exists():
        say(f"making steps of {data}")
        unfinished = CACHE / f"{folder.name}.{os.getpid()}"
        unfinished.mkdir(parents=True)
        try:
            columns = MAKE[data](TIMES[data])
            columns["terminated"][-1] = True  # the next round of them begins elsewhere
            for name, column in columns.items():
                np.save(unfinished / f"{name}.npy", column)
            (unfinished / "info.json").write_text(json.dumps({"columns": sorted(columns)}))
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def read(folder: Path) -> Columns:
    """Return the columns, in memory: reading files is not what is measured."""
    names = json.loads((folder / "info.json").read_text())["columns"]
    return {name: np.load(folder / f"{name}.npy") for name in names}


def _qbert(times: int) -> Columns:
    recorded = load_frames("qbert", times * LANES)
    return {
        "obs": np.array(recorded.obs[:times]),
        "action": np.zeros((times, LANES), np.int64),
        "reward": np.array(recorded.reward[:times]),
        "terminated": np.array(recorded.terminated[:times] | recorded.truncated[:times]),
    }


def _humanoid(times: int) -> Columns:
    import gymnasium as gym
    from gymnasium.vector import AutoresetMode

    env: Any = gym.make_vec("Humanoid-v5", LANES, vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP})
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    columns = _empty(times, {"obs": (obs.shape[1:], np.float32), "action": (env.action_space.shape[1:], np.float32)})
    for t in range(times):
        action = env.action_space.sample()
        columns["obs"][t], columns["action"][t] = obs, action
        obs, columns["reward"][t], terminated, truncated, _ = env.step(action)
        columns["terminated"][t] = terminated | truncated
    return columns


AGENTS, ENEMIES, ACTIONS, SIGHT = 8, 8, 14, 9.0


def _smac(times: int) -> Columns:
    """Eight agents and eight enemies: 150 numbers an agent sees, 295 of the whole state for each, 14 masked actions."""
    rng = np.random.default_rng(0)
    shapes = {"obs.agents": (AGENTS, 150), "obs.state": (AGENTS, 295)}
    columns = _empty(times, {name: (shape, np.float32) for name, shape in shapes.items()})
    columns["obs.mask"] = np.zeros((times, LANES, AGENTS, ACTIONS), np.uint8)
    columns["action"] = np.zeros((times, LANES, AGENTS), np.int64)
    for lane in range(LANES):
        begin = 0
        while begin < times:
            end = min(times, begin + int(rng.integers(40, 90)))
            _battle(rng, {name: column[begin:end, lane] for name, column in columns.items()}, end - begin)
            begin = end
    return columns


def _battle(rng: np.random.Generator, columns: Columns, steps: int) -> None:
    """Fill the columns, [steps, ...], with an episode."""
    units = AGENTS + ENEMIES
    friend, other = np.arange(units) < AGENTS, ~np.eye(AGENTS, units, dtype=bool)
    kinds = np.tile(np.eye(2, dtype=np.float32)[[0, 0, 0, 1, 1, 1, 1, 1]], (2, 1))
    places = np.concatenate([rng.normal(8, 2, (AGENTS, 2)), rng.normal(20, 2, (ENEMIES, 2))])
    health, shield, cooldown = np.ones(units), np.ones(units), np.zeros(units)
    last = np.zeros((AGENTS, ACTIONS), np.float32)
    for t in range(steps):
        alive = health > 0
        own = np.concatenate([np.stack([health, shield, cooldown], axis=1), places / 32, kinds], axis=1)
        own *= alive[:, None]
        offset = places[None] - places[:AGENTS, None]
        distance = np.linalg.norm(offset, axis=2)
        seen = (distance < SIGHT) & alive[None] & alive[:AGENTS, None] & other
        about = np.broadcast_to(np.concatenate([own[:, :2], kinds], axis=1), (AGENTS, units, 4))
        near = np.concatenate([distance[..., None] / SIGHT, offset / SIGHT, about], axis=2) * seen[..., None]
        mask = np.zeros((AGENTS, ACTIONS), np.uint8)
        mask[:, 0], mask[:, 1:6] = ~alive[:AGENTS], alive[:AGENTS, None]
        mask[:, 6:] = (distance[:, AGENTS:] < 6) & alive[None, AGENTS:] & alive[:AGENTS, None]
        action = np.array([rng.choice(np.flatnonzero(row)) for row in mask])
        agents = np.concatenate([near.reshape(AGENTS, -1), own[:AGENTS], last, mask], axis=1)
        columns["obs.agents"][t, :, : agents.shape[1]] = agents
        whole = np.concatenate([own.ravel(), last.ravel()])
        columns["obs.state"][t, :, : len(whole)] = whole
        columns["obs.state"][t, :, -AGENTS:] = np.eye(AGENTS)
        columns["obs.mask"][t], columns["action"][t] = mask, action
        last = np.eye(ACTIONS, dtype=np.float32)[action]
        places += rng.normal(0, 0.5, places.shape) + np.where(friend[:, None], 0.15, -0.15)
        hit = alive & (rng.random(units) < 0.3)
        shield = np.maximum(0, shield - hit * rng.random(units) * 0.3)
        health = np.where(hit & (shield == 0), np.maximum(0, health - rng.random(units) * 0.2), health)
        cooldown = np.where(hit, 1.0, np.maximum(0, cooldown - 0.25))
        columns["reward"][t] = hit[AGENTS:].sum() * 0.1
    columns["terminated"][steps - 1] = True


PLAYERS, FOOD, CLONES = 3, 1_500, 120


def _gobigger(times: int) -> Columns:
    """Three players: food in sight [1500, 4], balls [120, 24], how they stand to each other [120, 60]; zeros beyond."""
    rng = np.random.default_rng(0)
    sizes = {"obs.food": (PLAYERS, FOOD, 4), "obs.balls": (PLAYERS, CLONES, 24), "obs.relation": (PLAYERS, CLONES, 60)}
    columns = _empty(times, {name: (shape, np.float32) for name, shape in sizes.items()})
    columns["action"] = rng.integers(0, 16, (times, LANES, PLAYERS))
    for lane in range(LANES):
        food = rng.random((FOOD, 4)).astype(np.float32)
        balls = rng.random((PLAYERS, CLONES, 24)).astype(np.float32)
        for t in range(times):
            eaten = rng.integers(0, FOOD, 12)
            food[eaten] = rng.random((12, 4))
            balls[..., :4] += rng.normal(0, 0.01, (PLAYERS, CLONES, 4))  # places and speeds change, kinds do not
            for player in range(PLAYERS):
                centre = balls[player, 0, :2]
                near = np.flatnonzero(np.abs(food[:, :2] - centre).max(axis=1) < 0.3)
                columns["obs.food"][t, lane, player, : len(near)] = food[near]
                alive = 30 + (t // 8 + player * 7) % 40
                columns["obs.balls"][t, lane, player, :alive] = balls[player, :alive]
                gaps = balls[player, :alive, None, :2] - balls[player, None, :30, :2]
                columns["obs.relation"][t, lane, player, :alive] = gaps.reshape(alive, -1)
            columns["terminated"][t, lane] = t % 200 == 199
            columns["reward"][t, lane] = len(near) * 0.01
    return columns


def _empty(times: int, fields: dict[str, tuple[tuple[int, ...], Any]]) -> Columns:
    columns = {name: np.zeros((times, LANES, *shape), dtype) for name, (shape, dtype) in fields.items()}
    columns["reward"] = np.zeros((times, LANES), np.float32)
    columns["terminated"] = np.zeros((times, LANES), np.bool_)
    return columns


MAKE: dict[str, Callable[[int], Columns]] = {
    "qbert": _qbert, "humanoid": _humanoid, "smac": _smac, "gobigger": _gobigger,
}  # fmt: skip


# memories

ACTORS = 2
FILL_STEPS = 512
"""Steps of a lane that are added at once while the memory is filled."""

TABLE, CHUNK_STEPS, UNCONFIRMED = "elements", 5, 64


class Memory(ABC):
    """Memory of one load."""

    @abstractmethod
    def fill(self, elements: int) -> None:
        """Add so many elements."""

    @abstractmethod
    def add(self) -> float:
        """Add a step of each lane; return how many elements these are."""

    @abstractmethod
    def sample(self) -> Any:
        """Return a batch."""

    @abstractmethod
    def update(self, batch: Any, rng: np.random.Generator) -> None:
        """Set the priorities of a batch."""

    @abstractmethod
    def handed(self, batch: Any) -> int:
        """Return the bytes of a batch's arrays of observations."""

    @abstractmethod
    def counted(self) -> dict[str, float]:
        """Return what the library says of the memory itself."""


def spec_of(load: Load, columns: Columns) -> sw.Spec:
    """Return the spec of a load's steps."""
    fields = {
        name: sw.Field(column.shape[2:], column.dtype, stack=load.stack if name == "obs" else None)
        for name, column in columns.items()
        if name not in ("reward", "terminated", "action")
    }
    obs: Any = fields["obs"] if "obs" in fields else {name.partition(".")[2]: one for name, one in fields.items()}
    return sw.Spec(obs=obs, action=sw.Field(columns["action"].shape[2:], columns["action"].dtype))


def rows(columns: Columns, begin: int, end: int | None = None) -> Columns:
    """Return arguments of ``extend``: steps ``begin`` to ``end`` of all lanes, or without ``end`` one of each."""
    at = slice(begin, end) if end is not None else begin
    taken = {name: column[at] for name, column in columns.items()}
    parts = {name.partition(".")[2]: taken.pop(name) for name in list(taken) if name.startswith("obs.")}
    if parts:
        taken["obs"] = parts
    return taken | {"truncated": np.zeros_like(taken["terminated"])}


class Ours(Memory):
    """Contender Sharpwave: a store and its view, fed by this process or by actors of their own."""

    def __init__(self, load: Load, folder: Path) -> None:
        self.load, self.columns, self.folder = load, read(folder), folder
        self.times, self._at = len(self.columns["reward"]), 0
        self.store = sw.Store(spec_of(load, self.columns), capacity=load.elements * load.steps)
        sampler: Any = sw.Prioritized() if load.kind == "prioritized" else sw.Uniform()
        how: dict[str, Any] = {"sampler": sampler, "max_times_sampled": load.uses}
        if load.window:
            self.view: Any = self.store.sequences(load.window, burn_in=load.burn_in, stride=load.window, **how)
        else:
            self.view = self.store.transitions(**how)
        self._received = 0

    def fill(self, elements: int) -> None:
        left = elements * self.load.steps // LANES
        while left > 0:
            begin = self._at % self.times
            end = min(begin + FILL_STEPS, self.times, begin + left)
            self.store.extend(**rows(self.columns, begin, end))
            self._at, left = self._at + end - begin, left - (end - begin)

    def add(self) -> float:
        self.store.extend(**rows(self.columns, self._at % self.times))
        self._at += 1
        return LANES / self.load.steps

    def sample(self) -> Any:
        return self.view.sample(self.load.batch)

    def update(self, batch: Any, rng: np.random.Generator) -> None:
        shape = (len(batch.ids), self.load.window) if self.load.window else len(batch.ids)
        self.view.update_priorities(batch.ids, rng.exponential(size=shape).astype(np.float32))

    def handed(self, batch: Any) -> int:
        arrays = [batch.obs] if self.load.window else [batch.obs, batch.next_obs]
        return sum(one.nbytes for each in arrays for one in (each.values() if isinstance(each, dict) else [each]))

    def counted(self) -> dict[str, float]:
        stats = self.store.stats()
        return {"counted_bytes": stats["total_bytes"], "steps": stats["steps"]}

    def actors(self, adds: float) -> Actors:
        """Start actors that add ``adds`` elements a second, of all together."""
        return Actors(self, adds * self.load.steps)

    def close(self) -> None:
        """Close the store."""
        self.store.close()


class Actors:
    """Processes that encode steps and send segments, and the thread that puts them into the store."""

    def __init__(self, memory: Ours, steps_per_s: float) -> None:
        self._memory, self.steps, spawn = memory, 0, multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        name = next(name for name, load in LOADS.items() if load is memory.load)
        for number in range(ACTORS):
            here, there = spawn.Pipe(duplex=False)
            arguments = (name, str(memory.folder), number, steps_per_s / ACTORS, there)
            self._processes.append(spawn.Process(target=_act, args=arguments, daemon=True))
            self._processes[-1].start()
            there.close()
            self._pipes.append(here)
        for pipe in self._pipes:
            pipe.recv_bytes()  # it is ready
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """Stop them; return how many elements arrived."""
        for process in self._processes:
            process.terminate()
        self._thread.join(30.0)
        for process in self._processes:
            process.join(30.0)
        return self.steps / self._memory.load.steps

    def _receive(self) -> None:
        store, pipes = self._memory.store, list(self._pipes)
        while pipes:
            for pipe in wait(pipes):
                assert isinstance(pipe, Connection)
                try:
                    count = int.from_bytes(pipe.recv_bytes(), "little")
                    shared = {int.from_bytes(pipe.recv_bytes(), "little"): pipe.recv_bytes() for _ in range(count)}
                    packed = pipe.recv_bytes()
                except EOFError:
                    pipes.remove(pipe)
                    continue
                before = store.total_steps
                store.add_segment(packed, shared)
                self.steps += store.total_steps - before


def _act(name: str, folder: str, number: int, steps_per_s: float, pipe: Connection) -> None:
    """Add steps of ``LANES`` lanes of this actor's own, at a pace."""
    load, columns = LOADS[name], read(Path(folder))

    def send(sealed: sw.SealedSegment) -> None:
        pipe.send_bytes(len(sealed.dictionaries).to_bytes(4, "little"))
        for key, content in sealed.dictionaries.items():
            pipe.send_bytes(key.to_bytes(8, "little"))
            pipe.send_bytes(content)
        pipe.send_bytes(sealed.packed)

    writer = sw.SegmentWriter(spec_of(load, columns), LANES, send, first_lane=(number + 1) * LANES)
    pipe.send_bytes(b"")
    begin, times = time.perf_counter(), len(columns["reward"])
    at = number * times // ACTORS
    for made in range(1, 1 << 60):
        writer.extend(**rows(columns, at % times))
        at += 1
        time.sleep(max(0.0, begin + made * LANES / steps_per_s - time.perf_counter()))


class TorchRL(Memory):
    """Contender TorchRL: transitions with both observations, or windows of single frames, in tensors.

    It counts no uses, and its prioritized sampler needs an extension that does not load with every torch (2.13 is one);
    then loads are sampled at random, which costs less.
    """

    def __init__(self, load: Load, folder: Path) -> None:
        from torchrl.data import LazyTensorStorage, ReplayBuffer
        from torchrl.data.replay_buffers.samplers import PrioritizedSampler, RandomSampler

        self.load, self.columns = load, read(folder)
        self.times, self._at = len(self.columns["reward"]), 0
        sampler: Any = RandomSampler()
        if load.kind == "prioritized":
            with contextlib.suppress(RuntimeError, ImportError):
                sampler = PrioritizedSampler(load.elements, 0.6, 0.4)
        self._prioritized = isinstance(sampler, PrioritizedSampler)
        self.buffer = ReplayBuffer(storage=LazyTensorStorage(load.elements), sampler=sampler, batch_size=load.batch)
        self._obs = [name for name in self.columns if name.startswith("obs")]
        self._added = 0

    def _elements(self, at: int) -> Any:
        """Return the elements that step ``at`` completes, one of each lane: all that begin where they can."""
        import torch
        from tensordict import TensorDict

        load, stack = self.load, self.load.stack or 1
        rest = [name for name in self.columns if name not in self._obs]
        if load.window:
            back = load.window + load.burn_in
            when = (np.arange(at - back - stack + 2, at + 2)) % self.times  # the frames of its stacks, and one after it
            parts = {name: self.columns[name][when].swapaxes(0, 1) for name in self._obs}
            parts |= {
                name: self.columns[name][(np.arange(at - back + 1, at + 1)) % self.times].swapaxes(0, 1)
                for name in rest
            }
        else:
            parts = {name: self.columns[name][at % self.times] for name in rest}
            for name in self._obs:
                if load.stack:
                    frames = self.columns[name][(np.arange(at - stack + 1, at + 2)) % self.times].swapaxes(0, 1)
                    parts[name], parts["next_" + name] = frames[:, :-1], frames[:, 1:]
                else:
                    parts[name], parts["next_" + name] = (self.columns[name][(at + k) % self.times] for k in (0, 1))
        return TensorDict({name: torch.from_numpy(np.ascontiguousarray(each)) for name, each in parts.items()}, [LANES])

    def fill(self, elements: int) -> None:
        for _ in range(elements // LANES):
            self._at += self.load.steps
            self._extend()

    def _extend(self) -> None:
        self.buffer.extend(self._elements(self._at))
        self._added += LANES

    def add(self) -> float:
        """Add a step of each lane, and a window where one is complete; return how many elements these are."""
        self._at += 1
        if self._at % self.load.steps == 0:
            self._extend()
        return LANES / self.load.steps

    def sample(self) -> Any:
        return self.buffer.sample(return_info=True)

    def update(self, batch: Any, rng: np.random.Generator) -> None:
        import torch

        if self._prioritized:
            errors = torch.from_numpy(rng.exponential(size=self.load.batch)).float()
            self.buffer.update_priority(batch[1]["index"], errors)

    def handed(self, batch: Any) -> int:
        return sum(one.nbytes for name, one in batch[0].items() if "obs" in name)

    def counted(self) -> dict[str, float]:
        """Return nothing: it counts no bytes."""
        return {"steps": min(self._added, self.load.elements) * self.load.steps}


class Reverb(Memory):
    """Contender Reverb: its server in this process, items as references to chunks that their neighbours share."""

    def __init__(self, load: Load, folder: Path) -> None:
        import reverb
        import tensorflow as tf

        self.load, self.columns = load, read(folder)
        self.times, self._at = len(self.columns["reward"]), 0
        self._obs = [name for name in self.columns if name.startswith("obs")]
        self._steps = (load.window + load.burn_in) or 1
        self._frames = self._steps + (load.stack or 1)  # those of its stacks, and one after it
        selector = reverb.selectors.Prioritized(0.6) if load.kind == "prioritized" else reverb.selectors.Uniform()
        signature = {
            name: tf.TensorSpec(
                (self._frames if name in self._obs else self._steps, *column.shape[2:]), tf.as_dtype(column.dtype)
            )
            for name, column in self.columns.items()
        }
        table = reverb.Table(
            TABLE, selector, reverb.selectors.Fifo(), max_size=load.elements, max_times_sampled=load.uses or 0,
            rate_limiter=reverb.rate_limiters.MinSize(1), signature=signature,
        )  # fmt: skip
        self.server = reverb.Server([table], None)
        self._client = self.server.localhost_client()
        self._learner = reverb.TFClient(f"localhost:{self.server.port}")
        self._writers = [self._client.trajectory_writer(num_keep_alive_refs=self._frames + 1) for _ in range(LANES)]
        for writer in self._writers:
            for name in self.columns:
                writer.configure((name,), num_keep_alive_refs=self._frames + CHUNK_STEPS, max_chunk_length=CHUNK_STEPS)
        self._batches: Any = None

    def add(self) -> float:
        """Add a step of each lane, and the elements that it completes; return how many elements these are."""
        at = self._at % self.times
        self._at += 1
        for lane, writer in enumerate(self._writers):
            writer.append({name: column[at, lane] for name, column in self.columns.items()})
            if writer.episode_steps > self._frames and self._at % self.load.steps == 0:
                history = writer.history
                window = {name: history[name][-self._frames :] for name in self._obs}
                others = [name for name in self.columns if name not in self._obs]
                window |= {name: history[name][-self._steps - 1 : -1] for name in others}
                writer.create_item(TABLE, 1.0, window)
                writer.flush(block_until_num_items=UNCONFIRMED)
        return LANES / self.load.steps

    def fill(self, elements: int) -> None:
        for _ in range(elements * self.load.steps // LANES + self._frames + 1):
            self.add()
        for writer in self._writers:
            writer.flush()

    def sample(self) -> Any:
        if self._batches is None:
            import reverb

            dataset = reverb.TrajectoryDataset.from_table_signature(
                f"localhost:{self.server.port}", TABLE, max_in_flight_samples_per_worker=2 * self.load.batch
            )
            self._batches = dataset.batch(self.load.batch, drop_remainder=True).prefetch(1).as_numpy_iterator()
        return next(self._batches)

    def update(self, batch: Any, rng: np.random.Generator) -> None:
        self._learner.update_priorities(TABLE, batch.info.key, rng.exponential(size=len(batch.info.key)))

    def handed(self, batch: Any) -> int:
        return sum(batch.data[name].nbytes for name in self._obs)

    def counted(self) -> dict[str, float]:
        """Return the steps that it holds."""
        return {"steps": self._client.server_info()[TABLE].current_size * self.load.steps}
