"""Delivery of sealed segments to a shard: each is kept until it is acknowledged, and arrives once."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.errors import LimiterTimeoutError, StoreInUseError
from sharpwave.sampling.limiters import check_timeout
from sharpwave.segment_writer import SealedSegment
from sharpwave.serve.link import RETRY_S, Link, ShardLostError
from sharpwave.serve.requests import Request
from sharpwave.serve.wire import Part

WINDOW = 32
"""Segments without an acknowledgement beyond which a writer waits."""
WINDOW_BYTES = 8 << 20
"""Bytes of segments without an acknowledgement beyond which a writer waits."""


@dataclass
class _Kept:
    """Segment that the shard has not acknowledged; it was sent as ``ticket`` on the connection ``connection``."""

    segment: SealedSegment
    td_error: npt.NDArray[np.float32] | None
    ticket: int = 0
    connection: int = 0


class Delivery:
    """A writer's lanes of one shard, and the segments on their way there.

    Where the connection breaks, it is made again and segments that the shard does not have are sent again. The shard
    recognises a segment that it has, by its lane and first step.

    Args:
        link: to the shard, of this delivery alone. ``name``: by which the shard knows its ``lanes``.
        durable: segments are acknowledged once they are on the shard's disk.
        timeout: seconds that ``put`` and ``flush`` wait at most; ``None``: 60.

    Attributes:
        first_lane: the shard's number of the first lane. ``lane_steps``: steps that the shard had of each at first.
        segment_steps: most steps in a segment. ``acknowledged``: steps. ``resent``: segments.

    Raises:
        ShardLostError: the shard cannot be reached.  ValueError: it has other lanes under that name.
    """

    def __init__(
        self, link: Link, name: str, lanes: int, *, durable: bool = False, timeout: float | None = None
    ) -> None:
        self._link, self.name, self.lanes, self._durable = link, name, lanes, durable
        self._timeout = check_timeout("writer", timeout)
        self._kept: deque[_Kept] = deque()  # in order
        self._bytes = 0
        self._process = os.getpid()
        self._turn = 0  # by which the shard tells this writer from one of the same name that came later
        self._dictionaries: set[int] = set()  # that the shard has, of this connection
        self.first_lane, self.acknowledged, self.resent = -1, 0, 0
        self.lane_steps = self._lease()

    def _lease(self) -> list[int]:
        """Connect, and get lanes, or those that this writer had; return the steps that the shard has of each."""
        self._link.connect()
        asked = {"name": self.name, "lanes": self.lanes, "durable": self._durable, "turn": self._turn}
        head = self._link.call(Request.LEASE, asked).head
        first = int(head["first_lane"])
        if self.first_lane not in (-1, first):
            raise ConnectionError(
                f"writer {self.name!r}: the shard began anew and gave its lanes another number ({first}, expected "
                f"{self.first_lane}); make a new writer"
            )
        self.first_lane, self.segment_steps, self._turn = first, int(head["segment_steps"]), int(head["turn"])
        self._connection = self._link.connections
        self._dictionaries.clear()
        self._safe_steps: list[int] = list(head.get("safe_steps", head["lane_steps"]))
        return list(head["lane_steps"])

    @property
    def waiting(self) -> int:
        """Segments that the shard has not acknowledged."""
        return len(self._kept)

    def put(self, segment: SealedSegment, td_error: npt.NDArray[np.float32] | None = None) -> None:
        """Wait while too many segments are on the way, then send this one. An error leaves it untaken.

        Raises:
            LimiterTimeoutError: the shard took none for so long.  DamagedError, ...: it refuses them.
        """
        self._go_on(WINDOW - 1, WINDOW_BYTES, self._timeout)
        self._kept.append(_Kept(segment, td_error))
        self._bytes += len(segment.packed)
        with contextlib.suppress(ShardLostError):  # later
            if self._link.may_be_tried():
                self._send()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the shard has every segment.  Raises: LimiterTimeoutError: it did not take them in time."""
        self._go_on(0, 0, self._timeout if timeout is None else check_timeout("writer", timeout))

    def close(self) -> None:
        """Disconnect."""
        self._link.close()

    def _go_on(self, most: int, most_bytes: int, timeout: float) -> None:
        """Send what is not sent, and take acknowledgements until at most so much waits for one."""
        if self._process != os.getpid():
            raise StoreInUseError(
                f"writer {self.name!r}: process {self._process} writes with it; this is process {os.getpid()}, forked "
                "from it: make a writer of another name here"
            )
        deadline = time.monotonic() + timeout
        why = ""
        while self._kept and (len(self._kept) > most or self._bytes > most_bytes):
            try:
                if not self._link.may_be_tried():
                    raise ShardLostError(why)
                self._send()
                if self._kept:
                    try:
                        self._link.wait(self._kept[0].ticket)
                    except ShardLostError:
                        raise
                    except Exception:  # it took neither this one nor those after it: all are sent again
                        self._link.close()
                        raise
                    self._acknowledge()
            except ShardLostError as error:
                why = str(error) or why
                if time.monotonic() > deadline:
                    raise LimiterTimeoutError(
                        f"writer {self.name!r}: {len(self._kept)} segments were not taken in {timeout:g} s: {why}"
                    ) from error
                time.sleep(RETRY_S)

    def _acknowledge(self) -> None:
        first = self._kept.popleft()
        self._bytes -= len(first.segment.packed)
        self.acknowledged += first.segment.steps

    def _send(self) -> None:
        """Send what was not sent on this connection; on a new one, only what the shard does not have."""
        self._link.connect()
        if self._link.connections != self._connection:
            self._lease()
            while self._kept and self._there(self._kept[0].segment):
                self._acknowledge()
        for one in self._kept:
            if one.connection != self._connection:
                self.resent += one.connection != 0
                one.ticket, one.connection = self._sent(one), self._connection

    def _there(self, segment: SealedSegment) -> bool:
        """Return whether the shard has acknowledged a segment whose acknowledgement did not arrive."""
        return segment.first_step + segment.steps <= self._safe_steps[segment.lane - self.first_lane]

    def _sent(self, kept: _Kept) -> int:
        segment = kept.segment
        parts: dict[str, Part] = {"segment:0": segment.packed}
        if kept.td_error is not None:
            parts["td_error:0"] = kept.td_error
        for key, data in segment.dictionaries.items():
            if key not in self._dictionaries:
                parts[f"dictionary:{key:x}"] = data
        head: dict[str, Any] = {
            "keys": [[f"{key:x}" for key in segment.dictionaries]],
            "durable": self._durable,
        }
        ticket = self._link.submit(Request.PUT, head, parts)
        self._dictionaries.update(segment.dictionaries)
        return ticket
