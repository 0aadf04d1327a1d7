"""Fleets of shards in threads, and the plain log of what was written to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import sharpwave as sw
from sharpwave.segment_writer import SegmentWriter
from sharpwave.serve.addresses import Address, Security, machine
from sharpwave.serve.fleet import Fleet, ShardPlan
from sharpwave.serve.members import Members
from sharpwave.serve.server import Server
from sharpwave.serve.shard import Shard
from sharpwave.serve.shard_process import ShardSettings
from tests.serve.serving import SPEC, Served, served

EPISODE = 10
CAPACITY = 600


class Started:
    """Shards in threads, as a fleet's processes.

    Attributes:
        gone: how many of the last shards the fleet no longer has, as where a service was started anew with fewer.
    """

    def __init__(self, there: Served) -> None:
        self.there, self.gone, self.left = there, 0, False

    @property
    def count(self) -> int:
        return len(self.there.servers) - self.gone

    def where(self) -> dict[str, Any]:
        addresses = [[str(one.address)] for one in self.there.servers[: self.count]]
        return {"shards": addresses, "machine": machine()}

    def moved(self, number: int) -> None:
        """Return ``None``: shards stay where they are."""

    def add(self, settings: ShardSettings) -> None:
        """Start one more shard."""
        store = sw.Store(SPEC, capacity=CAPACITY, segment_steps=8)
        self.there.stores.append(store)
        self.there.shards.append(Shard(store, None))
        address = Address.parse(settings.addresses[0])
        self.there.servers.append(Server(self.there.shards[-1], address, Security()))

    def lose(self) -> None:
        """End the last shard."""
        self.gone += 1
        self.there.servers[self.count].close()

    def leave(self) -> None:
        self.left = True

    def close(self) -> None:
        assert not self.left


@contextmanager
def fleet_of(shards: int, folder: Path) -> Iterator[tuple[Served, Fleet, Started]]:
    """Shards with a fleet."""
    with served(shards, folder, capacity=CAPACITY) as there:
        processes: Any = Started(there)
        fleet = Fleet(SPEC, ShardPlan(shards, folder, CAPACITY * shards), processes)
        there.cluster._members, there.cluster._fleet = Members(Security(), fleet=fleet), fleet
        yield there, fleet, processes
        there.cluster.close()
        for server, store in list(zip(there.servers, there.stores, strict=True))[shards:]:
            server.close()
            store.close()


def write(writer: SegmentWriter, log: list[tuple[int, int]], begin: int, steps: int, lanes: int, of: int) -> None:
    """Write steps whose action is their number in the plain log, ``of`` this writer, in episodes of 10."""
    for step in range(begin, begin + steps):
        numbers = np.arange(len(log), len(log) + lanes)
        log += [(of, step)] * lanes
        writer.extend(
            obs=np.full((lanes, 6, 5), step % 256, np.uint8),
            action=numbers,
            reward=np.ones(lanes),
            terminated=np.full(lanes, step % EPISODE == EPISODE - 1),
            truncated=np.zeros(lanes, bool),
            noise=np.zeros((lanes, 2)),
        )


def held(store: sw.Store, name: str) -> dict[int, tuple[int, int]]:
    """Return every step's number that a store can sample, with its lane and step."""
    replay = store.transitions(name=name, max_times_sampled=1)
    seen: dict[int, tuple[int, int]] = {}
    while count := len(replay):
        batch = replay.sample(min(64, count))
        for at in range(len(batch)):
            assert int(batch.action[at]) not in seen
            seen[int(batch.action[at])] = int(batch.lane[at]), int(batch.step[at])
    return seen


def wait_for(what: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)
