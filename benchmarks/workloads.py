"""Eight loads of known size, each held at ten times its rates or not, beside TorchRL and Reverb.

    python benchmarks/workloads.py [--minutes 10] [--times 10] [--loads dqn-atari ...] [--reverb-python PYTHON]
                                   [--memories process actors torchrl reverb] [--out FILE] [--show FILE]

Each memory is filled to its capacity, then added to and sampled from at ``--times`` the rates of the table: by a thread
of the learner's process, and by two actor processes that send encoded segments. A load is held if 99 % of its adds and
samples happen in the time given. Peers are filled as far as ``--peer-gb`` allows, and their memory is told for the
whole. Runs add up: those that ``--out`` has are kept, and only what is missing is run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import runner
from runner import say
from workload_memories import LOADS, Load, Ours, Reverb, TorchRL, folder_of

from sharpwave.bench.machine import ChildError, environment
from sharpwave.bench.measured import private_bytes

MEMORIES: dict[str, Any] = {"process": Ours, "actors": Ours, "torchrl": TorchRL, "reverb": Reverb}
"""Sharpwave in one process, and with actors in others; peers in one process."""
PEERS = ("torchrl", "reverb")
HELD = 0.99
FILL_TIMEOUT_S = 1800.0
GIGA = 1e9
WORKER = "--worker"


def measure(name: str, memory: str, arguments: argparse.Namespace, python: str) -> dict[str, Any]:
    """Fill one memory in a process of its own and put one load on it; return what came of it."""
    load, folder = LOADS[name], folder_of(LOADS[name].data, say)
    elements = load.elements // (100 if arguments.quick else 1) // load.batch * load.batch
    if memory in PEERS:
        elements = min(elements, int(arguments.peer_gb * GIGA / peer_bytes(load)) // load.batch * load.batch)
    with tempfile.TemporaryDirectory(prefix="sharpwave-loads-") as scratch:
        errors = Path(scratch) / "errors"
        child = runner.worker(
            "workloads.py", WORKER, memory, name, folder, name=f"{name}, {memory}", python=python, log=errors
        )
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
    console = runner.console(170)
    table = runner.table(
        "Memories of known size, at a multiple of their rates",
        "load", "memory", "minutes", "times", "held", "adds/s", "samples/s", "MB/s", "p50 ms", "p99 ms", "longest ms",
        "learner waits", "cores", "GB at capacity", "of ours", left=("load", "memory"),
    )  # fmt: skip
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


class Worker:
    """Memory in a process of its own: fills it, then adds and samples at given rates."""

    def __init__(self, name: str, load: str, folder: Path) -> None:
        self.load = LOADS[load]
        self.memory: Any = MEMORIES[name](self.load, folder)
        self._rng = np.random.default_rng(0)
        self._before = 0  # bytes of this process, but for the memory

    def fill(self, elements: int) -> dict[str, float]:
        """Add elements; return the growth of this process, and how long it took."""
        self.memory.fill(max(elements // 100, 2 * self.load.batch))
        self._learn()  # imports and kernels are not the memory's
        self._before, begin = private_bytes(), time.perf_counter()
        self.memory.fill(elements)
        self._learn()
        return {
            "bytes": private_bytes() - self._before,
            "seconds": time.perf_counter() - begin,
            **self.memory.counted(),
        }

    def run(self, seconds: float, adds: float, samples: float, actors: bool = False) -> dict[str, float]:
        """Add and sample at most at these rates, elements a second; return how well that went."""
        over, added, errors = threading.Event(), 0.0, list[BaseException]()
        waits = list[float]()
        self._learn()  # a peer's pipeline begins
        outside = self.memory.actors(adds) if actors else None

        def write() -> None:
            nonlocal added
            try:
                while not over.is_set():
                    at = time.perf_counter()
                    added += self.memory.add()
                    waits.append(time.perf_counter() - at)
                    time.sleep(max(0.0, begin + added / adds - time.perf_counter()))
            except BaseException as error:
                errors.append(error)

        begin, cpu = time.perf_counter(), time.process_time()
        thread = threading.Thread(target=write, daemon=True)
        if outside is None:
            thread.start()
        latencies, batch, pause = list[float](), self.load.batch, self.load.batch / samples
        handed = 0
        while (now := time.perf_counter()) < begin + seconds and not errors:
            handed = self._learn()
            latencies.append(time.perf_counter() - now)
            time.sleep(max(0.0, begin + len(latencies) * pause - time.perf_counter()))
        took, cpu = time.perf_counter() - begin, time.process_time() - cpu
        over.set()
        if outside is None:
            thread.join(60.0)
        else:
            added = outside.stop()
        if errors:
            raise errors[0]
        p50, p99 = np.quantile(latencies, [0.5, 0.99]) * 1e3
        return {
            "adds": added / took, "samples": len(latencies) * batch / took, "p50_ms": p50, "p99_ms": p99,
            "longest_ms": max(latencies) * 1e3, "learner_wait": sum(latencies) / took,
            "add_p99_ms": float(np.quantile(waits, 0.99)) * 1e3 if waits else 0.0, "cpu": cpu / took,
            "mb_per_s": handed / batch * (len(latencies) * batch / took) / 1e6, "bytes": private_bytes() - self._before,
            **self.memory.counted(),
        }  # fmt: skip

    def _learn(self) -> int:
        batch = self.memory.sample()
        if self.load.kind == "prioritized":
            self.memory.update(batch, self._rng)
        handed: int = self.memory.handed(batch)
        return handed


def main() -> None:
    """Run the command line."""
    parser = runner.parser(__doc__)
    parser.add_argument("--loads", nargs="*", choices=list(LOADS), default=list(LOADS))
    parser.add_argument("--minutes", type=float, default=10.0, help="length of each run (10)")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the elements, three seconds a run")
    parser.add_argument("--times", type=float, default=10.0, help="multiple of the table's rates (10)")
    parser.add_argument("--memories", nargs="*", choices=list(MEMORIES), default=list(MEMORIES))
    parser.add_argument("--reverb-python", metavar="PYTHON", help="interpreter with dm-reverb[tensorflow]")
    parser.add_argument("--peer-gb", type=float, default=4.0, help="memory that a peer is filled with at most (4)")
    parser.add_argument("--out", type=Path, default=runner.RESULTS / "workloads.json")
    parser.add_argument(
        "--show", type=Path, metavar="FILE", help="print the table of a result file, and do nothing else"
    )
    arguments = parser.parse_args()
    if arguments.show:
        report(json.loads(arguments.show.read_text()))
        return
    if arguments.quick:
        arguments.minutes = 0.05
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
            runner.write(arguments.out, results)
    report(results)


if __name__ == "__main__":
    if sys.argv[1:2] == [WORKER]:
        runner.answer(lambda: Worker(sys.argv[2], sys.argv[3], Path(sys.argv[4])))
        os._exit(0)  # threads of a peer's pipeline would be waited for
    main()
