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
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import cluster_kill
import cluster_weights
import frames
from cluster_ours import Shards
from cluster_report import report
from cluster_world import cpu_s, resident_bytes

from sharpwave.bench.machine import environment
from sharpwave.bench.process import Child

HERE = Path(__file__).parent
COUNTS, WRITERS = (1, 2, 4), (1, 4, 16, 64)
RECORDED = 65_536
CAPACITY = 1_000_000
PACED = 2000.0
"""Steps a second that writers write while a learner draws: eight environments of 250."""
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "GLOG_minloglevel": "3"}


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

    def fill(self, steps: int) -> dict[str, Any]:
        """Write ``steps``; return their bytes and speed, and how many of a batch's items are wrong."""
        self.writers.ask(do="write", writers=16, seconds=0, steps=max(2_000, steps // 5))  # what is fixed is there
        before = resident_bytes(self.processes)
        written = self.writers.ask(do="write", writers=16, seconds=0, steps=steps)
        grown = resident_bytes(self.processes) - before
        return {"bytes_per_step": grown / written["steps"], **written, **self.learner.ask(do="check")}

    def measured(self, **request: Any) -> dict[str, Any]:
        """Ask the writers or the learner, and add the servers' processor time."""
        before = cpu_s(self.processes)
        who = self.learner if request["do"] == "draw" else self.writers
        answer = who.ask(**request)
        return answer | {"servers_cpu_s": cpu_s(self.processes) - before}

    def draw_while_writing(self, writers: int, seconds: float) -> dict[str, Any]:
        """Draw while ``PACED`` steps a second are written."""
        self.writers.send(do="write", writers=writers, seconds=seconds + 0.5, rate=PACED)
        answer = self.learner.ask(do="draw", seconds=seconds)
        written = self.writers.receive()
        return answer | {"steps_per_s": written["steps"] / written["seconds"]}

    def close(self) -> None:
        """End the processes."""
        self._stack.close()


def worker(stack: ExitStack, python: str, role: str, *arguments: str) -> Child:
    """Start a process of ``cluster_worker.py``, which ends with ``stack``."""
    path = os.pathsep.join([str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")])
    log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sharpwave-bench-"))) / "errors"
    command = [python, str(HERE / "cluster_worker.py"), role, *arguments]
    made = Child(role, command, log, env={"PYTHONPATH": path, **QUIET})
    stack.callback(made.close)
    return made


def reverb_servers(stack: ExitStack, python: str, folders: list[str], port: int = 0) -> list[tuple[Child, str]]:
    """Start a server of Reverb for each folder of checkpoints; return their processes and addresses."""
    made = [worker(stack, python, "server", str(CAPACITY), folder, str(port)) for folder in folders]
    return [(one, one.receive(120.0)["address"]) for one in made]


def fresh(stack: ExitStack, count: int) -> list[str]:
    """Return new folders, which are deleted with ``stack``."""
    return [stack.enter_context(tempfile.TemporaryDirectory(prefix="reverb-bench-")) for _ in range(count)]


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fill all contenders, measure them in turn, and return the results."""
    folder = frames.folder_of("pong", RECORDED, cache=arguments.frames_cache, say=say)
    results: dict[str, Any] = {
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
            order = contenders[turn % len(contenders) :] + contenders[: turn % len(contenders)]
            one_round(order, results["contenders"], arguments)
        results["unrolls_mb_per_s"] = [
            one.learner.ask(do="unrolls", seconds=arguments.seconds)["mb_per_s"]
            for _ in range(arguments.rounds)
            for one in contenders
            if one.name == "unix" and one.count == 1
        ]
    for name in ("unix", "tcp", "Reverb"):
        if name == "Reverb" and not arguments.reverb_python:
            continue
        results.setdefault("weights", {})[name] = cluster_weights.measure(name, folder, arguments.reverb_python)
        say(f"weights, {name}: {results['weights'][name]}")
    results["faults"] = cluster_kill.measure(folder, arguments.reverb_python, arguments.steps // 5)
    return results


def one_round(order: list[Contender], results: dict[str, Any], arguments: argparse.Namespace) -> None:
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


def say(text: str) -> None:
    """Print progress to stderr, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two minutes: fewer steps, counts and rounds")
    parser.add_argument("--reverb-python", metavar="PYTHON", help="interpreter with dm-reverb[tensorflow]")
    parser.add_argument("--steps", type=int, default=50_000, help="steps to fill each contender with (50000)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one measurement (1.5)")
    parser.add_argument("--servers", type=int, nargs="*", default=COUNTS)
    parser.add_argument("--writers", type=int, nargs="*", default=WRITERS)
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder for cluster.json")
    parser.add_argument("--frames-cache", type=Path, default=frames.CACHE, help="folder for played frames")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.steps, arguments.rounds, arguments.seconds = 8_000, 1, 0.5
        arguments.servers, arguments.writers = (1, 2), (1, 4)
    if not arguments.reverb_python:
        say("Reverb: left out, give --reverb-python")
    results = run(arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "cluster.json").write_text(json.dumps(results, indent=1) + "\n")
    report(results)
    say(f"written: {arguments.out / 'cluster.json'}")


if __name__ == "__main__":
    main()
