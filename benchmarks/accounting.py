"""Bytes that ``stats()`` counts beside the growth of the process: dict observations in a limited store.

    python benchmarks/accounting.py [--ram-mib 64] [--calls 20000]

Observations are an image whose lower half is noise, and a vector; once a small image, and once stacks of a larger one.
Kernels and threads are ready before a store is made, so growth is that of the store alone: private memory (Linux
``RssAnon``) as it is, and after ``malloc_trim``, without what the C library keeps for its next requests.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import Any

import numpy as np
import runner

import sharpwave as sw
from sharpwave.bench.measured import private_bytes

LANES, IMAGES = 8, 64
CASES: dict[str, tuple[int, int | None]] = {"32x32": (32, None), "84x84, stacks of 4": (84, 4)}


def fill(store: sw.Store, side: int, calls: int) -> None:
    """Append steps whose images differ, an episode's end in 400."""
    rng = np.random.default_rng(0)
    images = np.full((IMAGES, LANES, side, side), 90, np.uint8)
    images[:, :, side // 2 :] = rng.integers(0, 255, (IMAGES, LANES, side - side // 2, side))
    vectors = rng.normal(size=(IMAGES, LANES, 32)).astype(np.float32)
    for t in range(calls):
        obs: dict[str, Any] = {"image": np.roll(images[t % IMAGES], t, axis=2), "vector": vectors[t % IMAGES]}
        ends = np.arange(LANES) == t // 50 % LANES if t % 50 == 0 else np.zeros(LANES, np.bool_)
        step: dict[str, Any] = {"action": np.full(LANES, t), "reward": np.zeros(LANES, np.float32), "terminated": ends}
        store.extend(obs=obs, final_obs=obs, truncated=np.zeros(LANES, np.bool_), **step)


def measure(case: str, ram: int, calls: int) -> str:
    """Fill a store that replaces its steps many times over; return a line of MiB."""
    side, stack = CASES[case]
    image = sw.Field((side, side), "uint8", stack=stack)
    spec = sw.Spec(obs={"image": image, "vector": sw.Field((32,), "float32")}, action=sw.Field((), "int64"))

    def made(calls: int) -> tuple[sw.Store, sw.Transitions]:
        store = sw.Store(spec, capacity=1_000_000, ram=ram)
        view = store.transitions()
        fill(store, side, calls)
        for batch in (256, 32):
            view.sample(batch)
        return store, view

    made(300)
    before = private_bytes()
    held = made(calls)
    grown, trimmed, said = runner.memory() - before, private_bytes() - before, held[0].stats()["total_bytes"]
    figures = "  ".join(f"{nbytes / 2**20:9.1f}" for nbytes in (ram, said, trimmed, grown))
    return f"{case:20}  {figures}  {said / trimmed - 1:+9.1%}"


def main() -> None:
    """Measure each case in a process of its own."""
    parser = runner.parser(__doc__)
    parser.add_argument("--ram-mib", type=int, default=64)
    parser.add_argument("--calls", type=int, default=20_000, help=f"of extend, {LANES} lanes each")
    parser.add_argument("--one", choices=CASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(measure(arguments.one, arguments.ram_mib << 20, arguments.calls))
        return
    print(f"{'MiB':20}  {'ram=':>9}  {'stats()':>9}  {'trimmed':>9}  {'grown':>9}  {'stats()':>9}")
    for case in CASES:
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--one", case], check=True)


if __name__ == "__main__":
    main()
