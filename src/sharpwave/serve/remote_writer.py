"""Writer of steps into a shard: it seals segments, and delivers each once, also where a connection or shard is lost."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from sharpwave.codecs.shared import IS_SHARED
from sharpwave.errors import LimiterTimeoutError, StoreInUseError, not_to_be_copied
from sharpwave.format.segment import readdressed
from sharpwave.native.forks import follow
from sharpwave.sampling.limiters import check_timeout
from sharpwave.segment_writer import SealedSegment, SegmentWriter
from sharpwave.serve.link import REPLY_S, RETRY_S, Link, ShardLostError
from sharpwave.serve.members import home
from sharpwave.serve.segment_parts import parts_of
from sharpwave.serve.wire import Part, Request
from sharpwave.spec import Spec

Errors = npt.NDArray[np.float32]
Parts = dict[str, Part]
WINDOW = 32
"""Segments without an acknowledgement beyond which a writer waits."""
WINDOW_BYTES = 8 << 20
"""Bytes of segments without an acknowledgement beyond which a writer waits."""
HEAR_S = 0.5
"""Age of a sent segment from which its acknowledgement is read though nothing waits for it."""
GONE_S = 1.0
"""Pause between questions whether the cluster still has a shard that cannot be reached."""


class RemoteWriter(SegmentWriter):
    """Writer of steps into a shard of a cluster. Made by ``Cluster.writer``; a ``Recorder`` can write into it.

    Segments are kept until the shard has acknowledged them, and sent again where its connection broke. While the shard
    is away, or a limiter holds writers up, steps are encoded until ``sharpwave.serve.remote_writer.WINDOW`` segments
    wait; then ``extend`` blocks, up to the writer's ``timeout``.

    Attributes:
        delivery: the segments on their way: ``waiting``, ``acknowledged``, ``resent``.
    """

    def __init__(
        self,
        spec: Spec,
        delivery: Delivery,
        *,
        codec: str | Mapping[str, str] = "auto",
        segment_steps: int | None = None,
        strict: bool = False,
    ) -> None:
        self.delivery = delivery
        super().__init__(
            spec,
            delivery.lanes,
            delivery.put,
            first_lane=delivery.first_lane,
            first_steps=[step + (step > 0) for step in delivery.lane_steps],
            codec=codec,
            segment_steps=min(segment_steps or delivery.segment_steps, delivery.segment_steps),
            strict=strict,
        )
        follow(self)

    def forked(self) -> None:
        """Take a lock that no thread of the parent holds, so that ``extend`` can name the writer's process."""
        self._lock._at_fork_reinit()

    def extend(self, **step: Any) -> None:
        """Append one step to each of several lanes: as ``Store.extend``.

        Args:
            step: its arguments, ``timeout`` among them: seconds to wait while too many segments are on the way;
                default: the writer's.

        Raises:
            ValueError: the cluster was closed.  LimiterTimeoutError: too many segments wait for the shard.
        """
        self.delivery.check()
        with self.delivery.within(step.pop("timeout", None)):
            super().extend(**step)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the shard has every sealed segment. Steps in open segments stay here.

        Raises:
            LimiterTimeoutError: it did not take them in time.
        """
        self.delivery.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """End the lanes' episodes, send all pending segments, and disconnect.

        Works after the cluster was closed, too, as long as its shards run.

        Raises:
            LimiterTimeoutError: the shard did not take all in time.  ValueError: the shards ended with their cluster.
        """
        self.delivery.check_process()
        for lane in range(self.delivery.lanes):
            self.break_episode(lane)
        self.seal()
        self.flush(timeout)
        self.delivery.close()

    def __reduce__(self) -> NoReturn:
        raise not_to_be_copied(self, "connect to its cluster, and make a writer with cluster.writer()")


class Delivery:
    """Delivery of a writer's sealed segments to one shard, each once.

    The writer counts lanes and steps like the first shard. If another shard replaces it, or the cluster has fewer
    shards, unacknowledged segments go to the new shard, under that shard's numbers.

    Args:
        link: to the shard, for this delivery only. ``name``: name of its ``lanes`` in the shard.
        durable: segments are acknowledged once they are on the shard's disk.
        timeout: seconds that ``put`` and ``flush`` wait at most; ``None``: 60.
        number: of that shard. ``others``: returns links to the cluster's shards, by number; ``None``: unknown.
        check_open: raises ValueError once the cluster is closed; with True only if its shards have ended with it.

    Attributes:
        first_lane: the first shard's number of the first lane. ``lane_steps``: steps that it had of each lane at first.
        segment_steps: most steps in a segment.

    Raises:
        ShardLostError: the shard cannot be reached.  ValueError: it has other lanes under that name.
    """

    def __init__(
        self,
        link: Link,
        name: str,
        lanes: int,
        *,
        durable: bool = False,
        timeout: float | None = None,
        number: int = 0,
        others: Callable[[], Sequence[Link]] | None = None,
        check_open: Callable[[bool], None] = lambda sending: None,
    ) -> None:
        self.name, self.lanes, self._durable, self._others = name, lanes, durable, others
        self._check_open = check_open
        self._timeout = check_timeout("writer", timeout)
        self._asked = threading.local()  # a call's own timeout
        self._process = os.getpid()
        self._looked_at = 0.0  # when the cluster was asked for its shards
        self._lease = lease = Lease(link, number, name, lanes, durable)
        self.first_lane, self.lane_steps, self.segment_steps = lease.first_lane, lease.lane_steps, lease.segment_steps

    @property
    def acknowledged(self) -> int:
        """Steps that were acknowledged."""
        return self._lease.acknowledged

    @property
    def resent(self) -> int:
        """Segments that were sent again."""
        return self._lease.resent

    @property
    def waiting(self) -> int:
        """Segments that were not acknowledged."""
        return self._lease.waiting

    def put(self, segment: SealedSegment, td_error: Errors | None = None) -> None:
        """Wait while too many segments are on the way, then send this one. An error leaves it untaken.

        Raises:
            ValueError: the cluster was closed, and its shards ended.
            LimiterTimeoutError: the shard took none for so long.  DamagedError, ...: it refuses them.
        """
        self._check_open(True)
        self._wait(WINDOW - 1, WINDOW_BYTES, getattr(self._asked, "timeout", self._timeout))
        self._lease.keep(segment.lane - self.first_lane, segment, td_error)
        with contextlib.suppress(ShardLostError):  # later
            try:
                if self._lease.link.may_be_tried():
                    self._lease.send()
            except ShardLostError as error:
                self._lease_anew(error)

    @contextlib.contextmanager
    def within(self, timeout: float | None) -> Iterator[None]:
        """Let ``put`` wait so many seconds at most, in this thread; ``None``: as it does.  Raises: ValueError."""
        if timeout is None:
            yield
            return
        self._asked.timeout = check_timeout("append", timeout)
        try:
            yield
        finally:
            del self._asked.timeout

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the shard has every segment.  Raises: LimiterTimeoutError: it did not take them in time."""
        self._wait(0, 0, self._timeout if timeout is None else check_timeout("writer", timeout))

    def check_process(self) -> None:
        """Refuse a forked process: the segments on their way are the parent's.  Raises: StoreInUseError."""
        if self._process != os.getpid():
            raise StoreInUseError(
                f"writer {self.name!r}: process {self._process} writes with it; this is process {os.getpid()}, forked "
                "from it: make a writer of another name here"
            )

    def check(self) -> None:
        """Refuse a forked process, and a cluster that was closed.  Raises: StoreInUseError, ValueError."""
        self.check_process()
        self._check_open(False)

    def hear(self) -> None:
        """Read acknowledgements of a while ago, without waiting, and send segments for which there was no room.

        Raises: DamagedError, ...: as ``put``.
        """
        with contextlib.suppress(ShardLostError):
            self._lease.hear_all()
            if self._lease.waiting and self._lease.link.may_be_tried():
                self._lease.send()

    def close(self) -> None:
        """Disconnect."""
        self._lease.link.close()

    def _wait(self, most: int, most_bytes: int, timeout: float) -> None:
        """Send pending segments, then read acknowledgements until the backlog is within the limits.

        Raises: LimiterTimeoutError, ValueError, DamagedError, ...
        """
        self.check_process()
        deadline = time.monotonic() + timeout
        why = ""
        self.hear()
        while self.waiting and (self.waiting > most or self._lease.waiting_bytes > most_bytes):
            self._check_open(True)
            lease = self._lease
            try:
                if not lease.link.may_be_tried():
                    raise ShardLostError(why)
                lease.send()
                left = deadline - time.monotonic()
                late = lease.waiting and left < REPLY_S and not lease.has_answer(max(0.0, left))
                if late and time.monotonic() >= deadline:
                    raise LimiterTimeoutError(
                        f"writer {self.name!r}: {self.waiting} segments were not taken in {timeout:g} s: shard "
                        f"{lease.link.address} has not answered; a view's limiter waits for its learner to sample, or "
                        "the shard hangs"
                    )
                if lease.waiting:
                    lease.hear()
            except ShardLostError as error:
                why = str(error) or why
                with contextlib.suppress(ShardLostError):
                    if self._lease_anew(error):
                        continue
                if time.monotonic() > deadline:
                    raise LimiterTimeoutError(
                        f"writer {self.name!r}: {self.waiting} segments were not taken in {timeout:g} s: {why}"
                    ) from error
                time.sleep(RETRY_S)

    def _lease_anew(self, error: ShardLostError) -> bool:
        """Lease lanes of the shard that replaces a lost one, and give it all unacknowledged segments.

        Returns whether the shard is gone for good. No step is there twice: the lost shard's steps are gone with it.

        Raises: ShardLostError: nothing was changed.  ValueError: there is a later writer of that name.
        """
        lease = self._lease
        if isinstance(error, BeganAnewError):
            number, link = lease.number, lease.link
        elif (place := self._place_of_a_missing_shard()) is not None:
            number, link = place
        else:
            return False
        self._lease = Lease(link.another(), number, self.name, self.lanes, self._durable, lease)
        for kept in lease.left():
            self._lease.keep(*kept)
        lease.link.close()
        return True

    def _place_of_a_missing_shard(self) -> tuple[int, Link] | None:
        """Return the home shard of this writer's name, if the cluster no longer has this delivery's shard."""
        now = time.monotonic()
        if self._others is None or now - self._looked_at < GONE_S:
            return None
        self._looked_at = now
        others: Sequence[Link] = ()
        with contextlib.suppress(LookupError, OSError, ValueError):  # the directory does not answer
            others = self._others()
        if not others or self._lease.number < len(others):
            return None
        number = home(self.name, len(others))
        return number, others[number]


