"""Guard of the server: allowed clients, allowed requests, and allowed uses of responses in a browser."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}
MAX_URL_BYTES = 4096
COSTLY = {"values": None, "where": "proposed"}
"""Parts of the page's URL for which the server computes: Q-values, and filters. In a link of another page they are left
out, or have another name, under which the page shows a filter without applying it."""
MAX_ANSWERS = 64
"""Limit of the responses in progress, or in memory until they are read."""


class Guard:
    """ASGI middleware that refuses all requests except plain GETs of allowed clients.

    A web page elsewhere could reach a server on this machine by a host name that it resolves to 127.0.0.1 ("DNS
    rebinding"); so only addresses, ``localhost`` and the names in ``hosts`` are accepted. It could also request this
    server's own URLs without reading the responses, and so cause a policy to be loaded; so requests that browsers mark
    as another page's (Fetch Metadata, ``Origin``) are refused, except links to the page itself, without what is
    ``COSTLY``.

    Args:
        hosts: accepted names of this machine, in lower case.
        token: secret that the first URL carries as ``?token=``; later requests have it in a cookie. ``None``: no token.
    """

    def __init__(self, app: App, hosts: frozenset[str], token: str | None) -> None:
        self._app, self._hosts, self._token = app, hosts | {"localhost"}, token
        self._turns = asyncio.Semaphore(MAX_ANSWERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # the server has no web sockets
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        cookies: list[str] = []

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                more += [(b"set-cookie", cookie.encode()) for cookie in cookies]
                message = {**message, "headers": [*message.get("headers", []), *more]}
            await send(message)

        status, text, location = self._refusal(scope, headers, cookies)
        if not status:
            async with self._turns:
                await self._app(scope, receive, guarded)
            return
        extra = [(b"location", location.encode())] if location else []
        start = {"type": "http.response.start", "status": status}
        start["headers"] = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store"), *extra]
        await guarded(start)
        await send({"type": "http.response.body", "body": text.encode()})

    def _refusal(self, scope: Scope, headers: dict[str, str], cookies: list[str]) -> tuple[int, str, str]:
        """Return status, text and new location of the refusal or redirect of a request; status 0: none."""
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "only GET: this server changes nothing", ""
        if len(scope.get("raw_path", b"")) + len(scope["query_string"]) > MAX_URL_BYTES:
            return 414, f"the URL is longer than {MAX_URL_BYTES:,} bytes", ""
        if not self._is_ours(headers.get("host", "")):
            return 403, "this host name is not this server's; use the URL that sharpwave view printed", ""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if _is_of_another_page(headers):
            if not (scope["path"] == "/" and _is_navigation(headers)):
                return 403, "another web page requested this; open the URL that sharpwave view printed", ""
            if any(key in COSTLY for key, _ in query):
                kept = [(COSTLY.get(key, key), value) for key, value in query]
                return 303, "", f"/?{urlencode([(key, value) for key, value in kept if key is not None])}"
        if self._token is None:
            return 0, "", ""
        name = f"sharpwave-view-{(scope.get('server') or ('', 0))[1]}"
        given = [value for key, value in query if key == "token"]
        if any(hmac.compare_digest(one.encode(), self._token.encode()) for one in given):
            cookies.append(f"{name}={self._token}; HttpOnly; SameSite=Strict; Path=/")
            rest = urlencode([(key, value) for key, value in query if key != "token"])
            return 303, "", f"/?{rest}"  # the page's own state is all in the query
        pairs = (one.strip().partition("=") for one in headers.get("cookie", "").split(";"))
        if any(key == name and hmac.compare_digest(value.encode(), self._token.encode()) for key, _, value in pairs):
            return 0, "", ""
        return 403, "the URL lacks its token; use the one that sharpwave view printed", ""

    def _is_ours(self, host: str) -> bool:
        name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
        if name.lower().rstrip(".") in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # an address needs no DNS


def _is_of_another_page(headers: dict[str, str]) -> bool:
    """Return whether a browser sent the request for a page of another origin; other clients send no such header.

    Another port of this host is another origin, too, though of the same site.
    """
    if (site := headers.get("sec-fetch-site")) is not None and site not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    return origin is not None and origin.lower() != f"http://{headers.get('host', '')}".lower()


def _is_navigation(headers: dict[str, str]) -> bool:
    """Return whether the response becomes a browser's page, not a part of another."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
