"""What lossless codecs leave of real MuJoCo observations, column by column of 128 steps; and what decoding costs.

    pip install 'gymnasium[mujoco]' pcodec
    python benchmarks/float_codecs.py [--steps 5120]

A sampled row needs its own bytes only if rows are raw; every codec here unpacks the whole column for it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import zstandard
from pcodec import ChunkConfig, standalone

COLUMN = 128
SETS = (
    ("Hopper-v5", "float32"),
    ("HalfCheetah-v5", "float32"),
    ("HalfCheetah-v5", "float64"),
    ("Humanoid-v5", "float32"),
)


def played(name: str, dtype: str, steps: int) -> Any:
    """Return observations [steps, size] of random play."""
    env = gym.make(name)
    obs, _ = env.reset(seed=0)
    env.action_space.seed(0)
    rows = []
    for _ in range(steps):
        rows.append(obs.astype(dtype))
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            obs, _ = env.reset()
    return np.stack(rows)


def transposed(column: Any) -> bytes:
    """Return a column's bytes, variable by variable, and in each first all first bytes, then all second ones."""
    values = np.ascontiguousarray(column.T).reshape(-1)
    return np.ascontiguousarray(values.view(np.uint8).reshape(-1, values.itemsize).T).tobytes()


def main() -> None:
    """Print a line for each kind of data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5120)
    steps = parser.parse_args().steps
    compressor = zstandard.ZstdCompressor(level=1)
    ways: dict[str, Callable[[Any], bytes]] = {
        "zstd": lambda column: compressor.compress(column.tobytes()),
        "transposed + zstd": lambda column: compressor.compress(transposed(column)),
        "pcodec": lambda column: standalone.simple_compress(np.ascontiguousarray(column.T).reshape(-1), ChunkConfig()),
    }
    print("bytes a row, and microseconds to unpack a column (raw: to copy a row)")
    for name, dtype in SETS:
        rows = played(name, dtype, steps)
        columns = [rows[i : i + COLUMN] for i in range(0, len(rows), COLUMN)]
        found = [f"raw {rows[0].nbytes}"]
        for way, pack in ways.items():
            found.append(f"{way} {sum(len(pack(column)) for column in columns) / len(rows):.1f}")
        packed = ways["pcodec"](columns[0])
        found.append(f"pcodec unpacks in {fastest(partial(standalone.simple_decompress, packed)):.1f} us")
        found.append(f"raw {fastest(rows[0].copy):.1f} us")
        print(f"{name} {dtype}: " + ", ".join(found))


def fastest(call: Callable[[], Any]) -> float:
    """Return the least microseconds of 200 calls."""
    times = []
    for _ in range(200):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return 1e6 * min(times)


if __name__ == "__main__":
    main()
