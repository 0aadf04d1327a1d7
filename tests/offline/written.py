"""Stores whose folders are looked at from outside, and what was appended to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import sharpwave as sw
from sharpwave.offline.surveys import EpisodeSpan

SHAPE = (24, 24)
BACKGROUND = np.random.default_rng(9).integers(0, 256, SHAPE, dtype=np.uint8)
"""Nothing packs it; so that columns earn a dictionary."""
SPEC = sw.Spec(
    obs={
        "picture": sw.Field(SHAPE, "uint8", stack=3),
        "position": sw.Field((2,), "float32"),
    },
    action=sw.Field((), "int64"),
)


def observation(serial: int) -> dict[str, Any]:
    picture = BACKGROUND.copy()
    picture[serial % 24, serial % 23] = serial % 251 + 1
    picture[0, 0] = serial // 251
    return {"picture": picture, "position": np.array([serial, -serial], np.float32)}


@dataclass
class Writer:
    """Appends steps to a store, and keeps the plainest account of them: by lane (serial, reward, end)."""

    store: sw.Store
    history: dict[int, list[tuple[int, float, str]]] = field(default_factory=dict)
    serial: int = 0

    def append(self, lane: int, end: str = "", reward: float | None = None) -> None:
        reward = float(self.serial % 4 - 1) if reward is None else reward
        self.store.append(
            lane=lane, obs=observation(self.serial), action=self.serial % 5, reward=reward,
            terminated=end == "terminated", truncated=end == "truncated",
            final_obs=observation(self.serial + 30_000) if end else None,
        )  # fmt: skip
        self.history.setdefault(lane, []).append((self.serial, reward, end))
        self.serial += 1

    def episodes(self) -> list[tuple[int, int, int, float, str]]:
        """(lane, first step, steps, return, end)."""
        found = []
        for lane, steps in self.history.items():
            first = 0
            for at, (_, _, end) in enumerate(steps):
                if end or at == len(steps) - 1:
                    total = sum(reward for _, reward, _ in steps[first : at + 1])
                    found.append((lane, first, at + 1 - first, total, end or "unfinished"))
                    first = at + 1
        return sorted(found)


def fill(writer: Writer, steps: int, lanes: int, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        lane = int(rng.integers(lanes))
        writer.append(lane, str(rng.choice(["", "terminated", "truncated"], p=[0.92, 0.05, 0.03])))


def written(folder: Path, codec: str = "auto", steps: int = 500, lanes: int = 3, **settings: Any) -> Writer:
    """A store of several lanes, flushed and closed."""
    with sw.Store(SPEC, **{"capacity": 100_000, "segment_steps": 16, "codec": codec, "disk": folder, **settings}) as s:
        writer = Writer(s)
        fill(writer, steps, lanes)
        s.flush()
    return writer


def told(episodes: list[EpisodeSpan]) -> list[tuple[int, int, int, float, str]]:
    return sorted((one.lane, one.first_step, one.steps, one.total, one.end) for one in episodes)


def region_of(folder: Path) -> Path:
    return min((folder / "regions").glob("*.region"))


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}
