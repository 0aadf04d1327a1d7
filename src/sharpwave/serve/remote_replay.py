"""Replay of all shards of a cluster: batches drawn as from one store."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.errors import EmptyError, LimiterTimeoutError, not_to_be_copied
from sharpwave.native.forks import follow
from sharpwave.sampling.limiters import Limiter, batch_waits, check_timeout, wait_for
from sharpwave.sampling.sampler_protocol import described
from sharpwave.serve.late_values import Columns, MixedColumnError
from sharpwave.serve.link import RETRY_S, ShardLostError
from sharpwave.serve.members import Members
from sharpwave.serve.remote_batches import KEEPS, BatchFields, PlannedBatch, RemoteBatches
from sharpwave.serve.remote_ids import checked_steps
from sharpwave.serve.shard_parts import ShardParts
from sharpwave.serve.wire import TRANSITIONS, Part, Request
from sharpwave.showing import table, titled
from sharpwave.validation import Missing, check_missing
from sharpwave.views.batch import Arrays
from sharpwave.views.layout import BatchTarget
from sharpwave.views.view_replay import Replay, check_stream, checked_errors

B = TypeVar("B", bound=Arrays)
T = TypeVar("T")

LOOK_S = 0.005
"""Pause between looks at the shards while a batch waits."""
KNOWN_S = 1.0
"""Age of a shard's state beyond which the shard is asked before a draw: a shard last seen empty gets no share."""


class Drawing(NamedTuple):
    """Arguments of ``sample`` and ``stream``."""

    batch_size: int
    fields: BatchFields
    lookahead: int
    beta: float | None
    timeout: float | None


class RemoteStream(Iterator[B]):
    """Batches without end. Unlike a generator it goes on after an error: the shards may be there again.

    Args:
        following: returns the next batch, of those requested ahead or a new one. ``left``: gets the former at the end.
    """

    def __init__(self, following: Callable[[deque[PlannedBatch]], B], left: deque[PlannedBatch]) -> None:
        self._following, self._left, self._closed = following, left, False
        self._plans: deque[PlannedBatch] = deque()

    def __next__(self) -> B:
        if self._closed:
            raise StopIteration
        try:
            return self._following(self._plans)
        except BaseException:
            self._leave()  # another stream may be the next
            raise

    def close(self) -> None:
        """End it, and leave the batches requested ahead to the view."""
        self._closed = True
        self._leave()

    def _leave(self) -> None:
        while self._plans:
            self._left.append(self._plans.popleft())

    def __del__(self) -> None:
        self.close()  # the garbage collector may run this in any thread, which may hold any lock


