"""The viewer's server on a port of its own, and plain HTTP requests to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import uvicorn

from sharpwave.viewer.endpoints import make_app
from sharpwave.viewer.guard import Guard
from sharpwave.viewer.page_server import configured
from sharpwave.viewer.sources import find_sources
from sharpwave.viewer.watching import Watched


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json", self.body[:200]
        return json.loads(self.body)


class Server(NamedTuple):
    port: int
    watched: list[Watched]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str, method: str = "GET", headers: dict[str, str] | None = None, **query: Any) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path + (f"?{urlencode(query)}" if query else ""), headers=headers or {})
            found = connection.getresponse()
            return Answer(found.status, {key.lower(): value for key, value in found.getheaders()}, found.read())

    def get(self, path: str, **query: Any) -> Any:
        """The parsed answer of an endpoint, which must be there."""
        answer = self.ask(f"/api/{path}", **query)
        assert answer.status == 200, answer.body[:500]
        return answer.json


@contextlib.contextmanager
def serving(
    *paths: Path, token: str | None = None, read: bool = True, decode: Callable[[list[int]], str] | None = None
) -> Iterator[Server]:
    """Serve ``paths``; ``read``: all that is there already; ``decode``: of tokens."""
    watched = [Watched(one) for one in find_sources(paths)]
    for one in watched if read else []:
        one.update()
    listening = socket.create_server(("127.0.0.1", 0))
    config = configured(Guard(make_app(watched, decode), frozenset({"own-name"}), token))
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: server.run(sockets=[listening]), daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        yield Server(listening.getsockname()[1], watched)
    finally:
        server.should_exit = True
        thread.join(20)
        for one in watched:
            one.wait(20)
        listening.close()
        assert not thread.is_alive()
