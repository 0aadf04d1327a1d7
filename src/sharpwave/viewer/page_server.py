"""Server of the page, by default for this machine only."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import socket
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sharpwave.viewer.sources import opened_sources
from sharpwave.viewer.watching import Watched

PORT = 8765
PORTS = 20
"""Number of ports that are tried, from the first on, if none is given."""
NICENESS = 5
NEEDED = ("starlette", "uvicorn", "PIL")


def serve(
    paths: Sequence[Path],
    host: str,
    port: int | None,
    browser: bool,
    token: bool,
    say: Callable[[str], None],
    tokenizer: Path | None = None,
) -> None:
    """Serve a page on ``paths`` until interrupted.

    Args:
        host: address to listen at; an address other than loopback creates a token.
        port: port; ``None``: the first free one from ``PORT`` on.
        browser: open the page in the user's browser.
        token: require a token at a loopback address, too.
        say: prints a line.
        tokenizer: a ``tokenizer.json``, with which tokens are decoded.

    Raises:
        ValueError: no source, no such file, or the address cannot be used.  ModuleNotFoundError.
    """
    import uvicorn

    from sharpwave.viewer.endpoints import make_app
    from sharpwave.viewer.guard import Guard
    from sharpwave.viewer.step_curves import tokenizer_of

    decode = None if tokenizer is None else tokenizer_of(tokenizer)
    with opened_sources(paths) as sources, contextlib.closing(_listening(host, port)) as listening:
        watched = [Watched(one) for one in sources]
        with contextlib.suppress(OSError, AttributeError):
            os.nice(NICENESS)  # training on this machine goes first
        secret = secrets.token_urlsafe(18) if token or not is_loopback(host) else None
        address, number = listening.getsockname()[:2]
        name = f"[{address}]" if ":" in address else address
        url = f"http://{name}:{number}/" + (f"?token={secret}" if secret else "")
        names = frozenset({host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()})
        app = Guard(make_app(watched, decode), names, secret)
        for one in watched[:1]:
            one.ask()
        what = "1 source" if len(watched) == 1 else f"{len(watched)} sources"
        say(f"Sharpwave view of {what}: {url}")
        if address in ("0.0.0.0", "::"):
            say(f"From other machines: http://{socket.gethostname()}:{number}/?token={secret}")
        say("Ctrl-C ends it.")
        if browser:
            with contextlib.suppress(webbrowser.Error):
                webbrowser.open(url)
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(configured(app)).run(sockets=[listening])


def configured(app: Any) -> Any:
    """Return the ``uvicorn.Config`` of a server for ``app``."""
    import uvicorn

    from sharpwave.viewer.connections import MAX_CONNECTIONS, Connection

    return uvicorn.Config(
        app, http=Connection, log_level="warning", access_log=False, server_header=False,
        limit_concurrency=MAX_CONNECTIONS + 1, timeout_graceful_shutdown=1, lifespan="off", ws="none",
        h11_max_incomplete_event_size=16 << 10,
    )  # fmt: skip


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _listening(host: str, port: int | None) -> socket.socket:
    """Return a listening socket.  Raises: ValueError."""
    for number in range(PORT, PORT + PORTS) if port is None else (port,):
        try:
            found: list[Any] = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, address = found[0]
            listening = socket.socket(family, kind, protocol)
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind(address)
                listening.listen(128)
            except OSError:
                listening.close()
                raise
            return listening
        except (OSError, OverflowError) as error:
            problem = error
    where = f"port {port}" if port is not None else f"ports {PORT} to {PORT + PORTS - 1}"
    raise ValueError(f"view: cannot listen at {host}, {where}: {problem}; give another --host or --port") from problem
