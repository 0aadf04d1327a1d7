"""Replay of all shards of a cluster: batches drawn from all of them as from one store."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.errors import EmptyError, LimiterTimeoutError
from sharpwave.memory.batch_pool import Pool
from sharpwave.native.interrupts import Lock
from sharpwave.sampling.limiters import Cursor, Limiter, check_timeout
from sharpwave.sampling.protocol import described, importance_weights
from sharpwave.serve.cut_batches import read_into
from sharpwave.serve.draws import Share, divide
from sharpwave.serve.known_shards import KnownShards
from sharpwave.serve.link import Link, ShardLostError
from sharpwave.serve.members import Members
from sharpwave.serve.remote_blend import RemoteBlend
from sharpwave.serve.requests import Request
from sharpwave.serve.shared_memory import SharedBlock, SharedBlocks
from sharpwave.serve.wire import Part, WireError
from sharpwave.store import Store
from sharpwave.views.batch import Arrays
from sharpwave.views.layout import Target
from sharpwave.views.replay import Replay, check_stream, checked_errors, on_host

B = TypeVar("B", bound=Arrays)
Ints = npt.NDArray[np.int64]

LOOK_S = 0.005
"""Pause between looks at the shards while a batch waits."""
KNOWN_S = 1.0
"""Age of what is known of a shard beyond which it is asked before a draw: one that was empty gets no share of it."""
QUARANTINE_S = 120.0
"""How long memory is kept from use that a lost shard may still be writing to."""
ATTEMPTS = 8
"""How often a batch is asked for while shards are lost."""


@dataclass
class _Plan:
    """Batch that was asked for.

    Attributes:
        size: its items. ``target``: its memory; ``None`` as long as it has none. ``blocks``: that hold the memory.
        ahead: its items count among those that were asked for and have not come.
        tickets: link, its connections, number of the request; no link: it is lost.
    """

    size: int
    target: Target | None = None
    blocks: list[Any] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)
    tickets: list[tuple[Link | None, int, int]] = field(default_factory=list)
    ahead: bool = False


class RemoteReplay(Generic[B]):
    """Batches of the items of all shards. Made by ``Cluster.transitions`` and ``Cluster.sequences``.

    An item of priority p is drawn with ``p^alpha`` over the sum of all shards', as if they were one store; weights are
    computed over the whole batch. Items of one shard lie together in a batch, shuffled among themselves.

    Args:
        shards: the cluster's. ``local``: an empty store of the same spec, with the view ``shape``, which say what
            batches look like.
        asked: the view as shards are asked for it.
        limiter: bounds samples against inserts of all shards.
    """

    def __init__(
        self,
        shards: Members,
        local: Store,
        shape: Replay[B],
        asked: Mapping[str, Any],
        limiter: Limiter | None,
        seed: int,
    ) -> None:
        self._shape = shape
        self.name, self.view, self.limiter = str(asked["name"]), shape.view, limiter
        self.sampler = shape.sampler
        self._of = KnownShards(shards, dict(asked) | {"sampler": described(self.sampler)}, limiter is not None)
        self._rng = np.random.default_rng([seed, 0])
        self._memory = SharedBlocks()
        self._in_shared_memory = all(link.is_local for link in self._of.links.values())
        self._pool = Pool(self._memory.make) if self._in_shared_memory else Pool()
        self._quarantined: deque[tuple[float, Any]] = deque()
        self._plans: deque[_Plan] = deque()  # asked for ahead
        self._lock = threading.RLock()
        self._decoding = Lock()  # kernels are not interrupted, nor their compiler
        self._process = os.getpid()
        self._fields = list(local.spec.fields.values())
        self._numbers = {name: column.field for name, column in self.view.columns().items() if column.field is not None}
        self._cuts = True  # whether shards elsewhere send encoded rows, not whole arrays
        self.stale = 0
        self.refresh()

    def refresh(self, older_s: float = 0.0) -> None:
        """Ask the shards for their masses and counts that were told more than ``older_s`` seconds ago."""
        with self._lock:
            self._of.refresh(older_s)

    def __len__(self) -> int:
        """Return the number of items that can be sampled now, in all shards."""
        with self._lock:
            self._of.refresh()
            return sum(state.count for state in self._of.states)

    @property
    def lost(self) -> bool:
        """Whether every shard answers and none has an item, though nothing is used up: they began anew, empty."""
        with self._lock:
            self._of.refresh()
            states, links = self._of.states, self._of.links
            there = all(number in self._of.known and self._of.known[number].connection >= 0 for number in links)
            return there and not any(state.count or state.uses >= 0 for state in states)

    # the limiter

    def _waits(self, batch_size: int) -> str | None:
        cursor = self._cursor
        if self.limiter is not None:
            reason = self.limiter.sample_waits(batch_size, cursor)
            if reason is not None:
                return f"{reason} ({self.limiter}; {cursor})"
            if cursor.uses < batch_size:
                return f"{batch_size} samples find {cursor.uses:g} uses of steps left ({self.limiter}; {cursor})"
        return None

    def wait(self, batch_size: int, *, timeout: float | None = None) -> None:
        """Wait until the limiter admits a batch.

        Raises:
            EmptyError: nothing can be sampled.  LimiterTimeoutError.
        """
        deadline = time.monotonic() + check_timeout("sample", timeout)
        self._of.refresh(KNOWN_S)
        self._give_credit()
        while True:
            reason = self._waits(batch_size)
            if reason is None and self._cursor.uses >= batch_size:
                return
            self._of.refresh()
            self._give_credit()
            reason = self._waits(batch_size)
            cursor = self._cursor
            if reason is None:
                if cursor.uses >= batch_size:
                    return
                lost = [str(link.address) for link in self._of.links.values() if not link.may_be_tried()]
                where = f"; {', '.join(lost)} cannot be reached" if lost else ""
                raise EmptyError(
                    f"sample: {cursor.size} items can be sampled {cursor.uses:g} times, asked for were {batch_size}: "
                    f"{self.view.waits_for}{where}"
                )
            if time.monotonic() >= deadline:
                raise LimiterTimeoutError(f"sample: timed out; {reason}")
            time.sleep(LOOK_S)

    @property
    def _cursor(self) -> Cursor:
        return self._of.cursor(self.view.kind != "transitions")

    def _give_credit(self) -> None:
        if self.limiter is not None:
            self._of.give_credit(self.limiter, self._cursor)

    # batches

    def sample(
        self, batch_size: int, *, beta: float | None = None, timeout: float | None = None, lookahead: int = 0
    ) -> B:
        """Draw a batch from all shards: as ``Replay.sample``.

        ``batch.shards`` says which shard each item is from; ``update_priorities`` takes the batch.

        Args:
            lookahead: ask for so many batches more, which the next calls for as many items return: shards decode them
                meanwhile, and priorities that change meanwhile count from later ones on.

        Raises:
            EmptyError, LimiterTimeoutError, ValueError: as ``Replay.sample``.
            ShardLostError: no shard can be reached.
        """
        check_stream(batch_size, lookahead, beta, timeout)
        with self._lock:
            if self._plans and self._plans[0].size != batch_size:
                self._abandon(self._plans)
            return self._next(self._plans, int(batch_size), int(lookahead), beta, timeout)

    @property
    def asked(self) -> int:
        """Batches that ``sample`` has asked for ahead."""
        return len(self._plans)

    def stream(
        self, batch_size: int, *, lookahead: int = 4, beta: float | None = None, timeout: float | None = None
    ) -> Iterator[B]:
        """Iterate over batches without end, each asked for ``lookahead`` batches ahead: shards decode meanwhile.

        Priorities that change after a batch was asked for count from later ones on.

        Raises: as ``sample``.
        """
        check_stream(batch_size, lookahead, beta, timeout)
        return self._streamed(int(batch_size), int(lookahead), beta, timeout)

    def _streamed(self, batch_size: int, lookahead: int, beta: float | None, timeout: float | None) -> Iterator[B]:
        plans: deque[_Plan] = deque()
        try:
            while True:
                with self._lock:
                    batch = self._next(plans, batch_size, lookahead, beta, timeout)
                yield batch
        finally:
            with self._lock:
                self._abandon(plans)

    def _next(
        self, plans: deque[_Plan], batch_size: int, lookahead: int, beta: float | None, timeout: float | None
    ) -> B:
        """Return the first of ``plans``, once ``lookahead`` others are asked for."""
        if not plans:
            self.wait(batch_size, timeout=timeout)
            plans.append(self._submitted(batch_size))
        while len(plans) <= lookahead and self._admits(batch_size):
            plans.append(self._submitted(batch_size))
        return self._collected(plans.popleft(), beta)

    def _admits(self, batch_size: int) -> bool:
        self._of.refresh(KNOWN_S if self.limiter is None else LOOK_S)
        self._give_credit()
        return self._waits(batch_size) is None and self._cursor.uses >= batch_size

    def _submitted(self, batch_size: int) -> _Plan:
        """Ask the shards for their shares of a batch."""
        plan = _Plan(batch_size)
        try:
            self._ask(plan, self._lend(plan) if self._in_shared_memory else [], batch_size)
            self._of.ahead, plan.ahead = self._of.ahead + batch_size, True
        except BaseException:
            self._let_go(plan)
            raise
        return plan

    def _came(self, plan: _Plan) -> None:
        if plan.ahead:
            self._of.ahead, plan.ahead = self._of.ahead - plan.size, False

    def _let_go(self, plan: _Plan) -> None:
        """Forget a batch that an error or an interrupt ended; shards may still write to its memory."""
        self._came(plan)
        if plan.blocks:
            self._quarantined.append((time.monotonic() + QUARANTINE_S, plan.blocks))
        for link, connection, ticket in plan.tickets:
            if link is not None and connection == link.connections:
                link.drop(ticket)

    def _lend(self, plan: _Plan) -> list[Any]:
        """Take memory for a batch; return its blocks.

        Shards that share it have to know it when they are asked. Else it is taken when their shares have come: that of
        the batch before last is in the processor's cache then, where that of all batches ahead is too large for it.
        """
        if self._process != os.getpid():  # forked: shards write the parent's batches to the memory that was shared
            self._process, self._inherited = os.getpid(), (self._pool, self._quarantined)
            self._memory, self._quarantined = SharedBlocks(), deque()
            self._pool = Pool(self._memory.make) if self._in_shared_memory else Pool()
        source, size = self._shape.source, plan.size
        layout = source.layouts.get(size) or source.layouts.setdefault(size, source.layout(size))
        self._pool.collect()
        lent = [self._pool.lend(nbytes, *root) for nbytes, root in zip(layout.sizes, layout.roots, strict=True)]
        plan.target, plan.blocks = layout.over(lent, self.view, source.tag), [root for _, root in lent]
        return [block.memory for block, _ in lent]

    def _ask(self, plan: _Plan, blocks: Sequence[Any], batch_size: int) -> None:
        numbers = sorted(self._of.known)
        masses = np.array([self._of.known[number].state.mass for number in numbers])
        if not masses.sum() > 0:
            raise EmptyError(f"sample: no shard has an item to sample; {self.view.waits_for}")
        plan.shares = [replace(one, shard=numbers[one.shard]) for one in divide(masses, batch_size, self._rng)]
        for share in plan.shares:
            link = self._of.links.get(share.shard)
            try:
                if link is None:
                    raise ShardLostError("shard: gone")
                self._of.ensure(share.shard, link)
                ticket = self._ask_one(link, share, blocks, batch_size)
                plan.tickets.append((link, link.connections, ticket))
            except ShardLostError:
                self._of.lost(share.shard)
                plan.tickets.append((None, 0, 0))

    def _ask_one(self, link: Link, share: Share, blocks: Sequence[Any], batch_size: int) -> int:
        head = self._of.head(share.shard) | {"begin": share.begin, "batch": batch_size}
        fds: list[int] = []
        self._forget_freed()
        if link.forgotten:
            head["forget"], link.forgotten = link.forgotten, []
        if link.is_local and blocks and isinstance(blocks[0], SharedBlock):
            head["blocks"] = [block.number for block in blocks]
            new = [block for block in blocks if block.number not in link.shared]
            if new:
                head["shared"] = [[block.number, len(block)] for block in new]
                fds = [block.fd for block in new]
            ticket = link.submit(Request.DRAW, head, {"points": share.points}, fds)
            link.shared.update(block.number for block in new)
            return ticket
        return link.submit(Request.DRAW, head | {"cut": self._cuts}, {"points": share.points})

    def _forget_freed(self) -> None:
        """Note for every shard which blocks of shared memory are gone here."""
        while self._memory.gone:
            number = self._memory.gone.popleft()
            for link in self._of.links.values():
                if number in link.shared:
                    link.shared.discard(number)
                    link.forgotten.append(number)

    def _collected(self, plan: _Plan, beta: float | None) -> B:
        try:
            return self._joined(plan, beta)
        except BaseException:
            self._let_go(plan)
            raise

    def _joined(self, plan: _Plan, beta: float | None) -> B:
        """Wait for the shards' shares, and put them together."""
        for attempt in range(ATTEMPTS):
            missing = self._missing(plan)
            if not missing:
                break
            self._came(plan)
            for error in missing:
                if not isinstance(error, (EmptyError, ShardLostError)):
                    raise error
            if attempt == ATTEMPTS - 1:
                raise ShardLostError(f"sample: asked {ATTEMPTS} times, and got no whole batch: {missing[0]}")
            self._of.refresh()
            self._again(plan)
        target = plan.target
        assert target is not None
        self._came(plan)
        shards = np.empty(len(target.ids), np.int64)
        for share, (link, _, _) in zip(plan.shares, plan.tickets, strict=True):
            target.draw.probabilities[share.begin : share.end] *= share.probability
            assert link is not None
            shards[share.begin : share.end] = link.incarnation
        beta = float(self.sampler.beta) if beta is None else float(beta)
        if beta == 0.0:
            target.draw.weights.fill(1.0)
        else:
            with self._decoding:
                importance_weights(target.draw.probabilities, beta, target.draw.weights)
        batch: B = target.batch
        batch.shards = shards
        return batch

    def _again(self, plan: _Plan) -> None:
        """Ask for a batch again, of the shards that are left, into other memory."""
        fresh = self._submitted(plan.size)
        plan.target, plan.blocks, plan.shares, plan.tickets = fresh.target, fresh.blocks, fresh.shares, fresh.tickets
        plan.ahead = fresh.ahead

    def _missing(self, plan: _Plan, wanted: bool = True) -> list[Exception]:
        """Wait for every share of a batch; return why some did not come. Then no shard writes to its memory any more,
        or it is kept from use.

        Args:
            wanted: whether shares that were sent are read.
        """
        missing: list[Exception] = []
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
                        read_into(part, reply, self.view, self._fields, self._numbers)
            except ShardLostError as error:
                self._quarantined.append((time.monotonic() + QUARANTINE_S, plan.blocks))  # it may still write there
                self._of.lost(share.shard)
                missing.append(error)
            except Exception as error:
                if isinstance(error, WireError) and link is not None:
                    link.close()  # a peer that sends such things is not heard any more over this connection
                missing.append(error)
        while self._quarantined and self._quarantined[0][0] < time.monotonic():
            self._quarantined.popleft()
        return missing

    def _abandon(self, plans: deque[_Plan]) -> None:
        """Let batches that were asked for go; their memory is used again once the shards have written to it."""
        while plans:
            plan = plans.popleft()
            self._missing(plan, wanted=False)
            self._came(plan)

    def blended(self, parts: Sequence[tuple[Any, Any]], seed: int) -> RemoteBlend[B]:
        """Return a blend of views one of which is this: for ``sharpwave.Blend``."""
        return RemoteBlend(parts, seed=seed)

    # priorities

    def update_priorities(
        self, batch: B | npt.ArrayLike, td_error: npt.ArrayLike, shards: npt.ArrayLike | None = None
    ) -> int:
        """Set priorities by ``td_error`` for the items of a batch: as ``Replay.update_priorities``.

        Args:
            batch: the batch; or ids, with ``shards``, both in the same order.
            shards: ``batch.shards``, where ids are given.

        Returns how many items were stale: evicted, or of a shard that has begun another life since.
        """
        if shards is None:
            shards = getattr(batch, "shards", None)
        ids = on_host(getattr(batch, "ids", batch)).astype(np.int64, copy=False)
        links = self._of.links
        if shards is None:
            if len(links) != 1:
                raise ValueError(
                    "update_priorities: ids alone do not say which shard they are of; pass the batch itself, or "
                    "shards=batch.shards"
                )
            incarnations = np.full(len(ids), next(iter(links.values())).incarnation)
        else:
            incarnations = on_host(shards)
        errors = checked_errors(td_error, ids.shape + self.view.error_shape)
        with self._lock:
            return self._update(np.asarray(ids), incarnations, errors)

    def _update(self, ids: Ints, incarnations: Ints, errors: npt.NDArray[np.float64]) -> int:
        """Set priorities; return how many items were stale."""
        links = self._of.links
        stale = len(ids)
        tickets = []
        for number, link in links.items():
            there = incarnations == link.incarnation
            count = int(np.count_nonzero(there))
            if not count:
                continue
            parts: dict[str, Part] = {"ids": np.asarray(ids[there]), "td_error": errors[there]}
            try:
                if self._of.ensure(number, link).connection >= 0 and link.incarnation == int(incarnations[there][0]):
                    tickets.append((number, link, link.submit(Request.UPDATE, self._of.head(number), parts), count))
            except ShardLostError:
                self._of.lost(number)
        for number, link, ticket, count in tickets:
            try:
                reply = link.wait(ticket)
                self._of.told(number, reply)
                stale += int(reply.head["stale"]) - count
            except ShardLostError:
                self._of.lost(number)
        self.stale += stale
        return stale
