"""Loads of ``workloads.py``, and their steps, kept as .npy files outside git: of real games where there are.

``qbert``: frames of ale-py under random play. ``humanoid``: MuJoCo's Humanoid-v5 under random actions, 348 numbers, so
that a transition has the 3 KB of the table (Hopper's 11 numbers have .1). ``smac`` and ``gobigger`` are synthetic, as
neither game installs here: units that walk, fight and die, of which an agent sees what is near (the rest is zeros, as
in the real ones), one-hot types, masks; and balls on a map, of which some hundreds are in sight. Positions are full
float32 numbers, which no codec can shorten by much.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from frames import CACHE
from frames import load as load_frames

TIMES = {"qbert": 8_192, "humanoid": 4_096, "smac": 4_096, "gobigger": 256}
"""Distinct steps of each lane; larger memories hold them several times."""

Array = npt.NDArray[Any]
Columns = dict[str, Array]
LANES = 8


@dataclass(frozen=True)
class Load:
    """A memory as an algorithm needs it.

    Attributes:
        name: algorithm and environment.
        elements: capacity.
        kind: "prioritized", "uniform", or "use-counted".
        element_bytes: of an element, as the table of the loads says. Its elements of frames are float32, a stack of
            four at each step; frames are bytes, so that is what is stored and sampled here, a quarter of it.
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
