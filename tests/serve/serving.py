"""Shards in threads of the test's own process, over real sockets, and what is written to them."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

import sharpwave as sw
from sharpwave.segment_writer import SealedSegment, SegmentWriter
from sharpwave.serve.addresses import Address, Security
from sharpwave.serve.server import Server
from sharpwave.serve.shard import Shard

SPEC = sw.Spec(obs=sw.Field((6, 5), "uint8", stack=3), action=sw.Field((), "int64"), noise=sw.Field((2,), "float32"))
Kind = Literal["unix", "tcp"]


@dataclass
class Served:
    """Shards that are listened for, and the cluster that reaches them."""

    cluster: sw.Cluster
    stores: list[sw.Store] = field(default_factory=list)
    shards: list[Shard] = field(default_factory=list)
    servers: list[Server] = field(default_factory=list)


@contextmanager
def served(
    shards: int, folder: Path, kind: Kind = "unix", spec: sw.Spec = SPEC, secret: bytes = b"", **store: Any
) -> Iterator[Served]:
    with ExitStack() as stack:
        stores: list[sw.Store] = []
        shards_made: list[Shard] = []
        servers: list[Server] = []
        for number in range(shards):
            stores.append(stack.enter_context(sw.Store(spec, **{"capacity": 100_000, "segment_steps": 8} | store)))
            address = (
                Address("unix", str(folder / f"{number}.sock")) if kind == "unix" else Address.parse("127.0.0.1:0")
            )
            (folder / str(number)).mkdir()
            shards_made.append(Shard(stores[-1], folder / str(number)))
            servers.append(Server(shards_made[-1], address, Security(secret)))
            stack.callback(servers[-1].close)
        cluster = sw.Cluster.of(spec, [str(one.address) for one in servers], secret=secret, seed=3)
        stack.callback(cluster.close)
        yield Served(cluster, stores, shards_made, servers)


def play(writer: SegmentWriter | sw.Store, lanes: int, steps: int, seed: int, end: float = 0.1) -> None:
    """Write episodes of random lengths, whose frames no other step has."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        draws = rng.random(lanes)
        writer.extend(
            obs=rng.integers(0, 256, (lanes, 6, 5), np.uint8),
            action=rng.integers(0, 9, lanes),
            reward=rng.normal(size=lanes),
            terminated=draws < end / 2,
            truncated=(draws >= end / 2) & (draws < end),
            final_obs=rng.integers(0, 256, (lanes, 6, 5), np.uint8),
            noise=rng.random((lanes, 2), np.float32),
        )


def sealed(lanes: int, steps: int, seed: int, end: float = 0.1) -> list[SealedSegment]:
    """Return the segments of such steps."""
    made: list[SealedSegment] = []
    play(SegmentWriter(SPEC, lanes, made.append, segment_steps=8), lanes, steps, seed, end)
    return made


def fill(store: sw.Store, lanes: int, steps: int, seed: int, end: float = 0.1) -> None:
    for one in sealed(lanes, steps, seed, end):
        store.add_segment(one.packed, one.dictionaries)


def in_fork(what: Callable[[], None]) -> int:
    """Return the status of a forked process that does this; -14: it stood still for 30 s."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
        what()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
