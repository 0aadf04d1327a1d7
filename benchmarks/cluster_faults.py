"""Rounds of faults on a cluster of processes on this machine, against an account of what its writers were told.

    python benchmarks/cluster_faults.py [--rounds 200] [--seed 0] [--results FILE] [--show FILE]

Writers with ``durability="flush"`` and a learner go on while shards, writers, learners and connections die. After every
round the learner's batches are checked against what was written, and its probabilities against the shards' own masses;
after every group of rounds all that the cluster holds. A table says, by fault: rounds, how long it took until
the shard was sampled from again (median and longest), and what was lost, twice, or never written.
"""

from __future__ import annotations

import argparse
import contextlib
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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cluster_account import LANES, SPEC, Account, Relay, audit, wrong

import sharpwave as sw
from sharpwave.bench.worker import private_bytes
from sharpwave.serve.addresses import Security
from sharpwave.serve.link import Link
from sharpwave.serve.local_shards import LocalShards
from sharpwave.serve.requests import Request

SHARDS = 2
HERE = Path(__file__).parent


class Group:
    """A cluster, its writers and its learner, for some rounds."""

    def __init__(self, folder: Path, seed: int, name: str) -> None:
        self.random, self.folder, self.name = random.Random(seed), folder, name
        self.cluster = sw.Cluster(SPEC, shards=SHARDS, capacity=400_000, disk=folder / "d", segment_steps=8)
        self.accounts = [Account(self.cluster, number) for number in range(SHARDS)]
        self.relays: list[Relay] = []
        for number, one in enumerate(self.accounts):
            link = self.cluster.links[number]
            assert link is not None
            self.relays.append(Relay(folder / f"relay-{number}", link.address, seed + number))
            one.start(self.relays[-1].address)
        self.replay = self.cluster.transitions(name="learner", sampler=sw.Prioritized(alpha=1.0))
        self.uniform = self.cluster.transitions(name="uniform")
        self.others: dict[tuple[int, int], set[int]] = {}
        self.over, self.resting, self.rests = threading.Event(), threading.Event(), threading.Event()
        self.wrong, self.batches, self.errors = 0, 0, list[str]()
        self._thread = threading.Thread(target=self._learn, daemon=True)
        self._thread.start()
        self.doomed = 0

    def _learn(self) -> None:
        while not self.over.is_set():
            if self.resting.is_set():
                self.rests.set()
                time.sleep(0.005)
                continue
            self.rests.clear()
            try:
                batch = self.replay.sample(64)
                self.wrong += wrong(batch)
                self.replay.update_priorities(batch, np.asarray(batch.step) % 7 + 1.0)
                self.batches += 1
                time.sleep(0.002)
            except (ConnectionError, sw.EmptyError):
                time.sleep(0.02)
            except Exception as error:
                self.errors.append(f"learner: {type(error).__name__}: {error}")
                time.sleep(0.1)

    # faults

    def process(self, shard: int) -> int:
        assert isinstance(self.cluster._processes, LocalShards)
        seat = self.cluster._processes._seats[shard].process
        assert seat is not None
        return seat.pid

    def kill(self, shard: int) -> float:
        """Kill a shard; return the seconds until it answered, with all that it had."""
        before = self.process(shard)
        with contextlib.suppress(ProcessLookupError):
            os.kill(before, signal.SIGKILL)
        begun = time.monotonic()
        link = Link(self.cluster.links[shard].address, Security())
        while True:
            try:
                if self.process(shard) != before and link.call(Request.DESCRIBE).head["steps"] >= 0:
                    link.close()
                    return time.monotonic() - begun
            except (ConnectionError, AssertionError):
                time.sleep(0.01)
            if time.monotonic() - begun > 90:
                self.errors.append("a shard did not come back in 90 s")
                return float("inf")

    def meanwhile(self, act: Callable[[], Any], shard: int) -> float:
        """Kill a shard while ``act`` is under way, once at least."""
        stop = threading.Event()

        def run() -> None:
            while not stop.is_set():
                with contextlib.suppress(ConnectionError, OSError, sw.EmptyError):
                    act()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        time.sleep(self.random.uniform(0.0, 0.15))
        took = self.kill(shard)
        stop.set()
        thread.join(90)
        return took

    def checkpointed(self, shard: int) -> float:
        """Kill a shard while checkpoints are written; open the last one that is whole, and count it."""
        path = self.folder / "checkpoint"
        self.cluster.checkpoint(path)
        told = sum(one.writer.delivery.acknowledged for one in self.accounts)
        self.cluster.checkpoint(path)
        took = self.meanwhile(lambda: self.cluster.checkpoint(path), shard)
        with sw.Cluster.open(path, disk=self.folder / f"opened-{time.monotonic_ns()}") as opened:
            if len(opened) < told:
                self.errors.append(f"a checkpoint has {len(opened)} steps, acknowledged before were {told}")
            if bad := wrong(opened.transitions(name="learner", sampler=sw.Prioritized(alpha=1.0)).sample(256)):
                self.errors.append(f"a checkpoint has {bad} transitions that never happened")
        return took

    def paused(self, shard: int) -> float:
        os.kill(self.process(shard), signal.SIGSTOP)
        time.sleep(1.0)
        os.kill(self.process(shard), signal.SIGCONT)
        return self._sampled()

    def twice(self, shard: int) -> float:
        """Kill a shard, and again while it starts."""
        os.kill(self.process(shard), signal.SIGKILL)
        time.sleep(self.random.uniform(0.05, 1.0))
        return self.kill(shard)

    def writer_killed(self, shard: int) -> float:
        link = self.cluster.links[shard]
        assert link is not None
        said = self._doomed("writer", str(link.address), f"doomed-{shard}")
        lane = begin = told = 0
        for line in said:
            words = line.split()
            if words[0] == "lane":
                lane, begin = int(words[1]), int(words[2])
            elif words[0] == "acknowledged" and line.endswith("\n"):
                told = int(words[1])
        for one in (lane, lane + 1):
            self.others.setdefault((shard, one), set()).update(range(begin, begin + told - 1))
        return float("nan")

    def learner_killed(self, shard: int) -> float:
        addresses = ",".join(str(link.address) for link in self.cluster.links if link is not None)
        said = [line.split() for line in self._doomed("learner", addresses, "doomed")]
        if not said or any(int(words[2]) for words in said if len(words) == 3):
            self.errors.append(f"a learner that was killed sampled what never happened: {said[-1:]}")
        return self._sampled()

    def _doomed(self, *arguments: str) -> list[str]:
        command = [sys.executable, str(HERE / "cluster_account.py"), *arguments]
        lines: list[str] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if len(lines) > 3 + self.random.randrange(10):
                    break
            process.kill()
            lines += process.stdout.read().splitlines(keepends=True)
        return lines

    def links_cut(self, shard: int) -> float:
        for _ in range(10):
            self.relays[shard].cut()
            time.sleep(0.1)
        return self._sampled()

    def acknowledgements_lost(self, shard: int) -> float:
        self.relays[shard].loses = True
        time.sleep(1.5)
        self.relays[shard].loses = False
        return self._sampled()

    def acknowledgements_late(self, shard: int) -> float:
        self.relays[shard].delay_s = 0.3
        time.sleep(1.5)
        self.relays[shard].delay_s = 0.0
        return self._sampled()

    def grown(self, shard: int) -> float:
        self.cluster.resize(shards=len(self.cluster.links) + 1)
        self.accounts.append(Account(self.cluster, len(self.cluster.links) - 1))
        self.accounts[-1].start()
        return self._sampled()

    def _sampled(self) -> float:
        begun = time.monotonic()
        while True:
            try:
                self.uniform.sample(64)
                return time.monotonic() - begun
            except (ConnectionError, sw.EmptyError):
                time.sleep(0.01)

    # checks

    def check(self) -> list[str]:
        """Return what is wrong once all rest: probabilities, transitions, writers."""
        for one in self.accounts:
            one.rest()
        self.resting.set()
        self.rests.wait(90)
        found = [f"writer: {text}" for one in self.accounts for text in one.errors] + self.errors
        if self.wrong:
            found.append(f"the learner sampled {self.wrong} transitions that never happened")
        try:
            found += self._probabilities()
        except Exception as error:
            found.append(f"probabilities: {type(error).__name__}: {error}")
        self.wrong, self.errors = 0, []
        self.resting.clear()
        for one in self.accounts:
            one.errors.clear()
            one.go_on()
        return found

    def _probabilities(self) -> list[str]:
        """Check the draws of rested shards: one over the items, and by the priorities just set over the masses."""
        found = []
        count = len(self.uniform)
        batch = self.uniform.sample(256)
        if not np.allclose(batch.probabilities, 1 / count, rtol=1e-9):
            found.append(f"uniform probabilities are not 1/{count}")
        batch = self.replay.sample(256)
        self.replay.update_priorities(batch, np.asarray(batch.step) % 5 + 1.0)
        set_ = {
            (int(shard), int(id_)): int(step) % 5 + 1.0
            for shard, id_, step in zip(batch.shards, batch.ids, batch.step, strict=True)
        }
        self.replay.refresh()
        mass = sum(one.state.mass for one in self.replay._of.known.values())
        for _ in range(8):
            batch = self.replay.sample(256)
            for shard, id_, p in zip(batch.shards, batch.ids, batch.probabilities, strict=True):
                expected = set_.get((int(shard), int(id_)))
                if expected is not None and abs(float(p) * mass / expected - 1) > 1e-4:
                    return [*found, f"an item of priority {expected} is drawn as one of {float(p) * mass:.6f}"]
        return found

    def end(self) -> list[str]:
        """Stop writers and learner, and compare all that there is with the account."""
        for one in self.accounts:
            one.end()
        self.over.set()
        self._thread.join(30)
        found = [f"writer: {text}" for one in self.accounts for text in one.errors]
        found += audit(self.cluster, self.accounts, self.others)
        for relay in self.relays:
            relay.close()
        self.cluster.close()
        return found


