"""Memory budget of a shard: bytes that all its connections together may occupy."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

BYTES = 1 << 30
"""Budget of a shard without ``ram=``."""
SHARE = 0.25
"""Budget of a shard with ``ram=``, as a part of that."""
MIN_SEGMENTS = 16
"""Least number of segments, not encoded yet, that the budget has room for."""
KEPT_SHARE, WRITERS_SHARE = 0.5, 0.25
"""Shares of the budget for memory kept while connections are open, and for segments on their way into the store.
Segments may wait for learners, whose requests get the rest."""
HEAD_FACTOR, BODY_FACTOR = 32, 2
"""Bytes of memory for a byte of a message: its JSON values, and its body with a copy."""
WAIT_S = 30.0
"""Time that a request waits until others are answered."""
STALLED_S = 20.0
"""Time in which a message must arrive, or a reply be read, while others wait for its memory."""
LOOK_S = 0.2


class NoRoomError(MemoryError):
    """Raised where there is no room at once.

    Attributes:
        nbytes: that are missing. ``kept``: whether they are kept while the connection is open.
    """

    def __init__(self, nbytes: int, kept: bool) -> None:
        super().__init__(f"no room for {nbytes:,} bytes")
        self.nbytes, self.kept = nbytes, kept


@dataclass(eq=False)
class Holding:
    """Memory that a shard holds for one connection.

    Attributes:
        end: closes the connection. ``gone``: returns whether it is closed.
        kept: bytes held while the connection is open: dictionaries, layouts, buffers. ``spare``: its unused part.
        passing: bytes of its request and of the reply. ``writes``: whether the request carries segments.
        since: time at which the message began to arrive or to be sent; ``None``: a request is being answered, or there
            is none.
    """

    end: Callable[[], None] = lambda: None
    gone: Callable[[], bool] = lambda: False
    kept: int = 0
    spare: int = 0
    passing: int = 0
    writes: bool = False
    since: float | None = None
    ended: bool = field(default=False, init=False)


class Budget:
    """Account of the memory that a shard holds for connections. May be called from several threads.

    Where memory that is kept runs short, the connection that keeps most is ended; its client connects again.

    Attributes:
        limit_bytes: of all together.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._kept_limit = int(limit_bytes * KEPT_SHARE)
        self._writers_limit = int(limit_bytes * WRITERS_SHARE)
        self._passing_limit = limit_bytes - self._kept_limit
        self._holdings: set[Holding] = set()
        self._kept = self._passing = self._writers = 0
        self._changed = threading.Condition()

    @classmethod
    def of_store(cls, ram: int | None, segment_bytes: int) -> Budget:
        """Return the budget of a shard whose segments have so many bytes before they are encoded."""
        return cls(max(BYTES if ram is None else int(ram * SHARE), MIN_SEGMENTS * segment_bytes))

    @property
    def held_bytes(self) -> int:
        """Bytes that all connections hold now."""
        return self._kept + self._passing

    def open(self, end: Callable[[], None], gone: Callable[[], bool]) -> Holding:
        """Return the holding of a new connection, as of ``Holding``."""
        made = Holding(end, gone)
        with self._changed:
            self._holdings.add(made)
        return made

    def close(self, holding: Holding) -> None:
        """Free the memory of a connection that has ended."""
        with self._changed:
            self._holdings.discard(holding)
            self._free(holding)
            self._kept -= holding.kept
            holding.kept = holding.spare = 0
            self._changed.notify_all()

    # memory of messages on their way

    def receive(
        self, holding: Holding, head_bytes: int, body_bytes: int, writes: bool, patience_s: float | None = None
    ) -> None:
        """Wait until there is room for a message of a connection, which is about to be received.

        Args:
            writes: whether it brings segments. ``patience_s``: default ``WAIT_S``.

        Raises: MemoryError.
        """
        nbytes = HEAD_FACTOR * head_bytes + BODY_FACTOR * body_bytes
        limit = self._writers_limit if writes else self._passing_limit
        what = f"a message of {body_bytes:,} bytes"
        holding.writes = writes
        self._take(holding, nbytes, limit, what, WAIT_S if patience_s is None else patience_s)
        holding.since = time.monotonic()

    def work(self, holding: Holding, nbytes: int, what: str) -> None:
        """Wait until there is room for the answer to a connection's request.  Raises: MemoryError."""
        self._take(holding, nbytes, self._passing_limit, what, WAIT_S)

    def work_at_once(self, holding: Holding, nbytes: int) -> None:
        """Take room for an answer without waiting.  Raises: NoRoomError."""
        with self._changed:
            if max(holding.passing, self._passing) + nbytes > self._passing_limit:
                raise NoRoomError(nbytes, kept=False)
            holding.passing += nbytes
            self._passing += nbytes

    def _take(self, holding: Holding, nbytes: int, limit: int, what: str, patience_s: float) -> None:
        if holding.passing + nbytes > limit:
            raise MemoryError(
                f"{what} takes {nbytes:,} bytes of a shard's memory, of at most {limit:,} for such requests: use "
                "smaller batches or segments, or give the shards more ram="
            )
        deadline = time.monotonic() + patience_s
        with self._changed:
            while self._passing + nbytes > self._passing_limit or (
                holding.writes and self._writers + nbytes > self._writers_limit
            ):
                now = time.monotonic()
                if now > deadline or holding.gone():
                    raise MemoryError(
                        f"{what} found no {nbytes:,} bytes of memory in {patience_s:g} s: requests of "
                        f"{len(self._holdings)} connections hold {self._passing:,}, of at most "
                        f"{self._passing_limit:,}; use fewer writers or learners a shard, or give the shards more ram="
                    )
                for one in self._holdings:
                    if one.since is not None and one.since < now - STALLED_S and one.passing:
                        self._end(one)
                self._changed.wait(LOOK_S)
            holding.passing += nbytes
            self._passing += nbytes
            self._writers += nbytes * holding.writes

    def answered(self, holding: Holding) -> None:
        """Free the memory of a request whose reply was sent."""
        with self._changed:
            self._free(holding)
            self._changed.notify_all()

    def _free(self, holding: Holding) -> None:
        self._passing -= holding.passing
        self._writers -= holding.passing * holding.writes
        holding.passing, holding.since = 0, None

    # memory kept while a connection is open

    def keep(self, holding: Holding, nbytes: int, what: str) -> None:
        """Make room for memory kept for a connection, by ending the connections that keep most.

        Raises: MemoryError: this one would keep most of all.
        """
        deadline = time.monotonic() + WAIT_S
        with self._changed:
            while self._kept + nbytes > self._kept_limit:
                most = max(self._holdings, key=lambda one: one.kept, default=holding)
                if most.kept <= holding.kept + nbytes or time.monotonic() > deadline:
                    raise MemoryError(
                        f"{what}: a shard would keep {holding.kept + nbytes:,} bytes for this connection, and "
                        f"{self._kept + nbytes:,} for all, of at most {self._kept_limit:,}; use smaller batches or "
                        "fewer clients a shard, or give the shards more ram="
                    )
                self._end(most)
                self._changed.wait(LOOK_S)
            self._keep(holding, nbytes)

    def keep_at_once(self, holding: Holding, nbytes: int) -> None:
        """Keep so many bytes for a connection, its spare bytes first.  Raises: NoRoomError."""
        with self._changed:
            more = max(0, nbytes - holding.spare)
            if self._kept + more > self._kept_limit:
                raise NoRoomError(more, kept=True)
            self._keep(holding, more)
            holding.spare -= nbytes - more

    def _keep(self, holding: Holding, nbytes: int) -> None:
        self._kept += nbytes
        holding.kept += nbytes

    def let_go(self, holding: Holding, nbytes: int) -> None:
        """Free bytes that were kept for a connection."""
        with self._changed:
            self._keep(holding, -nbytes)
            self._changed.notify_all()

    def _end(self, holding: Holding) -> None:
        if not holding.ended:
            holding.ended = True
            holding.end()
