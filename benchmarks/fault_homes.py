"""Homes of the harmed shards (this process, ``sharpwave serve``, a simulated Ray), and accounts of acknowledged steps.

Run as a program it is a writer or a learner that gets killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import sharpwave as sw
from sharpwave.serve.addresses import Address, Security, connect
from sharpwave.serve.link import Link
from sharpwave.serve.remote_writer import Delivery, RemoteWriter
from sharpwave.serve.wire import Request

SPEC = sw.Spec(obs=sw.Field((6, 5), "uint8", stack=3), action=sw.Field((), "int64"))
LANES, EPISODE = 2, 25
PATIENCE_S = 180.0


def write(writer: sw.SegmentWriter, begin: int, steps: int) -> None:
    """Write steps whose action, frame and reward say which step of their lane they are."""
    for step in range(begin, begin + steps):
        writer.extend(
            obs=np.full((LANES, 6, 5), step % 256, np.uint8),
            action=np.full(LANES, step),
            reward=np.full(LANES, step),
            terminated=np.full(LANES, step % EPISODE == EPISODE - 1),
            truncated=np.zeros(LANES, bool),
        )


def wrong(batch: sw.Batch) -> int:
    """Return how many of a batch's transitions no writer has made."""
    step = np.asarray(batch.step)
    after = np.where(step % EPISODE == EPISODE - 1, step, step + 1) % 256
    ended = np.asarray(batch.discount) == 0
    good = (np.asarray(batch.action) == step) & (np.asarray(batch.reward) == step)
    good &= (np.asarray(batch.obs)[:, -1, 0, 0] == step % 256) & (ended == (step % EPISODE == EPISODE - 1))
    good &= ended | (np.asarray(batch.next_obs)[:, -1, 0, 0] == after)
    return int(np.count_nonzero(~good))


@dataclass
class Account:
    """One writer, in a thread of its own, and what it was told: ``acknowledged`` steps of each of its lanes.

    Attributes:
        made: steps of each lane. ``errors``: that ended the writer.
    """

    cluster: sw.Cluster
    shard: int
    acknowledged: int = 0
    made: int = 0
    first_lane: int = 0
    resent: int = 0
    errors: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    resting: threading.Event = field(default_factory=threading.Event)
    rests: threading.Event = field(default_factory=threading.Event)

    def start(self, address: str | None = None) -> None:
        """Begin to write, through a relay at ``address`` if there is one."""
        link = self.cluster.links[self.shard]
        assert link is not None
        there = link.address if address is None else Address.parse(address)
        delivery = Delivery(
            Link(there, self.cluster.security), f"writer-{self.shard}", LANES, durable=True, timeout=PATIENCE_S
        )
        self.writer = RemoteWriter(SPEC, delivery, segment_steps=8)
        self.first_lane = delivery.first_lane
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self.over.is_set():
                write(self.writer, self.made, 8)
                self.made += 8
                if self.resting.is_set():
                    self._acknowledge()
                    self.rests.set()
                    while self.resting.is_set() and not self.over.is_set():
                        time.sleep(0.005)
                    self.rests.clear()
                time.sleep(0.004)
            self._acknowledge()
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")
            self.rests.set()

    def _acknowledge(self) -> None:
        self.writer.flush()
        self.acknowledged = self.writer.delivery.acknowledged // LANES
        self.resent = self.writer.delivery.resent

    def rest(self) -> None:
        """Wait until all that it has sealed is acknowledged, and it writes nothing."""
        self.resting.set()
        if not self.rests.wait(PATIENCE_S):
            self.errors.append(f"it did not come to rest in {PATIENCE_S:g} s")

    def go_on(self) -> None:
        self.resting.clear()

    def end(self) -> None:
        self.over.set()
        self._thread.join(PATIENCE_S)
        self.writer.delivery.close()


