"""Server: one thread for each connection to a shard."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any, Protocol

from sharpwave.errors import ShardFailedError
from sharpwave.serve import wire
from sharpwave.serve.addresses import UNIX, Address, Security, accept, listen
from sharpwave.serve.budget import Budget
from sharpwave.serve.client import Client
from sharpwave.serve.intake import MAX_WAIT_S
from sharpwave.serve.log_lines import LOG, failure
from sharpwave.serve.requests import FAILED, Request
from sharpwave.serve.shard import Reply
from sharpwave.serve.wire import Frame, WireError

MAX_CONNECTIONS = 4096
MAX_GREETING = 128
"""Connections that may be in the handshake at a time; one more ends the oldest of them, which said nothing so long."""


class Answering(Protocol):
    """What answers requests: a shard, or the directory of several.

    Attributes:
        budget: of what connections make it hold.
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
        self._closed = threading.Event()
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._greeting: dict[socket.socket, None] = {}  # in the order of coming
        self._thread = threading.Thread(target=self._accept, name="sharpwave-accept", daemon=True)
        self._thread.start()

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
            with self._lock:  # TLS has made another of it
                self._connections.discard(raw)
                self._connections.add(made)
            if self._closed.is_set():
                return
            client.holding = self.shard.budget.open(lambda: _end(made), client.is_gone)
            self._answer_all(made, client)
        except (OSError, MemoryError) as error:
            if not self._closed.is_set():
                LOG.info("a connection ended: %s", error)
        except Exception as error:  # ours, whatever the peer has sent
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
            if isinstance(error, ShardFailedError):  # a matter of whoever serves
                LOG.error("%s", error)
            elif not isinstance(error, (ValueError, LookupError, OSError, MemoryError)):
                LOG.error("request %d failed: %s", frame.kind, failure(error))
            text = error.args[0] if isinstance(error, KeyError) and error.args else error
            return {"kind": type(error).__name__, "text": str(text)}, {}, FAILED

    def close(self) -> None:
        """Stop listening, and end every connection."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            open_ones = list(self._connections)
        for one in open_ones:
            _end(one)
        self._thread.join(5.0)


def _end(made: socket.socket) -> None:
    with contextlib.suppress(OSError):
        made.shutdown(socket.SHUT_RDWR)
