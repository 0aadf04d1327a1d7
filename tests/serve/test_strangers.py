"""Peers that are strangers, slow, or speak nonsense: named, dropped, and nobody else is held up."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import struct
import subprocess
import threading
import zlib
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sharpwave as sw
from sharpwave.serve import addresses, wire
from sharpwave.serve import intake as intake_module
from sharpwave.serve import link as link_module
from sharpwave.serve.addresses import Address, Security, connect, listen
from sharpwave.serve.link import Link, ShardLostError
from sharpwave.serve.server import Server
from sharpwave.serve.wire import FAILED, Request, ViewState
from tests.serve.serving import SPEC, fill, sealed, served


@given(
    head=st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.floats(allow_nan=False)),
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3), max_size=4),
    dtype=st.sampled_from(["?", "<i8", "<f8", "<f4", "|u1", "<i2"]),
)
def test_frames_arrive_as_they_were_sent(head: dict[str, object], shapes: list[list[int]], dtype: str) -> None:
    head.pop("parts", None)
    rng = np.random.default_rng(0)
    parts = {f"p{k}": rng.integers(0, 2, shape).astype(dtype) for k, shape in enumerate(shapes)}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        nbytes = wire.send(ours, 7, 9, head, {**parts, "raw": b"abc"})
        ours.close()
        got = wire.receive(theirs)
        assert got is not None and (got.kind, got.number, got.head, got.nbytes) == (7, 9, head, nbytes)
        assert bytes(got.parts.pop("raw")) == b"abc"
        for name, part in parts.items():
            np.testing.assert_array_equal(got.parts[name], part)
            assert got.parts[name].dtype == part.dtype
        assert wire.receive(theirs) is None


UNIFORM = {"kind": "Uniform"}


def framed(text: bytes, content: bytes = b"", **other: int) -> bytes:
    checksum = zlib.crc32(content, zlib.crc32(text))
    sizes = {"head": len(text), "body": len(content), "version": wire.VERSION} | other
    return (
        wire.HEADER.pack(wire.MAGIC, sizes["version"], 16, 1, sizes["head"], sizes["body"], checksum) + text + content
    )


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b" " * 32,
        framed(b"{}", version=99),
        framed(b"{}", head=1 << 31),
        framed(b"{}", body=1 << 50),
        framed(b"{}")[:-1] + b"[",
        framed(b"[1]"),
        framed(b"\xff\xfe"),
        framed(b'{"parts": 3}'),
        framed(b'{"parts": [["a", "|O", [1]]]}', b"x" * 8),
        framed(b'{"parts": [["a", "<i8", [9]]]}', b"x" * 8),
        framed(b'{"parts": [["a", "<i8", [-1]]]}', b"x" * 8),
        framed(b'{"parts": [["a", "<i8", [0, 549755813888, 549755813888]]]}'),
        framed(b'{"parts": []}', b"x" * 8),
        framed(b"[" * 100_000),
    ],
)
def test_what_is_no_frame_is_refused_by_name(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(sent)
        ours.close()
        with pytest.raises(wire.WireError, match=r"frame|part"):
            wire.receive(theirs)


def test_a_peer_that_speaks_nonsense_loses_its_connection_and_nobody_else(tmp_path: Path) -> None:
    with served(1, tmp_path, "tcp") as there:
        fill(there.stores[0], 1, 40, 0)
        replay = there.cluster.transitions()
        address = there.servers[0].address
        rng = np.random.default_rng(0)
        for attempt in range(40):
            stranger, _ = connect(address, Security())
            with stranger:
                text = json.dumps({"view": attempt - 5, "batch": 1 << attempt, "begin": -1}).encode()
                sent = bytearray(framed(text, rng.bytes(64)))
                if attempt % 2:
                    sent[rng.integers(len(sent))] ^= 1 << int(rng.integers(8))
                stranger.settimeout(10)
                with contextlib.suppress(OSError):
                    stranger.sendall(sent)
                    stranger.shutdown(socket.SHUT_WR)
                    while stranger.recv(1 << 16):
                        pass
            assert len(replay.sample(4)) == 4


def test_requests_of_every_kind_with_nonsense_in_them_are_answered_by_errors(tmp_path: Path) -> None:
    with served(1, tmp_path) as there:
        fill(there.stores[0], 1, 40, 0)
        replay = there.cluster.transitions()
        link = there.cluster.links[0]
        assert link is not None
        values: list[object] = [None, -1, 1 << 70, "x", [], {}, [[]], 1e300, True]
        names = ["view", "name", "kind", "settings", "sampler", "lanes", "inserts", "keys", "batch", "begin", "blocks"]
        names.append("segments")
        before = len(there.stores[0])
        for kind in Request:
            if kind in (Request.CLEAR, Request.CHECKPOINT, Request.PAUSE):
                continue
            for value in values:
                parts = {"points": np.zeros(2), "ids": np.zeros(3, np.int64)}
                with contextlib.suppress(ValueError, TypeError, LookupError, OSError, MemoryError, RuntimeError):
                    link.call(kind, dict.fromkeys(names, value), parts)
                assert len(replay.sample(4)) == 4
        assert len(there.stores[0]) == before


def test_a_segment_that_is_damaged_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with served(1, tmp_path) as there:
        link = there.cluster.links[0]
        assert link is not None
        one = sealed(1, 30, 0)[0]
        rng = np.random.default_rng(0)
        shared = {f"dictionary:{key:x}": data for key, data in one.dictionaries.items()}
        head = {"segments": 1, "keys": [f"{key:x}" for key in one.dictionaries]}
        for _ in range(60):
            packed = bytearray(one.packed)
            packed[rng.integers(len(packed))] ^= 1 << int(rng.integers(8))
            with pytest.raises((ValueError, sw.NewerVersionError, RuntimeError)):
                link.call(Request.PUT, head, {"segment:0": packed, **shared})
        assert len(there.stores[0]) == 0
        link.call(Request.PUT, head, {"segment:0": one.packed, **shared})
        assert len(there.stores[0]) == one.steps


def test_the_secret_is_needed_and_the_servers_is_checked(tmp_path: Path) -> None:
    with served(1, tmp_path, "tcp", secret=b"right secret, long") as there:
        address = there.servers[0].address
        assert len(there.cluster) == 0
        for wrong in (b"", b"wrong"):
            with pytest.raises(ConnectionError, match="secret"):
                connect(address, Security(wrong))
        connect(address, Security(b"right secret, long"))[0].close()
    server, address = listen(Address.parse("127.0.0.1:0"), Security())
    with server:  # one that does not know it
        import threading

        def impostor() -> None:
            made, _ = server.accept()
            with made:
                wire.send(made, 1, 0, {"nonce": "00" * 32})
                wire.receive(made)
                wire.send(made, 3, 0, {"proof": "00"})
                made.recv(1)

        thread = threading.Thread(target=impostor)
        thread.start()
        with pytest.raises(ConnectionError, match="does not know the secret"):
            connect(address, Security(b"right secret, long"))
        thread.join(10)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
@pytest.mark.parametrize("encrypted", ["server", "client"])
def test_encryption_at_one_end_only_always_names_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encrypted: str
) -> None:
    """Whichever end gives up first: both wait for the other's first word, or one hangs up on nonsense."""
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    files: dict[str, Any] = {"certificate": certificate, "key": key}
    at_server, at_client = Security(**files), Security()
    remedy = "where the server has a TLS certificate, pass tls_authority="
    if encrypted == "client":
        at_server, at_client = Security(), Security(authority=certificate)
        remedy = "where the server has no TLS certificate, connect without tls_authority="
    with served(1, tmp_path, "tcp") as there:
        monkeypatch.setattr(addresses, "CONNECT_S", 0.3)  # the server's
        server = Server(there.shards[0], Address.parse("127.0.0.1:0"), at_server)
        errors: list[str] = []

        def one(timeout: float) -> None:
            try:
                connect(server.address, at_client, timeout)[0].close()
                errors.append("connected")
            except ConnectionError as error:
                errors.append(str(error))

        clients = [threading.Thread(target=one, args=(0.2 + 0.002 * number,)) for number in range(100)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        server.close()
    assert len(errors) == 100 and {error.partition("; ")[2] for error in errors} == {remedy}, set(errors)


def test_other_machines_are_served_only_with_a_secret() -> None:
    for host in ("0.0.0.0", "192.0.2.1", "[::]"):
        with pytest.raises(ValueError, match="SHARPWAVE_SECRET"):
            listen(Address.parse(f"{host}:0"), Security())


def test_peers_that_say_nothing_hold_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "CONNECT_S", 3600.0)  # until they are given up
    with served(1, tmp_path, "tcp") as there:
        fill(there.stores[0], 1, 40, 0)
        held = []
        for _ in range(200):
            one = socket.create_connection((there.servers[0].address.host, there.servers[0].address.port))
            one.sendall(struct.pack("<4s", b"SWFR"))
            held.append(one)
        assert len(there.cluster.transitions().sample(4)) == 4
        for one in held:
            one.close()


