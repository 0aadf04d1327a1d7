"""Whole episodes by ``add_episode``, and rollouts of eight lanes by one ``extend``, beside the same step by step.

python benchmarks/episodes.py [--steps 1000] [--rounds 15]
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import runner

import sharpwave as sw

KINDS: dict[str, tuple[tuple[int, ...], str]] = {
    "vector of 17 floats": ((17,), "float32"),
    "frame of 84x84, noise in a tenth": ((84, 84), "uint8"),
}


def main() -> None:
    """Time all of them in turn."""
    parser = runner.parser(__doc__)
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
        adds = [reshaped(8, arrays) for arrays in (obs[:-1], action, reward)]
        flags = np.zeros(adds[2].shape, np.bool_)
        stores = {way: sw.Store(spec, capacity=20 * count) for way in ("add_episode", "append", "block", "extend")}
        times: dict[str, list[float]] = {way: [] for way in stores}
        for _ in range(arguments.rounds):
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


if __name__ == "__main__":
    main()
