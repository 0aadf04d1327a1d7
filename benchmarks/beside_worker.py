"""One tree of ``beside.py`` in a process of its own: ``beside_worker.py FRAMES STEPS``, with the tree on PYTHONPATH.

Uses nothing but what both trees have: the store's public calls.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import sharpwave as sw

LANES = 8
TIMES = 4000
"""Recorded steps of each lane, in memory, played again and again."""

Step = dict[str, Any]


def frame_steps(folder: Path) -> tuple[sw.Spec, list[Step]]:
    """Return steps of a recording of ``frames.py``."""
    obs, reward, terminated, truncated = (
        np.array(np.load(folder / f"{name}.npy", mmap_mode="r")[: TIMES + 1])
        for name in ("obs", "reward", "terminated", "truncated")
    )
    steps = []
    for t in range(len(obs) - 1):
        step = {"obs": obs[t], "action": np.arange(LANES), "reward": reward[t], "truncated": truncated[t]}
        final = obs[t + 1] if (terminated[t] | truncated[t]).any() else None
        steps.append({**step, "terminated": terminated[t], "final_obs": final})
    return sw.Spec(obs=sw.Field(obs.shape[2:], "uint8", stack=4), action=sw.Field((), "int64")), steps


def vector_steps() -> tuple[sw.Spec, list[Step]]:
    """Return steps of 17 and 6 random numbers, an episode of 500."""
    rng = np.random.default_rng(0)
    obs, action = (rng.normal(size=(TIMES + 1, LANES, size)).astype(np.float32) for size in (17, 6))
    no, reward = np.zeros(LANES, np.bool_), np.ones(LANES, np.float32)
    steps = []
    for t in range(TIMES):
        ended = t % 500 == 499
        step = {"obs": obs[t], "action": action[t], "reward": reward, "truncated": no}
        steps.append({**step, "terminated": ~no if ended else no, "final_obs": obs[t + 1] if ended else None})
    return sw.Spec(obs=sw.Field((17,), "float32"), action=sw.Field((6,), "float32")), steps


class Filled:
    """Full store with its views and an endless source of steps."""

    def __init__(self, spec: sw.Spec, steps: list[Step], capacity: int) -> None:
        self.store = sw.Store(spec, capacity=capacity, seed=0)
        self.views = {
            "uniform": self.store.transitions(seed=1),
            "prioritized": self.store.transitions(sampler=sw.Prioritized(), seed=2),
        }
        self._steps = self._endless(steps)
        for _ in range(capacity // LANES):
            self.extend()

    def extend(self) -> None:
        """Append a step of every lane."""
        self.store.extend(**next(self._steps))

    def sampling(self, sampler: str, batch: int) -> Callable[[], Any]:
        """Return a function that samples a batch, and updates its priorities if it is prioritized."""
        view: Any = self.views[sampler]
        errors = np.random.default_rng(0).exponential(size=batch)
        if sampler == "uniform":
            return lambda: view.sample(batch)

        def sample() -> None:
            view.update_priorities(view.sample(batch).ids, errors)

        return sample

    def bytes_a_step(self) -> float:
        """Return the bytes per step that the store reports."""
        return float(self.store.stats()["bytes_per_step"])

    @staticmethod
    def _endless(steps: list[Step]) -> Iterator[Step]:
        while True:
            yield from steps


def timed(call: Callable[[], Any], calls: int) -> dict[str, float]:
    """Return microseconds of wall time and of processor time per call."""
    begin, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        call()
    return {
        "wall_us": (time.perf_counter() - begin) / calls * 1e6,
        "cpu_us": (time.process_time() - cpu) / calls * 1e6,
    }


def main() -> None:
    """Fill the stores, then answer requests, one line of JSON each."""
    folder, capacity = Path(sys.argv[1]), int(sys.argv[2])
    filled = {"frames": Filled(*frame_steps(folder), capacity), "vectors": Filled(*vector_steps(), capacity)}
    print(json.dumps({data: one.bytes_a_step() for data, one in filled.items()}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        one = filled[asked["data"]]
        call = one.sampling(asked["what"], asked["batch"]) if asked["batch"] else one.extend
        timed(call, 2)
        print(json.dumps(timed(call, asked["calls"])), flush=True)


if __name__ == "__main__":
    main()
