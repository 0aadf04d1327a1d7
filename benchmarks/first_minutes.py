"""Waiting times of the first minutes: imports, a first append, batch and command, each in a process of its own.

    python benchmarks/first_minutes.py [--repeats 3]

Printed are medians of seconds, wall and processor time, and of the process's memory at its end. Modules are
compiled once, as Python does unless PYTHONDONTWRITEBYTECODE is set, which is ignored here.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import runner

STORE = """
import json, resource, sys, time
begun = time.perf_counter()
import numpy as np
numpy = time.perf_counter()
import sharpwave as sw
imported = time.perf_counter()
frames, appends = sys.argv[1] == "frames", int(sys.argv[2])
obs = sw.Field((84, 84), "uint8", stack=4) if frames else sw.Field((17,), "float32")
store = sw.Store(sw.Spec(obs=obs, action=sw.Field((), "int64")), capacity=100_000)
replay = store.transitions(n_step=3, sampler=sw.Prioritized(alpha=0.6, beta=0.4))
rows, no = np.zeros((8, *obs.shape), obs.dtype), np.zeros(8, bool)
def extend(n):
    rows.reshape(8, -1)[:, n % rows[0].size] += 1
    store.extend(obs=rows, action=np.arange(8), reward=np.ones(8), terminated=no, truncated=no)
extend(0)
first = time.perf_counter()
for n in range(1, appends):
    extend(n)
appended = time.perf_counter()
replay.sample(32)
sampled = time.perf_counter()
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"numpy": numpy - begun, "import": imported - numpy, "append": first - imported,
    "more": appended - first, "sample": sampled - appended, "total": sampled - begun,
    "cpu": usage.ru_utime + usage.ru_stime, "MB": usage.ru_maxrss / 1024 ** (2 if sys.platform == "darwin" else 1)}))
"""
CASES = [("vectors, 10 appends", ["vectors", "10"]), ("vectors, 300 appends", ["vectors", "300"]),
         ("frames, 10 appends", ["frames", "10"]), ("frames, 300 appends", ["frames", "300"])]  # fmt: skip
COMMANDS = [["--version"], ["--help"], ["inspect", "STORE"], ["train", "pong", "--help"]]


def main() -> None:
    """Measure, and print a table."""
    parser = runner.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    columns = ("numpy", "import", "append", "more", "sample", "total", "cpu", "MB")
    print(f"{'':28}" + "".join(f"{name:>10}" for name in columns))
    for name, arguments in CASES:
        found: list[dict[str, float]] = []
        for _ in range(repeats):
            ran = subprocess.run([sys.executable, "-c", STORE, *arguments], capture_output=True, text=True, check=True)
            found.append(json.loads(ran.stdout))
        medians = [statistics.median(one[column] for one in found) for column in columns]
        print(f"{name:28}" + "".join(f"{value:10.2f}" for value in medians))
    with tempfile.TemporaryDirectory() as made:
        write = STORE.replace("capacity=100_000", f"capacity=100_000, disk={str(Path(made) / 'store')!r}")
        subprocess.run([sys.executable, "-c", write, "frames", "300"], capture_output=True, check=True)
        for command in COMMANDS:
            words = [str(Path(made) / "store") if word == "STORE" else word for word in command]
            times = []
            for _ in range(repeats + 1):
                begun = time.perf_counter()
                subprocess.run([sys.executable, "-m", "sharpwave.cli", *words], capture_output=True, check=True)
                times.append(time.perf_counter() - begun)
            shown = f"sharpwave {' '.join(command)}"
            print(f"{shown:28}{times[0]:10.2f} s the first time, {statistics.median(times[1:]):.2f} s later")


if __name__ == "__main__":
    main()