class RemoteReplay(Generic[B]):
    """Batches of the items of all shards. Made by ``Cluster.transitions`` and ``Cluster.sequences``.

    An item of priority p is drawn with ``p^alpha`` over the sum of all shards, as if they were one store; weights are
    computed over the whole batch. Items of one shard lie together in a batch, shuffled among themselves.

    Args:
        shards: the cluster's. ``shape``: view of an empty store of the same spec, which defines the layout of batches.
        asked: the view's request to the shards.
        limiter: bounds samples against inserts of all shards.
        columns: later columns that every batch has, by name; the cluster adds some.

    Attributes:
        source, lock: as in ``shape``; a blend takes its memory from them.
    """

    remote: ClassVar[bool] = True

    def __init__(
        self,
        shards: Members,
        shape: Replay[B],
        asked: Mapping[str, Any],
        limiter: Limiter | None,
        seed: int,
        columns: Columns,
    ) -> None:
        self.name, self.view, self.limiter = str(asked["name"]), shape.view, limiter
        self.sampler, self.source, self.lock = shape.sampler, shape.source, shape.lock
        self._shape = shape  # with which the empty store stays open: blends take memory of it once the cluster is freed
        by = getattr(self.sampler, "by", None)  # no setting of a view elsewhere: a checkpoint opens with another
        whole = dict(asked) | {"sampler": described(self.sampler) | ({} if by is None else {"by": by})}
        self._of = ShardParts(shards, whole, limiter, self.view.kind != TRANSITIONS)
        self._batches = RemoteBatches(self._of, shape.source, shape.lock, seed, columns)
        self._plans: deque[PlannedBatch] = deque()  # asked for ahead
        self._left: deque[PlannedBatch] = deque()  # requested by streams that were freed
        self._unused: deque[BatchTarget] = deque()  # drawn for blends
        self._lock = threading.RLock()
        self.stale = 0
        follow(self)
        shards.views.use(self.name, self, (self._plans, self._left))
        self.refresh()
        self._of.give_credit()

    def forked(self) -> None:
        """Forget batches that the parent has asked for, a thread of which may hold the lock."""
        self._lock = threading.RLock()
        self._plans.clear()
        self._left.clear()
        self._unused.clear()
        for one in self._of.known.values():
            one.asked.clear()
        self._batches.forked()

    def __reduce__(self) -> NoReturn:
        raise not_to_be_copied(
            self,
            f"make the view {self.name!r} of sharpwave.connect(address), or of sharpwave.Cluster.of(spec, addresses) "
            "with the first address of each shard in cluster.where()['shards']",
        )

    def __repr__(self) -> str:
        known, kind = self._of.states, type(self.sampler).__name__
        count = sum(state.count for state in known)
        return f"<{type(self).__name__} {self.name!r} of {len(known)} shards: {count:,} items when last asked, {kind}>"

    def _repr_html_(self) -> str:
        rows = [*self.view.settings().items(), ("sampler", self.sampler), ("limiter", self.limiter)]
        return titled(repr(self), table(("", ""), [(name, value) for name, value in rows if value is not None]))

    def refresh(self, older_s: float = 0.0) -> None:
        """Ask each shard for its masses and counts if its last answer is older than ``older_s`` seconds."""
        with self._lock:
            self._of.refresh(older_s)

    def __len__(self) -> int:
        """Return the number of items that can be sampled now, in all shards that can be reached.

        Raises: ShardLostError: none can be.
        """
        with self._lock:
            self._of.refresh()
            self._of.check_reached()
            return sum(state.count for state in self._of.states)

    @property
    def lost(self) -> bool:
        """Whether every shard answers and none has an item, though no use is used up: the shards restarted empty."""
        with self._lock:
            self._of.refresh()
            states, links = self._of.states, self._of.links
            there = all(number in self._of.known and self._of.known[number].connection >= 0 for number in links)
            return there and not any(state.count or state.uses >= 0 for state in states)

    # the limiter

    def check_admitted(self, batch_size: int) -> None:
        """Refuse a batch that the limiter can never admit.  Raises: ValueError."""
        if self.limiter is not None:
            self.limiter.sample_waits(batch_size, self._of.cursor)

    def wait(self, batch_size: int, *, timeout: float | None = None) -> None:
        """Wait until the limiter admits a batch.

        Raises:
            EmptyError: nothing can be sampled.  LimiterTimeoutError.  ShardLostError: as ``sample``.
        """
        _reached(lambda left: self._wait(batch_size, left), timeout)

    def _wait(self, batch_size: int, timeout: float | None) -> None:
        seconds = check_timeout("sample", timeout)
        if not self._admits(batch_size, KNOWN_S):
            wait_for("sample", lambda: self._why(batch_size), seconds, lambda _: time.sleep(LOOK_S))

    def _admits(self, batch_size: int, older_s: float) -> bool:
        """Return whether a batch need not wait, by states of at most ``older_s``; tell the shards their credit."""
        self._of.refresh(older_s)
        self._of.give_credit()
        cursor = self._of.cursor
        return batch_waits(self.limiter, batch_size, cursor) is None and cursor.uses >= batch_size

    def _why(self, batch_size: int) -> str | None:
        """Return the reason why a batch must wait; ``None`` if it need not.  Raises: EmptyError: it would in vain."""
        if self._admits(batch_size, 0.0):  # look again before anything is refused
            return None
        self._of.check_reached()
        cursor = self._of.cursor
        reason = batch_waits(self.limiter, batch_size, cursor)
        if reason is None:
            lost = [str(link.address) for link in self._of.links.values() if not link.may_be_tried()]
            where = f"; {', '.join(lost)} cannot be reached" if lost else ""
            raise EmptyError(
                f"sample: {cursor.size} items can be sampled {cursor.uses:g} times, asked for were {batch_size}: "
                f"{self.view.waits_for}{where}"
            )
        return reason

    # batches

    def sample(
        self,
        batch_size: int,
        *,
        beta: float | None = None,
        timeout: float | None = None,
        lookahead: int = 0,
        fields: Sequence[str] | None = None,
    ) -> B:
        """Draw a batch from all shards: as ``Replay.sample``.

        ``batch.shards`` gives each item's shard; ``update_priorities`` takes the batch.

        Args:
            lookahead: number of further batches to request, which the next calls with as many items and the same
                fields return: shards decode them meanwhile, and later priority changes affect later batches only.
            timeout: as for ``Replay.sample``; if given, also seconds to wait while no shard can be reached.
            fields: names of the fields that the batch has, as for ``Replay.sample``: shards read and send no others.

        Raises:
            EmptyError, LimiterTimeoutError, ValueError: as ``Replay.sample``.
            ShardLostError: no shard can be reached, at once or after the given ``timeout``.
        """
        with self._lock:
            batch: B = self._drawn(self._checked(batch_size, lookahead, beta, timeout, fields)).batch
        return batch

    def sample_target(self, batch_size: int, *, beta: float | None, timeout: float | None) -> BatchTarget:
        """Draw a batch as ``sample`` does; return it with the memory that it is made of, for a blend, which gives it
        back (``keep``) if it cannot use it."""
        with self._lock:
            return self._drawn(self._checked(batch_size, 0, beta, timeout, None))

    def _drawn(self, draw: Drawing) -> BatchTarget:
        size = draw.batch_size
        if draw.fields.names is None and (unused := [one for one in self._unused if len(one.ids) == size]):
            self._unused = deque(one for one in self._unused if one is not unused[0])
            self.source.items.weigh(unused[0].draw, draw.beta)
            return unused[0]
        if self._plans and not self._plans[0].is_like(size, draw.fields):
            self._batches.abandon(self._plans)
        return self._next(self._plans, draw)

    def _checked(
        self, batch_size: int, lookahead: int, beta: float | None, timeout: float | None, fields: Sequence[str] | None
    ) -> Drawing:
        check_stream(batch_size, lookahead, beta, timeout)
        return Drawing(int(batch_size), self._batches.of_names(fields), int(lookahead), beta, timeout)

    def keep(self, target: BatchTarget) -> None:
        """Keep an unused batch for the next call with as many items, if no other learner gets its items."""
        if self._of.limits_uses:
            with self._lock:
                self._unused.append(target)

    @property
    def asked(self) -> int:
        """Batches that ``sample`` has asked for ahead."""
        return len(self._plans)

    def stream(
        self,
        batch_size: int,
        *,
        lookahead: int = 4,
        beta: float | None = None,
        timeout: float | None = None,
        fields: Sequence[str] | None = None,
    ) -> Iterator[B]:
        """Iterate over batches without end, each requested ``lookahead`` batches ahead: shards decode meanwhile.

        Priority changes after a batch's request affect later batches only. ``fields``: as for ``sample``.

        Raises: as ``sample``.
        """
        with self._lock:
            draw = self._checked(batch_size, lookahead, beta, timeout, fields)

        def following(plans: deque[PlannedBatch]) -> B:
            with self._lock:
                batch: B = self._next(plans, draw).batch
            return batch

        return RemoteStream(following, self._left)

    def _next(self, plans: deque[PlannedBatch], draw: Drawing) -> BatchTarget:
        """Return the next batch, of ``plans`` or a new one."""
        ahead = len(plans)
        while True:
            try:
                return _reached(lambda left: self._first(plans, draw._replace(timeout=left)), draw.timeout)
            except MixedColumnError:  # asked for while another client dropped the column and added another one
                if not ahead:
                    raise
                ahead -= 1

    def _first(self, plans: deque[PlannedBatch], draw: Drawing) -> BatchTarget:
        """Return the first of ``plans`` that can be filled, once ``lookahead`` others are asked for."""
        size, fields, lookahead, beta, timeout = draw
        deadline = time.monotonic() + check_timeout("sample", timeout)
        self._take_left(plans, size, fields)
        self._batches.abandon_deleted(plans)
        if not plans:
            self._wait(size, timeout)
            plans.append(self._batches.submitted(size, fields))
        while len(plans) <= lookahead and self._admits(size, KNOWN_S if self.limiter is None else LOOK_S):
            plans.append(self._batches.submitted(size, fields))
        if len(plans) > 1 and self._of.limits_uses:
            for plan in tuple(plans):  # a complete batch may be behind one that cannot be filled
                try:
                    return self._collected(plans, plan, beta, 0.0)
                except KEEPS:
                    if not plan.lacks:
                        raise
        return self._collected(plans, min(plans, key=lambda one: one.lacking), beta, deadline)

    def _collected(
        self, plans: deque[PlannedBatch], plan: PlannedBatch, beta: float | None, deadline: float
    ) -> BatchTarget:
        """Return one of ``plans``, which stays there if it cannot be filled.

        Args:
            deadline: time until which to wait for a limiter, which is asked at least once.
        """
        asked = False

        def wait(items: int) -> None:
            nonlocal asked
            if asked and time.monotonic() >= deadline:
                raise LimiterTimeoutError(f"sample: timed out; other learners were faster ({self.limiter})")
            asked = True
            self._wait(items, max(0.0, deadline - time.monotonic()))

        try:
            return self._batches.collected(plan, beta, None if self.limiter is None else wait)
        finally:
            if not plan.lacks:
                plans.remove(plan)

    def _take_left(self, plans: deque[PlannedBatch], batch_size: int, fields: BatchFields) -> None:
        """Take over batches that freed streams had requested, if no other learner gets their items; abandon others."""
        others: deque[PlannedBatch] = deque()
        while self._left:
            plan = self._left.popleft()
            (plans if self._of.limits_uses and plan.is_like(batch_size, fields) else others).append(plan)
        self._batches.abandon(others)

    def fetch(
        self,
        ids: B | npt.ArrayLike,
        shards: npt.ArrayLike | None = None,
        *,
        missing: Missing = "raise",
        fields: Sequence[str] | None = None,
    ) -> B:
        """Return the items with the given ids, from all shards: as ``Replay.fetch``, they count as no draw.

        Args:
            ids: a batch; or ids, with ``shards``, both in the same order.
            shards: ``batch.shards``, or ``episode.shards``, where ids are given.
            missing: policy for items that were evicted or deleted, that cannot be sampled yet, or whose shard began
                anew since: as for ``Replay.fetch``.
            fields: as for ``sample``.

        Raises:
            KeyError: a missing id.  ValueError: ids of another cluster, or of a view of other items; ids without
                shards.  ShardLostError: the shard of an item cannot be reached.  MemoryError.
        """
        check_missing("fetch", missing)
        links = self._of.links
        checked, incarnations = checked_steps("fetch", ids, shards, self.source.tag, links.values())
        with self._lock:
            batch: B = self._batches.fetched(checked, incarnations, self._batches.of_names(fields), missing)
        return batch

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
        links = self._of.links
        ids, incarnations = checked_steps("update_priorities", batch, shards, self.source.tag, links.values())
        errors = checked_errors(td_error, ids.shape + self.view.error_shape)
        sent: dict[int, int] = {}

        def those_of(number: int) -> tuple[dict[str, Any], dict[str, Part]]:
            there = incarnations == links[number].incarnation  # none, if it was started again just now
            sent[number] = int(np.count_nonzero(there))
            return {}, {"ids": np.asarray(ids[there]), "td_error": errors[there]}

        with self._lock:
            asked = [number for number, link in links.items() if (incarnations == link.incarnation).any()]
            replies = self._of.ask(Request.UPDATE, asked, those_of)
            stale = len(ids) - sum(sent[number] - int(reply.head["stale"]) for number, reply in replies.items())
            self.stale += stale
        return stale


def _reached(call: Callable[[float | None], T], timeout: float | None) -> T:
    """Return the result of a call with its ``timeout``. If one is given, repeat it with the seconds left while no shard
    can be reached: they may be starting again."""
    deadline = None if timeout is None else time.monotonic() + check_timeout("sample", timeout)
    while True:
        try:
            return call(timeout)
        except ShardLostError:
            if deadline is None or time.monotonic() >= deadline:
                raise
        time.sleep(RETRY_S)
        timeout = max(0.0, deadline - time.monotonic())