def audit(cluster: sw.Cluster, accounts: list[Account], others: dict[tuple[int, int], set[int]]) -> list[str]:
    """Return what the cluster has that no writer made, lacks that it acknowledged, or has twice.

    Args:
        others: steps acknowledged to writers that were killed, by shard and lane.
    """
    found: list[str] = []
    replay = cluster.transitions(name="audit", max_times_sampled=1)
    numbers = {link.incarnation: number for number, link in enumerate(cluster.links) if link is not None}
    seen: dict[tuple[int, int], list[int]] = {}
    while count := len(replay):
        batch = replay.sample(min(256, count))
        if bad := wrong(batch):
            found.append(f"{bad} transitions that never happened")
        for shard, lane, step in zip(batch.shards.tolist(), batch.lane.tolist(), batch.step.tolist(), strict=True):
            seen.setdefault((numbers[shard], lane), []).append(step)
    for key, steps in seen.items():
        if len(set(steps)) != len(steps):
            found.append(f"lane {key}: {len(steps) - len(set(steps))} steps twice")
    expected = dict(others)
    for one in accounts:
        for lane in range(LANES):
            # The last acknowledged step of an unfinished episode has no successor yet.
            expected[one.shard, one.first_lane + lane] = set(range(one.acknowledged - 1))
    for one in accounts:
        for lane in range(LANES):
            if more := set(seen.get((one.shard, one.first_lane + lane), [])) - set(range(one.made)):
                found.append(f"lane {(one.shard, one.first_lane + lane)}: {len(more)} steps that were never written")
    for key, told in expected.items():
        if lost := len(told - set(seen.get(key, []))):
            found.append(f"lane {key}: {lost} acknowledged steps are lost")
    return found


