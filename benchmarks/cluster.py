"""A cluster of shards beside servers of Reverb, on real frames of Pong.

    python benchmarks/cluster.py [--reverb-python PYTHON] [--quick] [--rounds 3] [--seconds 1.5] [--out FOLDER]

1, 2 and 4 shards or servers, each a process; 1, 4, 16 and 64 writers, in threads of one process, one environment each;
a learner in a process of its own, which draws prioritized batches of 256 one-step transitions (stacks of four frames)
and updates their priorities. Shards are reached over unix sockets, where batches are decoded into the learner's memory,
and over loopback TCP, where it gets encoded rows. All contenders are filled first and kept; then they are measured in
turn, round after round. Figures are medians over rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import frames
import runner
from cluster_ours import Shards
from runner import Results, in_turn, memory, middle, processor_s, say

from sharpwave.bench.machine import AnsweringChild, environment

if TYPE_CHECKING:
    from rich.table import Table

COUNTS, WRITERS = (1, 2, 4), (1, 4, 16, 64)
RECORDED = 65_536
CAPACITY = 1_000_000
PACED = 2000.0
"""Steps a second that writers write while a learner draws: eight environments of 250."""
NEEDS_MB = {"DQN": 181.0, "IMPALA": 759.0}
"""Decoded megabytes a second that seed workloads sample."""


class Contender:
    """Servers, and the processes of writers and of a learner that use them.

    Args:
        name: "Reverb", "unix" or "tcp". ``count``: of servers.
    """

    def __init__(self, name: str, count: int, folder: Path, reverb: str | None, shards: Shards | None) -> None:
        self.name, self.count, self._stack = name, count, ExitStack()
        if shards is not None:
            self.processes, addresses = shards.processes, shards.addresses[name]
            module, python = "cluster_ours", sys.executable
        else:
            assert reverb is not None
            servers = [worker(self._stack, reverb, "server", str(CAPACITY)) for _ in range(count)]
            addresses = [one.receive(120.0)["address"] for one in servers]
            self.processes = [one.process.pid for one in servers]
            module, python = "cluster_reverb", reverb
        self.writers, self.learner = (
            worker(self._stack, python, role, module, str(folder), *addresses) for role in ("writers", "learner")
        )

    def fill(self, steps: int) -> Results:
        """Write ``steps``; return their bytes and speed, and how many of a batch's items are wrong."""
        self.writers.ask(do="write", writers=16, seconds=0, steps=max(2_000, steps // 5))  # what is fixed is there
        before = sum(map(memory, self.processes))
        written = self.writers.ask(do="write", writers=16, seconds=0, steps=steps)
        grown = sum(map(memory, self.processes)) - before
        return {"bytes_per_step": grown / written["steps"], **written, **self.learner.ask(do="check")}

    def measured(self, **request: Any) -> Results:
        """Ask the writers or the learner, and add the servers' processor time."""
        before = sum(map(processor_s, self.processes))
        who = self.learner if request["do"] == "draw" else self.writers
        answer = who.ask(**request)
        return answer | {"servers_cpu_s": sum(map(processor_s, self.processes)) - before}

    def draw_while_writing(self, writers: int, seconds: float) -> Results:
        """Draw while ``PACED`` steps a second are written."""
        self.writers.send(do="write", writers=writers, seconds=seconds + 0.5, rate=PACED)
        answer = self.learner.ask(do="draw", seconds=seconds)
        written = self.writers.receive()
        return answer | {"steps_per_s": written["steps"] / written["seconds"]}

    def close(self) -> None:
        """End the processes."""
        self._stack.close()


def worker(stack: ExitStack, python: str, role: str, *arguments: str) -> AnsweringChild:
    """Start a process of ``cluster_worker.py``, which ends with ``stack``."""
    log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sharpwave-bench-"))) / "errors"
    made = runner.worker("cluster_worker.py", role, *arguments, name=role, python=python, log=log)
    stack.callback(made.close)
    return made


def run(arguments: argparse.Namespace) -> Results:
    """Fill all contenders, measure them in turn, and return the results."""
    folder = frames.folder_of("pong", RECORDED, cache=arguments.frames_cache, say=say)
    results: Results = {
        "environment": environment(("sharpwave", "numpy")) | {"load": []},
        "settings": {name: getattr(arguments, name) for name in ("steps", "rounds", "seconds")} | {"paced": PACED},
        "contenders": {},
    }
    with ExitStack() as stack:
        contenders: list[Contender] = []
        for count in arguments.servers:
            if arguments.reverb_python:
                contenders.append(Contender("Reverb", count, folder, arguments.reverb_python, None))
                stack.callback(contenders[-1].close)
            shards = Shards(count, CAPACITY)
            stack.callback(shards.close)
            for kind in ("unix", "tcp"):
                contenders.append(Contender(kind, count, folder, None, shards))
                stack.callback(contenders[-1].close)
        for one in contenders:
            filled = one.fill(arguments.steps if one.name != "tcp" else arguments.steps // 10)
            results["contenders"][f"{one.name} {one.count}"] = {
                "name": one.name, "servers": one.count, "fill": filled, "draw": [], "write": {}, "both": {},
            }  # fmt: skip
            say(f"{one.name} {one.count}: {filled['bytes_per_step']:,.0f} bytes a step, {filled['wrong']:.0%} wrong")
        for turn in range(arguments.rounds):
            results["environment"]["load"].append(os.getloadavg()[0])
            say(f"round {turn + 1} of {arguments.rounds}, load {os.getloadavg()[0]:.1f}")
            one_round(in_turn(contenders, turn), results["contenders"], arguments)
        results["unrolls_mb_per_s"] = [
            one.learner.ask(do="unrolls", seconds=arguments.seconds)["mb_per_s"]
            for _ in range(arguments.rounds)
            for one in contenders
            if one.name == "unix" and one.count == 1
        ]
    return results


def one_round(order: list[Contender], results: Results, arguments: argparse.Namespace) -> None:
    """Measure every contender once."""
    for one in order:
        results[f"{one.name} {one.count}"]["draw"].append(one.measured(do="draw", seconds=arguments.seconds))
    for writers in arguments.writers:
        for one in order:
            into = results[f"{one.name} {one.count}"]
            written = one.measured(do="write", writers=writers, seconds=arguments.seconds)
            into["write"].setdefault(str(writers), []).append(written)
            both = one.draw_while_writing(writers, arguments.seconds)
            into["both"].setdefault(str(writers), []).append(both)


def report(results: Results) -> None:
    """Print the tables, and each goal beside the measured figure."""
    console = runner.console()
    settings = results["settings"]
    load = ", ".join(f"{one:.1f}" for one in results["environment"]["load"])
    console.print(f"{settings['steps']:,} steps, medians of {settings['rounds']} rounds; load {load}")
    console.print(_draws(results), _writes(results))
    for line in _ratios(results):
        console.print(line)


def servers_ms(rounds: list[Results]) -> float:
    """Return the servers' processor time a batch."""
    return float(statistics.median(one["servers_cpu_s"] / one["batches"] * 1e3 for one in rounds))


def _draws(results: Results) -> Table:
    table = runner.table(
        "Prioritized batches of 256, nobody writing",
        "", "servers", "transitions/s", "MB/s decoded", "p50 ms", "p99 ms", "CPU ms a batch: learner", "servers",
        "bytes a transition", "bytes a step",
    )  # fmt: skip
    for one in results["contenders"].values():
        draw = one["draw"]
        figures = [middle(draw, name) for name in ("transitions_per_s", "mb_per_s", "p50_ms", "p99_ms", "cpu_ms")]
        table.add_row(
            one["name"], str(one["servers"]), f"{figures[0]:,.0f}", f"{figures[1]:,.0f}",
            *(f"{figure:.1f}" for figure in figures[2:]), f"{servers_ms(draw):.1f}",
            f"{middle(draw, 'bytes_per_transition'):,.0f}",
            f"{one['fill']['bytes_per_step']:,.0f}" if one["name"] != "tcp" else "as unix",
        )  # fmt: skip
    return table


def _writes(results: Results) -> Table:
    table = runner.table(
        f"Writing at full speed; then drawing while {results['settings']['paced']:,.0f} steps/s come",
        "", "servers", "writers", "steps/s in", "CPU us a step: writers", "servers", "transitions/s out", "p50 ms",
        "p99 ms", "steps/s meanwhile",
    )  # fmt: skip
    for one in results["contenders"].values():
        for writers, rounds in one["write"].items():
            both = one["both"][writers]
            speed, ours, theirs = (
                statistics.median(each[name] / each[per] * scale for each in rounds)
                for name, per, scale in (
                    ("steps", "seconds", 1),
                    ("cpu_s", "steps", 1e6),
                    ("servers_cpu_s", "steps", 1e6),
                )
            )
            table.add_row(
                one["name"], str(one["servers"]), writers, f"{speed:,.0f}", f"{ours:.0f}", f"{theirs:.0f}",
                f"{middle(both, 'transitions_per_s'):,.0f}", f"{middle(both, 'p50_ms'):.1f}",
                f"{middle(both, 'p99_ms'):.1f}", f"{middle(both, 'steps_per_s'):,.0f}",
            )  # fmt: skip
    return table


def _ratios(results: Results) -> Iterator[str]:
    contenders = results["contenders"]
    unrolls = statistics.median(results["unrolls_mb_per_s"])
    yield (
        f"unix 1: {unrolls:,.0f} MB/s of windows of 20 steps, one frame a step: "
        f"{unrolls / NEEDS_MB['IMPALA']:.1f} times IMPALA's {NEEDS_MB['IMPALA']:.0f}"
    )
    for name, one in contenders.items():
        if one["servers"] == 1 and one["name"] != "Reverb":
            speed = middle(one["draw"], "mb_per_s")
            times = speed / NEEDS_MB["DQN"]
            yield (f"{name}: {speed:,.0f} MB/s decoded by one shard: {times:.1f} times DQN's {NEEDS_MB['DQN']:.0f}")
        peer = contenders.get(f"Reverb {one['servers']}")
        if peer is None or one["name"] == "Reverb":
            continue
        pairs = list(zip(one["draw"], peer["draw"], strict=True))
        samples = statistics.median(ours["transitions_per_s"] / theirs["transitions_per_s"] for ours, theirs in pairs)
        cpu = statistics.median(_cpu_ms(theirs) / _cpu_ms(ours) for ours, theirs in pairs)
        nbytes = peer["fill"]["bytes_per_step"] / contenders[f"unix {one['servers']}"]["fill"]["bytes_per_step"]
        yield (
            f"{name}: {samples:.1f} times Reverb's samples, 1/{cpu:.1f} of its processor time, "
            f"1/{nbytes:.1f} of its bytes a step"
        )


def _cpu_ms(one: Results) -> float:
    """Return the processor time of the learner and the servers, a batch."""
    return float(one["cpu_ms"] + one["servers_cpu_s"] / one["batches"] * 1e3)


def main() -> None:
    """Run the command line."""
    parser = runner.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="two minutes: fewer steps, counts and rounds")
    parser.add_argument("--reverb-python", metavar="PYTHON", help="interpreter with dm-reverb[tensorflow]")
    parser.add_argument("--steps", type=int, default=50_000, help="steps to fill each contender with (50000)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one measurement (1.5)")
    parser.add_argument("--servers", type=int, nargs="*", default=COUNTS)
    parser.add_argument("--writers", type=int, nargs="*", default=WRITERS)
    parser.add_argument("--out", type=Path, default=runner.RESULTS, help="folder for cluster.json")
    parser.add_argument("--frames-cache", type=Path, default=frames.CACHE, help="folder for played frames")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.steps, arguments.rounds, arguments.seconds = 8_000, 1, 0.5
        arguments.servers, arguments.writers = (1, 2), (1, 4)
    if not arguments.reverb_python:
        say("Reverb: left out, give --reverb-python")
    runner.check_idle()
    results = run(arguments)
    runner.write(arguments.out / "cluster.json", results)
    report(results)
    say(f"written: {arguments.out / 'cluster.json'}")


if __name__ == "__main__":
    main()
