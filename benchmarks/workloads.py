"""Eight loads of known size, each held at ten times its rates or not, beside TorchRL and Reverb.

    python benchmarks/workloads.py [--minutes 10] [--times 10] [--loads dqn-atari ...] [--reverb-python PYTHON]
                                   [--memories process actors torchrl reverb] [--out FILE] [--show FILE]

Each memory is filled to its capacity (``workload_table.py``), then added to and sampled from at ``--times`` the rates
of the table: by a thread of the learner's process, and by two actor processes that send encoded segments. A load is
held if 99 % of its adds and samples happen in the time given. Peers are filled as far as ``--peer-gb`` allows, and
their memory is told for the whole. Runs add up: those that ``--out`` has are kept, and only what is missing is run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import workload_data
from rich.console import Console
from rich.table import Table
from workload_table import LOADS, Load

from sharpwave.bench.machine import environment
from sharpwave.bench.process import Child, ChildError

HERE = Path(__file__).parent
MEMORIES = {"process": "ours", "actors": "ours", "torchrl": "torchrl", "reverb": "reverb"}
"""The module of each: Sharpwave in one process, with actors in others; peers in one process."""
PEERS = ("torchrl", "reverb")
HELD = 0.99
FILL_TIMEOUT_S = 1800.0
GIGA = 1e9


def measure(name: str, memory: str, arguments: argparse.Namespace, python: str) -> dict[str, Any]:
    """Fill one memory in a process of its own and put one load on it; return what came of it."""
    load, folder = LOADS[name], workload_data.folder_of(LOADS[name].data, say)
    elements = load.elements
    if memory in PEERS:
        elements = min(elements, int(arguments.peer_gb * GIGA / peer_bytes(load)) // load.batch * load.batch)
    with tempfile.TemporaryDirectory(prefix="sharpwave-loads-") as scratch:
        errors = Path(scratch) / "errors"
        path = os.pathsep.join([str(HERE.parent / "src"), str(HERE)])
        command = [python, str(HERE / "workload_worker.py"), MEMORIES[memory], name, str(folder)]
        child = Child(f"{name}, {memory}", command, errors, env={"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"})
        try:
            filled = child.ask(FILL_TIMEOUT_S, do="fill", elements=elements)
            say(
                f"{name}, {memory}: {elements:,} elements in {filled['seconds']:.0f} s, {filled['bytes'] / GIGA:.2f} GB"
            )
            seconds = arguments.minutes * 60
            ran = child.ask(
                seconds + 300, do="run", seconds=seconds, adds=load.adds * arguments.times,
                samples=load.samples * arguments.times, actors=memory == "actors",
            )  # fmt: skip
        except ChildError as error:
            say(str(error))
            return {"failed": str(error)}
        finally:
            child.close()
    result = {"elements": elements, "minutes": arguments.minutes, "times": arguments.times, "fill": filled, "run": ran}
    result["load_average"] = os.getloadavg()[0]
    say(f"{name}, {memory}: {held(load, result):.1%} held, p50 {ran['p50_ms']:.1f} p99 {ran['p99_ms']:.1f} ms")
    return result


def peer_bytes(load: Load) -> float:
    """Return bytes of an element of frames as bytes, or of numbers, in a memory that does not compress."""
    return load.element_bytes / 2 if load.data == "qbert" else load.element_bytes


def held(load: Load, result: dict[str, Any]) -> float:
    """Return the smaller share of its adds and samples that happened in time."""
    ran, times = result["run"], result["times"]
    return float(min(ran["adds"] / (load.adds * times), ran["samples"] / (load.samples * times), 1.0))


def report(results: dict[str, Any]) -> None:
    """Print the table."""
    console = Console(width=None if sys.stdout.isatty() else 170)
    table = Table(title="Memories of known size, at a multiple of their rates")
    for name in (
        "load", "memory", "minutes", "times", "held", "adds/s", "samples/s", "MB/s", "p50 ms", "p99 ms", "longest ms",
        "learner waits", "cores", "GB at capacity", "of ours",
    ):  # fmt: skip
        table.add_column(name, justify="left" if name in ("load", "memory") else "right")
    for name, load in LOADS.items():
        ours = results["loads"].get(name, {}).get("process", {})
        for memory, result in results["loads"].get(name, {}).items():
            if "failed" in result:
                table.add_row(load.name, memory, result["failed"])
                continue
            ran, size = result["run"], at_capacity(load, result)
            ratio = f"{size / at_capacity(load, ours):.1f}" if "run" in ours and memory in PEERS else ""
            part = held(load, result)
            table.add_row(
                load.name, memory, f"{result['minutes']:g}", f"{result['times']:g}",
                "yes" if part >= HELD else f"{part:.0%}", f"{ran['adds']:,.0f}", f"{ran['samples']:,.0f}",
                f"{ran['mb_per_s']:,.0f}", f"{ran['p50_ms']:.1f}", f"{ran['p99_ms']:.1f}", f"{ran['longest_ms']:.0f}",
                f"{ran['learner_wait']:.0%}", f"{ran['cpu']:.2f}", f"{size / GIGA:.2f}", ratio,
            )  # fmt: skip
        table.add_section()
    console.print(table)
    console.print(
        "held: 99 % of adds and samples in time; MB/s: observations handed out; learner waits: share of the time in "
        "sample and update; GB at capacity: growth of the process, of peers told from what they were filled with"
    )


def at_capacity(load: Load, result: dict[str, Any]) -> float:
    """Return the memory that the load takes at its capacity."""
    return float(result["fill"]["bytes"] * load.elements / result["elements"])


def say(text: str) -> None:
    """Print progress to stderr, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--loads", nargs="*", choices=list(LOADS), default=list(LOADS))
    parser.add_argument("--minutes", type=float, default=10.0, help="length of each run (10)")
    parser.add_argument("--times", type=float, default=10.0, help="multiple of the table's rates (10)")
    parser.add_argument("--memories", nargs="*", choices=list(MEMORIES), default=list(MEMORIES))
    parser.add_argument("--reverb-python", metavar="PYTHON", help="interpreter with dm-reverb[tensorflow]")
    parser.add_argument("--peer-gb", type=float, default=4.0, help="memory that a peer is filled with at most (4)")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "workloads.json")
    parser.add_argument(
        "--show", type=Path, metavar="FILE", help="print the table of a result file, and do nothing else"
    )
    arguments = parser.parse_args()
    if arguments.show:
        report(json.loads(arguments.show.read_text()))
        return
    pythons = dict.fromkeys(arguments.memories, sys.executable)
    if "reverb" in pythons:
        if arguments.reverb_python:
            pythons["reverb"] = arguments.reverb_python
        else:
            del pythons["reverb"]
            say("Reverb: left out, give --reverb-python")
    results: dict[str, Any] = {"environment": environment(), "loads": {}}
    if arguments.out.exists():
        results = json.loads(arguments.out.read_text())
    for name in arguments.loads:
        for memory, python in pythons.items():
            into = results["loads"].setdefault(name, {})
            before = into.get(memory, {})
            if before.get("minutes", 0) >= arguments.minutes and before.get("times") == arguments.times:
                continue
            into[memory] = measure(name, memory, arguments, python)
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    report(results)


if __name__ == "__main__":
    main()
