"""Link: a client's connection to one shard. Requests are pipelined; replies arrive in order."""

from __future__ import annotations

import builtins
import contextlib
import itertools
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sharpwave import errors
from sharpwave.native.forks import follow
from sharpwave.serve import wire
from sharpwave.serve.addresses import UNIX, Address, Security, connect
from sharpwave.serve.cut_batches import Dictionaries
from sharpwave.serve.wire import FAILED, Frame, Part, Request

READY_S = 180.0
"""Seconds that a shard may take to start: a large store on disk is read."""
REPLY_S = 60.0
"""Time that a shard may take to answer."""
MAX_UNANSWERED_BYTES = 1 << 16
"""Bytes of requests on the way beyond which replies are read first: a server that cannot send them reads nothing."""
RETRY_S = 0.2
"""Pause between attempts to reach a shard that was lost."""

SHARD = "shard", "sharpwave serve"
HUB = "hub", "sharpwave train ... --hub-listen"


class ShardLostError(ConnectionError):
    """Error raised where a shard's process has ended, or cannot be reached."""


class OtherShardLostError(RuntimeError):
    """Error of a service that answers but cannot reach a shard: asking it again does not help."""


class Link:
    """Connection to one shard, made on first use, and again after it broke.

    Args:
        patience_s: seconds without an answer after which the shard counts as lost.
        moved: returns the shard's current address, if it cannot be reached; ``None``: the address is fixed.
        peer: name of the listener, and the command that starts it, for errors.

    Attributes:
        address: of the shard.
        incarnation: the shard's incarnation when the connection was made; -1: never connected.
        connections: number of connections made. ``shared``: numbers of the blocks of memory that this one shares;
            ``forgotten``: numbers of blocks freed here, which the shard must be told about.
        dictionaries: of encoded rows, received from the shard over this connection.
        sent_bytes: bytes of requests. ``received_bytes``: bytes of replies.
    """

    def __init__(
        self,
        address: Address,
        security: Security,
        patience_s: float = REPLY_S,
        moved: Callable[[], Address] | None = None,
        peer: tuple[str, str] = SHARD,
    ) -> None:
        self.address, self._security, self._patience_s, self._moved = address, security, patience_s, moved
        self._what, self._started_by = peer
        self.incarnation, self.connections = -1, 0
        self.sent_bytes = self.received_bytes = 0
        self.shared: set[int] = set()
        self.forgotten: deque[int] = deque()
        self.dictionaries = Dictionaries()
        self._socket: socket.socket | None = None
        self._numbers = itertools.count(1)
        self._waiting: deque[tuple[int, int]] = deque()  # number and bytes of requests without a reply
        self._unanswered = 0
        self._replies: dict[int, Frame] = {}
        self._dropped: set[int] = set()
        self._lost_at = 0.0
        self._why = ""
        self.lock = threading.RLock()
        follow(self)

    def forked(self) -> None:
        """Let the connection go, with its replies: they are the parent's, a thread of which may hold the lock."""
        self.lock = threading.RLock()
        self.close()

    @property
    def is_local(self) -> bool:
        """Whether memory can be shared with the shard."""
        return self.address.kind == UNIX

    @property
    def is_connected(self) -> bool:
        """Whether it was, when it was last used."""
        return self._socket is not None

    def connect(self, wait_s: float = 0.0) -> None:
        """Connect, if that is not done.

        Args:
            wait_s: how long to try again while the shard cannot be reached.

        Raises:
            ShardLostError: it cannot be reached.  ConnectionError: it refuses this client.
        """
        with self.lock:
            if self._socket is not None:
                return
            deadline = time.monotonic() + wait_s
            while True:
                try:
                    made, about = connect(self.address, self._security, started_by=self._started_by)
                    break
                except ConnectionError as error:
                    if self._elsewhere():
                        continue
                    if time.monotonic() >= deadline:
                        self._lost_at, self._why = time.monotonic(), str(error)
                        raise ShardLostError(f"{self._what} {error}") from error
                    time.sleep(RETRY_S)
            made.settimeout(self._patience_s)
            self._socket, self.incarnation = made, int(about.get("shard", -1))
            self.connections += 1
            self._forget()

    def another(self) -> Link:
        """Return a further connection to the same shard."""
        return Link(self.address, self._security, self._patience_s, self._moved, (self._what, self._started_by))

    def has_reply(self, number: int | None = None, wait_s: float = 0.0) -> bool:
        """Return whether a reply is arriving: then ``wait`` for the oldest request does not block for long.

        Args:
            number: number of the oldest request; a reply that was already read counts, too.
            wait_s: seconds to wait for a reply.

        Cost: 2 us.
        """
        with self.lock:
            if number in self._replies:
                return True
            if self._socket is None:
                return False
            return _ready(self._socket, wait_s)

    def has_room(self) -> bool:
        """Return whether a request can be sent now; read replies that have arrived. A shard may stop reading for long.

        Raises: ShardLostError.
        """
        with self.lock:
            while self._unanswered > MAX_UNANSWERED_BYTES and self.has_reply():
                self._read()
            socket_has_room = self._socket is None or _ready(self._socket, 0.0, to_write=True)
            return socket_has_room and self._unanswered <= MAX_UNANSWERED_BYTES

    def _elsewhere(self) -> bool:
        """Ask where the shard is; return whether that is another address."""
        if self._moved is None:
            return False
        try:
            address = self._moved()
        except (OSError, LookupError, ValueError):  # the address is unknown at present
            return False
        if address == self.address:
            return False
        self.address = address
        return True

    def may_be_tried(self) -> bool:
        """Return whether it is connected, or was lost long enough ago to be tried again."""
        return self._socket is not None or time.monotonic() - self._lost_at >= RETRY_S

    def submit(
        self,
        kind: Request,
        head: Mapping[str, Any],
        parts: Mapping[str, Part] | None = None,
        fds: Sequence[int] = (),
    ) -> int:
        """Send a request, without waiting for its reply; return its number.

        Raises:
            ShardLostError: the shard cannot be reached, or its connection broke: earlier requests are lost too.
        """
        with self.lock:
            self.connect()
            assert self._socket is not None
            while self._unanswered > MAX_UNANSWERED_BYTES:
                self._read()
            number = next(self._numbers)
            try:
                nbytes = wire.send(self._socket, kind, number, head, parts, fds)
                self._waiting.append((number, nbytes))
            except OSError as error:
                raise self._lost(error) from error
            except BaseException:  # an interrupt: half a frame is on its way
                self.close()
                raise
            self.sent_bytes += nbytes
            self._unanswered += nbytes
            return number

    def wait(self, number: int) -> Frame:
        """Return the reply to a request.

        Raises:
            ShardLostError: the connection broke before the reply arrived.
            ValueError, LookupError, OSError, ...: the shard's own error.
        """
        with self.lock:
            while number not in self._replies:
                if not any(number == one for one, _ in self._waiting):
                    raise ShardLostError(f"{self._what} {self.address}: {self._why or 'the connection broke'}")
                self._read()
            reply = self._replies.pop(number)
        if reply.kind == FAILED:
            raise _error(self._what, str(reply.head.get("kind")), str(reply.head.get("text")))
        return reply

    def call(
        self, kind: Request, head: Mapping[str, Any] | None = None, parts: Mapping[str, Part] | None = None
    ) -> Frame:
        """Send a request and return its reply.  Raises: as ``submit`` and ``wait``."""
        return self.wait(self.submit(kind, head or {}, parts))

    def drop(self, number: int) -> None:
        """Forget a request's reply, received or not."""
        with self.lock:
            if self._replies.pop(number, None) is None and any(number == one for one, _ in self._waiting):
                self._dropped.add(number)

    def _read(self) -> None:
        """Receive the next reply.  Raises: ShardLostError."""
        if self._socket is None or not self._waiting:
            raise ShardLostError(f"{self._what} {self.address}: {self._why or 'the connection broke'}")
        try:
            reply = wire.receive(self._socket)
            if reply is not None:
                reply.dictionaries = self.dictionaries = self.dictionaries.after(reply.parts)
        except OSError as error:
            raise self._lost(error) from error
        except BaseException:  # an interrupt: half a frame was read
            self.close()
            raise
        number, nbytes = self._waiting[0]
        if reply is None or reply.number != number:
            what = "it closed the connection" if reply is None else f"it answered {reply.number}, not {number}"
            raise self._lost(ConnectionError(what))
        self._waiting.popleft()
        self._unanswered -= nbytes
        self.received_bytes += reply.nbytes
        if number in self._dropped:
            self._dropped.discard(number)
        else:
            self._replies[number] = reply

    def _lost(self, error: BaseException) -> ShardLostError:
        self.close()
        self._lost_at = time.monotonic()
        text = f"no answer for {self._patience_s:g} s" if isinstance(error, TimeoutError) else str(error)
        self._why = text or type(error).__name__
        return ShardLostError(f"{self._what} {self.address}: {self._why}")

    def _forget(self) -> None:
        self._waiting.clear()
        self._replies.clear()
        self._dropped.clear()
        self.shared.clear()
        self.forgotten.clear()
        self.dictionaries = Dictionaries()
        self._unanswered = 0

    def __del__(self) -> None:
        if getattr(self, "_socket", None) is not None:
            self.close()

    def close(self) -> None:
        """Close the connection."""
        with self.lock:
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.close()
                self._socket = None
            self._forget()


