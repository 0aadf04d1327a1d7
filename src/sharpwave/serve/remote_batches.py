"""Batches that shards are asked for: their shares, their memory, and how they are put together."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.errors import EmptyError, LimiterTimeoutError
from sharpwave.memory.batch_pool import Pool
from sharpwave.native import core
from sharpwave.native.forks import path
from sharpwave.native.interrupts import InterruptLock
from sharpwave.serve.cut_batches import read_into
from sharpwave.serve.forked_clients import precede
from sharpwave.serve.known_shards import KnownShards
from sharpwave.serve.link import Link, ShardLostError
from sharpwave.serve.shared_memory import SharedBlock, SharedBlocks
from sharpwave.serve.wire import Request, WireError
from sharpwave.store import Store
from sharpwave.views.layout import BatchTarget
from sharpwave.views.replay import Replay

QUARANTINE_S = 120.0
"""Seconds for which memory is not used again that a lost shard may still be writing to."""
ATTEMPTS = 8
"""Requests for a batch, at most, while shards are lost."""
KEEPS = (EmptyError, LimiterTimeoutError, ShardLostError)
"""Errors after which a batch's received shares are kept if uses are limited: no other learner gets these items."""


@dataclass(frozen=True)
class Share:
    """One shard's part of a batch.

    Attributes:
        shard: its number in the cluster. ``begin``, ``end``: the range of the batch's items that it draws.
        points: float64 [end - begin], in [0, 1): positions in the shard's own mass, in random order.
        probability: probability that a point of the whole mass fell into this shard's part.
    """

    shard: int
    begin: int
    end: int
    points: npt.NDArray[np.float64]
    probability: float


@dataclass(eq=False)
class PlannedBatch:
    """Requested batch.

    Attributes:
        size: number of items. ``target``: its memory; ``None`` until it has some. ``blocks``: the blocks of that
            memory.
        shared: description of the memory for shards on this machine.
        shares: requested shares. ``tickets``: for each, link, its connections, number of the request; no link: the
            share is lost. ``came``: received shares, with their shards' incarnations. ``lacks``: shares whose shards
            had too few items, to be requested again.
    """

    size: int
    target: BatchTarget | None = None
    blocks: list[Any] = field(default_factory=list)
    shared: list[Any] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)
    tickets: list[tuple[Link | None, int, int]] = field(default_factory=list)
    came: list[tuple[Share, int]] = field(default_factory=list)
    lacks: list[Share] = field(default_factory=list)

    @property
    def lacking(self) -> int:
        """Items that are to be asked for again."""
        return sum(share.end - share.begin for share in self.lacks)

    def drop(self) -> None:
        """Let the replies go that its shards send."""
        for link, connection, ticket in self.tickets:
            if link is not None and connection == link.connections:
                link.drop(ticket)


def taken(queue: deque[int]) -> Iterator[int]:
    """Take all that is there, while other threads take and add."""
    with suppress(IndexError):
        while True:
            yield queue.popleft()


