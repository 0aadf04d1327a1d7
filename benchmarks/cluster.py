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
import importlib
import os
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import frames
import numpy as np
import numpy.typing as npt
import runner
from runner import Results, in_turn, memory, middle, processor_s, say

import sharpwave as sw
from sharpwave.bench.machine import AnsweringChild, environment
from sharpwave.bench.played import PlayedSteps
from sharpwave.serve.addresses import Address
from sharpwave.serve.fleet import ShardPlan
from sharpwave.serve.local_shards import LocalShards

if TYPE_CHECKING:
    from rich.table import Table

STACK, SHAPE = 4, (84, 84)
BATCH, LOOKAHEAD = 256, 4
ALPHA, BETA = 0.6, 0.4
ITEM_BYTES = (STACK + 1) * SHAPE[0] * SHAPE[1]
"""Bytes of a decoded transition's frames: of its stack and its successor's, which share three."""
COUNTS, WRITERS = (1, 2, 4), (1, 4, 16, 64)
RECORDED = 65_536
CAPACITY = 1_000_000
PACED = 2000.0
"""Steps a second that writers write while a learner draws: eight environments of 250."""
NEEDS_MB = {"DQN": 181.0, "IMPALA": 759.0}
"""Decoded megabytes a second that seed workloads sample."""
WORKER = "--worker"


# steps


@dataclass(frozen=True)
class Step:
    """One environment's step. ``after``: the true frame behind it. ``number``: of its writer and of its order."""

    number: int
    obs: npt.NDArray[np.uint8]
    after: npt.NDArray[np.uint8]
    reward: np.float32
    terminated: np.bool_
    truncated: np.bool_

    @property
    def ended(self) -> bool:
        """Whether it was its episode's last."""
        return bool(self.terminated or self.truncated)


class Steps:
    """Steps of a recording without end, of which each writer begins elsewhere. A round of them ends an episode."""

    def __init__(self, recording: PlayedSteps) -> None:
        self._recording = recording
        self._frames = [np.ascontiguousarray(recording.obs[:, lane]) for lane in range(recording.lanes)]

    def of(self, writer: int) -> Iterator[Step]:
        """Iterate over one writer's steps."""
        number = writer << 40
        while True:
            yield self.one(number)
            number += 1

    def one(self, number: int) -> Step:
        """Return the step of a number."""
        recording, writer = self._recording, number >> 40
        lane, time = writer % recording.lanes, (writer * 997 + number % (1 << 40)) % recording.times
        place, last = int(recording.final_place[time, lane]), time == recording.times - 1
        return Step(
            number, self._frames[lane][time], recording.final[place] if place >= 0 else self._frames[lane][time + 1],
            recording.reward[time, lane], recording.terminated[time, lane],
            np.bool_(recording.truncated[time, lane] or (last and place < 0)),
        )  # fmt: skip


def connection_bytes() -> dict[str, tuple[int, int]]:
    """Return bytes sent and received on every TCP connection of this process, whatever library made it."""
    counted: dict[str, tuple[int, int]] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                ends = f"{one.getsockname()} {one.getpeername()}"
        except OSError:  # closed meanwhile, or no TCP connection
            continue
        if len(info) >= 136:
            counted[ends] = struct.unpack_from("<QQ", info, 120)
    return counted


# Sharpwave

SPEC = sw.Spec(obs=sw.Field(SHAPE, "uint8", stack=STACK), action=sw.Field((), "int64"))


class Shards:
    """Processes of shards, which listen at unix sockets and on loopback. ``addresses``: by the kind of socket."""

    def __init__(self, count: int, capacity: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="sharpwave-bench-", ignore_cleanup_errors=True)
        listen = Address.parse("127.0.0.1:0")
        plan = ShardPlan(count, Path(self._folder.name), capacity=capacity, listen=listen)
        self._shards = LocalShards(plan.settings(SPEC))
        self.addresses = {
            kind: [each[at] for each in self._shards.addresses] for at, kind in enumerate(("unix", "tcp"))
        }

    @property
    def processes(self) -> list[int]:
        """Numbers of the shards' processes; a shard that died is started again under another."""
        return self._shards.processes

    def close(self) -> None:
        """Stop them."""
        self._shards.close()
        self._folder.cleanup()


