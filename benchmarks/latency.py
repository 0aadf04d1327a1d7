"""Latency of adding and sampling while a store grows from 10^4 to 10^7 steps: in memory, on disk, and TorchRL's.

    python benchmarks/latency.py [--quick] [--steps 10000000] [--ram 128MiB] [--folder FOLDER]

Real frames (Seaquest), single calls: one ``extend`` of 8 lanes, one ``sample(256)``. The store on disk has ``--ram`` of
memory, and the system's cache of its files is emptied all the time, so that of a large one nearly every item is a read.
TorchRL's files are left in the system's cache. README.md beside this file says more.
"""

from __future__ import annotations

import argparse
import math
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import frames
import numpy as np
import runner
from runner import Results
from tier_worker import PLAYED
from tiers import TITLES, contender, environment, say

from sharpwave.bench.machine import AnsweringChild
from sharpwave.bench.played import LANES

if TYPE_CHECKING:
    from rich.console import Console

SMALLEST = 10_000
OPERATIONS = {"add": "extend, 8 lanes", "sample": "sample(256)"}
PARTS = ("p50", "p99", "mean")
NAMES = TITLES | {"torchrl": "TorchRL LazyMemmapStorage, cached"}
LOOKS = {"memory": "#0b7285", "disk": "#e8590c", "torchrl": "#868e96"}


def measure(arguments: argparse.Namespace, base: Path) -> Results:
    """Measure latencies by contender and size: for each operation and part the median over rounds, in microseconds."""
    most = {"memory": arguments.steps, "disk": arguments.steps}
    if find_spec("torchrl"):
        most["torchrl"] = min(arguments.steps, arguments.peer_steps)
    sizes = [10**k for k in range(4, int(math.log10(arguments.steps) + 1e-9) + 1)]
    found: Results = {name: {} for name in most}
    workers: dict[str, AnsweringChild] = {}
    try:
        for name, steps in most.items():
            (base / name).mkdir()
            workers[name] = contender(name, base / name, "seaquest", "0", arguments.threads)
            workers[name].ask(do="build", steps=steps, ram=arguments.ram)
        for size in sizes:
            there = [name for name in most if size <= most[name]]
            calls = min(arguments.calls, size // LANES // 2 // arguments.rounds)
            for name in there:
                say(f"{size:,} steps: {TITLES[name]}")
                workers[name].ask(do="fill", steps=size - calls * arguments.rounds * LANES)
            rounds = [
                {name: workers[name].ask(do="latencies", calls=calls, cold=name == "disk") for name in there}
                for _ in range(arguments.rounds)
            ]
            for name in there:
                found[name][size] = {
                    operation: parts([round_[name][operation] for round_ in rounds]) for operation in OPERATIONS
                } | {"state": workers[name].ask(do="state")}
            for name in set(workers) - {other for other in most if 10 * size <= most[other]}:
                workers.pop(name).close()  # complete: frees disk and memory for the others
                shutil.rmtree(base / name, ignore_errors=True)
    finally:
        for worker in workers.values():
            worker.close()
    return found


def parts(rounds: list[list[float]]) -> dict[str, float]:
    """Return the medians over rounds of percentiles and means, in microseconds."""
    of_rounds = [(*np.percentile(times, (50, 99)), np.mean(times)) for times in rounds]
    return {part: float(value) * 1e6 for part, value in zip(PARTS, np.median(of_rounds, axis=0), strict=True)}


def table(console: Console, found: Results) -> None:
    """Print all latencies, and by how much the largest store is slower than the smallest."""
    for operation, title in OPERATIONS.items():
        columns = [f"{part} at {size:,}" for size in found["memory"] for part in PARTS[:2]]
        shown = runner.table(f"{title}: microseconds", "", *columns, "p50 grows")
        for name, by_size in found.items():
            cells = [
                f"{by_size[s][operation][p]:,.0f}" if s in by_size else "-" for s in found["memory"] for p in PARTS[:2]
            ]
            first, last = min(by_size), max(by_size)
            grown = by_size[last][operation]["p50"] / by_size[first][operation]["p50"]
            shown.add_row(NAMES[name], *cells, f"{grown:.2f} x" if last > first else "-")
        console.print(shown)
    last = max(found["memory"])
    console.print(f"log n grows {math.log(last) / math.log(min(found['memory'])):.2f} x", style="dim")


def figure(found: Results, where: dict[str, Any], ram: str, path: Path) -> None:
    """Draw two panels, adding and sampling; the median solid, the 99th percentile dashed."""
    from matplotlib.ticker import NullFormatter

    title = f"Latency as a store grows: Seaquest, 4x84x84 uint8 ({where['machine']}, {where['date']})"
    with runner.picture(path, title, 1, 2, figsize=(11, 4.6)) as axes:
        for axis, (operation, title) in zip(axes, OPERATIONS.items(), strict=True):
            for name, by_size in found.items():
                label = NAMES[name].replace("ram=", f"ram={ram}") if name == "disk" else NAMES[name]
                for part, style in (("p50", "-"), ("p99", "--")):
                    values = [entry[operation][part] / 1e3 for entry in by_size.values()]
                    look = {"marker": "o", "markersize": 4, "color": LOOKS[name], "label": f"{label}, {part}"}
                    axis.plot(list(by_size), values, style, **look)
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_title(title, loc="left", fontsize=10)
            axis.set_xlabel("steps in the store")
            axis.grid(True, which="major", color="#e9ecef")
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.yaxis.set_minor_formatter(NullFormatter())
        axes[0].set_ylabel("milliseconds a call")
        axes[1].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def main() -> None:
    """Run the command line."""
    parser = runner.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute: up to 100,000 steps")
    parser.add_argument("--steps", type=int, default=10_000_000, help="a power of ten")
    parser.add_argument("--ram", default="128MiB", help="memory of the store on disk")
    parser.add_argument("--peer-steps", type=int, default=100_000, help="steps of TorchRL's, at 56 kB each on disk")
    parser.add_argument("--calls", type=int, default=1_500, help="calls of extend a round, and an eighth of sample")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="threads of a contender (default: its own)")
    parser.add_argument("--folder", type=Path, help="where the files go; default: a temporary folder")
    parser.add_argument("--out", type=Path, default=runner.RESULTS, help="folder for latency.json and latency.png")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.steps, arguments.peer_steps = min(arguments.steps, 100_000), min(arguments.peer_steps, SMALLEST)
        arguments.ram, arguments.calls = "48MiB", 600
    if arguments.steps < SMALLEST:
        parser.error(f"--steps {arguments.steps}, expected at least {SMALLEST:,}")
    frames.folder_of("seaquest", PLAYED, cache=frames.CACHE, say=say)
    base = Path(tempfile.mkdtemp(prefix="sharpwave-latency-", dir=arguments.folder))
    where = environment()
    try:
        found = measure(arguments, base)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    console = runner.console(190)
    table(console, found)
    if "torchrl" not in found:
        console.print("TorchRL is not installed: pip install torchrl", style="yellow")
    settings = {name: str(value) for name, value in vars(arguments).items()}
    summary = {"environment": where, "settings": settings, "latency_us": found}
    runner.write(arguments.out / "latency.json", summary)
    figure(found, where, arguments.ram, arguments.out / "latency.png")
    say(f"written: {arguments.out / 'latency.json'}, {arguments.out / 'latency.png'}")


if __name__ == "__main__":
    main()
