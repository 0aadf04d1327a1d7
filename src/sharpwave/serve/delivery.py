"""Delivery of a writer's sealed segments: each arrives once, in one shard, or in the next where that is drained."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.errors import LimiterTimeoutError, StoreInUseError
from sharpwave.format.segment import begins_episode, readdressed
from sharpwave.sampling.limiters import check_timeout
from sharpwave.segment_writer import SealedSegment, SegmentWriter
from sharpwave.serve.addresses import nearest
from sharpwave.serve.lease import DrainedError, Lease
from sharpwave.serve.link import REPLY_S, RETRY_S, Link, ShardLostError
from sharpwave.serve.placement import home

WINDOW = 32
"""Segments without an acknowledgement beyond which a writer waits."""
WINDOW_BYTES = 8 << 20
"""Bytes of segments without an acknowledgement beyond which a writer waits."""
MAX_MOVES = 8
"""Drained shards, one after the other, that a new writer is sent on from."""
UNKNOWN = (LookupError, OSError, ValueError)
"""Errors of asking a directory that does not answer."""
GONE_S = 1.0
"""How often it is asked whether a shard that cannot be reached is one of the cluster."""


class Delivery:
    """A writer's lanes of one shard, and the segments on their way there.

    Where the shard is drained, each lane moves to another shard with the beginning of an episode; an episode's segments
    are all in one shard. The writer goes on counting lanes and steps as at first: segments are readdressed here. What
    a shard that is gone has not acknowledged goes to another.

    Args:
        link: to the shard, of this delivery alone. ``name``: by which the shard knows its ``lanes``.
        durable: segments are acknowledged once they are on the shard's disk.
        timeout: seconds that ``put`` and ``flush`` wait at most; ``None``: 60.
        number: of that shard. ``others``: returns links to the shards that there are, by number; ``None``: nobody knows
            but a drained shard.
        check_open: raises ValueError once the cluster was closed; with True only if its shards have ended with it.

    Attributes:
        first_lane: the first shard's number of the first lane. ``lane_steps``: steps that it had of each at first.
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
        self._asked = threading.local()  # what a call's own timeout is
        self._process = os.getpid()
        self._asked_at = 0.0  # whether a shard is gone
        lease = self._leased(link, number, name)
        self.first_lane, self.lane_steps, self.segment_steps = lease.first_lane, lease.lane_steps, lease.segment_steps
        self._leases = [lease]  # those that lanes are leaving, in order, and the one that they go to
        self._of_lane = [lease] * lanes
        self._broken: set[int] = set()  # lanes whose episode was truncated, so that the next one goes elsewhere
        self._moved_by = [0] * lanes  # added to the numbers of a lane's steps
        self._unplaced: set[int] = set()  # lanes for which that depends on their next segment
        self._before = [0, 0]  # steps acknowledged and segments resent by leases that are over

    def _leased(self, link: Link, number: int, name: str, since: int = 0) -> Lease:
        """Return lanes of a shard, or of another where it is drained.

        Args:
            since: as of ``Lease``.

        Raises: ShardLostError, ValueError.
        """
        for _ in range(MAX_MOVES):
            try:
                return Lease(link, number, name, self.lanes, self._durable, since)
            except DrainedError as drained:
                link.close()
                link, number = self._next(link, drained.elsewhere)
        raise ShardLostError(f"writer {self.name!r}: {MAX_MOVES} shards, one after the other, are being drained")

    def _next(self, link: Link, elsewhere: Mapping[str, Any]) -> tuple[Link, int]:
        """Return the shard that a drained one's writers of this name go to, always the same one: a link, its number."""
        number = home(self.name, len(elsewhere["shards"]))
        if self._others is not None:
            with contextlib.suppress(*UNKNOWN):
                return self._others()[number].another(), number
        return link.to(nearest(elsewhere, link.address)[number]), number

    @property
    def acknowledged(self) -> int:
        """Steps that were acknowledged."""
        return self._before[0] + sum(one.acknowledged for one in self._leases)

    @property
    def resent(self) -> int:
        """Segments that were sent again."""
        return self._before[1] + sum(one.resent for one in self._leases)

    @property
    def waiting(self) -> int:
        """Segments that were not acknowledged."""
        return sum(one.waiting for one in self._leases)

    @property
    def moving(self) -> bool:
        """Whether the shard is drained, and lanes have to leave it: ``leave`` is to be called after every step."""
        return len(self._leases) > 1 or self._leases[-1].elsewhere is not None

    def leave(self, writer: SegmentWriter) -> None:
        """Let the lanes of a shard that is drained leave it: seal their segments where an episode has ended.

        Where the shard's last steps have been evicted and an episode is still under way, it is truncated.
        """
        for lease in self._leases:
            if lease.elsewhere is not None and lease.elsewhere.get("at_once"):
                for lane in range(self.lanes):
                    if self._of_lane[lane] is lease and lane not in self._broken:
                        self._broken.add(lane)
                        writer.break_episode(lane)
        writer.seal()
        with contextlib.suppress(ShardLostError):
            self._move_on()

    def _move_on(self) -> None:
        """Lease lanes of another shard if the last one is drained, and end leases that no lane has any more.

        Raises: ShardLostError.
        """
        last = self._leases[-1]
        if last.elsewhere is not None and last.link.may_be_tried():
            self._leases.append(self._leased(*self._next(last.link, last.elsewhere), self.name))
        for one in self._leases[:-1]:
            if not one.waiting and one not in self._of_lane:
                one.link.close()
                self._leases.remove(one)
                self._before = [self._before[0] + one.acknowledged, self._before[1] + one.resent]

    def _leave_if_gone(self, lease: Lease) -> bool:
        """Give another shard what one has not acknowledged that is no longer there, and its lanes; return whether it
        was gone. Nothing is there twice: a shard that goes has no steps. The other is the one in its place, if there is
        one.

        Raises: ShardLostError: nothing was changed.  ValueError: there is a later writer of that name.
        """
        if lease not in self._leases:
            return False
        if lease.began_anew:
            number, link = lease.number, lease.link
        else:
            now = time.monotonic()
            if self._others is None or now - self._asked_at < GONE_S:
                return False
            self._asked_at = now
            others: Sequence[Link] = ()
            with contextlib.suppress(*UNKNOWN):
                others = self._others()
            if not others or lease.number < len(others):
                return False
            number = home(self.name, len(others))
            link = others[number]
        if lease is self._leases[-1]:
            self._leases.append(self._leased(link.another(), number, self.name, lease.turn))
        last = self._leases[-1]
        left = [(one.lane - lease.first_lane, one, td_error) for one, td_error in lease.left()]
        if any(
            self._of_lane[lane] is not lease for lane, _, _ in left
        ):  # whose later episodes are in the other already
            rest = self._leased(link.another(), number, f"{self.name[:100]}-{uuid.uuid4().hex}")
            self._leases.insert(-1, rest)
        moved_by: dict[int, int] = {}
        for lane, segment, td_error in left:
            to = last if self._of_lane[lane] is lease else rest
            first = moved_by.setdefault(lane, _begin(to, lane) - segment.first_step) + segment.first_step
            to.keep(_moved(segment, to.first_lane + lane, first), td_error)
        for lane in range(self.lanes):
            if self._of_lane[lane] is lease:
                self._of_lane[lane] = last
                self._moved_by[lane] += moved_by.get(lane, 0)
                if lane not in moved_by:
                    self._unplaced.add(lane)
        lease.link.close()
        self._leases.remove(lease)
        self._before = [self._before[0] + lease.acknowledged, self._before[1] + lease.resent + len(left)]
        return True

    def put(self, segment: SealedSegment, td_error: npt.NDArray[np.float32] | None = None) -> None:
        """Wait while too many segments are on the way, then send this one. An error leaves it untaken.

        Raises:
            ValueError: the cluster was closed, and its shards ended.
            LimiterTimeoutError: the shard took none for so long.  DamagedError, ...: it refuses them.
        """
        self._check_open(True)
        self._go_on(WINDOW - 1, WINDOW_BYTES, getattr(self._asked, "timeout", self._timeout))
        lease = self._route(segment)
        lane = segment.lane - self.first_lane
        if lease is not self._leases[0] or self._moved_by[lane] or lease.first_lane != self.first_lane:
            number, first = lease.first_lane + lane, segment.first_step + self._moved_by[lane]
            segment = _moved(segment, number, first)
        lease.keep(segment, td_error)
        with contextlib.suppress(ShardLostError):  # later
            try:
                if lease.link.may_be_tried():
                    lease.send()
            except ShardLostError:
                self._leave_if_gone(lease)

    def _route(self, segment: SealedSegment) -> Lease:
        """Return the lease that takes a segment: with an episode's beginning, the lane goes to the last one."""
        lane, last = segment.lane - self.first_lane, self._leases[-1]
        if self._of_lane[lane] is not last and begins_episode(segment.packed):
            self._broken.discard(lane)
            self._of_lane[lane] = last
            self._unplaced.add(lane)
        if lane in self._unplaced:
            self._unplaced.discard(lane)
            self._moved_by[lane] = _begin(self._of_lane[lane], lane) - segment.first_step
        return self._of_lane[lane]

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
        self._go_on(0, 0, self._timeout if timeout is None else check_timeout("writer", timeout))

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
        """Take acknowledgements of a while ago, without waiting, and send what there was no room for.

        Raises: DamagedError, ...: as ``put``.
        """
        with contextlib.suppress(ShardLostError):
            for lease in self._leases:
                lease.hear_all()
                if lease.waiting and lease.link.may_be_tried():
                    lease.send()

    def close(self) -> None:
        """Disconnect."""
        for one in self._leases:
            one.link.close()

    def _go_on(self, most: int, most_bytes: int, timeout: float) -> None:
        """Send what is not sent, and take acknowledgements until at most so much waits for one."""
        self.check_process()
        deadline = time.monotonic() + timeout
        why = ""
        self.hear()
        while self.waiting and (self.waiting > most or sum(one.waiting_bytes for one in self._leases) > most_bytes):
            self._check_open(True)
            lease = next(one for one in self._leases if one.waiting)
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
                    if self._leave_if_gone(lease):
                        continue
                if time.monotonic() > deadline:
                    raise LimiterTimeoutError(
                        f"writer {self.name!r}: {self.waiting} segments were not taken in {timeout:g} s: {why}"
                    ) from error
                time.sleep(RETRY_S)


def _begin(lease: Lease, lane: int) -> int:
    """Return the number of a lane's first step there; one is skipped after those of an earlier writer."""
    there = lease.lane_steps[lane]
    return there + (there > 0)


def _moved(segment: SealedSegment, lane: int, first_step: int) -> SealedSegment:
    packed = readdressed(segment.packed, lane, first_step)
    return replace(segment, lane=lane, first_step=first_step, packed=packed)
