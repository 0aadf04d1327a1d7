"""Who may ask, and what a browser may do with the answer."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the viewer needs the extra view: pip install 'sharpwave[view]'")

from starlette.routing import Route

from sharpwave.viewer import connections
from sharpwave.viewer.endpoints import make_app
from sharpwave.viewer.page_server import is_loopback
from tests.cli.stores import make_store
from tests.viewer.served import Server, serving

TOKEN = "a-secret-of-some-length"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(make_store(tmp_path_factory.mktemp("store"))) as found:
        yield found


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(make_store(tmp_path_factory.mktemp("store")), token=TOKEN) as found:
        yield found


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200), ("127.0.0.1:8765", 200), ("localhost:80", 200), ("LOCALHOST", 200), ("[::1]:8765", 200),
        ("own-name:8765", 200), ("evil.example", 403), ("127.0.0.1.evil.example", 403), ("localhost.evil.example", 403),
        ("", 403), ("[evil]", 403), ("evil.example:127.0.0.1", 403), ("0x7f.1", 403),
    ],
)  # fmt: skip
def test_only_this_machines_names_are_answered(server: Server, host: str, status: int) -> None:
    for path in ("/", "/api/sources", "/app.js"):
        assert server.ask(path, headers={"Host": host}).status == status


def test_every_answer_forbids_foreign_code(server: Server) -> None:
    for path in ("/", "/app.js", "/api/sources", "/api/0/overview", "/nothing", "/api/9/status"):
        headers = server.ask(path).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == policy["img-src"] == "'self'"
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


def test_the_page_has_no_inline_code(server: Server) -> None:
    page = server.ask("/").body.decode()
    assert "style=" not in page and " on" not in page.replace(" on this", "")
    assert page.count("<script") == page.count("src=") == 1 and "http" not in page


def paths_of(server: Server) -> list[str]:
    """A URL of every endpoint and file."""
    routes = [one.path for one in make_app(server.watched).routes if isinstance(one, Route)]
    assert len(routes) > 15 and "/api/{source}/values" in routes and "/api/{source}/frames.png" in routes
    return [one.replace("{source}", "0") for one in routes]


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},  # another port
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
        {"Sec-Fetch-Site": "what-comes-next"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9"},
    ],
)
def test_other_web_pages_get_nothing(server: Server, headers: dict[str, str]) -> None:
    for path in paths_of(server):
        for method in ("GET", "HEAD"):
            assert server.ask(path, method, headers=headers).status == 403, path
    assert server.watched[0].values._thread is None


def test_the_page_and_clients_that_are_no_browser_are_answered(server: Server) -> None:
    own = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
    typed = {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    for headers in (own, own | {"Origin": server.url}, typed, {}):
        assert server.ask("/", headers=headers).status == server.ask("/api/sources", headers=headers).status == 200


def test_a_link_elsewhere_opens_the_page_without_what_costs_much(server: Server) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert server.ask("/", headers=link, tab="episode", lane=0).status == 200
    assert server.ask("/api/0/values", headers=link).status == 403
    asks = server.ask("/", headers=link, tab="episode", values=1, lane=0)
    assert asks.status == 303 and asks.headers["location"] == "/?tab=episode&lane=0"
    filters = server.ask("/", headers=link, tab="episodes", where="a > 'b'")
    assert filters.status == 303 and filters.headers["location"] == "/?tab=episodes&proposed=a+%3E+%27b%27"
    assert server.ask("/", tab="episodes", where="a > 1").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT"])
def test_nothing_but_get(server: Server, method: str) -> None:
    assert server.ask("/api/sources", method).status in (405, 400)


@pytest.mark.parametrize(
    "path",
    [
        "/../pyproject.toml", "/..%2f..%2fpyproject.toml", "/static/app.js", "/app.js/../server.py", "/server.py",
        "/%2e%2e/server.py", "/..\\server.py", "//etc/passwd", "/api/../app.js", "/api/0/../../server.py",
        "/__init__.py",
    ],
)  # fmt: skip
def test_no_path_leaves_the_page(server: Server, path: str) -> None:
    assert server.ask(path).status == 404


def test_long_and_malformed_requests(server: Server) -> None:
    assert server.ask("/api/0/episodes?" + "a" * 5000).status == 414
    for sent in (b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 200_000, b"\0\xff\r\n\r\n", b"GET  HTTP/9\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
            connection.sendall(sent + b"\r\n\r\n")
            assert b" 200 " not in connection.recv(1000)
    assert server.ask("/").status == 200


def closed(connection: socket.socket) -> bool:
    """Whether the server closes a connection without an answer."""
    try:
        return not connection.recv(1)
    except ConnectionResetError:
        return True


BEGUN = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "


def test_connections_that_are_held_keep_nobody_out(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 64)
    with contextlib.ExitStack() as stack:
        held = []
        for number in range(connections.MAX_CONNECTIONS + 20):
            held.append(stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20)))
            held[-1].sendall(BEGUN[: 7 * (number % 5)])
        for _ in range(3):
            assert server.ask("/").status == server.ask("/api/sources").status == 200
        assert closed(held[0])  # the longest held first


def test_many_browsers_at_once_are_all_answered(server: Server) -> None:
    """Connections are made before the server has read a request of any."""
    with contextlib.ExitStack() as stack:
        browsers = []
        for _ in range(200):
            browsers.append(stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20)))
        for one in browsers:
            one.sendall(b"GET /api/sources HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert all(one.recv(12) == b"HTTP/1.1 200" for one in browsers)


def test_an_answer_that_is_read_slowly_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cut only where nothing of it is read for long, not where the system has much of it ahead of the reader."""
    monkeypatch.setattr(connections, "REQUEST_S", 0.5)
    monkeypatch.setattr(connections, "READ_S", 2.0)
    with serving(make_store(tmp_path / "store")) as slow, contextlib.closing(socket.socket()) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.settimeout(20)
        one.connect(("127.0.0.1", slow.port))
        asked = b"GET /uplot.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        one.sendall(asked * 40)  # the page's largest file again and again
        got, begin = 0, time.monotonic()
        while (passed := time.monotonic() - begin) < 4.0:
            while got < 100_000 * passed:  # by the clock: a busy machine is no reader that stops
                got += len(part := one.recv(1 << 12))
                assert part, f"cut after {got:,} bytes"
            time.sleep(0.1)
        while got < 40 * 140_000:
            got += len(part := one.recv(1 << 16))
            assert part, f"cut after {got:,} bytes"


