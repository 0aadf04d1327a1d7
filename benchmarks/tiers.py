"""Store ten times larger than its memory, compared with one in memory, the disk itself and TorchRL's memory map.

    python benchmarks/tiers.py [--quick] [--data seaquest noise] [--times 10] [--rounds 5] [--folder FOLDER]
    python benchmarks/tiers.py --growth [--quick] [--steps 10000000] [--ram 128MiB] [--folder FOLDER]

Real frames and incompressible noise, batches of 256 with stacks of 4. Every contender fills a memory in a process of
its own; then all are asked in turn, round after round. The system forgets what it has cached of the files 20 times a
second, for everybody; a virtual disk may have another cache below it, which the disk's own limit sees as well. "A
learner of 10 ms" sleeps so long after every batch.

``--growth``: latency of single calls, one ``extend`` of 8 lanes and one ``sample(256)``, while a store of Seaquest
grows from 10^4 to ``--steps``; on disk nearly every item of a large one is a read. TorchRL's files are left in the
system's cache.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import frames
import numpy as np
import runner
from runner import Results, in_turn

from sharpwave.bench import machine
from sharpwave.bench.machine import AnsweringChild
from sharpwave.bench.played import LANES

if TYPE_CHECKING:
    from rich.console import Console

DATA = ("seaquest", "noise", "pong")
RAM = {"seaquest": "96MiB", "noise": "256MiB", "pong": "64MiB"}
QUICK_RAM = {"seaquest": "48MiB", "noise": "160MiB", "pong": "48MiB"}
SEGMENT_STEPS = {"noise": 8}
"""Steps in a segment: each item of incompressible data reads a segment, 0.9 MB with the default of 128 steps."""
PLAYED, QUICK_PLAYED = {"seaquest": 250_000, "noise": 16_384, "pong": 500_000}, 48_000
"""Distinct steps; larger stores hold them several times."""
LIMITS = ("limit 16", "limit 64", "limit 64 direct")
KINDS = ("sample", "stream", "learner")
CACHED = tuple(f"{kind} cached" for kind in KINDS)
TITLES = {
    "memory": "Store, all in memory",
    "disk": "Store, ram= and disk=",
    "limit": "the disk itself",
    "torchrl": "TorchRL LazyMemmapStorage",
}
PACKAGES = ("sharpwave", "numpy", "torch", "torchrl", "tensordict")
MIB = 1 << 20


def measure(data: str, arguments: argparse.Namespace, base: Path) -> Results:
    """Fill all contenders, measure them in turn, and return the results."""
    folder = base / data
    ram = arguments.ram or (QUICK_RAM if arguments.quick else RAM)[data]
    names = ["memory", "disk"] + (["torchrl"] if find_spec("torchrl") else [])
    steps_in_segment = str(arguments.segment_steps or SEGMENT_STEPS.get(data, 0))
    workers: dict[str, AnsweringChild] = {}
    results: Results = {"contenders": {name: {"rounds": {}} for name in names}, "limits": {}}
    try:
        for name in names:
            (folder / name).mkdir(parents=True)
            workers[name] = contender(name, folder / name, data, steps_in_segment, arguments)
        plan = workers["memory"].ask(do="plan", times=arguments.times, ram=ram)
        results["plan"] = plan
        for name in names:
            entry = results["contenders"][name]
            steps = plan["steps"] if name != "torchrl" else min(arguments.peer_steps, plan["steps"])
            say(f"{data}: {TITLES[name]}: {steps:,} steps")
            workers[name].ask(do="build", steps=steps, ram=ram)
            entry["fill"] = workers[name].ask(do="fill", steps=steps)
            for what in KINDS:
                workers[name].ask(do="measure", what=what, seconds=arguments.seconds)
            entry["state"] = workers[name].ask(do="state")  # before the limit, which has its own threads and buffers
        for turn in range(arguments.rounds):
            say(f"{data}: round {turn + 1} of {arguments.rounds}")
            asked = [(name, what) for what in KINDS for name in names]
            asked += [("disk", what) for what in LIMITS] + [("torchrl", what) for what in CACHED if "torchrl" in names]
            for name, what in in_turn(asked, turn):
                answer = workers[name].ask(do="measure", what=what, seconds=arguments.seconds)
                kept = results["limits"] if what in LIMITS else results["contenders"][name]["rounds"]
                kept.setdefault(what, []).append(answer)
    finally:
        for worker in workers.values():
            worker.close()
        shutil.rmtree(folder, ignore_errors=True)
    return results


def contender(name: str, folder: Path, data: str, segment_steps: str, arguments: argparse.Namespace) -> AnsweringChild:
    """Start the process of a contender."""
    given = folder, data, recorded(data, arguments.quick), segment_steps
    return runner.worker("tier_worker.py", name, *given, name=name, threads=arguments.threads)


def recorded(data: str, quick: bool) -> int:
    """Return the number of distinct steps."""
    return min(PLAYED[data], QUICK_PLAYED) if quick else PLAYED[data]


def rates(results: Results, name: str, what: str) -> list[float]:
    """Return transitions per second, by round."""
    if name == "limit":
        medians = {limit: statistics.median(r["rate"] for r in results["limits"][limit]) for limit in LIMITS}
        what = max((limit for limit in LIMITS if not math.isnan(medians[limit])), key=medians.__getitem__)
        return [round_["rate"] for round_ in results["limits"][what]]
    return [round_["rate"] for round_ in results["contenders"][name]["rounds"][what]]


def ratio(results: Results, what: str, one: str, other: str) -> float:
    """Return the median of the rounds' ratios."""
    pairs = zip(rates(results, one, what), rates(results, other, what), strict=True)
    return statistics.median(a / b for a, b in pairs)