def doomed_writer(address: str, name: str) -> None:
    """Write until killed; print the acknowledged steps: the first lane, then the range of steps of each lane."""
    delivery = Delivery(Link(Address.parse(address), Security()), name, LANES, durable=True)
    writer = RemoteWriter(SPEC, delivery, segment_steps=8)
    begin = delivery.lane_steps[0] + (delivery.lane_steps[0] > 0)
    print("lane", delivery.first_lane, begin, flush=True)
    step = begin
    while True:
        write(writer, step, 16)
        step += 16
        writer.flush()
        print("acknowledged", delivery.acknowledged // LANES, flush=True)


def doomed_learner(addresses: str, name: str) -> None:
    """Sample and update until killed; print how many of the sampled transitions never happened."""
    cluster = sw.Cluster.of(SPEC, addresses.split(","))
    replay = cluster.transitions(name=name, sampler=sw.Prioritized(alpha=0.6))
    batches = 0
    while True:
        try:
            batch = replay.sample(64)
            replay.update_priorities(batch, np.asarray(batch.step) % 7 + 1.0)
            batches += 1
            print("batches", batches, wrong(batch), flush=True)
        except (ConnectionError, sw.EmptyError):
            time.sleep(0.05)


# homes

BACK_S = 120.0
"""How long what was killed may take to answer again."""
CAPACITY = 4_000_000
"""More than rounds write: what is gone was lost, not evicted."""
HERE = Path(__file__).parent
NODES = 3


class Home:
    """A cluster, and the processes behind it.

    Attributes:
        cluster: as the learner of this process sees it. ``folder``: of the shards' folders, where there are some.
    """

    cluster: sw.Cluster
    folder: Path

    def address(self, shard: int) -> Address:
        """Return where a shard listens."""
        link = self.cluster.links[shard]
        assert link is not None
        return link.address

    def process(self, shard: int) -> int:
        """Return a shard's process.  Raises: ConnectionError: it does not answer."""
        made, about = connect(self.address(shard), self.cluster.security)
        made.close()
        return int(about["process"])

    def processes(self) -> list[int]:
        """Return the processes of all shards.  Raises: ConnectionError."""
        return [self.process(shard) for shard, link in enumerate(self.cluster.links) if link is not None]

    def back(self, shard: int, before: int) -> float:
        """Wait until another process than ``before`` answers for a shard; return the seconds, or infinity."""
        begun = time.monotonic()
        while time.monotonic() < begun + BACK_S:
            with contextlib.suppress(ConnectionError):
                if self.process(shard) != before:
                    link = Link(self.address(shard), self.cluster.security)
                    link.call(Request.DESCRIBE)
                    link.close()
                    return time.monotonic() - begun
            time.sleep(0.01)
        return float("inf")

    def kill(self, shard: int) -> float:
        """Kill a shard; return the seconds until it answered again."""
        before = self.process(shard)
        end(before)
        return self.back(shard, before)

    def lose_disk(self, shard: int) -> float:
        """Kill a shard and delete all that it has on disk; return the seconds until it answered again."""
        before = self.process(shard)
        os.kill(before, signal.SIGSTOP)  # it writes nothing meanwhile, and refuses nothing either
        while any(state(before, thread) != "T" for thread in os.listdir(f"/proc/{before}/task")):
            time.sleep(0.001)
        shutil.rmtree(self.folder / f"shard-{shard}")
        end(before)
        return self.back(shard, before)

    def close(self) -> None:
        """Stop everything."""
        self.cluster.close()


class Here(Home):
    """Shards that this process has started."""

    def __init__(self, folder: Path, shards: int, *, on_disk: bool = True, **given: Any) -> None:
        self.folder = folder / "disk"
        disk = self.folder if on_disk else None
        self.cluster = sw.Cluster(SPEC, shards=shards, capacity=CAPACITY, disk=disk, segment_steps=8, **given)


class Started(Home):
    """Shards of another process, which can be killed and started again."""

    runner: subprocess.Popen[str]

    def __init__(self, folder: Path, shards: int) -> None:
        self.folder, self._shards = folder / "disk", shards
        self._undo = folder / "log"
        self.start()

    def command(self) -> list[str]:
        """Return what is to be run; it prints a line once it is ready."""
        raise NotImplementedError

    def start(self) -> str:
        """Start the process; return its first line."""
        with self._undo.open("a") as log:
            self.runner = subprocess.Popen(self.command(), stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.runner.stdout is not None
        return self.runner.stdout.readline()

    def kill_runner(self, with_shards: bool) -> float:
        """Kill the process that runs the shards, or all of them at once, and start it again.

        Returns the seconds from its start until every shard answered.
        """
        before = self.processes()
        if with_shards:
            os.kill(self.runner.pid, signal.SIGSTOP)  # it starts none again
            for one in before:
                end(one)
        end(self.runner.pid)
        self.runner.communicate()
        begun = time.monotonic()
        self.start()
        for shard, process in enumerate(before):
            if self.back(shard, process) == float("inf"):
                return float("inf")
        return time.monotonic() - begun

    def close(self) -> None:
        super().close()
        self.runner.terminate()
        self.runner.communicate(timeout=BACK_S)


class Served(Started):
    """Shards of ``sharpwave serve``, which is also the directory."""

    def __init__(self, folder: Path, shards: int) -> None:
        self.listen = f"unix:{folder / 'serve.sock'}"
        super().__init__(folder, shards)
        self.cluster = sw.Cluster(SPEC, address=self.listen)

    def command(self) -> list[str]:
        settings = {"shards": self._shards, "capacity": CAPACITY, "segment-steps": 8, "disk": self.folder}
        given = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        return [sys.executable, "-m", "sharpwave.cli", "serve", "--listen", self.listen, *given]


class OnRay(Home):
    """Shards that Ray has placed, one on each node."""

    def __init__(self, folder: Path, **given: Any) -> None:
        sys.path.insert(0, str(Path(__file__).parents[2]))
        import pytest

        from tests.serve.on_ray import NODE, simulated

        self._node, self._undo = NODE, ExitStack()
        patch = self._undo.enter_context(pytest.MonkeyPatch.context())
        _, self._nodes = self._undo.enter_context(simulated(NODES, patch))
        self.folder = folder / "disk"
        options: dict[str, Any] = {"disk": self.folder, "segment_steps": 8, "address": "ray", **given}
        self.cluster = sw.Cluster(SPEC, shards=NODES, capacity=CAPACITY, **options)
        self._shards: Any = self.cluster._processes

    def address(self, shard: int) -> Address:
        try:
            where: Address = self._shards.moved(shard)()
            return where
        except LookupError as error:
            raise ConnectionError(str(error)) from error

    def lose_node(self, shard: int, with_disk: bool) -> float:
        """Kill a node and what it has of a shard; return the seconds until the shard answered from another.

        The first node, with Ray's directory, stays: then only the shard is killed, as Ray cannot outlive it.
        """
        before = self.process(shard)
        raylet = psutil.Process(before).ppid()
        os.kill(before, signal.SIGSTOP)  # it writes nothing meanwhile, and refuses nothing either
        if with_disk:
            shutil.rmtree(self.folder / f"shard-{shard}")
        for node in list(self._nodes.worker_nodes):
            if node.all_processes["raylet"][0].process.pid == raylet:
                self._nodes.remove_node(node, allow_graceful=False)
        end(before)
        took = self.back(shard, before)
        while len(self._nodes.worker_nodes) < NODES - 1:
            self._nodes.add_node(**self._node)
        return took

    def close(self) -> None:
        super().close()
        self._undo.close()


def end(process: int) -> None:
    """Kill a process, if it is there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def state(process: int, thread: str) -> str:
    """Return a thread's state as Linux calls it; "T": it is stopped."""
    return Path(f"/proc/{process}/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]


if __name__ == "__main__":
    parts: dict[str, Any] = {"writer": doomed_writer, "learner": doomed_learner}
    parts[sys.argv[1]](*sys.argv[2:])
    os._exit(0)
