"""Faults by name, by the kind of cluster that each is done to."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import sharpwave as sw
from faults.group import STOPPED_S, Group
from faults.homes import BACK_S, Account, Here, OnRay, Served, Started, audit, wrong

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