def table(console: Console, data: str, results: Results) -> None:
    """Print the contenders."""
    ram = results["plan"]["ram"]
    title = f"{data}: ram={ram / MIB:.0f} MiB"
    columns = ("steps", "on disk, bytes a step", "memory at most", "adds/s", *KINDS)
    shown = runner.table(title, "", *columns)
    for name, entry in results["contenders"].items():
        state, fill = entry["state"], entry["fill"]
        held = f"{state['private'] / MIB:,.0f} MiB"
        if name == "torchrl":
            held += f" + {state['mapped'] / MIB:,.0f} of mapped files"
        cells = [f"{fill['steps']:,}", f"{state['disk'] / fill['steps']:,.0f}", held, f"{fill['adds']:,.0f}"]
        cells += [_rate(statistics.median(rates(results, name, what))) for what in KINDS]
        shown.add_row(TITLES[name], *cells, style="bold cyan" if name == "disk" else "")
        if name == "torchrl":
            cells = [_rate(statistics.median(rates(results, name, what))) for what in CACHED]
            shown.add_row("the same, all of it in the system's cache", *[""] * 4, *cells)
    for limit, rounds in results["limits"].items():
        nbytes = statistics.median(r["bytes"] for r in rounds) / MIB
        _, threads, *direct = limit.split()
        text = f"{TITLES['limit']}, {threads} threads{', past the cache' if direct else ''}: {nbytes:,.0f} MiB/s"
        shown.add_row(text, "", "", "", "", f"{statistics.median(r['rate'] for r in rounds):,.0f}")
    if "torchrl" not in results["contenders"]:
        shown.add_row(TITLES["torchrl"], *[""] * 6, "not installed", style="dim")
    console.print(shown)
    for name, entry in results["contenders"].items():
        for what, rounds in entry["rounds"].items():
            errors = {round_["error"] for round_ in rounds if "error" in round_}
            if errors:
                console.print(f"{TITLES[name]}, {what}: {min(errors)}", style="red")


def ratios(console: Console, data: str, results: Results) -> None:
    """Print how the store on disk compares with its limits, with one in memory and with the disk itself."""
    state, ram = results["contenders"]["disk"]["state"], results["plan"]["ram"]
    shown = runner.table(f"{data}: Store, ram= and disk=", "", "x ram=", "x in memory", "x the disk itself")
    shown.add_row("encoded steps", f"{state['encoded'] / ram:.1f}", "", "")
    shown.add_row("memory at most", f"{state['private'] / ram:.2f}", "", "")
    for what in ("stream", "learner"):
        shown.add_row(what, "", *(f"{ratio(results, what, 'disk', other):.2f}" for other in ("memory", "limit")))
    console.print(shown)
    parts = ", ".join(f"{part} {state[part] / MIB:.1f}" for part in ("index", "samplers", "open_segments", "batches"))
    console.print(f"stats(): {state['counted'] / MIB:.1f} MiB, of these {parts}", style="dim")


def environment() -> dict[str, Any]:
    """Describe the machine and the software."""
    return machine.environment(PACKAGES)


def say(text: str) -> None:
    """Print progress to stderr, apart from the result."""
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


def _rate(value: float) -> str:
    return "[red]failed" if math.isnan(value) else f"{value:,.0f}"


# a store that grows

SMALLEST = 10_000
OPERATIONS = {"add": "extend, 8 lanes", "sample": "sample(256)"}
PARTS = ("p50", "p99", "mean")
NAMES = TITLES | {"torchrl": "TorchRL LazyMemmapStorage, cached"}
LOOKS = {"memory": "#0b7285", "disk": "#e8590c", "torchrl": "#868e96"}


