"""Accounts of the steps that a cluster acknowledged to its writers, and the audit of the steps that it holds."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import sharpwave as sw
from sharpwave.serve.addresses import Address, Security
from sharpwave.serve.link import Link
from sharpwave.serve.remote_writer import Delivery, RemoteWriter

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
    """Write until killed; print what is acknowledged: the first lane, then the range of steps of each lane."""
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


if __name__ == "__main__":
    parts: dict[str, Any] = {"writer": doomed_writer, "learner": doomed_learner}
    parts[sys.argv[1]](*sys.argv[2:])
    os._exit(0)
