"""Half an hour of a cluster of two shards: writers write, a learner samples and updates, shards and writers are killed.

    python benchmarks/cluster_soak.py [--minutes 30] [--results FILE]
    python benchmarks/cluster_soak.py --show FILE

Frames of 84x84 are a function of the step's number, so that what is sampled is compared with what was written.
Shard 1 and writer 1 are killed from time to time; shard 0, writer 0 and the learner live throughout, and the slopes of
their private memory are shown. At the end all that the shards hold is compared with what writers were told.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import runner
from faults.homes import BACK_S, Home, end

import sharpwave as sw
from sharpwave.bench.measured import private_bytes
from sharpwave.serve.addresses import Address, Security
from sharpwave.serve.link import Link
from sharpwave.serve.remote_writer import Delivery, RemoteWriter

SHARDS, LANES, EPISODE, STACK, SIDE = 2, 4, 200, 4, 84
SPEC = sw.Spec(obs=sw.Field((SIDE, SIDE), "uint8", stack=STACK), action=sw.Field((), "int64"))
CAPACITY, BATCH, WINDOW_S = 60_000, 128, 10.0
STEP_S, LEARN_S = 0.02, 0.05
"""A writer's pause between steps of its lanes; a learner's between batches."""
KILLS_S = {"shard": 90.0, "writer": 210.0}
Told = dict[tuple[int, int], list[tuple[int, int]]]


def pictures() -> npt.NDArray[np.uint8]:
    """Return 256 different frames; a step has the one of its number, modulo 256."""
    rng = np.random.default_rng(0)
    background, sprites = rng.integers(0, 256, (SIDE, SIDE), np.uint8), rng.integers(0, 256, (256, 12, 12), np.uint8)
    frames = np.repeat(background[None], 256, axis=0)
    for number, one in enumerate(frames):
        top, left = number * 7 % (SIDE - 12), number * 3 % (SIDE - 12)
        one[top : top + 12, left : left + 12] = sprites[number]
    return frames


def wrong(batch: sw.Batch, frames: npt.NDArray[np.uint8]) -> int:
    """Return how many of a batch's transitions no writer has made."""
    step, lane = np.asarray(batch.step), np.asarray(batch.lane)
    last = step % EPISODE == EPISODE - 1
    ended = np.asarray(batch.discount) == 0
    good = (np.asarray(batch.action) == step) & (np.asarray(batch.reward) == step * 8 + lane % 8) & (ended == last)
    good &= (np.asarray(batch.obs)[:, -1] == frames[step % 256]).all(axis=(1, 2))
    good &= ended | (np.asarray(batch.next_obs)[:, -1] == frames[(step + 1) % 256]).all(axis=(1, 2))
    good &= ended | (np.asarray(batch.next_obs)[:, -2] == frames[step % 256]).all(axis=(1, 2))
    return int(np.count_nonzero(~good))


class Reports:
    """Latencies of one process, told in a line of JSON for every window, with its memory."""

    def __init__(self) -> None:
        self._taken: dict[str, list[float]] = {}
        self._next = time.monotonic() + WINDOW_S

    def timed(self, name: str, call: Callable[[], Any]) -> Any:
        begun = time.perf_counter()
        result = call()
        self._taken.setdefault(name, []).append(time.perf_counter() - begun)
        return result

    def due(self) -> bool:
        return time.monotonic() >= self._next

    def tell(self, **more: Any) -> None:
        ms = {
            name: [len(values), *(float(one) * 1e3 for one in (*np.percentile(values, (50, 99)), max(values)))]
            for name, values in self._taken.items()
        }
        print(json.dumps({"at": time.time(), "ms": ms, "bytes": private_bytes(), **more}), flush=True)
        self._taken.clear()
        self._next = time.monotonic() + WINDOW_S


