"""Measured costs of a cluster, and a simulation of 1,000 actors and 100 shards by them.

    python benchmarks/scale.py [--seconds 1.0] [--simulated 5]

Measures, on one to four real shards over loopback TCP, what a draw, an update and a put take; checks the simulation of
these shards against their real speed, in the same run; then simulates more of them than there are machines here.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Generator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import frames
import numpy as np
import runner
import simpy
from cluster import ALPHA, BETA, ITEM_BYTES, SPEC, Shards, Steps, Writer, connection_bytes
from runner import memory, processor_s

import sharpwave as sw
from sharpwave.bench.machine import environment

ACTORS, ACTOR_RATE, STEPS, SHARDS, BATCH, PER_S = 1000, 250.0, 10**9, 100, 512, 100.0
GBIT = 10.0
"""Assumed speed of the learner's link, in gigabits a second."""
FEW, MANY, LOOKAHEAD, FILL = 16, 256, 4, 20_000
FRAME_BYTES = ITEM_BYTES // 5


ONE_WAY_S = 50e-6
"""Assumed time of a message between two machines, beyond its bytes."""
Wait = Generator[Any, Any, Any]


@dataclass(frozen=True)
class Linear:
    """Cost of a batch of n items from k shards: ``batch + calls * k + items * n``."""

    batch: float
    call: float
    item: float

    def of(self, calls: float, items: float) -> float:
        """Return the cost of a batch."""
        return self.batch + self.call * calls + self.item * items


@dataclass(frozen=True)
class Costs:
    """Measured constants, in seconds of processor time and in bytes.

    Attributes:
        learner_draw, learner_update: of the learner. ``shard_draw``, ``shard_update``: of all shards together.
        wire: bytes of a draw and of its update. ``put``: of a shard, a segment; ``put_bytes``: a segment.
        segment_steps: steps in a segment.
    """

    learner_draw: Linear
    learner_update: Linear
    shard_draw: Linear
    shard_update: Linear
    wire: Linear
    put: float
    put_bytes: float
    segment_steps: int


@dataclass(frozen=True)
class Case:
    """Settings of a simulation.

    Attributes:
        rate: steps a second of all actors. ``batch``: its items. ``per_s``: batches a second that the learner wants;
            0: as many as it gets.
        cores: processes of the one machine that run at a time; 0: every process has a core. ``speed``: part of a core
            that a process gets.
        link: bytes a second of the learner's link; 0: loopback, which takes no time beside the processors.
    """

    shards: int
    rate: float
    batch: int
    per_s: float = 0.0
    lookahead: int = 4
    cores: int = 0
    speed: float = 1.0
    link: float = 0.0


@dataclass
class Found:
    """Outcome of a simulation: times in seconds, shares of 1."""

    seconds: float
    iterations: list[float] = field(default_factory=list)
    draws: list[float] = field(default_factory=list)
    puts: list[float] = field(default_factory=list)
    learner_busy: float = 0.0
    shards_busy: float = 0.0
    link_busy: float = 0.0

    @property
    def batches_per_s(self) -> float:
        """Batches that the learner got."""
        return len(self.iterations) / self.seconds


