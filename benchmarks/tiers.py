"""Store ten times larger than its memory, compared with one in memory, the disk itself and TorchRL's memory map.

    python benchmarks/tiers.py [--quick] [--data seaquest noise] [--times 10] [--rounds 5] [--folder FOLDER]

Real frames and incompressible noise, batches of 256 with stacks of 4. Every contender fills a memory in a process of
its own; then all are asked in turn, round after round. The system forgets what it has cached of the files 20 times a
second, for everybody; a virtual disk may have another cache below it, which the disk's own limit sees as well. "A
learner of 10 ms" sleeps so long after every batch. README.md beside this file says more.
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
import runner
from runner import Results, in_turn

from sharpwave.bench import machine
from sharpwave.bench.machine import AnsweringChild

if TYPE_CHECKING:
    from rich.console import Console

DATA = ("seaquest", "noise", "pong")
RAM = {"seaquest": "96MiB", "noise": "256MiB", "pong": "64MiB"}
QUICK_RAM = {"seaquest": "48MiB", "noise": "160MiB", "pong": "48MiB"}
SEGMENT_STEPS = {"noise": 8}
"""Steps in a segment: each item of incompressible data reads a segment, 0.9 MB with the default of 128 steps."""
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
            workers[name] = contender(name, folder / name, data, steps_in_segment, arguments.threads)
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


def contender(name: str, folder: Path, data: str, segment_steps: str, threads: int) -> AnsweringChild:
    """Start the process of a contender."""
    return runner.worker("tier_worker.py", name, folder, data, segment_steps, name=name, threads=threads)


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


def goals(console: Console, data: str, results: Results) -> None:
    """Print the disk tier's goals and what it reached."""
    state, ram = results["contenders"]["disk"]["state"], results["plan"]["ram"]
    columns = ("goal", "reached", " ")
    shown = runner.table(f"{data}: goals", *columns, left=columns)
    times, grown = state["encoded"] / ram, state["private"] / ram
    shown.add_row("encoded steps: ten times ram=", f"{times:.1f} x", _met(times >= 10))
    shown.add_row("memory never above ram= + 10 %", f"{grown:.2f} x ram= at most", _met(grown <= 1.1))
    disk, memory = ratio(results, "stream", "disk", "limit"), ratio(results, "stream", "disk", "memory")
    allowed = statistics.median(rates(results, "limit", ""))
    bound = allowed < statistics.median(rates(results, "memory", "stream"))
    reached = f"{disk:.2f} x the disk itself, {memory:.2f} x memory"
    shown.add_row("stream: .9 of what the disk allows", reached, _met(disk >= 0.9) if bound else "not disk-bound")
    asked = statistics.median(rates(results, "memory", "learner"))
    covered = allowed > asked
    learner = ratio(results, "learner", "disk", "memory")
    beside = ratio(results, "learner", "disk", "limit")
    reached = f"{learner:.2f} x memory, {beside:.2f} x the disk itself"
    if covered:
        shown.add_row("learner of 10 ms: .8 of all in memory", reached, _met(learner >= 0.8))
    else:
        text = f"learner of 10 ms asks for {asked:,.0f}/s, more than the disk gives: .9 of what the disk allows"
        shown.add_row(text, reached, _met(beside >= 0.9))
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


def _met(met: bool) -> str:
    return "[green]met" if met else "[red]missed"


def main() -> None:
    """Run the command line."""
    parser = runner.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="two minutes: less memory, fewer rounds")
    parser.add_argument("--data", nargs="+", choices=DATA, default=["seaquest", "noise"])
    parser.add_argument("--ram", help="default: 96MiB, for noise 256MiB")
    parser.add_argument("--times", type=float, default=10.0, help="encoded bytes of the store, in multiples of --ram")
    parser.add_argument("--segment-steps", type=int, default=0, help="default: 8 for noise, else the store's own")
    parser.add_argument("--peer-steps", type=int, default=24_000, help="steps of TorchRL's, at 56 kB each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement")
    parser.add_argument("--threads", type=int, default=0, help="threads of a contender (default: its own)")
    parser.add_argument("--folder", type=Path, help="where the files go; default: a temporary folder")
    parser.add_argument("--out", type=Path, default=runner.RESULTS, help="folder for tiers.json")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds = 2, 0.5
        arguments.peer_steps = min(arguments.peer_steps, 8_000)
    for game in set(arguments.data) - {"noise"}:
        frames.folder_of(game, 500_000 if game == "pong" else 250_000, cache=frames.CACHE, say=say)
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
            goals(console, data, results)
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
