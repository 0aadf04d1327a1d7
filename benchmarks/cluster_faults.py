"""Rounds of faults on clusters of processes on this machine, against an account of the acknowledged steps.

    python benchmarks/cluster_faults.py [--rounds 200] [--seed 0] [--kinds shards,service,...] [--results FILE]
    python benchmarks/cluster_faults.py --show FILE [FILE ...]

Writers with ``durability="flush"`` and a learner go on while shards, services, disks, writers, learners and
connections die or stop. After every round the learner's batches are checked against the written steps, and its
probabilities against the shards' own masses; after every group of rounds all that the cluster holds. A table says, by
fault: rounds, how long it took until all was as before (median and longest), and what was lost, twice, or never
written; and how memory grew.
"""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import runner
from fault_group import STOPPED_S, Group
from fault_homes import BACK_S, Account, Here, OnRay, Served, Started, audit, wrong

import sharpwave as sw

# faults by name, by the kind of cluster that each is done to

SHARDS = 2
Fault = Callable[[Any, int], float]
"""Harms a group's shard, or whatever; returns the seconds until it is as before, or NaN where nothing was away."""


def _adding(group: Group, shard: int) -> None:
    time.sleep(0.01)  # the group's writers do


def _sampling(group: Group, shard: int) -> None:
    group.uniform.sample(512)


def _updating(group: Group, shard: int) -> None:
    batch = group.uniform.sample(256)
    for _ in range(4):
        group.uniform.update_priorities(batch, np.ones(256))
    batch = group.replay.sample(256)
    for _ in range(20):
        group.replay.update_priorities(batch, np.asarray(batch.step) % 7 + 1.0)


def _flushing(group: Group, shard: int) -> None:
    group.cluster.flush()


def _checkpointing(group: Group, shard: int) -> None:
    group.cluster.checkpoint(group.folder / "checkpoint")


PHASES = {"adding": _adding, "sampling": _sampling, "updating priorities": _updating, "flushing": _flushing}


def _killed(phase: Callable[[Group, int], None]) -> Fault:
    return lambda group, shard: group.meanwhile(lambda: phase(group, shard), lambda: group.home.kill(shard))


def _stopped(phase: Callable[[Group, int], None]) -> Fault:
    def harm(group: Group, shard: int) -> float:
        process = group.home.process(shard)
        return group.meanwhile(lambda: phase(group, shard), lambda: group.stop(process))

    return harm


def checkpointed(harm: Fault) -> Fault:
    """Return a fault that does harm while checkpoints are written, opens the last whole one, and counts it."""

    def whole(group: Group, shard: int) -> float:
        path = group.folder / "checkpoint"
        told = sum(one.writer.delivery.acknowledged for one in group.accounts)
        group.cluster.checkpoint(path)
        took = harm(group, shard)
        with sw.Cluster.open(path, disk=group.folder / f"opened-{time.monotonic_ns()}") as opened:
            if len(opened) < told:
                group.errors.append(f"a checkpoint has {len(opened)} steps, acknowledged before were {told}")
            if bad := wrong(opened.transitions(name="learner", sampler=sw.Prioritized(alpha=1.0)).sample(256)):
                group.errors.append(f"a checkpoint has {bad} transitions that never happened")
        return took

    return whole


def cut_and_reopened(group: Group, shard: int) -> float:
    """Write a checkpoint, kill all shards while writers go on, and open it: all that was acknowledged, as it was."""
    path = group.folder / "cut"
    group.rest()
    group.replay.refresh()
    masses = [one.state.mass for _, one in sorted(group.replay._of.known.items())]
    group.cluster.checkpoint(path)
    then = [Account(group.cluster, one.shard, one.acknowledged, one.made, one.first_lane) for one in group.accounts]
    others = dict(group.others)
    group.go_on()
    before = group.home.processes()
    for one in before:
        os.kill(one, signal.SIGKILL)
    took = max(group.home.back(number, one) for number, one in enumerate(before))
    with sw.Cluster.open(path, disk=group.folder / f"opened-{time.monotonic_ns()}") as opened:
        replay = opened.transitions(name="learner", sampler=sw.Prioritized(alpha=1.0))
        found = [one.state.mass for _, one in sorted(replay._of.known.items())]
        if not np.allclose(masses, found, rtol=1e-6):
            group.errors.append(f"priorities of a checkpoint sum to {found}, expected {masses}")
        group.errors += [f"checkpoint: {text}" for text in audit(opened, then, others)]
    return took