class Writer:
    """One environment's writer, to one shard."""

    def __init__(self, addresses: list[str], number: int) -> None:
        self._cluster = sw.Cluster.of(SPEC, addresses)
        self._writer = self._cluster.writer(1, shard=number % len(addresses), timeout=60.0)
        self._acknowledged = 0

    def write(self, step: Step) -> None:
        """Append a step."""
        self._writer.extend(
            obs=step.obs[None], action=np.array([step.number]), reward=np.array([step.reward]),
            terminated=np.array([step.terminated]), truncated=np.array([step.truncated]),
            final_obs=step.after[None] if step.ended else None,
        )  # fmt: skip

    def flush(self) -> int:
        """Wait until every sealed segment is acknowledged; return how many steps were since the last call."""
        self._writer.flush()
        before, self._acknowledged = self._acknowledged, self._writer.delivery.acknowledged
        return self._acknowledged - before


class Learner:
    """Learner of all shards: prioritized batches, and updates of their priorities."""

    def __init__(self, addresses: list[str]) -> None:
        self.cluster = sw.Cluster.of(SPEC, addresses)
        self.replay = self.cluster.transitions(n_step=1, sampler=sw.Prioritized(alpha=ALPHA, beta=BETA))
        self._stream = self.replay.stream(BATCH, lookahead=LOOKAHEAD, timeout=60.0)

    def unrolls(self) -> Any:
        """Iterate over batches of 32 windows of 20 steps, as V-trace learns from."""
        replay = self.cluster.sequences(20, stride=20, n_step=1, sampler=sw.Uniform())
        return replay.stream(32, lookahead=LOOKAHEAD, timeout=60.0)

    def sample(self) -> Any:
        """Return the next batch."""
        return next(self._stream)

    def update(self, batch: Any, priorities: Any) -> None:
        """Set the priorities of a batch."""
        self.replay.update_priorities(batch, priorities)

    def numbers(self, batch: Any) -> Any:
        """Return the numbers of the steps of a batch."""
        return batch.action

    def frames(self, batch: Any) -> Any:
        """Return the five frames of each item."""
        return np.concatenate([batch.obs, batch.next_obs[:, -1:]], axis=1)

    def link_bytes(self) -> int:
        """Return the bytes of requests and replies so far, as the links count them."""
        return sum(link.sent_bytes + link.received_bytes for link in self.cluster.links if link is not None)


# processes of writers and of a learner


class WriterProcess:
    """Writers in threads of this process, one environment each, which are used again from call to call."""

    def __init__(self, contender: Any, steps: Steps, addresses: list[str]) -> None:
        self._contender, self._steps, self._addresses = contender, steps, addresses
        self._writers: list[tuple[Any, Any]] = []

    def write(self, writers: int, seconds: float, steps: int = 0, rate: float = 0.0) -> dict[str, float]:
        """Write for ``seconds``, or until there are ``steps``; at most ``rate`` steps a second, of all together."""
        while len(self._writers) < writers:
            number = len(self._writers)
            self._writers.append((self._contender.Writer(self._addresses, number), self._steps.of(number)))
        counts, errors = [0] * writers, []
        begin, cpu = time.perf_counter(), time.process_time()

        def run(number: int) -> None:
            writer, mine = self._writers[number]
            written = 0
            try:
                while (written * writers < steps) if steps else time.perf_counter() < begin + seconds:
                    writer.write(next(mine))
                    written += 1
                    if rate:
                        time.sleep(max(0.0, begin + written * writers / rate - time.perf_counter()))
                counts[number] = writer.flush()
            except Exception as error:  # a thread's own is lost
                errors.append(error)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(writers)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        if errors:
            raise errors[0]
        took = time.perf_counter() - begin
        return {"steps": sum(counts), "seconds": took, "cpu_s": time.process_time() - cpu}