class Model:
    """One case, from its beginning on."""

    def __init__(self, case: Case, costs: Costs, seed: int = 0) -> None:
        self.case, self.costs, self.rng = case, costs, np.random.default_rng(seed)
        self.world = simpy.Environment()
        self.machine = simpy.Resource(self.world, case.cores) if case.cores else None
        self.learner = simpy.Resource(self.world, 1)
        self.link = simpy.Resource(self.world, 1)
        self.shards = [simpy.Resource(self.world, 1) for _ in range(case.shards)]
        self.found = Found(0.0)
        self.asked = min(case.shards, case.batch)

    def run(self, seconds: float) -> Found:
        """Simulate so many seconds, after one that does not count."""
        self.world.process(self._learn())
        if self.case.rate:
            for shard in range(self.case.shards):
                self.world.process(self._write(shard))
        self.world.run(1.0)
        self.found = Found(seconds)
        self.world.run(1.0 + seconds)
        self.found.shards_busy /= self.case.shards
        return self.found

    def _work(self, who: Any, seconds: float, name: str) -> Wait:
        """Hold a process, and a core of the machine, for so much processor time."""
        seconds /= self.case.speed
        with who.request() as mine:
            yield mine
            if self.machine is None:
                yield self.world.timeout(seconds)
            else:
                with self.machine.request() as core:
                    yield core
                    yield self.world.timeout(seconds)
        self.found.__dict__[name] += seconds / max(self.found.seconds, 1e-9)

    def _sent(self, nbytes: float) -> Wait:
        """Move bytes over the learner's link."""
        if self.case.link:
            yield self.world.timeout(ONE_WAY_S)
            yield from self._busy_link(nbytes)

    def _busy_link(self, nbytes: float) -> Wait:
        with self.link.request() as mine:
            yield mine
            yield self.world.timeout(nbytes / self.case.link)
        self.found.link_busy += nbytes / self.case.link / max(self.found.seconds, 1e-9)

    def _share(self, shard: int, cost: Linear, items: float, nbytes: float, into: list[float] | None) -> Wait:
        """Have a shard answer its part of a draw or of an update."""
        begin = self.world.now
        yield from self._sent(0.0)
        yield from self._work(self.shards[shard], cost.call + cost.item * items, "shards_busy")
        yield from self._sent(nbytes)
        if into is not None:
            into.append(self.world.now - begin)

    def _all(self, cost: Linear, bytes_each: float, into: bool) -> Any:
        """Ask ``asked`` shards for their shares of one batch."""
        whom = self.rng.permutation(self.case.shards)[: self.asked]
        items = self.case.batch / self.asked
        draws = self.found.draws if into else None
        return self.world.all_of(
            [self.world.process(self._share(int(one), cost, items, bytes_each, draws)) for one in whom]
        )

    def _learn(self) -> Wait:
        case, costs, plans = self.case, self.costs, deque[Any]()
        each = costs.wire.of(self.asked, case.batch) / self.asked
        asking = costs.learner_draw.batch / 2 + costs.learner_draw.call / 2 * self.asked
        taking = costs.learner_draw.of(self.asked, case.batch) - asking
        due = self.world.now
        while True:
            begin = self.world.now
            while len(plans) <= case.lookahead:
                yield from self._work(self.learner, asking, "learner_busy")
                plans.append(self._all(costs.shard_draw, each, True))
            yield plans.popleft()
            yield from self._work(self.learner, taking, "learner_busy")
            if case.per_s:  # the learner computes on another device until its next batch is due
                due = max(due + 1 / case.per_s, self.world.now)
                yield self.world.timeout(due - self.world.now)
            update = costs.learner_update.of(self.asked, case.batch)
            yield from self._work(self.learner, update, "learner_busy")
            yield self._all(costs.shard_update, 0.0, False)
            self.found.iterations.append(self.world.now - begin)

    def _write(self, shard: int) -> Wait:
        gap = self.costs.segment_steps / self.case.rate * self.case.shards
        while True:
            yield self.world.timeout(float(self.rng.exponential(gap)))
            self.world.process(self._put(shard))

    def _put(self, shard: int) -> Wait:
        begin = self.world.now
        yield from self._work(self.shards[shard], self.costs.put, "shards_busy")
        self.found.puts.append(self.world.now - begin)


# measurements


