"""Server: one thread for each connection to a shard."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from typing import Any, Protocol

from sharpwave.serve import wire
from sharpwave.serve.addresses import UNIX, Address, Security, accept, listen
from sharpwave.serve.client import Client
from sharpwave.serve.requests import FAILED
from sharpwave.serve.shard import Reply
from sharpwave.serve.wire import Frame, WireError

MAX_CONNECTIONS = 4096
MAX_GREETING = 128
"""Connections that may be in the handshake at a time; one more ends the oldest of them, which said nothing so long."""
LOG = logging.getLogger("sharpwave.serve")


class Answering(Protocol):
    """What answers requests: a shard, or the directory of several."""

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
            if self._admitted(made):
                try:
                    threading.Thread(target=self._serve, args=(made,), name="sharpwave-client", daemon=True).start()
                except RuntimeError as error:
                    LOG.warning("a connection was refused: %s", error)
                    self._left(made)
            else:
                LOG.warning("a connection was refused: there are %d already", MAX_CONNECTIONS)
                made.close()

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
                with contextlib.suppress(OSError):
                    next(iter(self._greeting)).shutdown(socket.SHUT_RDWR)
                del self._greeting[next(iter(self._greeting))]
            if len(self._connections) >= MAX_CONNECTIONS:
                return False
            self._connections.add(made)
            self._greeting[made] = None
            return True

    def _serve(self, made: socket.socket) -> None:
        client = Client(self.address.kind == UNIX)
        raw = made
        try:
            try:
                made = accept(made, self._security, self.shard.about(), client.local)
            finally:
                with self._lock:
                    self._greeting.pop(raw, None)
            self._answer_all(made, client)
        except (OSError, WireError) as error:
            if not self._closed.is_set():
                LOG.info("a connection ended: %s", error)
        finally:
            self.shard.left(client)
            client.close()
            with self._lock:
                self._connections.discard(raw)
            with contextlib.suppress(OSError):
                made.close()

    def _answer_all(self, made: socket.socket, client: Client) -> None:
        while True:
            frame = wire.receive(made, fds=client.local)
            if frame is None:
                return
            if frame.fds or "shared" in frame.head:
                client.share(frame)
            head, parts, kind = self._answered(client, frame)
            wire.send(made, kind, frame.number, head, parts)

    def _answered(self, client: Client, frame: Frame) -> tuple[dict[str, Any], dict[str, Any], int]:
        try:
            head, parts = self.shard.answer(client, frame)
            return head, parts, frame.kind
        except WireError:
            raise
        except Exception as error:
            if not isinstance(error, (ValueError, LookupError, OSError, MemoryError)):
                LOG.exception("request %d failed", frame.kind)
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
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._thread.join(5.0)
