"""Writer into a cluster: encodes steps, and keeps each segment until its shard has it, so that each arrives once."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sharpwave.errors import LimiterTimeoutError
from sharpwave.sampling.limiters import check_timeout
from sharpwave.segment_writer import SealedSegment, SegmentWriter
from sharpwave.serve.link import RETRY_S, Link, ShardLostError
from sharpwave.serve.requests import Request
from sharpwave.serve.wire import Part
from sharpwave.spec import Spec

WINDOW = 32
"""Messages without an acknowledgement beyond which a writer waits."""
WINDOW_BYTES = 8 << 20
"""Bytes of segments without an acknowledgement beyond which a writer waits."""


@dataclass
class _Sent:
    """Segment on its way. ``ticket``: of the request that it went with, on the connection ``connection``; 0: none."""

    segment: SealedSegment
    ticket: int = 0
    connection: int = 0


class RemoteWriter(SegmentWriter):
    """Writer of steps into a shard of a cluster. Made by ``Cluster.writer``; a ``Recorder`` can write into it.

    Segments are kept until the shard has acknowledged them. Where its connection breaks, the writer connects again and
    sends those that the shard does not have; each is entered once. While the shard is away, or a limiter holds writers
    up, steps are encoded until ``WINDOW`` segments wait; then ``extend`` blocks.

    Args:
        link: to the shard, this writer's own. ``name``: by which the shard knows its lanes.
        durable: segments are acknowledged once they are on the shard's disk.
        timeout: seconds that ``extend`` and ``flush`` wait at most.

    Raises:
        ValueError, ConnectionError.
    """

    def __init__(
        self,
        spec: Spec,
        link: Link,
        lanes: int,
        *,
        name: str,
        durable: bool,
        segment_steps: int,
        codec: str | Mapping[str, str] = "auto",
        timeout: float | None = None,
    ) -> None:
        self._link, self.name, self._durable = link, name, durable
        self._timeout = check_timeout("writer", timeout)
        self._unsent: deque[_Sent] = deque()  # and unacknowledged, in order
        self._known_dictionaries: set[int] = set()
        self._lanes, self.first_lane = lanes, -1
        self.acknowledged = 0
        self.resent = 0
        steps, most = self._lease()
        super().__init__(
            spec,
            lanes,
            self._take,
            first_lane=self.first_lane,
            first_steps=[step + (step > 0) for step in steps],
            codec=codec,
            segment_steps=min(segment_steps, most),
        )

    def _lease(self) -> tuple[list[int], int]:
        """Connect, and get lanes, or those that this writer had.  Raises: ShardLostError."""
        self._link.connect()
        asked: dict[str, Any] = {"name": self.name, "lanes": self._lanes}
        if self.first_lane >= 0:
            asked["first_lane"] = self.first_lane
        head = self._link.call(Request.LEASE, asked).head
        if self.first_lane >= 0 and head["first_lane"] != self.first_lane:
            raise ConnectionError(
                f"writer {self.name!r}: its lanes {self.first_lane} to {self.first_lane + self._lanes - 1} are another "
                "writer's now; make a new writer"
            )
        self.first_lane = int(head["first_lane"])
        self._connection = self._link.connections
        self._known_dictionaries.clear()
        return list(head["lane_steps"]), int(head["segment_steps"])

    @property
    def waiting(self) -> int:
        """Segments that the shard has not acknowledged."""
        return len(self._unsent)

    def _take(self, segment: SealedSegment) -> None:
        """Wait while too many segments are on the way, then send this one. An error leaves it untaken."""
        self._go_on(WINDOW - 1, WINDOW_BYTES)
        self._unsent.append(_Sent(segment))
        with contextlib.suppress(ShardLostError):  # later
            if self._link.may_be_tried():
                self._send_all()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the shard has every sealed segment. Steps in open segments stay here.

        Raises:
            LimiterTimeoutError: it did not take them in time.
        """
        self._go_on(0, 0, timeout)

    def close(self, timeout: float | None = None) -> None:
        """End the lanes' episodes, send all that is there, and disconnect.

        Raises:
            LimiterTimeoutError: the shard did not take all in time.
        """
        for lane in range(self._lanes):
            self.break_episode(lane)
        with self._lock:
            self._seal_all()
        self.flush(timeout)
        self._link.close()

    def _seal_all(self) -> None:
        """Seal the open segments."""
        log = self._log
        for lane in range(log.lanes):
            slot = int(log.opened.slots[lane])
            if log.index.rows[slot]:
                log.seal_open(lane)

    def _go_on(self, most: int, most_bytes: int, timeout: float | None = None) -> None:
        """Send what is not sent, and take acknowledgements until at most so much waits for one."""
        deadline = time.monotonic() + (self._timeout if timeout is None else check_timeout("writer", timeout))
        why = ""
        while True:
            try:
                if not self._link.may_be_tried():
                    raise ShardLostError(why)
                self._send_all()
                while self._waits(most, most_bytes):
                    first = self._unsent[0]
                    self._link.wait(first.ticket)
                    self._unsent.popleft()
                    self.acknowledged += first.segment.steps
                return
            except ShardLostError as error:
                why = str(error) or why
                if self._waits(most, most_bytes):
                    if time.monotonic() > deadline:
                        raise LimiterTimeoutError(
                            f"writer {self.name!r}: {len(self._unsent)} segments could not be delivered: {why}"
                        ) from error
                    time.sleep(RETRY_S)
                else:
                    return  # later

    def _waits(self, most: int, most_bytes: int) -> bool:
        return len(self._unsent) > most or sum(len(one.segment.packed) for one in self._unsent) > most_bytes

    def _send_all(self) -> None:
        """Send segments that were not sent on this connection; after another connection, those that did not arrive."""
        self._link.connect()
        if self._link.connections != self._connection:
            steps, _ = self._lease()
            while self._unsent and self._there(self._unsent[0].segment, steps):
                self.acknowledged += self._unsent.popleft().segment.steps
        for one in self._unsent:
            if one.connection != self._connection:
                self.resent += one.connection != 0
                one.ticket, one.connection = self._put(one.segment), self._connection

    def _there(self, segment: SealedSegment, steps: list[int]) -> bool:
        """Return whether the shard has a segment, whose lanes have so many ``steps``."""
        return segment.first_step + segment.steps <= steps[segment.lane - self.first_lane]

    def _put(self, segment: SealedSegment) -> int:
        parts: dict[str, Part] = {"segment:0": segment.packed}
        for key, data in segment.dictionaries.items():
            if key not in self._known_dictionaries:
                parts[f"dictionary:{key:x}"] = data
        head = {"keys": [[f"{key:x}" for key in segment.dictionaries]], "durable": self._durable}
        ticket = self._link.submit(Request.PUT, head, parts)
        self._known_dictionaries.update(segment.dictionaries)
        return ticket
