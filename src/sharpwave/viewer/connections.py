"""Connections of the server: one that sends no whole request in time is closed, so that held ones keep nobody out."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 64
REQUEST_S = 10.0
"""Time in which a request has to be sent whole, and an answer to be read on."""


class Connection(H11Protocol):
    """HTTP connection that is closed where nothing came of it in ``REQUEST_S``.

    Beyond ``MAX_CONNECTIONS``, the one that has waited longest for a request is closed.
    """

    _since = 0.0
    _seen: tuple[Any, int] = (None, 0)
    _check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._since = time.monotonic()
        if len(self.connections) > MAX_CONNECTIONS:
            idle = [one for one in self.connections if isinstance(one, Connection) and not one._answers()]
            idle.remove(self)
            if idle:
                min(idle, key=lambda one: one._since)._drop()
        self._check = self.loop.call_later(REQUEST_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        if self._check is not None:
            self._check.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._since = time.monotonic()
        super().on_response_complete()

    def _answers(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _look(self) -> None:
        unread = self.transport.get_write_buffer_size()
        if self._seen == (self.cycle, unread) and (unread or not self._answers()):
            self._drop()
            return
        self._seen = self.cycle, unread
        self._check = self.loop.call_later(REQUEST_S, self._look)

    def _drop(self) -> None:
        self.connections.discard(self)  # what is aborted is told of it later
        self.transport.abort()