FAULTS: dict[str, Callable[[Group, int], float]] = {
    "shard killed while adding": lambda group, shard: group.kill(shard),
    "shard killed while sampling": lambda group, shard: group.meanwhile(lambda: group.uniform.sample(512), shard),
    "shard killed while flushing": lambda group, shard: group.meanwhile(group.cluster.flush, shard),
    "shard killed while checkpointing": Group.checkpointed,
    "shard killed while starting": Group.twice,
    "shard stopped for 1 s": Group.paused,
    "writer killed": Group.writer_killed,
    "learner killed": Group.learner_killed,
    "connections cut": Group.links_cut,
    "acknowledgements lost": Group.acknowledgements_lost,
    "acknowledgements late": Group.acknowledgements_late,
    "cluster grown": Group.grown,
}


def slope(values: list[float]) -> tuple[float, float]:
    """Return bytes a round, by least squares, and the half-width of its 95% interval."""
    x, y = np.arange(len(values), dtype=float), np.array(values)
    if len(x) < 4:
        return float("nan"), float("nan")
    x -= x.mean()
    each = float(x @ y / (x @ x))
    rest = y - y.mean() - each * x
    return each, 1.96 * float(np.sqrt(rest @ rest / (len(x) - 2) / (x @ x)))


@dataclass
class Record:
    """What rounds have shown: by fault, seconds until recovery and what was wrong; and the learner's memory."""

    seed: int
    rounds: int = 0
    recovery_s: dict[str, list[float | None]] = field(default_factory=lambda: {name: [] for name in FAULTS})
    wrong: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in FAULTS})
    audits: list[str] = field(default_factory=list)
    steps: int = 0
    learner_bytes: list[float] = field(default_factory=list)

    def add(self, fault: str, took: float, found: list[str]) -> None:
        self.recovery_s[fault].append(round(took, 3) if took == took else None)
        self.wrong[fault] += found
        self.learner_bytes.append(float(private_bytes()))
        self.rounds += 1

    def show(self) -> None:
        print(f"\n{'fault':34} rounds  median s  longest s  wrong")
        for name, taken in self.recovery_s.items():
            known = [one for one in taken if one is not None]
            seconds = f"{np.median(known):8.2f}  {max(known):9.2f}" if known else "       -          -"
            print(f"{name:34} {len(taken):6}  {seconds}  {len(self.wrong[name])}")
        print(f"{self.steps:,} steps acknowledged, counted after groups of rounds: {self.audits or 'all there, once'}")
        if self.learner_bytes:
            each, margin = slope(self.learner_bytes[len(self.learner_bytes) // 4 :])
            print(f"learner's memory: {each / 1024:+.0f} KiB a round, 95% interval +-{margin / 1024:.0f}")


def play(group: Group, faults: list[str], record: Record) -> None:
    """Play rounds on one cluster, and count all that it holds at the end."""
    time.sleep(0.3)
    for name in faults:
        shard = group.random.randrange(SHARDS)
        time.sleep(group.random.uniform(0.0, 0.3))
        took = FAULTS[name](group, shard)
        found = group.check()
        record.add(name, took, found)
        print(f"{record.rounds}: seed {group.name}, {name}, shard {shard}: {took:.2f} s {found or ''}", flush=True)
    counted = group.end()
    steps = LANES * sum(one.acknowledged for one in group.accounts)
    record.steps += steps
    record.audits += [f"seed {group.name}: {text}" for text in counted]
    print(f"   {steps:,} steps acknowledged: {counted or 'all there, once'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, help="written after every group of rounds")
    parser.add_argument("--show", type=Path, help="print the table of results that were written, and nothing else")
    given = parser.parse_args()
    if given.show:
        return Record(**json.loads(given.show.read_text())).show()
    record = Record(given.seed)
    while record.rounds < given.rounds:
        seed = given.seed + record.rounds
        faults = random.Random(seed).sample(list(FAULTS), len(FAULTS))[: given.rounds - record.rounds]
        with tempfile.TemporaryDirectory(prefix="faults-") as made:
            play(Group(Path(made), seed, str(seed)), faults, record)
        if given.results:
            given.results.write_text(json.dumps(asdict(record), indent=1) + "\n")
    record.show()


if __name__ == "__main__":
    main()
