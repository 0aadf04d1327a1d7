"""Server: a thread for each connection to a shard, and the connection's state in the shard."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from sharpwave.errors import ShardFailedError
from sharpwave.log.step_log import StepLog
from sharpwave.memory.batch_pool import Block
from sharpwave.native.forks import follow
from sharpwave.serve import wire
from sharpwave.serve.addresses import UNIX, Address, Security, accept, listen
from sharpwave.serve.budget import Budget, Holding
from sharpwave.serve.cut_batches import Sent
from sharpwave.serve.log_lines import LOG, failure
from sharpwave.serve.wire import FAILED, Frame, Request, WireError
from sharpwave.views.cutting import RowCutter
from sharpwave.views.layout import BatchLayout

MAX_CONNECTIONS = 4096
MAX_GREETING = 128
"""Limit of connections in the handshake; a further one ends the oldest."""
MAX_WAIT_S = 600.0
"""Time that segments wait in a shard until the learner samples."""
MAX_MAPPED = 1024
"""Blocks of memory that a connection may share."""
MAX_MAPPED_TOGETHER = 16_384
"""Limit of blocks over all connections: a process of Linux may map 65,530, and its store and threads need some."""
MAX_LAYOUTS = 64
"""Number of batch sizes whose layouts are kept for a connection."""
LayoutKey = tuple[int, int, frozenset[str] | None]
Reply = tuple[dict[str, Any], dict[str, Any]]
"""Head and parts of a reply."""


@dataclass
class Holder:
    """Holder of a writer's name: the writer whose ``turn`` it is. Segments of others of that name are refused."""

    turn: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class Client:
    """State of one connection in a shard.

    Attributes:
        local: whether memory can be shared with it. ``budget``: the shard's. ``holding``: its part of the budget.
        dictionaries: received dictionaries, by key. ``sent``: dictionaries that were sent to it.
        blocks: its shared memory, by number. ``cutters``: of encoded rows, by view.
        layouts: the latest layouts of batches in shared memory, by view, size and fields.
        connection: carries the replies.
        holder, turn: of the writer's name, and this writer's turn.
        refused: error of a refused segment of a writer; its segments that are already under way are refused, too.
    """

    local: bool
    budget: Budget
    holding: Holding = field(default_factory=Holding)
    holder: Holder = field(default_factory=Holder)
    turn: int = 0
    refused: Exception | None = None
    dictionaries: dict[int, bytes] = field(default_factory=dict)
    blocks: dict[int, Block] = field(default_factory=dict)
    layouts: dict[LayoutKey, BatchLayout] = field(default_factory=dict)
    sent: Sent = field(default_factory=dict)
    cutters: dict[int, RowCutter] = field(default_factory=dict)
    _cutter_bytes: dict[int, int] = field(default_factory=dict)
    connection: socket.socket | None = None

    def is_gone(self) -> bool:
        """Return whether its connection has ended, so that nothing is to wait for it."""
        if self.connection is None or not hasattr(select, "POLLRDHUP"):
            return False
        poll = select.poll()
        try:
            poll.register(self.connection, select.POLLRDHUP)
        except ValueError:  # it is closed
            return True
        return bool(poll.poll(0))

    def layout(
        self, view: int, size: int, names: frozenset[str] | None, make: Callable[[int], BatchLayout]
    ) -> BatchLayout:
        """Return the layout of batches of a view, of the fields ``names`` only, made if need be.

        Raises: MemoryError.
        """
        found = self.layouts.pop((view, size, names), None)
        if found is None:
            found = make(size)
            self.budget.keep(self.holding, found.work_bytes, f"a batch of {size:,} items")
        self.layouts[view, size, names] = found
        if len(self.layouts) > MAX_LAYOUTS:
            self._drop_layout(next(iter(self.layouts)))
        return found

    def _drop_layout(self, key: LayoutKey) -> None:
        gone = self.layouts.pop(key)
        self.budget.let_go(self.holding, gone.work_bytes)
        for block in self.blocks.values():
            if block.arrays is not None and block.arrays[0] is gone:
                block.arrays = None

    def forget(self, view: int) -> None:
        """Free the memory for a view that the client uses no longer."""
        for key in [one for one in self.layouts if one[0] == view]:
            self._drop_layout(key)
        if self.cutters.pop(view, None) is not None:
            self.budget.let_go(self.holding, self._cutter_bytes.pop(view, 0))

    def cutter(self, view: int, log: StepLog) -> RowCutter:
        """Return the cutter of a view's rows. Its memory is this connection's, which sends a batch before the next."""
        if view not in self.cutters:

            def grow(nbytes: int) -> None:
                self.budget.keep_at_once(self.holding, nbytes)
                self._cutter_bytes[view] = self._cutter_bytes.get(view, 0) + nbytes

            self.cutters[view] = RowCutter(log, grow)
        return self.cutters[view]

    def share(self, frame: Frame) -> None:
        """Unmap the blocks that a request says to ``forget``; map its new ones: ``shared``, their numbers and sizes."""
        shared = frame.head.get("shared", [])
        try:
            for name in frame.head.get("forget", []):
                self.blocks.pop(name, None)
            if not self.local and (shared or frame.fds):
                raise WireError("memory can be shared over a unix socket only")
            if len(shared) != len(frame.fds) or len(self.blocks) + len(shared) > MAX_MAPPED:
                raise WireError(f"{len(frame.fds)} descriptors for {len(shared)} blocks")
            if len(_MAPPED) + len(shared) > MAX_MAPPED_TOGETHER:
                raise MemoryError(
                    f"shared: connections share {len(_MAPPED):,} blocks of memory with this process, of at most "
                    f"{MAX_MAPPED_TOGETHER:,}; let batches go, or use fewer learners a shard"
                )
            for (name, nbytes), fd in zip(shared, frame.fds, strict=True):
                self.blocks[int(name)] = Block(int(nbytes), _mapped(fd, int(nbytes)))
        except (TypeError, ValueError, OverflowError) as error:
            raise WireError(f"shared {shared!r}: {error}") from error
        finally:
            for fd in frame.fds:
                os.close(fd)
            frame.fds.clear()

    def close(self) -> None:
        """Unmap its memory, and free its part of the budget."""
        for kept in (self.layouts, self.blocks, self.dictionaries, self.sent, self.cutters):
            kept.clear()
        self.budget.close(self.holding)