class BeganAnewError(ShardLostError):
    """Raised where a shard is another than it was, and has given a writer's lanes other numbers."""


@dataclass
class _Unacknowledged:
    """Segment that the shard has not acknowledged; it was sent as ``ticket`` on the connection ``connection``."""

    segment: SealedSegment
    td_error: Errors | None
    ticket: int = 0
    connection: int = 0
    kept_at: float = field(default_factory=time.monotonic)


class Lease:
    """Lease of a writer's lanes in one shard, and its segments under way, each kept until it is acknowledged.

    If the connection breaks, it is made again, and segments that the shard lacks are sent again. The shard recognizes a
    segment that it has by its lane and first step.

    Args:
        number: of the shard. ``before``: this writer's lease in a lost shard, if it had one: the new shard counts lanes
            and steps anew, from the writer's next segment of each lane on.

    Attributes:
        first_lane: the shard's number of the first lane. ``lane_steps``: steps that the shard had of each lane at
            first.
        segment_steps: most steps in a segment. ``acknowledged``: steps. ``resent``: segments.
        waiting_bytes: of the segments kept.
        turn: distinguishes this writer in the shard from a later one of the same name.

    Raises:
        ShardLostError: the shard cannot be reached.  ValueError: it has other lanes under that name, or a later writer
            of that name.
    """

    turn: int
    first_lane: int
    lane_steps: list[int]
    segment_steps: int

    def __init__(
        self, link: Link, number: int, name: str, lanes: int, durable: bool, before: Lease | None = None
    ) -> None:
        self.link, self.number, self._name, self._lanes, self._durable = link, number, name, lanes, durable
        self._since = 0 if before is None else before.turn
        self._shift: dict[int, int] = {}  # by lane: the shard's number of a step, less the writer's
        self._kept: deque[_Unacknowledged] = deque()  # in order
        self.waiting_bytes = 0
        self.turn = 0
        self._dictionaries: set[int] = set()  # that the shard has, of this connection
        self.first_lane, self.acknowledged, self.resent = -1, 0, 0
        if before is not None:
            self.acknowledged, self.resent = before.acknowledged, before.resent + before.waiting
        self.lane_steps = self._taken()

    def _taken(self) -> list[int]:
        """Connect, and lease lanes, or resume this writer's; return the steps that the shard has of each."""
        self.link.connect()
        asked = {"name": self._name, "lanes": self._lanes, "durable": self._durable, "turn": self.turn}
        if self._since:
            asked["since"] = self._since
        reply = self.link.call(Request.LEASE, asked)
        head, parts = reply.head, reply.parts
        first = int(head["first_lane"])
        if self.first_lane not in (-1, first):
            raise BeganAnewError(
                f"writer {self._name!r}: the shard began anew and gave its lanes another number ({first}, expected "
                f"{self.first_lane})"
            )
        self.first_lane, self.segment_steps, self.turn = first, int(head["segment_steps"]), int(head["turn"])
        self._connection = self.link.connections
        self._dictionaries.clear()
        self._safe_steps: list[int] = parts["safe_steps"].tolist()
        return list(parts["lane_steps"].tolist())

    @property
    def waiting(self) -> int:
        """Segments that the shard has not acknowledged."""
        return len(self._kept)

    def keep(self, lane: int, segment: SealedSegment, td_error: Errors | None) -> None:
        """Take a segment of a writer's lane, to be sent; in another shard than the first one under its numbers."""
        if self._since:
            there = self.lane_steps[lane]
            shift = self._shift.setdefault(lane, there + (there > 0) - segment.first_step)  # one number is skipped
            number, first_step = self.first_lane + lane, segment.first_step + shift
            packed = readdressed(segment.packed, number, first_step)
            segment = replace(segment, lane=number, first_step=first_step, packed=packed)
        self._kept.append(_Unacknowledged(segment, td_error))
        self.waiting_bytes += segment.nbytes

    def left(self) -> Iterator[tuple[int, SealedSegment, Errors | None]]:
        """Yield the segments that are kept, in order: the writer's lane, and steps by its numbers."""
        for one in self._kept:
            lane = one.segment.lane - self.first_lane
            yield lane, replace(one.segment, first_step=one.segment.first_step - self._shift.get(lane, 0)), one.td_error

    def send(self) -> None:
        """Send segments that were not sent on this connection; on a new one, only segments that the shard lacks.

        If too many are unacknowledged, the rest waits for the next call.

        Raises: ShardLostError.
        """
        self.link.connect()
        if self.link.connections != self._connection:
            self._taken()
            while self._kept and self._there(self._kept[0].segment):
                self._acknowledge()
        for one in self._kept:
            if one.connection != self._connection:
                if not self.link.has_room():
                    return
                self.resent += one.connection != 0
                one.ticket, one.connection = self._sent(one), self._connection

    def has_answer(self, wait_s: float) -> bool:
        """Wait for an answer about the oldest segment; return whether there is one, or the connection has ended."""
        return self.link.has_reply(self._kept[0].ticket, wait_s)

    def hear(self) -> None:
        """Wait until the oldest segment is acknowledged.

        Raises:
            ShardLostError.  DamagedError, ...: it is refused, and so are later segments: all are sent again.
        """
        try:
            self.link.wait(self._kept[0].ticket)
        except ShardLostError:
            raise
        except Exception:
            self.link.close()
            raise
        self._acknowledge()

    def hear_all(self) -> None:
        """Read acknowledgements of a while ago, without waiting, so that a slow writer frees its segments too.

        Raises: as ``hear``.
        """
        while self._kept and self._kept[0].kept_at < time.monotonic() - HEAR_S:
            if self._kept[0].connection != self._connection or not self.link.has_reply():
                return
            self.hear()

    def _acknowledge(self) -> None:
        first = self._kept.popleft()
        self.waiting_bytes -= first.segment.nbytes
        self.acknowledged += first.segment.steps

    def _there(self, segment: SealedSegment) -> bool:
        """Return whether the shard has a segment whose acknowledgement was lost."""
        return segment.first_step + segment.steps <= self._safe_steps[segment.lane - self.first_lane]

    def _sent(self, kept: _Unacknowledged) -> int:
        head, parts = put_request(kept.segment, kept.td_error, self._dictionaries)
        ticket = self.link.submit(Request.PUT, head | {"durable": self._durable}, parts)
        self._dictionaries.update(key for key in kept.segment.dictionaries if not key & IS_SHARED)
        return ticket


def put_request(segment: SealedSegment, td_error: Errors | None, sent: set[int]) -> tuple[dict[str, Any], Parts]:
    """Return the head and the parts of a request to append a segment.  Args, Raises: as ``parts_of``."""
    head, parts = parts_of([segment], sent)
    return head | {"noticed": [list(segment.noticed)]}, parts | ({} if td_error is None else {"td_error:0": td_error})