class RemoteBatches:
    """Batches of one view of all shards, each requested and then collected.

    Args:
        known: state of the view in each shard. ``shape``: the view of ``local``, an empty store of the same spec, which
            defines the layout of batches.
        seed: of the draws.

    Attributes:
        memory, pool: of batches. ``cuts``: whether shards elsewhere send encoded rows, not whole arrays.
        fields: of the spec. ``numbers``: numbers of the fields with encoded rows, by the column's name.
    """

    def __init__(self, known: KnownShards, shape: Replay[Any], local: Store, seed: int) -> None:
        self._of, self._shape, self._view = known, shape, shape.view
        self._seed, self._rng = seed, np.random.default_rng([seed, 0])
        self.memory = SharedBlocks(known.freed)
        self._in_shared_memory = all(link.is_local for link in known.links.values())
        self.pool = Pool(self.memory.make) if self._in_shared_memory else Pool()
        self._quarantined: deque[tuple[float, Any]] = deque()
        self._decoding = InterruptLock()  # kernels are not interrupted, nor their compiler
        self._process = os.getpid()
        self.fields = list(local.spec.fields.values())
        self.numbers = {name: column.field for name, column in self._view.columns().items() if column.field is not None}
        self.cuts = True
        precede(self)

    def before_fork(self) -> None:
        """Separate the memory of held batches between this process and the child, and use it for no further batch.

        Another thread may fork at any moment: it goes on with the pool that it took.
        """
        if self._in_shared_memory:
            self.pool = Pool(self.memory.make)
            self.memory.keep_apart()

    def forked(self) -> None:
        """Take a lock that no thread of the parent holds, other memory, and draws of this process's own."""
        self._decoding._at_fork_reinit()
        self._rng = np.random.default_rng(np.random.SeedSequence([self._seed, 0], spawn_key=path()))
        self._renew()

    def submitted(self, batch_size: int) -> PlannedBatch:
        """Ask the shards for their shares of a batch.  Raises: EmptyError, MemoryError."""
        plan = PlannedBatch(batch_size)
        try:
            if self._in_shared_memory:
                self._lend(plan)
            self._ask(plan, 0, batch_size)
        except BaseException:
            self._let_go(plan)
            raise
        return plan

    def _let_go(self, plan: PlannedBatch) -> None:
        """Forget a batch that an error or an interrupt ended; shards may still write to its memory."""
        if plan.blocks:
            self._quarantined.append((time.monotonic() + QUARANTINE_S, plan.blocks))
        plan.drop()

    def _lend(self, plan: PlannedBatch) -> None:
        """Take memory for a batch.

        Shards that share the memory must know it when they are asked. Other batches take memory once their shares have
        arrived: the memory of the batch before last is then in the processor's cache, and memory of all batches ahead
        would not fit there.
        """
        if self._process != os.getpid():  # forked: shards write the parent's batches to the memory that was shared
            self._renew()
        source, size = self._shape.source, plan.size
        layout = source.layouts.get(size) or source.layouts.setdefault(size, source.layout(size))
        self.pool.collect()
        lent = [self.pool.lend(nbytes, *root) for nbytes, root in zip(layout.sizes, layout.roots, strict=True)]
        plan.target, plan.blocks = layout.over(lent, self._view, source.tag), [root for _, root in lent]
        if self._in_shared_memory:
            plan.shared = [block.memory for block, _ in lent]
            for block in plan.shared:
                block.awaited = True

    def _renew(self) -> None:
        self._process, self._inherited = os.getpid(), (self.pool, self._quarantined)
        self.memory, self._quarantined = SharedBlocks(self._of.freed), deque()
        self.pool = Pool(self.memory.make) if self._in_shared_memory else Pool()

    def _ask(self, plan: PlannedBatch, begin: int, end: int) -> None:
        """Ask shards for these items of a batch.  Raises: EmptyError, MemoryError."""
        numbers = sorted(self._of.known)
        masses = np.array([self._of.known[number].mass for number in numbers])
        if not masses.sum() > 0:
            raise EmptyError(f"sample: no shard has an item to sample; {self._view.waits_for}")
        for one in divide(masses, end - begin, self._rng):
            share = replace(one, shard=numbers[one.shard], begin=begin + one.begin, end=begin + one.end)
            plan.shares.append(share)
            link = self._of.links.get(share.shard)
            try:
                if link is None:
                    raise ShardLostError("shard: gone")
                self._of.ensure(share.shard, link)
                ticket = self._ask_one(link, share, plan.shared, plan.size)
                plan.tickets.append((link, link.connections, ticket))
                self._of.known[share.shard].asked.append((ticket, share.end - share.begin))
            except ShardLostError:
                self._of.lost(share.shard)
                plan.tickets.append((None, 0, 0))

    def _ask_one(self, link: Link, share: Share, blocks: Sequence[Any], batch_size: int) -> int:
        head = self._of.head(share.shard) | {"begin": share.begin, "batch": batch_size}
        fds: list[int] = []
        self._forget_freed()
        if forgotten := list(taken(link.forgotten)):
            head["forget"] = forgotten
        if link.is_local and blocks and isinstance(blocks[0], SharedBlock):
            head["blocks"] = [block.number for block in blocks]
            new = [block for block in blocks if block.number not in link.shared]
            if new:
                head["shared"] = [[block.number, len(block)] for block in new]
                fds = [block.fd for block in new]
            ticket = link.submit(Request.DRAW, head, {"points": share.points}, fds)
            link.shared.update(block.number for block in new)
            return ticket
        return link.submit(Request.DRAW, head | {"cut": self.cuts}, {"points": share.points})

    def _forget_freed(self) -> None:
        """Note for every shard which blocks of shared memory were freed here."""
        for number in taken(self.memory.gone):
            for link in self._of.links.values():
                if number in link.shared:
                    link.shared.discard(number)
                    link.forgotten.append(number)

    def collected(
        self, plan: PlannedBatch, beta: float | None, wait: Callable[[int], None] | None = None
    ) -> BatchTarget:
        """Return a requested batch, once it is complete.

        Args:
            wait: waits until a limiter admits so many items, which are requested again; ``None``: there is no limiter.

        Raises:
            EmptyError, LimiterTimeoutError, ShardLostError: if ``plan.lacks``, received shares are kept, and the call
            may
                be repeated.
        """
        try:
            return self._joined(plan, beta, wait)
        except BaseException as error:
            if isinstance(error, KEEPS) and plan.lacks and self._of.limits_uses:
                raise
            plan.lacks = []
            self._let_go(plan)
            raise

    def _joined(self, plan: PlannedBatch, beta: float | None, wait: Callable[[int], None] | None) -> BatchTarget:
        """Wait for the shards' shares, and put them together."""
        attempts = ATTEMPTS
        while (missing := self._missing(plan)) or plan.lacks:
            for _, error in missing:
                if not isinstance(error, (EmptyError, ShardLostError)):
                    raise error
            lost = next((error for _, error in missing if isinstance(error, ShardLostError)), None)
            keeps = lost is None or self._of.limits_uses  # received shares: a view may give their items once only
            if keeps:
                plan.lacks += [share for share, _ in missing]
                if lost is not None and self._in_shared_memory:
                    self._move(plan)
            attempts -= bool(missing) and (lost is not None or wait is None)
            if not attempts:
                kind = EmptyError if lost is None else ShardLostError
                raise kind(f"sample: asked {ATTEMPTS} times, and got no whole batch: {missing[0][1]}")
            self._of.refresh()
            if not keeps:
                self._again(plan)
                continue
            if wait is not None:
                wait(plan.lacking)
            while plan.lacks:
                self._ask(plan, plan.lacks[-1].begin, plan.lacks[-1].end)
                plan.lacks.pop()
        target = plan.target
        assert target is not None
        shards = np.empty(len(target.ids), np.int64)
        for share, incarnation in plan.came:
            target.draw.probabilities[share.begin : share.end] *= share.probability
            shards[share.begin : share.end] = incarnation
        beta = float(self._shape.sampler.beta) if beta is None else float(beta)
        core.importance_weights(target.draw.probabilities, beta, target.draw.weights)
        if self._in_shared_memory:
            for memory in plan.shared:
                memory.awaited = False
        target.batch.shards = shards
        return target

    def _move(self, plan: PlannedBatch) -> None:
        """Move received shares of a batch to other memory: a lost shard may still write to the batch's own."""
        before = plan.target
        assert before is not None
        self._lend(plan)
        assert plan.target is not None
        for share, _ in plan.came:
            plan.target.part(share.begin, share.end).copy_from(before.part(share.begin, share.end))

    def _again(self, plan: PlannedBatch) -> None:
        """Request a batch again, from the remaining shards, into other memory."""
        fresh = self.submitted(plan.size)
        plan.target, plan.blocks, plan.shared = fresh.target, fresh.blocks, fresh.shared
        plan.shares, plan.tickets, plan.came = fresh.shares, fresh.tickets, fresh.came

    def _missing(self, plan: PlannedBatch, wanted: bool = True) -> list[tuple[Share, Exception]]:
        """Wait for every requested share of a batch; return the missing shares, each with its error.

        Afterwards no shard writes to the batch's memory, or the memory is kept from use.

        Args:
            wanted: whether received shares are read.
        """
        missing: list[tuple[Share, Exception]] = []
        for share, (link, connection, ticket) in zip(plan.shares, plan.tickets, strict=True):
            try:
                if link is None or connection != link.connections:
                    raise ShardLostError("shard: its connection was made again")
                reply = link.wait(ticket)
                self._of.told(share.shard, reply)
                if reply.parts and wanted:
                    if plan.target is None:
                        self._lend(plan)
                    assert plan.target is not None
                    part = plan.target.part(share.begin, share.end)
                    with self._decoding:
                        read_into(part, reply, self._view, self.fields, self.numbers)
                plan.came.append((share, link.incarnation))
            except ShardLostError as error:
                self._quarantined.append((time.monotonic() + QUARANTINE_S, plan.blocks))  # it may still write there
                self._of.lost(share.shard)
                missing.append((share, error))
            except Exception as error:
                if isinstance(error, WireError) and link is not None:
                    link.close()  # a peer that sends such things is not heard any more over this connection
                missing.append((share, error))
        plan.shares, plan.tickets = [], []
        while self._quarantined and self._quarantined[0][0] < time.monotonic():
            self._quarantined.popleft()
        return missing

    def abandon(self, plans: deque[PlannedBatch]) -> None:
        """Let batches that were asked for go; their memory is used again once the shards have written to it."""
        while plans:
            plan = plans.popleft()
            self._missing(plan, wanted=False)


def divide(masses: npt.NDArray[np.float64], batch_size: int, rng: np.random.Generator) -> list[Share]:
    """Divide a batch by points that are stratified over the sum of ``masses``: one in each of its equal parts.

    An item whose shard draws it with probability p is drawn with probability ``share.probability * p``, even if the
    shard's mass has changed since: so the weights are unbiased when ``masses`` are out of date.

    Args:
        masses: float64 [shards], at least one above 0.

    Cost: 20 us.
    """
    ends = np.cumsum(masses)
    total = float(ends[-1])
    points = (np.arange(batch_size) + rng.random(batch_size)) * (total / batch_size)
    bounds = np.searchsorted(points, ends)
    bounds[np.flatnonzero(masses)[-1] :] = batch_size  # rounding may push the last points past the total
    shares = []
    begin = 0
    for shard, end in enumerate(bounds.tolist()):
        mass = float(masses[shard])
        if end > begin and mass > 0:
            inside = (points[begin:end] - (float(ends[shard]) - mass)) / mass
            np.clip(inside, 0.0, np.nextafter(1.0, 0.0), out=inside)
            shares.append(Share(shard, begin, end, rng.permutation(inside), mass / total))
            begin = end
    return shares