def test_a_file_where_a_socket_is_to_be_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="no socket"):
        listen(Address.parse(f"unix:{tmp_path}/file"), Security())
    assert (tmp_path / "file").read_text() == "mine"
    first, _ = listen(Address.parse(f"unix:{tmp_path}/sock"), Security())
    with pytest.raises(FileExistsError, match="another process listens"):
        listen(Address.parse(f"unix:{tmp_path}/sock"), Security())
    first.close()
    second, _ = listen(Address.parse(f"unix:{tmp_path}/sock"), Security())  # nobody listens there any more
    second.close()


def test_kinds_of_frames_do_not_collide() -> None:
    assert FAILED not in set(Request) and min(Request) > 3 and len(SPEC.fields) == 3


@pytest.mark.parametrize("value", [float("inf"), -1.0, 1e300, None, [], "x"])
@pytest.mark.parametrize("name", ["mass", "count", "inserts", "max_priority"])
def test_a_shard_that_says_nonsense_of_a_view_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(wire.WireError, match="state"):
        ViewState.read(asdict(ViewState()) | {name: value})


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"settings": {"n_steps": 3}, "sampler": {"kind": "Uniform"}}, "n_steps"),
        ({"settings": {}, "sampler": {"kind": "Prioritized", "alfa": 0.5}}, "alfa"),
        ({"settings": {}, "sampler": {"kind": [None]}}, r"sampler \{'kind': \[None\]\}"),
        ({"settings": {}, "sampler": {"kind": {}}}, "sampler"),
    ],
)
def test_a_misspelled_view_is_refused_and_is_no_failure_of_the_shard(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, asked: dict[str, object], text: str
) -> None:
    with served(1, tmp_path) as there:
        link = Link(there.servers[0].address, Security())
        with pytest.raises(ValueError, match=text):
            link.call(Request.VIEW, {"name": "one", "kind": "transitions", "seed": 0} | asked)
        link.close()
    assert not caplog.records


