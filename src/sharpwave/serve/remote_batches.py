"""Batches that shards are asked for: their shares, their memory, and how they are put together."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from sharpwave.arrays import Floats, Ints
from sharpwave.errors import EmptyError, LimiterTimeoutError
from sharpwave.log.late_columns import WRITTEN
from sharpwave.memory.batch_pool import Pool
from sharpwave.native.forks import path, precede
from sharpwave.native.interrupts import InterruptLock
from sharpwave.serve.cut_batches import read_into, take_ragged
from sharpwave.serve.late_values import Columns, LateTaker, add_column, chosen, columns_in, fits, take_over
from sharpwave.serve.link import Link, ShardLostError
from sharpwave.serve.shard_parts import ShardPart, ShardParts
from sharpwave.serve.shared_memory import SharedBlocks
from sharpwave.serve.wire import Frame, Request, WireError, array_in
from sharpwave.validation import Missing
from sharpwave.views.batch_source import MAX_LAYOUTS, BatchSource
from sharpwave.views.layout import BatchTarget
from sharpwave.views.view_replay import flat_names

QUARANTINE_S = 120.0
"""Seconds for which memory is not used again that a lost shard may still be writing to."""
FETCHED_IDS = 1024
"""Ids of a request for items: a shard's memory for requests is limited."""
ATTEMPTS = 8
"""Requests for a batch, at most, while shards are lost."""
KEEPS = (EmptyError, LimiterTimeoutError, ShardLostError)
"""Errors after which a batch's received shares are kept if uses are limited: no other learner gets these items."""


@dataclass(eq=False)
class Share:
    """One shard's part of a batch.

    Attributes:
        shard: its number in the cluster. ``begin``, ``end``: the range of the batch's items that it draws.
        points: float64 [end - begin], in [0, 1): positions in the shard's own mass, in random order.
        probability: probability that a point of the whole mass fell into this shard's part.
        link: over which it is requested, by its ``connection`` of that number, as ``ticket``; ``None``: it is lost.
        incarnation: the shard's, once it was received.
    """

    shard: int
    begin: int
    end: int
    points: Floats
    probability: float
    link: Link | None = None
    connection: int = 0
    ticket: int = 0
    incarnation: int = -1

    def drop(self) -> None:
        """Let its reply go."""
        if self.link is not None and self.connection == self.link.connections:
            self.link.drop(self.ticket)


@dataclass(frozen=True, eq=False)
class BatchFields:
    """Fields that batches have.

    Attributes:
        names: of the fields, as shards are asked for them; ``None``: all.
        source: of batches of these fields, of an empty store.
        columns: columns among them that other clients added, by name.
    """

    names: frozenset[str] | None
    source: BatchSource
    columns: Columns

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Numbers of the fields with encoded rows, by the column's name."""
        columns = self.source.view.columns().items()
        return {name: column.field for name, column in columns if column.field is not None}


@dataclass(eq=False)
class PlannedBatch:
    """Requested batch.

    Attributes:
        size: number of items. ``fields``: that it has.
        target: its memory; ``None`` until it has some. ``shared``: blocks of that memory that shards on this machine
            write to.
        shares: that are awaited. ``received``: shares. ``lacks``: shares whose shards had too few items, to be
            requested again.
        deletions: of the client, when it was requested.
    """

    size: int
    fields: BatchFields
    target: BatchTarget | None = None
    shared: list[Any] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)
    received: list[Share] = field(default_factory=list)
    lacks: list[Share] = field(default_factory=list)
    deletions: int = 0

    def is_like(self, size: int, fields: BatchFields) -> bool:
        """Return whether it has so many items, of the same fields."""
        return self.size == size and self.fields.names == fields.names

    @property
    def lacking(self) -> int:
        """Items that are to be asked for again."""
        return sum(share.end - share.begin for share in self.lacks)

    def drop(self) -> None:
        """Let the replies go that its shards send."""
        for share in self.shares:
            share.drop()