def ask_each(links: Iterable[Link], kind: Request, head: Mapping[str, Any]) -> list[Frame | ShardLostError]:
    """Send a request over several links, then take their replies: each one's, or the error by which it was lost."""
    tickets: list[tuple[Link, int | ShardLostError]] = []
    for link in links:
        try:
            tickets.append((link, link.submit(kind, head)))
        except ShardLostError as error:
            tickets.append((link, error))
    replies: list[Frame | ShardLostError] = []
    for link, ticket in tickets:
        try:
            replies.append(link.wait(ticket) if isinstance(ticket, int) else ticket)
        except ShardLostError as error:
            replies.append(error)
    return replies


def _ready(connection: socket.socket, wait_s: float, to_write: bool = False) -> bool:
    """Return whether a socket can be read from, or written to, at once; wait for that so long."""
    if not hasattr(select, "poll"):
        one = [connection]
        read, write, _ = select.select([] if to_write else one, one if to_write else [], [], wait_s)
        return bool(read or write)
    poll = select.poll()  # takes descriptors beyond 1,024
    poll.register(connection, select.POLLOUT if to_write else select.POLLIN)
    return bool(poll.poll(wait_s * 1000))


def _error(what: str, kind: str, text: str) -> Exception:
    """Return the error that the other end raised, as the class of that name where it is one that callers may catch."""
    named = getattr(errors, kind, None) or getattr(builtins, kind, None)
    plain = isinstance(named, type) and issubclass(named, Exception) and not issubclass(named, errors.NewerVersionError)
    if plain and named is not None and kind not in ("ConnectionError", "TimeoutError"):
        return named(f"{what}: {text}") if not issubclass(named, OSError) else OSError(f"{what}: {text}")
    if kind == "TimeoutError":
        return errors.LimiterTimeoutError(text)
    if kind == ShardLostError.__name__:
        return OtherShardLostError(text)
    return RuntimeError(f"{what}: {kind}: {text}")
