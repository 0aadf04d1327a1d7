"""Lease: a writer's lanes of one shard, and the segments on their way there, each kept until it is acknowledged."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.segment_writer import SealedSegment
from sharpwave.serve.link import Link, ShardLostError
from sharpwave.serve.requests import Request
from sharpwave.serve.wire import Part

Errors = npt.NDArray[np.float32]
HEAR_S = 0.5
"""How long ago a segment was sent whose acknowledgement is looked for though nothing waits for it."""


class DrainedError(Exception):
    """Raised where a shard gives no lanes because it is drained.

    Attributes:
        elsewhere: the shards that take its writers, as the directory says it, and ``at_once``: whether episodes under
            way move too.
    """

    def __init__(self, elsewhere: Mapping[str, Any]) -> None:
        super().__init__("the shard is drained")
        self.elsewhere = elsewhere


class BeganAnewError(ShardLostError):
    """Raised where a shard is another than it was, and has given a writer's lanes other numbers."""


@dataclass
class _Kept:
    """Segment that the shard has not acknowledged; it was sent as ``ticket`` on the connection ``connection``."""

    segment: SealedSegment
    td_error: Errors | None
    ticket: int = 0
    connection: int = 0
    kept_at: float = field(default_factory=time.monotonic)


class Lease:
    """Lanes that a writer has of one shard, and segments for them.

    Where the connection breaks, it is made again and segments that the shard does not have are sent again. The shard
    recognises a segment that it has, by its lane and first step.

    Attributes:
        first_lane: the shard's number of the first lane. ``lane_steps``: steps that the shard had of each at first.
        segment_steps: most steps in a segment. ``acknowledged``: steps. ``resent``: segments.
        waiting_bytes: of the segments kept. ``elsewhere``: as of ``DrainedError``, once the shard said so.
        number: of the shard. ``turn``: by which it tells this writer from one of the same name that came later.
        began_anew: whether there is another in its place, which gave these lanes other numbers.

    Args:
        since: turn that this writer had in another shard, where it is one that goes on; 0: it is a new one.

    Raises:
        ShardLostError: the shard cannot be reached.  ValueError: it has other lanes under that name, or a later writer
            of that name.  DrainedError.
    """

    def __init__(self, link: Link, number: int, name: str, lanes: int, durable: bool, since: int = 0) -> None:
        self.number, self._since, self.began_anew = number, since, False
        self.link, self._name, self._lanes, self._durable = link, name, lanes, durable
        self._kept: deque[_Kept] = deque()  # in order
        self.waiting_bytes = 0
        self.elsewhere: Mapping[str, Any] | None = None
        self.turn = 0
        self._dictionaries: set[int] = set()  # that the shard has, of this connection
        self.first_lane, self.acknowledged, self.resent = -1, 0, 0
        self.lane_steps = self._taken()

    def _taken(self) -> list[int]:
        """Connect, and get lanes, or those that this writer had; return the steps that the shard has of each."""
        self.link.connect()
        asked = {"name": self._name, "lanes": self._lanes, "durable": self._durable, "turn": self.turn}
        if self._since:
            asked["since"] = self._since
        reply = self.link.call(Request.LEASE, asked)
        head, parts = reply.head, reply.parts
        if "first_lane" not in head:
            raise DrainedError(head["elsewhere"])
        first = int(head["first_lane"])
        if self.first_lane not in (-1, first):
            self.began_anew = True
            raise BeganAnewError(
                f"writer {self._name!r}: the shard began anew and gave its lanes another number ({first}, expected "
                f"{self.first_lane})"
            )
        self.first_lane, self.segment_steps, self.turn = first, int(head["segment_steps"]), int(head["turn"])
        self._connection = self.link.connections
        self._dictionaries.clear()
        self.elsewhere = head.get("elsewhere")
        self._safe_steps: list[int] = parts["safe_steps"].tolist()
        return list(parts["lane_steps"].tolist())

    @property
    def waiting(self) -> int:
        """Segments that the shard has not acknowledged."""
        return len(self._kept)

    def keep(self, segment: SealedSegment, td_error: Errors | None) -> None:
        """Take a segment, to be sent."""
        self._kept.append(_Kept(segment, td_error))
        self.waiting_bytes += len(segment.packed)

    def left(self) -> list[tuple[SealedSegment, Errors | None]]:
        """Return the segments that are kept, in order."""
        return [(one.segment, one.td_error) for one in self._kept]

    def send(self) -> None:
        """Send what was not sent on this connection; on a new one, only what the shard does not have.

        Where too many are not answered yet, the rest stays for the next time.

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
            ShardLostError.  DamagedError, ...: it is refused, and so are those after it: all are sent again.
        """
        try:
            head = self.link.wait(self._kept[0].ticket).head
        except ShardLostError:
            raise
        except Exception:
            self.link.close()
            raise
        self._acknowledge()
        self.elsewhere = head.get("elsewhere")

    def hear_all(self) -> None:
        """Take acknowledgements of a while ago, without waiting: a slow writer too hears that its shard is drained.

        Raises: as ``hear``.
        """
        while self._kept and self._kept[0].kept_at < time.monotonic() - HEAR_S:
            if self._kept[0].connection != self._connection or not self.link.has_reply():
                return
            self.hear()

    def _acknowledge(self) -> None:
        first = self._kept.popleft()
        self.waiting_bytes -= len(first.segment.packed)
        self.acknowledged += first.segment.steps

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
            "noticed": [list(segment.noticed)],
        }
        ticket = self.link.submit(Request.PUT, head, parts)
        self._dictionaries.update(segment.dictionaries)
        return ticket
