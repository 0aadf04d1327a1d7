"""Discrete-event simulation of a cluster: actors, shards, a learner and its network link, by measured costs."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy

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
    """What is simulated.

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