class LearnerProcess:
    """Learner that samples prioritized batches and updates their priorities."""

    def __init__(self, contender: Any, steps: Steps, addresses: list[str]) -> None:
        self._learner, self._steps = contender.Learner(addresses), steps
        self._rng = np.random.default_rng(0)

    def draw(self, seconds: float) -> dict[str, float]:
        """Return speed, latency, processor time and bytes of batches drawn for ``seconds``."""
        latencies: list[float] = []
        for _ in range(4):  # batches requested before the measurement are used up
            self._one()
        sent, links = connection_bytes(), self._learner.link_bytes()
        begin, cpu = time.perf_counter(), time.process_time()
        while (now := time.perf_counter()) < begin + seconds or len(latencies) < 5:
            self._one()
            latencies.append(time.perf_counter() - now)
        cpu, took = time.process_time() - cpu, now - begin
        after = connection_bytes()
        nbytes = sum(sum(count) - sum(sent.get(ends, (0, 0))) for ends, count in after.items())
        nbytes = nbytes or self._learner.link_bytes() - links  # unix sockets
        items = len(latencies) * BATCH
        return {
            "batches": len(latencies), "transitions_per_s": items / took, "mb_per_s": items * ITEM_BYTES / took / 1e6,
            "p50_ms": float(np.median(latencies)) * 1e3, "p99_ms": float(np.quantile(latencies, 0.99)) * 1e3,
            "cpu_ms": cpu / len(latencies) * 1e3, "bytes_per_transition": nbytes / items,
        }  # fmt: skip

    def _one(self) -> None:
        batch = self._learner.sample()
        self._learner.update(batch, self._rng.random(BATCH).astype(np.float32) + 0.01)

    def unrolls(self, seconds: float) -> dict[str, float]:
        """Return decoded megabytes a second, one frame a step, of batches of 32 windows of 20 steps."""
        stream, batches = self._learner.unrolls(), 0
        next(stream)
        begin = time.perf_counter()
        while (now := time.perf_counter()) < begin + seconds:
            shape = next(stream).action.shape
            batches += 1
        return {"mb_per_s": batches * int(np.prod(shape)) * ITEM_BYTES / 5 / (now - begin) / 1e6}

    def check(self) -> dict[str, float]:
        """Return the share of a batch's items whose frame or successor is not the one that was written."""
        batch = self._learner.sample()
        numbers, got = self._learner.numbers(batch), self._learner.frames(batch)
        wrong = 0
        for number, window in zip(numbers.tolist(), got, strict=True):
            step = self._steps.one(number)
            wrong += not (np.array_equal(window[-2], step.obs) and np.array_equal(window[-1], step.after))
        return {"wrong": wrong / len(numbers), "different": len(np.unique(numbers)) / len(numbers)}


def work(role: str, *arguments: str) -> None:
    """Answer requests until standard input ends, as ``server CAPACITY``, ``writers`` or ``learner MODULE FRAMES
    ADDRESS ...``."""
    if role == "server":
        server = importlib.import_module("cluster_reverb").Server(int(arguments[0]))
        runner.answer(lambda: server, lambda made: {"address": made.address})
    else:
        module, folder, *addresses = arguments
        contender, steps = importlib.import_module(module), Steps(frames.read(Path(folder)))
        runner.answer(lambda: (WriterProcess if role == "writers" else LearnerProcess)(contender, steps, addresses))
    os._exit(0)  # threads of a learner's stream would be waited for


# the comparison


class Contender:
    """Servers, and the processes of writers and of a learner that use them.

    Args:
        name: "Reverb", "unix" or "tcp". ``count``: of servers.
    """

    def __init__(self, name: str, count: int, folder: Path, reverb: str | None, shards: Shards | None) -> None:
        self.name, self.count, self._stack = name, count, ExitStack()
        if shards is not None:
            self.processes, addresses = shards.processes, shards.addresses[name]
            module, python = "cluster", sys.executable
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
    """Start a process of this program, which ends with ``stack``."""
    log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sharpwave-bench-"))) / "errors"
    made = runner.worker("cluster.py", WORKER, role, *arguments, name=role, python=python, log=log)
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
    work(*sys.argv[2:]) if sys.argv[1:2] == [WORKER] else main()