def killed_twice(group: Group, shard: int) -> float:
    """Kill a shard, and again while it starts."""
    assert isinstance(group.home, Here)
    os.kill(group.home.process(shard), signal.SIGKILL)
    time.sleep(group.random.uniform(0.05, 1.0))
    processes: Any = group.cluster._processes
    starting = processes.processes[shard]
    os.kill(starting, signal.SIGKILL)
    return group.home.back(shard, starting)


def writer_harmed(stops: bool) -> Fault:
    """Return a fault that kills a writer, which may have been stopped before."""

    def harm(group: Group, shard: int) -> float:
        said = group.doomed("writer", str(group.home.address(shard)), f"doomed-{shard}", stops=stops)
        lane = begin = told = 0
        for line in said:
            words = line.split()
            if words[0] == "lane":
                lane, begin = int(words[1]), int(words[2])
            elif words[0] == "acknowledged" and line.endswith("\n"):
                told = int(words[1])
        if not told:
            group.errors.append(f"a writer was told nothing before it was killed: {said[-1:]}")
        for one in (lane, lane + 1):
            group.others.setdefault((shard, one), set()).update(range(begin, begin + told - 1))
        return float("nan")

    return harm


def learner_harmed(stops: bool) -> Fault:
    """Return a fault that kills a learner, which may have been stopped before."""

    def harm(group: Group, shard: int) -> float:
        addresses = ",".join(str(group.home.address(one)) for one in range(len(group.cluster.links)))
        said = [line.split() for line in group.doomed("learner", addresses, "doomed", stops=stops)]
        if not said or any(int(words[2]) for words in said if len(words) == 3):
            group.errors.append(f"a learner that was killed sampled what never happened: {said[-1:]}")
        return group.sampled()

    return harm


def relayed(seconds: float = 1.5, **faults: float) -> Fault:
    """Return a fault of the connection between a writer and its shard."""

    def harm(group: Group, shard: int) -> float:
        relay, account = group.relays[shard], group.accounts[shard]
        for name, value in faults.items():
            setattr(relay, name, value)
        time.sleep(seconds)
        relay.heal()
        before, begun = account.writer.delivery.acknowledged, time.monotonic()
        while account.writer.delivery.acknowledged == before and time.monotonic() < begun + BACK_S:
            time.sleep(0.005)
        return time.monotonic() - begun

    return harm


def connections_cut(group: Group, shard: int) -> float:
    for _ in range(10):
        group.relays[shard].cut()
        time.sleep(0.1)
    return group.sampled()


def grown(group: Group, shard: int) -> float:
    """Start one more shard while batches are drawn, and a writer for it."""
    before, begun = group.batches, time.monotonic()
    group.meanwhile(lambda: group.uniform.sample(256), lambda: _resized(group, len(group.cluster.links) + 1))
    took = time.monotonic() - begun
    if group.batches == before:
        group.errors.append("the learner sampled nothing while the cluster grew")
    group.accounts.append(Account(group.cluster, len(group.cluster.links) - 1))
    group.accounts[-1].start()
    return took


def _resized(group: Group, shards: int) -> float:
    group.cluster.resize(shards=shards)
    return 0.0


def runner_killed(with_shards: bool) -> Fault:
    """Return a fault that kills the process that runs the shards, or everything at once, and starts it again."""

    def harm(group: Group, shard: int) -> float:
        assert isinstance(group.home, Started)
        return group.home.kill_runner(with_shards)

    return harm


def runner_stopped(group: Group, shard: int) -> float:
    """Stop the process that runs the shards: those who are connected do not need it."""
    assert isinstance(group.home, Started)
    os.kill(group.home.runner.pid, signal.SIGSTOP)
    told, batches = [one.writer.delivery.acknowledged for one in group.accounts], group.batches
    time.sleep(2 * STOPPED_S)
    now = [one.writer.delivery.acknowledged for one in group.accounts]
    os.kill(group.home.runner.pid, signal.SIGCONT)
    if group.batches == batches or any(one == then for one, then in zip(now, told, strict=True)):
        group.errors.append(f"while it was stopped, {group.batches - batches} batches came, and {now} of {told} steps")
    return group.sampled()


def disk_lost(group: Group, shard: int) -> float:
    """Kill a shard and delete its folder; return the seconds until all that it had is there again."""
    return _refilled(group, shard, lambda: group.home.lose_disk(shard))


def memory_lost(group: Group, shard: int) -> float:
    """Kill a shard in memory; return the seconds until all that it had is there again."""
    return _refilled(group, shard, lambda: group.home.kill(shard))


def disks_lost_in_turn(group: Group, shard: int) -> float:
    """Lose a shard's disk and, once it has its steps and its replica again, that of a neighbour."""
    first = disk_lost(group, shard)
    return first + disk_lost(group, (shard + group.random.choice((1, group.shards - 1))) % group.shards)


