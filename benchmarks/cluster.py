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
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import frames
import runner
from cluster_ours import SPEC, Shards, Writer
from cluster_worker import Steps
from runner import Results, in_turn, memory, middle, processor_s, say

import sharpwave as sw
from sharpwave.bench.machine import AnsweringChild, environment

if TYPE_CHECKING:
    from rich.table import Table

COUNTS, WRITERS = (1, 2, 4), (1, 4, 16, 64)
RECORDED = 65_536
CAPACITY = 1_000_000
PACED = 2000.0
"""Steps a second that writers write while a learner draws: eight environments of 250."""
WEIGHED = {"servers": 4, "steps": 4_000, "batches": 50}
KILLED_WRITERS, BACK_S = 4, 60.0
GOALS = {"samples": 8.0, "cpu": 10.0, "bytes": 25.0}
"""Times Reverb's samples a second, of its processor time, and of its bytes a step."""
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
            servers = reverb_servers(self._stack, reverb, fresh(self._stack, count))
            self.processes, addresses = [one.process.pid for one, _ in servers], [address for _, address in servers]
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


def reverb_servers(
    stack: ExitStack, python: str, folders: list[str], port: int = 0
) -> list[tuple[AnsweringChild, str]]:
    """Start a server of Reverb for each folder of checkpoints; return their processes and addresses."""
    made = [worker(stack, python, "server", str(CAPACITY), folder, str(port)) for folder in folders]
    return [(one, one.receive(120.0)["address"]) for one in made]


def fresh(stack: ExitStack, count: int) -> list[str]:
    """Return new folders, which are deleted with ``stack``."""
    return [stack.enter_context(tempfile.TemporaryDirectory(prefix="reverb-bench-")) for _ in range(count)]


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
    for name in ("unix", "tcp", "Reverb"):
        if name == "Reverb" and not arguments.reverb_python:
            continue
        results.setdefault("weights", {})[name] = weights(name, folder, arguments.reverb_python)
        say(f"weights, {name}: {results['weights'][name]}")
    results["faults"] = faults(folder, arguments.reverb_python, arguments.steps // 5)
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


def weights(name: str, folder: Path, reverb: str | None) -> dict[str, float]:
    """Return the largest relative errors of probabilities and weights against one memory's.

    A writer of shard k gives its items priorities from 4^k to 8 * 4^k.
    """
    with ExitStack() as stack:
        if name == "Reverb":
            assert reverb is not None
            addresses = [address for _, address in reverb_servers(stack, reverb, fresh(stack, WEIGHED["servers"]))]
            module, python = "cluster_reverb", reverb
        else:
            shards = Shards(WEIGHED["servers"], 100_000)
            stack.callback(shards.close)
            addresses, module, python = shards.addresses[name], "cluster_ours", sys.executable
        arguments = (module, str(folder), *addresses)
        learner = None
        if name != "Reverb":  # first: priorities are those of its view; Reverb's learner draws from its beginning on
            learner = worker(stack, python, "learner", *arguments)
            learner.ask(do="ready")
        writers = worker(stack, python, "writers", *arguments)
        mass = writers.ask(do="write_skewed", writers=WEIGHED["servers"], steps=WEIGHED["steps"])["mass"]
        learner = learner or worker(stack, python, "learner", *arguments)
        answer: Results = learner.ask(do="weights", mass=mass, batches=WEIGHED["batches"])
        return answer


def faults(folder: Path, reverb: str | None, steps: int) -> dict[str, dict[str, float]]:
    """Kill one of two processes; return the acknowledged steps, and those that are there once it is back."""
    recorded = Steps(frames.read(folder))
    found = {
        "shards in memory": _killed_shard(recorded, steps, False, "memory"),
        "shards on disk": _killed_shard(recorded, steps, True, "memory"),
        "shards on disk, flushed": _killed_shard(recorded, steps, True, "flush"),
    }
    if reverb is not None:
        found["Reverb"] = _killed_server(folder, reverb, steps, False)
        found["Reverb, checkpoint at half"] = _killed_server(folder, reverb, steps, True)
    return found


def _killed_shard(recorded: Steps, steps: int, on_disk: bool, durability: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="sharpwave-bench-") as name, ExitStack() as stack:
        shards = Shards(2, 1_000_000, Path(name) / "disk" if on_disk else None)
        stack.callback(shards.close)
        addresses = shards.addresses["unix"]
        writers = [Writer(addresses, number, durability) for number in range(KILLED_WRITERS)]
        for number, writer in enumerate(writers):
            mine = recorded.of(number)
            for _ in range(steps // KILLED_WRITERS):
                writer.write(next(mine))
        acknowledged = sum(writer.flush() for writer in writers)
        os.kill(shards.processes[0], signal.SIGKILL)
        begin = time.monotonic()
        with sw.Cluster.of(SPEC, addresses) as cluster:
            while True:
                try:
                    there = len(cluster)
                    break
                except ConnectionError:
                    if time.monotonic() > begin + BACK_S:
                        raise
                    time.sleep(0.02)
        return {"acknowledged": acknowledged, "there": there, "back_s": time.monotonic() - begin}


def _killed_server(folder: Path, python: str, steps: int, checkpoint: bool) -> dict[str, float]:
    """As ``_killed_shard``; nothing starts a server of Reverb again, so this does."""
    with ExitStack() as stack:
        kept = fresh(stack, 2)
        servers = reverb_servers(stack, python, kept)
        addresses = [address for _, address in servers]
        writers = worker(stack, python, "writers", "cluster_reverb", str(folder), *addresses)
        acknowledged = 0
        for _ in range(2):
            acknowledged += writers.ask(do="write", writers=KILLED_WRITERS, seconds=0, steps=steps // 2)["steps"]
            if checkpoint and not acknowledged > steps // 2:
                for one, _ in servers:
                    one.ask(do="count", checkpoint=True)
        servers[0][0].close()
        begin = time.monotonic()
        servers[:1] = reverb_servers(stack, python, kept[:1], int(addresses[0].rpartition(":")[2]))
        there = sum(one.ask(do="count")["items"] for one, _ in servers)
        return {"acknowledged": acknowledged, "there": there, "back_s": time.monotonic() - begin}


def report(results: Results) -> None:
    """Print the tables, and each goal beside the measured figure."""
    console = runner.console()
    settings = results["settings"]
    load = ", ".join(f"{one:.1f}" for one in results["environment"]["load"])
    console.print(f"{settings['steps']:,} steps, medians of {settings['rounds']} rounds; load {load}")
    console.print(_draws(results), _writes(results), _lost(results))
    for line in _goals(results):
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


def _lost(results: Results) -> Table:
    table = runner.table("One of two killed (SIGKILL)", "", "acknowledged", "lost", "seconds until it is back")
    for name, one in results["faults"].items():
        lost = one["acknowledged"] - one["there"]
        table.add_row(name, f"{one['acknowledged']:,.0f}", f"{max(0, lost):,.0f}", f"{one['back_s']:.1f}")
    return table


def _goals(results: Results) -> Iterator[str]:
    for name, one in results["weights"].items():
        yield (
            f"{name}: four of skewed priorities, largest relative error against one memory: "
            f"probabilities {one['probability']:.2g}, weights {one['weight']:.2g}"
        )
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
            f"{name}: {samples:.1f} times Reverb's samples (goal {GOALS['samples']:.0f}), 1/{cpu:.1f} of its processor "
            f"time (goal 1/{GOALS['cpu']:.0f}), 1/{nbytes:.1f} of its bytes a step (goal 1/{GOALS['bytes']:.0f})"
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
