"""Sharpwave in ``cluster.py``: shards, writers and a learner."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from cluster_worker import ALPHA, BATCH, BETA, LOOKAHEAD, SHAPE, STACK, Step

import sharpwave as sw
from sharpwave.serve.addresses import Address
from sharpwave.serve.fleet import ShardPlan
from sharpwave.serve.local_shards import LocalShards

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