def node_lost(group: Group, shard: int) -> float:
    """Kill a node and delete its shard's folder; return the seconds until all that it had is there again."""
    home: Any = group.home
    return _refilled(group, shard, lambda: home.lose_node(shard, with_disk=True))


def _refilled(group: Group, shard: int, harm: Callable[[], float]) -> float:
    def held() -> tuple[int, int]:
        one = group.cluster.stats()["shards"]
        return (one[shard]["steps"], one[shard]["replica"]["steps"]) if len(one) == group.shards else (0, 0)

    before, begun = held(), time.monotonic()
    harm()
    while time.monotonic() < begun + BACK_S:
        if all(now >= then for now, then in zip(held(), before, strict=True)):
            return time.monotonic() - begun
        time.sleep(0.02)
    group.errors.append(f"shard {shard} has {held()} steps, its own and its neighbour's; it had {before}")
    return float("inf")


Make = Callable[[Path, int], Any]
KINDS: dict[str, tuple[Make, dict[str, Fault]]] = {
    "shards": (
        lambda folder, seed: Group(Here(folder, SHARDS), folder, seed),
        {
            **{f"shard killed while {name}": _killed(phase) for name, phase in PHASES.items()},
            "shard killed while checkpointing": checkpointed(_killed(_checkpointing)),
            "shard killed while starting": killed_twice,
            **{f"shard stopped while {name}": _stopped(phase) for name, phase in PHASES.items()},
            "shard stopped while checkpointing": checkpointed(_stopped(_checkpointing)),
            "all shards killed, checkpoint opened": cut_and_reopened,
            "writer killed": writer_harmed(stops=False),
            "writer stopped, then killed": writer_harmed(stops=True),
            "learner killed": learner_harmed(stops=False),
            "learner stopped, then killed": learner_harmed(stops=True),
            "connections cut": connections_cut,
            "acknowledgements lost": relayed(loses=0.3),
            "acknowledgements reordered": relayed(swaps=0.3),
            "acknowledgements repeated": relayed(repeats=0.3),
            "acknowledgements late": relayed(delay_s=0.3),
            "link slow": relayed(seconds=3.0, bytes_s=20_000.0),
            "cluster grown while drawing": grown,
        },
    ),
    "service": (
        lambda folder, seed: Group(Served(folder, SHARDS), folder, seed),
        {
            "service killed": runner_killed(with_shards=False),
            "service and shards killed": runner_killed(with_shards=True),
            "service stopped": runner_stopped,
        },
    ),
    "replicas": (
        lambda folder, seed: Group(Here(folder, 3, replicas=1), folder, seed),
        {
            "disk lost, replicas=1": disk_lost,
            "two neighbours' disks lost in turn, replicas=1": disks_lost_in_turn,
            "shard killed, replicas=1": _killed(_adding),
            "shard stopped, replicas=1": _stopped(_adding),
        },
    ),
    "memory": (
        lambda folder, seed: Group(Here(folder, 3, on_disk=False, replicas=1), folder, seed),
        {"shard in memory killed, replicas=1": memory_lost},
    ),
    "ray": (
        lambda folder, seed: Group(OnRay(folder, replicas=1), folder, seed),
        {
            "shard on Ray killed, replicas=1": _killed(_adding),
            "node lost, replicas=1": lambda group, shard: group.home.lose_node(shard, with_disk=False),
            "node lost with its disk, replicas=1": node_lost,
        },
    ),
}
"""By kind of cluster: how a group of rounds is made, and its faults."""


# rounds of them

DEFAULT = [kind for kind in KINDS if kind != "ray"]  # which needs the extra


def slope(groups: list[list[float]]) -> tuple[float, float]:
    """Return growth a round within groups, by least squares, and the half-width of its 95% interval."""
    kept = [one for one in groups if len(one) > 2]
    if sum(map(len, kept)) < 6:
        return float("nan"), float("nan")
    numbers = np.repeat(np.arange(len(kept)), [len(one) for one in kept])
    each, error = runner.slope([k for one in kept for k in range(len(one))], np.concatenate(kept), numbers)
    return each, 1.96 * error


