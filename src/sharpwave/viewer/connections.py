"""Connections of the server, closed without a whole request in time, so that idle ones do not block others."""

from __future__ import annotations

import asyncio
import socket
import time

from uvicorn.protocols.http.h11_impl import H11Protocol


def _most_connections() -> int:
    """Return a limit above the number that many browsers open at once; until a request arrives, all look idle."""
    try:
        import resource
    except ImportError:  # on Windows
        return 512
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 512 if files == resource.RLIM_INFINITY else max(16, min(512, files // 2))


MAX_CONNECTIONS = _most_connections()
REQUEST_S = 10.0
"""Time limit for sending a whole request."""
READ_S = 60.0
"""Time limit for reading on in a response."""
SEND_BYTES = 128 << 10
"""Bytes of a response that the system buffers; with more, slow reading would be noticed too late."""


class Connection(H11Protocol):
    """HTTP connection, closed if no request arrives in ``REQUEST_S``, or a response is not read on in ``READ_S``.

    Beyond ``MAX_CONNECTIONS``, the connection that has waited longest for a request is closed.
    """

    _since = _moved = 0.0
    _unread = 0
    _check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of a request."""
        super().connection_made(transport)
        self._since = time.monotonic()
        if (sock := transport.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        if len(self.connections) > MAX_CONNECTIONS:
            idle = [one for one in self.connections if isinstance(one, Connection) and not one._answers()]
            idle.remove(self)
            if idle:
                min(idle, key=lambda one: one._since)._drop()
        self._check = self.loop.call_later(REQUEST_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        if self._check is not None:
            self._check.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Start the timer of the next request."""
        self._since = time.monotonic()
        super().on_response_complete()

    def _answers(self) -> bool:
        answering = self.cycle is not None and not self.cycle.response_complete
        return answering or self.transport.get_write_buffer_size() > 0

    def _look(self) -> None:
        now, unread = time.monotonic(), self.transport.get_write_buffer_size()
        if unread != self._unread:
            self._unread, self._moved = unread, now
        if now - self._moved >= READ_S if unread else not self._answers() and now - self._since >= REQUEST_S:
            self._drop()
            return
        self._check = self.loop.call_later(REQUEST_S, self._look)

    def _drop(self) -> None:
        self.connections.discard(self)  # ``connection_lost`` is called later
        self.transport.abort()