@pytest.mark.parametrize(
    ("kind", "head"),
    [
        (Request.CREDIT, {"inserts": ["a"]}),
        (Request.CREDIT, {"inserts": {}}),
        (Request.CREDIT, {"inserts": 1.5}),
        (Request.ADD_COLUMN, {"name": [1], "field": {"shape": [], "dtype": "float32", "metadata": {}}}),
        (Request.DROP_COLUMN, {"name": [1]}),
        (Request.DROP_COLUMN, {"name": {}}),
        (Request.ANNOTATE, {"values": ["a"]}),
        (Request.PUT, {"segments": 1, "keys": [[]]}),
        (Request.PUT, {"segments": 1, "keys": [1]}),
        (Request.PUT, {"segments": 1, "keys": 1.5}),
        (Request.PUT, {"segments": "1", "keys": []}),
        (Request.PUT, {"segments": 1, "keys": [], "noticed": 1}),
    ],
)
def test_a_malformed_head_ends_the_connection_and_is_no_failure_of_the_shard(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: Request, head: dict[str, object]
) -> None:
    with served(1, tmp_path) as there:
        link = Link(there.servers[0].address, Security())
        view = link.call(Request.VIEW, {"name": "a", "kind": "transitions", "settings": {}, "sampler": UNIFORM})
        with pytest.raises(ShardLostError):
            link.call(kind, {"view": view.head["view"]} | head, {"segment:0": b""})
        link.close()
        assert there.stores[0].columns == {} and len(there.stores[0]) == 0
    assert not caplog.records


@pytest.mark.parametrize("number", [0.0, -1.0, float("nan"), float("inf"), 2.0])
def test_probabilities_that_are_none_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: float
) -> None:
    with served(1, tmp_path, "tcp") as there:
        fill(there.stores[0], 1, 40, 0)
        replay = there.cluster.transitions()
        real = wire.receive

        def receive(of: socket.socket) -> wire.Frame | None:
            frame = real(of)
            if frame is not None and "probabilities" in frame.parts:
                frame.parts["probabilities"][3] = number
            return frame

        monkeypatch.setattr(link_module, "wire", SimpleNamespace(**vars(wire) | {"receive": receive}))
        with pytest.raises(wire.WireError, match="probabilities"):
            replay.sample(8)


def test_dictionaries_that_a_writer_sends_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "MAX_DICTIONARY_BYTES", 1 << 16)
    with served(1, tmp_path) as there:
        link = Link(there.servers[0].address, Security())
        with pytest.raises(ShardLostError):
            for key in range(1, 20):
                link.call(Request.PUT, {"keys": []}, {f"dictionary:{key:x}": bytes(1 << 13)})
        link.close()


def test_connections_are_taken_again_once_the_system_has_threads_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(1, tmp_path) as there:
        address = there.servers[0].address
        with monkeypatch.context() as patch:

            def start(thread: threading.Thread) -> None:
                raise RuntimeError("can't start new thread")

            patch.setattr(threading.Thread, "start", start)
            with pytest.raises(ConnectionError):
                connect(address, Security(), 5.0)
        made, _ = connect(address, Security(), 5.0)
        made.close()