def taken(queue: deque[int]) -> Iterator[int]:
    """Take all that is there, while other threads take and add."""
    with suppress(IndexError):
        while True:
            yield queue.popleft()


class RemoteBatches:
    """Batches of one view of all shards, each requested and then collected.

    Args:
        parts: the view in each shard. ``source``: of its batches, of an empty store of the same spec; ``lending``: that
            store's lock, under which it lends memory.
        seed: of the draws. ``columns``: later columns that every batch has, by name; the owner adds some.

    Attributes:
        memory, pool: of batches.
        fields: of the spec. ``whole``: all of them, as batches have them.
    """

    def __init__(self, parts: ShardParts, source: BatchSource, lending: Any, seed: int, columns: Columns) -> None:
        self._of, self.whole = parts, BatchFields(None, source, {})
        self._chosen: deque[BatchFields] = deque(maxlen=MAX_LAYOUTS)  # that batches had lately
        self._heard: Columns = {}  # that other clients added, by what shards said
        self._seed, self._rng = seed, np.random.default_rng([seed, 0])
        self._in_shared_memory = all(link.is_local for link in parts.links.values())
        self._renew()
        self._spec, self._columns = source.log.spec, columns
        self._late = LateTaker(source.log.late)
        self._lending = lending
        self._decoding = InterruptLock()  # kernels are not interrupted, nor their compiler
        self.fields = list(self._spec.fields.values())
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
        self._inherited = self.pool, self._quarantined  # shards write the parent's batches to the shared memory
        self._renew()

    def _renew(self) -> None:
        self.memory = SharedBlocks(self._of.members)
        self.pool = Pool(self.memory.make) if self._in_shared_memory else Pool()
        self._quarantined: deque[tuple[float, BatchTarget | None]] = deque()

    def of_names(self, fields: Sequence[str] | None) -> BatchFields:
        """Return the fields that ``fields`` names, after asking the shards for columns that are not known here.

        Raises: ValueError, TypeError: as ``Replay.sample``.  ShardLostError.
        """
        if fields is None:
            return self.whole
        try:
            names = self._names(fields)
        except ValueError:
            self._heard = columns_in(self._of.members.call(Request.DESCRIBE, {"columns": True}))
            names = self._names(fields)
        columns = chosen({name: kind for name, kind in self._heard.items() if name not in self._columns}, names)
        for one in self._chosen:
            if one.names == names and one.columns == columns:
                return one
        source = self.whole.source.only(names.intersection(self._spec.fields))
        self._chosen.append(BatchFields(names, source, columns))
        return self._chosen[-1]

    def _names(self, fields: Sequence[str]) -> frozenset[str]:
        late = [part for name in {**self._heard, **self._columns} for part in (name, name + WRITTEN)]
        return flat_names(fields, self._spec, [*self._spec.fields, *late], self._of.after)

    def submitted(self, batch_size: int, fields: BatchFields | None = None) -> PlannedBatch:
        """Ask the shards for their shares of a batch; ``fields``: by default all.  Raises: EmptyError, MemoryError."""
        plan = PlannedBatch(batch_size, fields or self.whole, deletions=self._of.members.deletions)
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
        if plan.target is not None:
            self._quarantined.append((time.monotonic() + QUARANTINE_S, plan.target))
        plan.drop()

    def _lend(self, plan: PlannedBatch) -> BatchTarget:
        """Take memory for a batch.

        Shards that share the memory must know it when they are asked. Other batches take memory once their shares have
        arrived: the memory of the batch before last is then in the processor's cache, and memory of all batches ahead
        would not fit there.
        """
        source, size = plan.fields.source, plan.size
        layout = source.layouts.get(size) or source.layouts.setdefault(size, source.layout(size))
        self.pool.collect()
        lent = [self.pool.lend(nbytes, *root) for nbytes, root in zip(layout.sizes, layout.roots, strict=True)]
        plan.target = layout.over(lent, source.view, source.tag)
        if self._in_shared_memory:
            plan.shared = [block.memory for block, _ in lent]
            for block in plan.shared:
                block.awaited = True
        return plan.target

    def _ask(self, plan: PlannedBatch, begin: int, end: int) -> None:
        """Ask shards for these items of a batch.  Raises: EmptyError, MemoryError."""
        numbers = sorted(self._of.known)
        masses = np.array([self._of.known[number].mass for number in numbers])
        if not masses.sum() > 0:
            self._of.check_reached()
            raise EmptyError(f"sample: no shard has an item to sample; {self.whole.source.view.waits_for}")
        for share in divide(masses, end - begin, self._rng):
            share.shard, share.begin, share.end = numbers[share.shard], begin + share.begin, begin + share.end
            plan.shares.append(share)
            try:
                shard = self._of.ensure(share.shard)
                share.ticket = self._submit(shard, share, plan)
            except ShardLostError:
                self._of.lost(share.shard)
            else:
                share.link, share.connection = shard.link, shard.link.connections
                shard.asked.append((share.ticket, share.end - share.begin))

    def _submit(self, shard: ShardPart, share: Share, plan: PlannedBatch) -> int:
        link, head = shard.link, self._of.head(shard) | {"begin": share.begin, "batch": plan.size}
        if forgotten := list(taken(link.forgotten)):
            head["forget"] = forgotten
        if plan.fields.names is not None:
            head["fields"] = sorted(plan.fields.names)
        if not (link.is_local and plan.shared):
            return link.submit(Request.DRAW, head, {"points": share.points})
        head["blocks"] = [block.number for block in plan.shared]
        new = [block for block in plan.shared if block.number not in link.shared]
        if new:
            head["shared"] = [[block.number, len(block)] for block in new]
        ticket = link.submit(Request.DRAW, head, {"points": share.points}, [block.fd for block in new])
        link.shared.update(block.number for block in new)
        return ticket

    def collected(
        self, plan: PlannedBatch, beta: float | None, wait: Callable[[int], None] | None = None
    ) -> BatchTarget:
        """Return a requested batch, once it is complete.

        Args:
            wait: waits until a limiter admits so many items, which are requested again; ``None``: there is no limiter.

        Raises:
            EmptyError, LimiterTimeoutError, ShardLostError: if ``plan.lacks``, received shares are kept, and the call
                may be repeated.
        """
        attempts = ATTEMPTS
        try:
            while (missing := self._missing(plan)) or plan.lacks:
                for _, error in missing:
                    if not isinstance(error, (EmptyError, ShardLostError)):
                        self._of.refresh()  # a refused draw takes no uses, which its request counts
                        raise error
                lost = any(isinstance(error, ShardLostError) for _, error in missing)
                keeps = not lost or self._of.limits_uses  # received shares: a view may give their items once only
                if keeps:
                    plan.lacks += [share for share, _ in missing]
                    if lost and self._in_shared_memory:
                        self._move(plan)
                attempts -= bool(missing) and (lost or wait is None)
                if not attempts:
                    kind = ShardLostError if lost else EmptyError
                    raise kind(f"sample: asked {ATTEMPTS} times, and got no whole batch: {missing[0][1]}")
                self._of.refresh()
                if not keeps:  # the whole batch again, from the remaining shards, into other memory
                    fresh = self.submitted(plan.size, plan.fields)
                    plan.target, plan.shared, plan.shares, plan.received = fresh.target, fresh.shared, fresh.shares, []
                    continue
                if wait is not None:
                    wait(plan.lacking)
                while plan.lacks:
                    self._ask(plan, plan.lacks[-1].begin, plan.lacks[-1].end)
                    plan.lacks.pop()
            return self._weighted(plan, beta)
        except BaseException as error:
            if not (isinstance(error, KEEPS) and plan.lacks and self._of.limits_uses):
                plan.lacks = []
                self._let_go(plan)
            raise

    def _weighted(self, plan: PlannedBatch, beta: float | None) -> BatchTarget:
        """Return a batch whose shares were all received, with probabilities and weights of the whole draw."""
        target = plan.target
        assert target is not None
        shards = np.empty(len(target.ids), np.int64)
        for share in plan.received:
            target.draw.probabilities[share.begin : share.end] *= share.probability
            shards[share.begin : share.end] = share.incarnation
        self.whole.source.items.weigh(target.draw, beta)
        for memory in plan.shared:
            memory.awaited = False
        self._add_columns(target.batch, plan.fields)
        target.batch.shards = shards
        return target

    def _add_columns(self, batch: Any, fields: BatchFields) -> None:
        """Add the columns to a batch that its shards lack, or lacked when it was requested."""
        names, there = fields.names, batch.fields
        for name, kind in chosen(dict(self._columns), names).items():
            if name not in there:
                add_column(batch, name, kind)
            elif not fits(batch, name, kind):  # another client dropped it, and added this one; shards may be away now
                with suppress(ShardLostError):
                    take_over(self._columns, self._of.members.call(Request.DESCRIBE, {"columns": True}))
        for name in fields.columns.keys() - there.keys():
            add_column(batch, name, fields.columns[name])
            self._heard.pop(name, None)  # it may have been dropped: ask before the next batch
        if names is not None:
            for name in there.keys() - self._spec.fields.keys() - names:
                del there[name]  # only the marks were asked for

    def fetched(self, ids: Ints, incarnations: Ints, fields: BatchFields, missing: Missing) -> Any:
        """Return the items with the given ids, each of the shard of its incarnation.

        Raises: KeyError, ShardLostError; and errors of shards.
        """
        for attempt in range(2):
            try:
                replies, lost = self._fetch(ids, incarnations, fields)
                break
            except ShardLostError:  # that was a connection of the shard's life before
                if attempt:
                    raise
        if lost is not None and sum(len(places) for places, _ in replies) < len(ids):
            raise lost
        held = [places[array_in(reply.parts, "there", np.bool_, len(places))] for places, reply in replies]
        order = np.concatenate([np.zeros(0, np.int64), *held])
        gone = np.setdiff1d(np.arange(len(ids)), order)
        if missing == "raise" and len(gone):
            raise KeyError(f"fetch: id {ids[gone[0]]} {self._of.lacks}")
        source, begin = fields.source, 0
        with self._lending:
            target = source.lend_once(len(ids))
        with self._decoding:
            for places, (_, reply) in zip(held, replies, strict=True):
                part = target.part(begin, begin + len(places))
                if len(places):
                    read_into(part, reply, source.view, self.fields, fields.numbers)
                    take_ragged(part, reply, self._spec)
                self._late.take(part, reply)
                begin += len(places)
        if len(gone):
            for rows in target.ragged.values():
                each = (len(rows.offsets) - 1) // len(ids)
                rows.take_part(begin * each, rows.values[:0], np.zeros(len(gone) * each, np.int64), np.empty)
        batch = target.batch
        self._add_columns(batch, fields)
        places = np.argsort(np.concatenate([order, gone]))
        target.arrange(places)
        for name in batch.fields.keys() - self._spec.fields.keys():
            batch.fields[name][:] = batch.fields[name][places]
        target.draw.probabilities.fill(np.nan)
        target.draw.weights.fill(1)
        target.clear(gone)
        batch.shards = incarnations.copy()
        return batch

    def _fetch(
        self, ids: Ints, incarnations: Ints, fields: BatchFields
    ) -> tuple[list[tuple[Ints, Frame]], ShardLostError | None]:
        """Ask shards for items; return each reply with the places of its ids, and the error of a shard that cannot be
        reached, which may have the others.

        Raises: ShardLostError: one was lost meanwhile.
        """
        lost: ShardLostError | None = None
        reached: list[ShardPart] = []
        asked: list[tuple[Ints, ShardPart, int]] = []
        replies: list[tuple[Ints, Frame]] = []
        names = {} if fields.names is None else {"fields": sorted(fields.names)}

        def ask(shard: ShardPart, some: Ints) -> None:
            ticket = shard.link.submit(Request.FETCH, self._of.head(shard) | names, {"ids": ids[some]})
            asked.append((some, shard, ticket))

        try:
            for number, link in self._of.links.items():
                try:
                    shard = self._of.ensure(number)
                except ShardLostError as error:
                    self._of.lost(number)
                    lost = error
                    continue
                reached.append(shard)
                own = np.flatnonzero(incarnations == link.incarnation)
                for begin in range(0, len(own), FETCHED_IDS):
                    ask(shard, own[begin : begin + FETCHED_IDS])
            if not asked:  # for the columns that other clients added
                for shard in reached:
                    ask(shard, np.zeros(0, np.int64))
            while asked:
                some, shard, ticket = asked[0]
                reply = shard.link.wait(ticket)
                if "state" in reply.head:
                    shard.hear(reply)
                replies.append((some, reply))
                del asked[0]
        finally:
            for _, shard, ticket in asked:
                shard.link.drop(ticket)
        return replies, lost

    def _move(self, plan: PlannedBatch) -> None:
        """Move received shares of a batch to other memory: a lost shard may still write to the batch's own."""
        before = plan.target
        assert before is not None
        target = self._lend(plan)
        for name, rows in target.ragged.items():  # which no shard writes to
            vars(rows).update(vars(before.ragged[name]))
        for name in before.batch.fields.keys() - target.batch.fields.keys():
            target.batch.fields[name] = before.batch.fields[name]
        for share in plan.received:
            target.part(share.begin, share.end).copy_from(before.part(share.begin, share.end))

    def _missing(self, plan: PlannedBatch, wanted: bool = True) -> list[tuple[Share, Exception]]:
        """Wait for every requested share of a batch; return the missing shares, each with its error.

        Afterwards no shard writes to the batch's memory, or the memory is kept from use.

        Args:
            wanted: whether received shares are read.
        """
        missing: list[tuple[Share, Exception]] = []
        for share in plan.shares:
            link = share.link
            try:
                if link is None or share.connection != link.connections:
                    raise ShardLostError("shard: its connection was made again")
                reply = link.wait(share.ticket)
                self._of.known[share.shard].hear(reply)
                view = plan.fields.source.view
                ragged = bool(getattr(view, "ragged", ()))
                if wanted and (reply.parts or ragged):
                    target = self._lend(plan) if plan.target is None else plan.target
                    with self._decoding:
                        part = target.part(share.begin, share.end)
                        if not (link.is_local and plan.shared):
                            read_into(part, reply, view, self.fields, plan.fields.numbers)
                        take_ragged(part, reply, self._spec)
                        self._late.take(part, reply)
                share.incarnation = link.incarnation
                plan.received.append(share)
            except ShardLostError as error:
                self._quarantined.append((time.monotonic() + QUARANTINE_S, plan.target))  # it may still write there
                self._of.lost(share.shard)
                missing.append((share, error))
            except Exception as error:
                if isinstance(error, WireError) and link is not None:
                    link.close()  # a peer that sends such things is not heard any more over this connection
                missing.append((share, error))
        plan.shares = []
        while self._quarantined and self._quarantined[0][0] < time.monotonic():
            self._quarantined.popleft()
        return missing

    def abandon_deleted(self, plans: deque[PlannedBatch]) -> None:
        """Let batches go that were asked for before this client deleted steps, unless no other learner gets their
        items."""
        if plans and plans[0].deletions != self._of.members.deletions and not self._of.limits_uses:
            self.abandon(plans)

    def abandon(self, plans: deque[PlannedBatch]) -> None:
        """Let batches that were asked for go; their memory is used again once the shards have written to it."""
        while plans:
            self._missing(plans.popleft(), wanted=False)


def divide(masses: Floats, batch_size: int, rng: np.random.Generator) -> list[Share]:
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