@dataclass
class Record:
    """What rounds have shown: by fault, seconds until recovery and what was wrong; and memory, by group.

    Attributes:
        seeds: of the groups. ``steps``: that were acknowledged. ``audits``: what was wrong with them after groups.
    """

    seeds: list[str] = field(default_factory=list)
    recovery_s: dict[str, list[float | None]] = field(default_factory=dict)
    wrong: dict[str, list[str]] = field(default_factory=dict)
    audits: list[str] = field(default_factory=list)
    steps: int = 0
    memory: dict[str, list[list[float]]] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        return sum(map(len, self.recovery_s.values()))

    def add(self, fault: str, took: float, found: list[str], memory: dict[str, float]) -> None:
        self.recovery_s.setdefault(fault, []).append(round(took, 3) if np.isfinite(took) else None)
        self.wrong.setdefault(fault, []).extend([*found, *(["it did not come back"] if np.isinf(took) else [])])
        for name, nbytes in memory.items():
            self.memory.setdefault(name, [[]])[-1].append(nbytes)

    def join(self, other: Record) -> None:
        """Add what other rounds have shown."""
        self.seeds += other.seeds
        self.audits += other.audits
        self.steps += other.steps
        pairs: Any = (
            (self.recovery_s, other.recovery_s),
            (self.wrong, other.wrong),
            (self.memory, other.memory),
        )
        for ours, theirs in pairs:
            for name, values in theirs.items():
                ours.setdefault(name, []).extend(values)

    def show(self) -> None:
        known = [name for _, faults in KINDS.values() for name in faults]
        print(f"\n{'fault':48} rounds  median s  longest s  wrong")
        for name in sorted(self.recovery_s, key=lambda name: known.index(name) if name in known else len(known)):
            taken = [one for one in self.recovery_s[name] if one is not None]
            seconds = f"{np.median(taken):8.2f}  {max(taken):9.2f}" if taken else "       -          -"
            print(f"{name:48} {len(self.recovery_s[name]):6}  {seconds}  {self.wrong[name] or 0}")
        print(
            f"{self.rounds} rounds in {len(self.seeds)} groups; {self.steps:,} steps acknowledged, counted after each:"
        )
        print(f"  {self.audits or 'all there, once'}")
        for name, groups in self.memory.items():
            each, margin = slope(groups)
            largest = max(max(one, default=0.0) for one in groups)
            grows = f"{each / 1024:+.0f} KiB a round within groups, 95% interval +-{margin / 1024:.0f}"
            trend = grows if np.isfinite(each) else "too few rounds for a trend"
            print(f"memory, {name}: {trend}; at most {largest / 2**20:.0f} MiB")


def play(kind: str, faults: list[str], seed: int, record: Record) -> None:
    """Play rounds on one cluster, and count all that it holds at the end."""
    make, harms = KINDS[kind]
    with tempfile.TemporaryDirectory(prefix="faults-") as made:
        group = make(Path(made), seed)
        for groups in record.memory.values():
            groups.append([])
        for name in faults:
            shard = group.random.randrange(group.shards)
            time.sleep(group.random.uniform(0.0, 0.3))
            took = _harmed(harms[name], group, shard)
            found, memory = group.check()
            record.add(name, took, found, memory)
            said = found or ""
            seconds = f"{took:.2f} s" if np.isfinite(took) else "-"
            print(f"{record.rounds}: {kind} {seed}, {name}, shard {shard}: {seconds} {said}", flush=True)
        steps, counted = group.end()
    record.seeds.append(f"{kind} {seed}")
    record.steps += steps
    record.audits += [f"{kind} {seed}: {text}" for text in counted]
    print(f"   {steps:,} steps acknowledged: {counted or 'all there, once'}", flush=True)


def _harmed(fault: Fault, group: Any, shard: int) -> float:
    try:
        return fault(group, shard)
    except Exception as error:
        group.errors.append(f"{type(error).__name__}: {error}")
        return float("nan")


def main() -> None:
    parser = runner.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(DEFAULT), help=f"of {', '.join(KINDS)}; in turn; ray: needs Ray")
    parser.add_argument("--faults", default="", help="only those whose name has this in it")
    parser.add_argument("--results", type=Path, help="written after every group of rounds; what it holds is added to")
    parser.add_argument("--show", type=Path, nargs="+", help="print the table of results, and nothing else")
    given = parser.parse_args()
    record = Record()
    for path in given.show or ([given.results] if given.results and given.results.exists() else []):
        record.join(Record(**json.loads(path.read_text())))
    kinds, seed, last = given.kinds.split(","), given.seed, record.rounds + given.rounds
    while not given.show and record.rounds < last:
        kind = kinds[(seed - given.seed) % len(kinds)]
        faults = [name for name in KINDS[kind][1] if given.faults in name]
        play(kind, random.Random(seed).sample(faults, len(faults))[: last - record.rounds], seed, record)
        if given.results:
            runner.write(given.results, asdict(record))
        seed += 1
    record.show()


if __name__ == "__main__":
    main()
