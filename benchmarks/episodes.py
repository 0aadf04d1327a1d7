"""Whole episodes by ``add_episode`` and step by step by ``append``: microseconds a step, and their ratio.

python benchmarks/episodes.py [--steps 1000] [--rounds 15]
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

import sharpwave as sw

KINDS: dict[str, tuple[tuple[int, ...], str]] = {
    "vector of 17 floats": ((17,), "float32"),
    "frame of 84x84, noise in a tenth": ((84, 84), "uint8"),
}


def main() -> None:
    """Time both in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000, help="of an episode")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    rng, count = np.random.default_rng(0), arguments.steps
    for name, (shape, dtype) in KINDS.items():
        obs: Any = rng.normal(size=(count + 1, *shape)).astype(dtype)
        if dtype == "uint8":
            obs = np.where(rng.random(obs.shape) < 0.1, rng.integers(0, 255, obs.shape), 87).astype(np.uint8)
        action, reward = rng.normal(size=(count, 6)).astype(np.float32), np.ones(count, np.float32)
        spec = sw.Spec(obs=sw.Field(shape, dtype), action=sw.Field((6,), "float32"))
        whole, single = sw.Store(spec, capacity=20 * count), sw.Store(spec, capacity=20 * count)
        times: dict[str, list[float]] = {"add_episode": [], "append": []}
        for _ in range(arguments.rounds):
            began = time.perf_counter()
            whole.add_episode(obs=obs, action=action, reward=reward, terminated=True)
            between = time.perf_counter()
            for t in range(count):
                single.append(
                    obs=obs[t], action=action[t], reward=1.0, terminated=t == count - 1, truncated=False
                )  # fmt: skip
            times["add_episode"].append(between - began)
            times["append"].append(time.perf_counter() - between)
        micros = {key: 1e6 * statistics.median(found[1:]) / count for key, found in times.items()}
        ratio = statistics.median(b / a for a, b in zip(*times.values(), strict=True))
        print(f"{name}: " + ", ".join(f"{key} {value:.2f} us a step" for key, value in micros.items()), end="")
        print(f"; {ratio:.1f} times as fast")


if __name__ == "__main__":
    main()