def test_a_request_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 1.0)  # a busy machine may take its time to send even a whole one
    with serving(make_store(tmp_path / "store")) as slow:
        address = "127.0.0.1", slow.port
        with (
            socket.create_connection(address, timeout=20) as idle,
            socket.create_connection(address, timeout=20) as one,
        ):
            one.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + BEGUN)  # a whole one, and part of another
            answer = b""
            while (part := one.recv(1 << 16)) and b"</html>" not in answer:
                answer += part
            assert b" 200 " in answer and closed(one) and closed(idle)
        assert slow.ask("/").status == 200


def test_a_token_is_asked_for(locked: Server) -> None:
    for path in ("/", "/api/sources", "/app.js"):
        assert locked.ask(path).status == 403
        assert locked.ask(path, token="wrong").status == 403
        assert locked.ask(path, headers={"Cookie": f"sharpwave-view-{locked.port}=wrong"}).status == 403
    entered = locked.ask("/", tab="memory", token=TOKEN)
    assert entered.status == 303 and entered.headers["location"] == "/?tab=memory"
    assert entered.headers["set-cookie"].endswith("; HttpOnly; SameSite=Strict; Path=/")
    cookie = entered.headers["set-cookie"].split(";")[0]
    assert locked.ask("/api/sources", headers={"Cookie": f"other=1; {cookie}"}).status == 200
    assert locked.ask("/api/sources", headers={"Cookie": cookie, "Host": "evil.example"}).status == 403


@pytest.mark.parametrize(
    ("host", "own"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
                      ("192.168.1.5", False), ("example.org", False)]
)  # fmt: skip
def test_addresses_that_only_this_machine_reaches(host: str, own: bool) -> None:
    assert is_loopback(host) == own


def test_files_are_cached_by_their_content(server: Server) -> None:
    first = server.ask("/app.js")
    assert first.headers["content-type"].startswith("text/javascript")
    again = server.ask("/app.js", headers={"If-None-Match": first.headers["etag"]})
    assert again.status == 304 and not again.body


def test_all_of_the_page_is_in_the_package() -> None:
    names = {path.name for path in (Path(__file__).parents[2] / "src/sharpwave/viewer/static").iterdir()}
    assert {"index.html", "app.js", "style.css", "uplot.js", "uplot.css", "uplot-license.txt"} <= names