def arrived(address: str, name: str) -> Delivery:
    """Return a writer's delivery, once its shard is there: it may be starting, too."""
    until = time.monotonic() + BACK_S
    while True:
        try:
            return Delivery(Link(Address.parse(address), Security()), name, LANES, durable=True, timeout=BACK_S)
        except ConnectionError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def write(address: str, name: str) -> None:
    """Write until SIGTERM; tell what is acknowledged as soon as it is."""
    over, frames, reports = threading.Event(), pictures(), Reports()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    delivery = arrived(address, name)
    writer = RemoteWriter(SPEC, delivery)
    step = begin = delivery.lane_steps[0] + (delivery.lane_steps[0] > 0)
    lanes = delivery.first_lane + np.arange(LANES)
    print(json.dumps({"lane": delivery.first_lane, "begin": begin}), flush=True)
    rows: dict[str, Any] = {"truncated": np.zeros(LANES, bool)}
    due = time.monotonic()
    while not over.is_set():
        rows |= {"obs": np.repeat(frames[step % 256][None], LANES, axis=0), "action": np.full(LANES, step)}
        rows |= {"reward": step * 8.0 + lanes % 8, "terminated": np.full(LANES, step % EPISODE == EPISODE - 1)}
        reports.timed("extend", partial(writer.extend, **rows))
        step += 1
        if step % delivery.segment_steps == 0:
            reports.timed("flush", writer.flush)
            print(json.dumps({"told": delivery.acknowledged // LANES}), flush=True)
        if reports.due():
            reports.tell()
        due = max(due + STEP_S, time.monotonic() - 1.0)
        time.sleep(max(0.0, due - time.monotonic()))
    writer.flush()
    print(json.dumps({"told": delivery.acknowledged // LANES}), flush=True)


def learn(addresses: str, _: str) -> None:
    """Sample, compare and update until SIGTERM."""
    over, frames, reports = threading.Event(), pictures(), Reports()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    cluster = sw.Cluster.of(SPEC, addresses.split(","))
    replay = cluster.transitions(name="learner", sampler=sw.Prioritized(alpha=0.6))
    rng, counts = np.random.default_rng(1), dict.fromkeys(("transitions", "wrong", "lost"), 0)
    while not over.is_set():
        try:
            batch = reports.timed("sample", lambda: replay.sample(BATCH))
            counts["wrong"] += wrong(batch, frames)
            counts["transitions"] += BATCH
            errors = rng.exponential(size=BATCH)
            reports.timed("update", partial(replay.update_priorities, batch, errors))
        except (ConnectionError, sw.EmptyError):
            counts["lost"] += 1
        if reports.due():
            reports.tell(counts=counts, stale=replay.stale)
        time.sleep(LEARN_S)
    cluster.close()


class Soak(Home):
    """The shards of this process, and what the other processes say.

    Attributes:
        windows: by process, what it told. ``told``: ranges of acknowledged steps, by shard and lane.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "disk"
        self.cluster = sw.Cluster(SPEC, shards=SHARDS, capacity=CAPACITY, disk=self.folder)
        self.windows: dict[str, list[dict[str, Any]]] = {}
        self.told: Told = {}
        self.problems: list[str] = []
        self.recovery_s: list[float] = []
        self.kills = dict.fromkeys(KILLS_S, 0)
        self._running: dict[str, tuple[subprocess.Popen[str], threading.Thread]] = {}

    def start(self, name: str, *arguments: str) -> None:
        """Start a writer or a learner."""
        command = [sys.executable, __file__, "--part", *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        thread = threading.Thread(target=self._hear, args=(name, process), daemon=True)
        self._running[name] = process, thread
        thread.start()

    def write(self, number: int) -> None:
        self.start(f"writer {number}", "write", str(self.address(number)), f"writer-{number}")

    def _hear(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        ranges: list[list[tuple[int, int]]] = []
        for line in process.stdout:
            if not line.endswith("\n"):
                continue
            said = json.loads(line)
            if "lane" in said:
                number, begin = int(name.split()[1]), int(said["begin"])
                ranges = [self.told.setdefault((number, said["lane"] + one), []) for one in range(LANES)]
                for one in ranges:
                    one.append((begin, begin))
            elif "told" in said:
                for one in ranges:
                    one[-1] = (one[-1][0], one[-1][0] + said["told"])
            else:
                self.windows.setdefault(name, []).append(said)

    def end(self, name: str, how: int) -> None:
        """End a process, and hear what it says last."""
        process, thread = self._running.pop(name)
        early = process.poll()
        if early is not None:
            self.problems.append(f"{name} had ended with status {early}")
        process.send_signal(how)
        process.wait(BACK_S)
        thread.join(BACK_S)

    def run(self, minutes: float) -> None:
        """Kill now and then, and note the shards' memory, until the time is over."""
        for number in range(SHARDS):
            self.write(number)
        self.start("learner", "learn", ",".join(str(self.address(one)) for one in range(SHARDS)), "")
        over, rng = time.monotonic() + 60 * minutes, random.Random(0)
        due = {name: time.monotonic() + pause for name, pause in KILLS_S.items()}
        processes = self.processes()
        while time.monotonic() < over:
            time.sleep(WINDOW_S)
            for number, one in enumerate(processes):
                row = {"at": time.time(), "bytes": runner.memory(one)}
                self.windows.setdefault(f"shard {number}", []).append(row)
            if time.monotonic() > due["writer"]:
                self.end("writer 1", signal.SIGKILL)
                self.write(1)
                due["writer"], self.kills["writer"] = time.monotonic() + KILLS_S["writer"], self.kills["writer"] + 1
            if time.monotonic() > due["shard"]:
                self.recovery_s.append(self.kill(1))
                processes = self.processes()
                due["shard"] = time.monotonic() + KILLS_S["shard"] * rng.uniform(0.7, 1.3)
                self.kills["shard"] += 1
            self._say()
        for name in list(self._running):
            self.end(name, signal.SIGTERM)
        self.problems += self.audit()

    def _say(self) -> None:
        last = {name: f"{rows[-1]['bytes'] / 2**20:.0f}" for name, rows in self.windows.items()}
        counts = self.windows.get("learner", [{}])[-1].get("counts", {})
        print(f"{time.strftime('%H:%M:%S')} MiB {last}, {counts}, kills {self.kills} {self.problems or ''}", flush=True)

    def audit(self) -> list[str]:
        """Return how all that the shards hold differs from what writers were told."""
        frames, found = pictures(), []
        replay = self.cluster.transitions(name="audit", max_times_sampled=1)
        numbers = {link.incarnation: number for number, link in enumerate(self.cluster.links) if link is not None}
        seen: dict[tuple[int, int], list[int]] = {}
        while count := len(replay):
            batch = replay.sample(min(256, count))
            found += [f"{bad} transitions that never happened"] if (bad := wrong(batch, frames)) else []
            for shard, lane, step in zip(batch.shards.tolist(), batch.lane.tolist(), batch.step.tolist(), strict=True):
                seen.setdefault((numbers[shard], lane), []).append(step)
        self.held = sum(map(len, seen.values()))
        for key, ranges in self.told.items():
            steps = seen.get(key, [])
            oldest = min(steps, default=0)
            # The last acknowledged step of an unfinished episode has no successor yet.
            told = {step for begin, end_ in ranges for step in range(max(begin, oldest), end_ - 1)}
            found += [f"lane {key}: {lost} acknowledged steps are lost"] if (lost := len(told - set(steps))) else []
            found += [f"lane {key}: {len(steps) - len(set(steps))} twice"] if len(set(steps)) < len(steps) else []
        return found


def slope(rows: list[tuple[float, float]]) -> tuple[float, float]:
    """Return growth an hour, by least squares, and the half-width of its 95% interval."""
    if len(rows) < 4:
        return float("nan"), float("nan")
    each, error = runner.slope([at / 3600 for at, _ in rows], [value for _, value in rows])
    return each, 1.96 * error


def show(result: dict[str, Any]) -> None:
    """Print latencies, memory, and what was wrong."""
    windows = result["windows"]
    print(f"{'':18} calls    p50 ms   p99 ms  longest ms   p50 an hour, ms     p99 an hour, ms    (95% intervals)")
    for who in sorted(windows):
        for name in sorted({name for row in windows[who] for name in row.get("ms", {})}):
            rows = [(row["at"], row["ms"][name]) for row in windows[who] if name in row["ms"]]
            kept = rows[len(rows) // 3 :]
            p50, p99 = (slope([(at, one[k]) for at, one in kept]) for k in (1, 2))
            middle = [float(np.median([one[k] for _, one in kept])) for k in (1, 2)]
            print(
                f"{who + ' ' + name:18} {sum(one[0] for _, one in rows):7,} {middle[0]:8.2f} {middle[1]:8.2f} "
                f"{max(one[3] for _, one in rows):10.0f}   "
                f"{p50[0]:+8.2f} +-{p50[1]:6.2f}   {p99[0]:+9.1f} +-{p99[1]:6.1f}"
            )
    for who in sorted(windows):
        rows = [(row["at"], row["bytes"] / 2**20) for row in windows[who]]
        kept = rows[len(rows) // 3 :]  # shards are full, and warm
        each, margin = slope(kept)
        print(f"memory of {who}: {np.median([one for _, one in kept]):.0f} MiB, {each:+.1f} +-{margin:.1f} MiB an hour")
    counts, kills, back = windows["learner"][-1]["counts"], result["kills"], result["recovery_s"] or [float("nan")]
    print(
        f"{result['minutes']:.0f} minutes: {counts['transitions']:,} transitions sampled, {counts['wrong']} wrong; "
        f"{counts['lost']} batches did not come; {kills['shard']} shards and {kills['writer']} writers killed; "
        f"a shard was back after {np.median(back):.1f} s (median), {max(back):.1f} s at most"
    )
    told, held, problems = result["told"], result["held"], result["problems"] or "as written"
    print(f"{told:,} steps of lanes acknowledged; {held:,} held at the end: {problems}")


def main() -> None:
    parser = runner.parser(__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--show", type=Path, help="print results that were written, and nothing else")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        {"write": write, "learn": learn}[given.part[0]](*given.part[1:])
        os._exit(0)
    if given.show:
        return show(json.loads(given.show.read_text()))
    with tempfile.TemporaryDirectory(prefix="soak-") as made:
        soak = Soak(Path(made))
        try:
            soak.run(given.minutes)
        finally:
            for process, _ in soak._running.values():
                end(process.pid)
            soak.close()
    steps = sum(end_ - begin for ranges in soak.told.values() for begin, end_ in ranges)
    result = {"minutes": given.minutes, "told": steps, "held": soak.held, "problems": soak.problems}
    result |= {"kills": soak.kills, "recovery_s": soak.recovery_s, "windows": soak.windows}
    if given.results:
        given.results.write_text(json.dumps(result) + "\n")
    show(result)


if __name__ == "__main__":
    main()