def growth(arguments: argparse.Namespace, base: Path) -> Results:
    """Measure latencies by contender and size: for each operation and part the median over rounds, in microseconds."""
    most = {"memory": arguments.steps, "disk": arguments.steps}
    if find_spec("torchrl") and arguments.peer_steps >= SMALLEST:
        most["torchrl"] = min(arguments.steps, arguments.peer_steps)
    sizes = [10**k for k in range(4, int(math.log10(arguments.steps) + 1e-9) + 1)]
    found: Results = {name: {} for name in most}
    workers: dict[str, AnsweringChild] = {}
    try:
        for name, steps in most.items():
            (base / name).mkdir()
            workers[name] = contender(name, base / name, "seaquest", "0", arguments)
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


def growth_table(console: Console, found: Results) -> None:
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


def growth_figure(found: Results, where: dict[str, Any], ram: str, path: Path) -> None:
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


def show_growth(arguments: argparse.Namespace) -> None:
    """Measure latencies as stores grow, print and draw them."""
    if arguments.quick:
        arguments.steps, arguments.peer_steps = min(arguments.steps, 100_000), min(arguments.peer_steps, SMALLEST)
        arguments.ram, arguments.calls = "48MiB", 600
    arguments.ram = arguments.ram or "128MiB"
    frames.folder_of("seaquest", recorded("seaquest", arguments.quick), cache=frames.CACHE, say=say)
    base = Path(tempfile.mkdtemp(prefix="sharpwave-latency-", dir=arguments.folder))
    where = environment()
    try:
        found = growth(arguments, base)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    console = runner.console(190)
    growth_table(console, found)
    if "torchrl" not in found:
        console.print("TorchRL is not installed: pip install torchrl", style="yellow")
    settings = {name: str(value) for name, value in vars(arguments).items()}
    summary = {"environment": where, "settings": settings, "latency_us": found}
    runner.write(arguments.out / "latency.json", summary)
    growth_figure(found, where, arguments.ram, arguments.out / "latency.png")
    say(f"written: {arguments.out / 'latency.json'}, {arguments.out / 'latency.png'}")


def main() -> None:
    """Run the command line."""
    parser = runner.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="two minutes: less memory, fewer rounds")
    parser.add_argument("--data", nargs="+", choices=DATA, default=["seaquest", "noise"])
    parser.add_argument("--ram", help="default: 96MiB, for noise 256MiB, with --growth 128MiB")
    parser.add_argument("--times", type=float, default=10.0, help="encoded bytes of the store, in multiples of --ram")
    parser.add_argument("--segment-steps", type=int, default=0, help="default: 8 for noise, else the store's own")
    parser.add_argument("--peer-steps", type=int, help="steps of TorchRL's, at 56 kB each: 24000, with --growth 100000")
    parser.add_argument("--rounds", type=int, help="5, with --growth 3")
    parser.add_argument("--growth", action="store_true", help="latencies while a store grows")
    parser.add_argument("--steps", type=int, default=10_000_000, help="--growth: a power of ten from 10,000 on")
    parser.add_argument("--calls", type=int, default=1_500, help="--growth: calls of extend a round")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement")
    parser.add_argument("--threads", type=int, default=0, help="threads of a contender (default: its own)")
    parser.add_argument("--folder", type=Path, help="where the files go; default: a temporary folder")
    parser.add_argument(
        "--out", type=Path, default=runner.RESULTS, help="folder for tiers.json, or latency.json and .png"
    )
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (3 if arguments.growth else 5)
    arguments.peer_steps = arguments.peer_steps or (100_000 if arguments.growth else 24_000)
    if arguments.growth:
        return show_growth(arguments)
    if arguments.quick:
        arguments.rounds, arguments.seconds = 2, 0.5
        arguments.peer_steps = min(arguments.peer_steps, 8_000)
    for game in arguments.data:
        frames.folder_of(game, recorded(game, arguments.quick), cache=frames.CACHE, say=say)
    base = arguments.folder or Path(tempfile.mkdtemp(prefix="sharpwave-tiers-"))
    console = runner.console()
    where = environment()
    settings = {name: str(value) for name, value in vars(arguments).items()}
    path = arguments.out / "tiers.json"
    summary: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}  # of data not asked for now
    try:
        for data in arguments.data:
            results = measure(data, arguments, base)
            summary[data] = {"environment": where, "settings": settings, **results}
            table(console, data, results)
            ratios(console, data, results)
    finally:
        if arguments.folder is None:
            shutil.rmtree(base, ignore_errors=True)
    versions = ", ".join(f"{name} {number}" for name, number in where["versions"].items())
    console.print(
        "sample, stream, learner: transitions a second of batches of 256: asked for now; drawn 4 batches ahead "
        f"(TorchRL: prefetch=4); so, with a learner of 10 ms a batch.\nMedians of {arguments.rounds} rounds of "
        f"{arguments.seconds} s. {where['machine']}, load {where['load_average']:.1f}, {versions}",
        style="dim",
    )
    runner.write(path, summary)
    say(f"written: {path}")


if __name__ == "__main__":
    main()