class _Mapped(mmap.mmap):
    """Memory of a client; a class of this module, so that it can be counted."""


_MAPPED: weakref.WeakSet[_Mapped] = weakref.WeakSet()


def _mapped(fd: int, nbytes: int) -> _Mapped:
    """Map shared memory that cannot shrink under this process.  Raises: ValueError."""
    import fcntl

    if nbytes <= 0 or os.fstat(fd).st_size < nbytes:
        raise ValueError(f"memory of {os.fstat(fd).st_size:,} bytes, expected {nbytes:,}")
    if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise ValueError("memory that may shrink; expected a memfd sealed with F_SEAL_SHRINK")
    made = _Mapped(fd, nbytes)
    _MAPPED.add(made)
    return made


class Answering(Protocol):
    """Party that answers requests: a shard, a directory or a hub.

    Attributes:
        budget: of memory for connections.
    """

    budget: Budget

    def about(self) -> dict[str, Any]: ...
    def answer(self, client: Client, frame: Frame) -> Reply: ...
    def left(self, client: Client) -> None: ...


class Server:
    """Listener that answers for a shard until it is closed.

    Attributes:
        address: where it listens, with the port that it got.

    Raises:
        ValueError, OSError: it cannot listen there.
    """

    def __init__(self, shard: Answering, address: Address, security: Security) -> None:
        self.shard, self._security = shard, security
        self._socket, self.address = listen(address, security)
        self._node = _node(self.address)
        self._closed = threading.Event()
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._greeting: dict[socket.socket, None] = {}  # in the order of coming
        self._thread = threading.Thread(target=self._accept, name="sharpwave-accept", daemon=True)
        self._thread.start()
        follow(self)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                made, _ = self._socket.accept()
            except OSError:
                if self._closed.wait(0.05):  # out of descriptors, perhaps: others may end
                    return
                continue
            try:
                if self._admitted(made):
                    threading.Thread(target=self._serve, args=(made,), name="sharpwave-client", daemon=True).start()
                else:
                    LOG.warning("a connection was refused: there are %d already", MAX_CONNECTIONS)
                    made.close()
            except Exception as error:  # no thread, or no memory; this one has to go on
                LOG.warning("a connection was refused: %s", failure(error))
                self._left(made)

    def _left(self, made: socket.socket) -> None:
        with self._lock:
            self._greeting.pop(made, None)
            self._connections.discard(made)
        with contextlib.suppress(OSError):
            made.close()

    def _admitted(self, made: socket.socket) -> bool:
        """Note a new connection; return False if there are too many."""
        with self._lock:
            if len(self._greeting) >= MAX_GREETING:
                _end(next(iter(self._greeting)))
                del self._greeting[next(iter(self._greeting))]
            if len(self._connections) >= MAX_CONNECTIONS:
                return False
            self._connections.add(made)
            self._greeting[made] = None
            return True

    def _serve(self, made: socket.socket) -> None:
        client, raw = Client(self.address.kind == UNIX, self.shard.budget), made
        try:
            try:
                client.connection = made = accept(made, self._security, self.shard.about(), client.local)
            finally:
                with self._lock:
                    self._greeting.pop(raw, None)
            with self._lock:  # TLS has replaced the socket
                self._connections.discard(raw)
                self._connections.add(made)
            if self._closed.is_set():
                return
            client.holding = self.shard.budget.open(lambda: _end(made), client.is_gone)
            self._answer_all(made, client)
        except (OSError, MemoryError) as error:
            if not self._closed.is_set():
                LOG.info("a connection ended: %s", error)
        except Exception as error:  # a bug here, whatever the peer sent
            LOG.error("a connection ended: %s", failure(error))
        finally:
            self.shard.left(client)
            client.close()
            with self._lock:
                self._connections -= {raw, made}
            with contextlib.suppress(OSError):
                made.close()

    def _answer_all(self, made: socket.socket, client: Client) -> None:
        budget, holding = self.shard.budget, client.holding

        def admit(kind: int, head_bytes: int, body_bytes: int) -> None:
            writes = kind == Request.PUT
            budget.receive(holding, head_bytes, body_bytes, writes, MAX_WAIT_S if writes else None)

        while True:
            frame = wire.receive(made, fds=client.local, admit=admit)
            if frame is None:
                return
            holding.since = None
            head, parts, kind = self._answered(client, frame)
            holding.since = time.monotonic()
            try:
                wire.send(made, kind, frame.number, head, parts)
            except ValueError as error:  # more than a message may hold: nothing was sent
                wire.send(made, FAILED, frame.number, {"kind": "ValueError", "text": f"the reply is {error}"})
            del frame, head, parts
            budget.answered(holding)

    def _answered(self, client: Client, frame: Frame) -> tuple[dict[str, Any], dict[str, Any], int]:
        try:
            if frame.fds or not frame.head.keys().isdisjoint(("shared", "forget")):
                client.share(frame)
            head, parts = self.shard.answer(client, frame)
            return head, parts, frame.kind
        except WireError:
            raise
        except Exception as error:
            if isinstance(error, ShardFailedError):  # for the service's operator to fix
                LOG.error("%s", error)
            elif not isinstance(error, (ValueError, LookupError, OSError, MemoryError)):
                LOG.error("request %d failed: %s", frame.kind, failure(error))
            text = error.args[0] if isinstance(error, KeyError) and error.args else error
            return {"kind": type(error).__name__, "text": str(text)}, {}, FAILED

    def forked(self) -> None:
        """Let the parent's sockets go, which it goes on with."""
        self._lock, self._node = threading.Lock(), None
        self._socket.close()
        for one in self._connections:
            one.close()

    def join(self, seconds: float) -> None:
        """Wait, after ``close``, until no request is being answered, or ``seconds`` are over."""
        deadline = time.monotonic() + seconds
        while self._connections and time.monotonic() < deadline:
            time.sleep(0.005)

    def close(self) -> None:
        """Stop listening, delete the socket's file unless it is another's by now, and end every connection."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if self._node is not None and _node(self.address) == self._node:
            with contextlib.suppress(OSError):
                os.unlink(self.address.path)
        with self._lock:
            open_ones = list(self._connections)
        for one in open_ones:
            _end(one)
        self._thread.join(5.0)


def _node(address: Address) -> tuple[int, int] | None:
    """Return the identity of a unix socket's file; ``None``: there is none."""
    with contextlib.suppress(OSError):
        found = os.stat(address.path)
        return (found.st_dev, found.st_ino) if address.kind == UNIX else None
    return None


def _end(made: socket.socket) -> None:
    with contextlib.suppress(OSError):
        made.shutdown(socket.SHUT_RDWR)