class Real:
    """Shards that are running and filled, and a learner in this process."""

    def __init__(self, shards: int, recorded: Steps) -> None:
        self.shards = Shards(shards, 1_000_000)
        self.empty_bytes = sum(map(memory, self.shards.processes))
        writers = [Writer(self.shards.addresses["tcp"], number) for number in range(8)]
        rows = [recorded.of(number) for number in range(8)]
        self._write(writers, rows, FILL // 2)  # the first ones choose codecs and load kernels
        sent, before = connection_bytes(), self._shards_s()
        steps = self._write(writers, rows, FILL // 2)
        self.put_s = (self._shards_s() - before) / steps
        self.put_bytes = _moved(sent, connection_bytes()) / steps
        self.cluster = sw.Cluster.of(SPEC, self.shards.addresses["tcp"])
        self.replay = self.cluster.transitions(sampler=sw.Prioritized(alpha=ALPHA, beta=BETA))

    def _write(self, writers: list[Writer], rows: list[Any], steps: int) -> int:
        for _ in range(steps // len(writers)):
            for writer, mine in zip(writers, rows, strict=True):
                writer.write(next(mine))
        return sum(writer.flush() for writer in writers)

    def costs(self, items: int, seconds: float) -> dict[str, float]:
        """Return what a draw and an update of ``items`` take, one at a time."""
        errors = np.random.default_rng(0).random(items).astype(np.float32) + 0.01
        for _ in range(20):
            batch = self.replay.sample(items)
            self.replay.update_priorities(batch, errors)
        sent = connection_bytes()
        draw = self._timed(lambda: self.replay.sample(items), seconds)
        between = connection_bytes()
        update = self._timed(lambda: self.replay.update_priorities(batch, errors), seconds)
        nbytes = _moved(sent, between) / draw[2] + _moved(between, connection_bytes()) / update[2]
        return {
            "learner_draw": draw[0], "shard_draw": draw[1], "learner_update": update[0], "shard_update": update[1],
            "wire": nbytes,
        }  # fmt: skip

    def _timed(self, call: Any, seconds: float) -> tuple[float, float, int]:
        """Return processor time a call, of this process and of the shards, and the number of calls."""
        calls, begin = 0, time.perf_counter()
        ours, theirs = time.process_time(), self._shards_s()
        while time.perf_counter() < begin + seconds:
            call()
            calls += 1
        return (time.process_time() - ours) / calls, (self._shards_s() - theirs) / calls, calls

    def speed(self, seconds: float) -> dict[str, float]:
        """Return batches a second and the latency of a batch and its update."""
        stream, taken = self.replay.stream(MANY, lookahead=LOOKAHEAD), []
        errors = np.random.default_rng(0).random(MANY).astype(np.float32) + 0.01
        for _ in range(8):
            next(stream)
        begin, ours, theirs = time.perf_counter(), time.process_time(), self._shards_s()
        while (now := time.perf_counter()) < begin + seconds:
            self.replay.update_priorities(next(stream), errors)
            taken.append(time.perf_counter() - now)
        ours, theirs = time.process_time() - ours, self._shards_s() - theirs
        return {
            "batches_per_s": len(taken) / seconds, "p50": float(np.median(taken)), "p99": _p99(taken),
            "learner_cpu": ours / len(taken), "shards_cpu": theirs / len(taken),
        }  # fmt: skip

    def _shards_s(self) -> float:
        return sum(map(processor_s, self.shards.processes))

    def close(self) -> None:
        """End the shards."""
        self.cluster.close()
        self.shards.close()


def _moved(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> int:
    return sum(sum(count) - sum(before.get(ends, (0, 0))) for ends, count in after.items())


def _p99(values: list[float]) -> float:
    return float(np.quantile(values, 0.99)) if values else 0.0


def fitted(few: dict[str, float], many: dict[str, float], wide: dict[str, float], real: Real) -> Costs:
    """Return the costs by batches of ``FEW`` and ``MANY`` of one shard, and of ``MANY`` of four."""

    def linear(name: str, has_batch: bool) -> Linear:
        item = max(0.0, (many[name] - few[name]) / (MANY - FEW))
        call = max(0.0, (wide[name] - many[name]) / 3 if has_batch else few[name] - FEW * item)
        return Linear(max(0.0, many[name] - MANY * item - call) if has_batch else 0.0, call, item)

    return Costs(
        linear("learner_draw", True), linear("learner_update", True), linear("shard_draw", False),
        linear("shard_update", False), linear("wire", False), real.put_s * 32, real.put_bytes * 32, 32,
    )  # fmt: skip


def core_share() -> float:
    """Return the part of a core that a busy loop gets now, beside whatever else this machine runs."""
    cores = len(os.sched_getaffinity(0))
    until = time.monotonic() + 0.3
    begin, cpu = time.perf_counter(), time.process_time()
    block = b"x" * (1 << 20)

    def spin() -> None:
        import zlib

        while time.monotonic() < until:
            zlib.crc32(block)  # holds no interpreter lock

    threads = [threading.Thread(target=spin) for _ in range(cores)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return min(1.0, (time.process_time() - cpu) / (time.perf_counter() - begin) / cores)


def measured(seconds: float, cache: Path) -> tuple[Costs, list[dict[str, Any]], dict[str, float]]:
    """Return the costs, real speeds beside simulated ones, and bytes of shards."""
    recorded = Steps(frames.read(frames.folder_of("pong", 65_536, cache=cache)))
    real = {count: Real(count, recorded) for count in (1, 2, 4)}
    try:
        few, many = real[1].costs(FEW, seconds), real[1].costs(MANY, seconds)
        costs = fitted(few, many, real[4].costs(MANY, seconds), real[1])
        rows = []
        cores = len(os.sched_getaffinity(0))
        for count, one in real.items():
            share = core_share()
            got = one.speed(2 * seconds)
            share = (share + core_share()) / 2
            # Beside others each process gets a share of a core, and more of them run at a time.
            case = Case(count, 0.0, MANY, lookahead=LOOKAHEAD, cores=round(cores / share), speed=share)
            said = _said(Model(case, costs).run(5.0))
            said["learner_cpu"] = costs.learner_draw.of(count, MANY) + costs.learner_update.of(count, MANY)
            said["shards_cpu"] = costs.shard_draw.of(count, MANY) + costs.shard_update.of(count, MANY)
            rows.append({"shards": count, "core_share": share, "real": got, "simulated": said})
        stats = real[1].cluster.stats()
        grows = (stats["total_bytes"] - stats["fixed_bytes"]) / stats["steps"]
        nbytes = {"empty_shard": real[4].empty_bytes / 4, "step": grows, "encoded": stats["encoded_bytes_per_step"]}
        return costs, rows, nbytes
    finally:
        for one in real.values():
            one.close()


def _said(found: Found) -> dict[str, float]:
    return {
        "batches_per_s": found.batches_per_s, "p50": float(np.median(found.iterations)), "p99": _p99(found.iterations),
        "draw_p50": float(np.median(found.draws)), "draw_p99": _p99(found.draws), "put_p99": _p99(found.puts),
        "learner_busy": found.learner_busy, "shards_busy": found.shards_busy, "link_busy": found.link_busy,
    }  # fmt: skip


def simulated(costs: Costs, seconds: float) -> list[dict[str, Any]]:
    """Return the case of the title with more and fewer shards, and with more actors."""
    link, rate = GBIT * 1e9 / 8, ACTORS * ACTOR_RATE
    title = Case(SHARDS, rate, BATCH, PER_S, 16, link=link)
    cases = [replace(title, shards=count) for count in (5, 10, 25, 50, SHARDS, 200)]
    cases += [
        replace(title, batch=4 * BATCH, per_s=PER_S / 4),
        replace(title, rate=10 * rate),
        replace(title, per_s=0.0),
        replace(title, shards=10, per_s=0.0),
    ]
    return [{"case": asdict(case), **_said(Model(case, costs).run(seconds))} for case in cases]


def report(results: dict[str, Any]) -> None:
    """Print the tables; without simulated 99th percentiles, as the check has shown that the model has no tails."""
    console, costs = runner.console(), results["costs"]
    console.print(f"Measured costs (load {results['environment']['load_average']:.1f}); us, or bytes for the wire:")
    for name in ("learner_draw", "learner_update", "shard_draw", "shard_update", "wire"):
        scale = 1.0 if name == "wire" else 1e6
        console.print(
            f"  {name}: " + ", ".join(f"{costs[name][part] * scale:.2f} a {part}" for part in ("batch", "call", "item"))
        )
    console.print(
        f"  put: {costs['put'] * 1e6:.0f} us of a shard and {costs['put_bytes']:,.0f} bytes a segment of 32 steps"
    )
    figures = (
        ("batches_per_s", "batches/s", 1.0), ("p50", "p50 ms", 1e3),
        ("learner_cpu", "learner CPU ms", 1e3), ("shards_cpu", "shards CPU ms", 1e3),
    )  # fmt: skip
    heads = [head for _, title, _ in figures for head in (title, "simulated")]
    title = f"Real shards on this machine, batches of {MANY}: measured and simulated"
    table = runner.table(title, "shards", "share of a core", *heads)
    for row in results["validated"]:
        cells = [f"{row[who][name] * scale:.1f}" for name, _, scale in figures for who in ("real", "simulated")]
        table.add_row(str(row["shards"]), f"{row['core_share']:.2f}", *cells)
    console.print(table, _large(results))
    nbytes = results["bytes"]
    memory = STEPS * nbytes["step"] / 1e9
    console.print(
        f"{STEPS:,} steps of {nbytes['step']:.0f} bytes: {memory:,.0f} GB, {memory / SHARDS:.2f} GB a shard, and "
        f"{nbytes['empty_shard'] / 1e6:.0f} MB a process; raw frames: {STEPS * FRAME_BYTES / 1e9:,.0f} GB"
    )
    arrives, taken = ACTORS * ACTOR_RATE, BATCH * PER_S
    put_mb, row_mb = arrives * costs["put_bytes"] / costs["segment_steps"] / 1e6, taken * costs["wire"]["item"] / 1e6
    raw_mb = taken * ITEM_BYTES / 1e6
    console.print(
        f"into the shards {put_mb:,.0f} MB/s, raw frames {arrives * FRAME_BYTES / 1e6:,.0f}; to the learner "
        f"{row_mb:,.0f} MB/s of rows, raw frames {raw_mb:,.0f} ({raw_mb * 8 / 1e3 / GBIT:.0%} of {GBIT:.0f} Gbit/s)"
    )


def _large(results: dict[str, Any]) -> Any:
    table = runner.table(
        f"Simulated: one link of {GBIT:.0f} Gbit/s, {ONE_WAY_S * 1e6:.0f} us one way",
        "shards", "steps/s in", "batch", "batches/s wanted", "got", "calls/s", "learner core", "shard core", "link",
        "a share p50 ms",
    )  # fmt: skip
    for row in results["simulated"]:
        case = row["case"]
        wanted = f"{case['per_s']:.0f}" if case["per_s"] else "most"
        table.add_row(
            str(case["shards"]), f"{case['rate']:,.0f}", str(case["batch"]), wanted,
            f"{row['batches_per_s']:.1f}", f"{2 * min(case['shards'], case['batch']) * row['batches_per_s']:,.0f}",
            f"{row['learner_busy']:.0%}", f"{row['shards_busy']:.0%}", f"{row['link_busy']:.1%}",
            f"{row['draw_p50'] * 1e3:.2f}",
        )  # fmt: skip
    return table


def main() -> None:
    """Run the command line."""
    parser = runner.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement (1.0)")
    parser.add_argument("--simulated", type=float, default=5.0, help="seconds of each simulation (5.0)")
    parser.add_argument("--out", type=Path, default=runner.RESULTS, help="folder for scale.json")
    parser.add_argument("--frames-cache", type=Path, default=frames.CACHE, help="folder for played frames")
    arguments = parser.parse_args()
    costs, validated, nbytes = measured(arguments.seconds, arguments.frames_cache)
    results = {
        "environment": environment(("sharpwave", "numpy", "simpy")), "costs": asdict(costs),
        "validated": validated, "bytes": nbytes, "simulated": simulated(costs, arguments.simulated),
    }  # fmt: skip
    runner.write(arguments.out / "scale.json", results)
    report(results)


if __name__ == "__main__":
    main()
