"""``sharpwave serve`` as a user starts, meets, stops and kills it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.serve.addresses import Address, Security
from sharpwave.serve.fleet import ShardPlan
from sharpwave.serve.service import Service

SPEC = sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((), "int64"))
COMMAND = [sys.executable, "-m", "sharpwave.cli", "serve"]


@contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the command; give the address that it prints."""
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "200"} | environment
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("Serving at "), line
        yield line.split()[2].rstrip(";"), process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


def write(cluster: sw.Cluster, steps: int) -> None:
    writer = cluster.writer(2, segment_steps=8)
    for step in range(steps):
        writer.extend(
            obs=np.full((2, 3), step, np.float32),
            action=[step, step],
            reward=[1, 1],
            terminated=[step == steps - 1] * 2,
            truncated=[False] * 2,
        )
    writer.close()


@pytest.mark.slow
def test_a_folder_is_served_stopped_and_served_again(tmp_path: Path) -> None:
    disk = str(tmp_path / "replay")
    for life in range(2):
        more = ["--capacity", "1e4", "--shards", "2"] if life == 0 else []
        with serving("--disk", disk, "--listen", "127.0.0.1:0", *more) as (address, process):
            if life == 0:
                with pytest.raises(ValueError, match="say what a step is"):
                    sw.connect(address)
                with sw.Cluster(SPEC, address=address) as cluster:
                    write(cluster, 50)
                with pytest.raises(ValueError, match="that spec"):
                    sw.Cluster(sw.Spec(obs=sw.Field((4,), "float32"), action=sw.Field((), "int64")), address=address)
            with sw.connect(address) as cluster:
                assert len(cluster) == 100 and len(cluster.links) == 2
                assert cluster.transitions().sample(32).obs.shape == (32, 3)
            process.send_signal(signal.SIGINT if life else signal.SIGTERM)
            assert process.wait(60) == 0


def test_its_shards_end_with_it_when_it_is_killed(tmp_path: Path) -> None:
    with serving("--listen", f"unix:{tmp_path}/sock", "--capacity", "1000") as (address, process):
        with sw.Cluster(SPEC, address=address) as cluster:
            write(cluster, 20)
        children = subprocess.run(
            ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False
        ).stdout.split()
        assert children
        process.kill()
        deadline = time.monotonic() + 30
        while any(Path(f"/proc/{child}").exists() for child in children):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_connections_are_encrypted_where_there_is_a_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    secret = "a secret of more than sixteen"
    options = ["--tls-certificate", str(certificate), "--tls-key", str(key), "--capacity", "1000"]
    with serving("--listen", "127.0.0.1:0", *options, SHARPWAVE_SECRET=secret) as (address, _):
        with pytest.raises(ConnectionError, match="; where the server has a TLS certificate, pass tls_auth"):
            sw.connect(address, secret=secret)
        monkeypatch.chdir(tmp_path)
        with sw.Cluster(SPEC, address=address, secret=secret, tls_authority=certificate.name) as cluster:
            monkeypatch.chdir("/")  # whose connections are made later
            write(cluster, 20)
            assert len(cluster) == 40
        with pytest.raises(ConnectionError, match="secret"):
            sw.connect(address, secret="another one of that length", tls_authority=str(certificate))
    with (
        serving("--listen", "127.0.0.1:0", "--capacity", "1000", SHARPWAVE_SECRET=secret) as (address, _),
        pytest.raises(ConnectionError, match="connect without tls_authority="),
    ):
        sw.connect(address, secret=secret, tls_authority=str(certificate))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--listen", "127.0.0.1:0"], "needs a limit"),
        (["--capacity", "100", "--listen", "0.0.0.0:0"], "SHARPWAVE_SECRET"),
        (["--capacity", "100", "--listen", "nowhere"], "HOST:PORT"),
        (["--capacity", "100", "--listen", "unix:/nonexistent/folder/sock"], "cannot listen"),
        (["--capacity", "100", "--listen", "127.0.0.1:0", "--shards", "0"], "shards=0, expected an integer from 1"),
        (["--capacity", "100", "--listen", "127.0.0.1:0", "--replicas", "1", "--shards", "1"], "1 of 2 shards or more"),
        (["--capacity", "100", "--listen", "127.0.0.1:0", "--disk", "/dev/null/d"], "/dev/null is a device, expected"),
        (["--capacity", "100", "--tls-certificate", "/none.pem"], "--tls-certificate /none.pem: No such file"),
        (["--capacity", "100", "--tls-certificate", __file__], f"--tls-certificate {__file__}: [SSL] PEM lib"),
        (["--capacity", "100", "--tls-certificate", __file__], "or as --tls-key, its key"),
        (["--capacity", "100", "--tls-key", __file__], "give --tls-certificate too"),
        (["--capacity", "100", "--codec", "lzma"], "codec 'lzma', expected one of 'auto'"),
        (["--capacity", "100", "--on-full", "wait"], "on_full='wait', expected one of raise, block, drop_oldest"),
        (["--capacity", "100", "--segment-steps", "0"], "segment_steps=0, expected an integer from 1 to 65536"),
        (["--capacity", "100", "--segment-steps", "1000000000"], "segment_steps=1000000000, expected"),
        (["--capacity", "100", "--shards", "4", "--listen", "127.0.0.1:65533"], "shard 2 would listen at port 65536"),
        (["--capacity", "4", "--shards", "8"], "capacity=4 of 8 shards, expected at least 16"),
        (["--ram", "16MiB", "--shards", "8"], "ram='16MiB' of 8 shards, expected at least 33,554,432"),
        (["--ram", "100000TiB"], "cannot reserve 109,951,162,777,600,000 bytes"),
        (["--capacity", "inf"], "capacity=inf, expected an integer"),
        (["--capacity", "1.5"], "capacity=1.5, expected an integer"),
        (["--capacity", "100", "--listen", "127.0.0.1:0", "--disk", os.path.dirname(__file__)], "is not empty"),
    ],
)
def test_what_it_cannot_do_it_says_in_a_line(
    arguments: list[str], text: str, here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHARPWAVE_SECRET", raising=False)
    handlers = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        done = here("serve", *arguments)
    finally:
        for one, handler in handlers.items():
            signal.signal(one, handler)
    assert done.code in (1, 2) and text in " ".join(done.text.split()) and "Traceback" not in done.text


@pytest.mark.slow
def test_a_service_in_memory_begins_without_the_writers_of_one_that_was_killed(tmp_path: Path) -> None:
    arguments = ["--capacity", "1000", "--listen", f"unix:{tmp_path}/s"]
    for lanes in (4, 8):
        with serving(*arguments) as (address, process), sw.Cluster(SPEC, address=address) as cluster:
            for name in ("actor", "other"):
                writer = cluster.writer(lanes, name=name)
                assert writer.delivery.first_lane == (0 if name == "actor" else lanes)
                writer.close()
            process.send_signal(signal.SIGKILL if lanes == 4 else signal.SIGTERM)
            process.wait(60)


@pytest.mark.slow
def test_a_cluster_is_not_served_as_another_than_it_is(tmp_path: Path) -> None:
    disk, anywhere = tmp_path / "d", Address.parse("127.0.0.1:0")
    with sw.Cluster(SPEC, shards=2, capacity=10_000, disk=disk, segment_steps=16) as cluster:
        write(cluster, 50)
    for shards, more, text in (
        (4, {"replicas": 1}, "replicas=0, asked for was replicas=1; .* new folder"),
        (None, {"options": {"segment_steps": 8}}, "segment_steps=16, asked for was segment_steps=8"),
        (None, {"options": {"codec": "raw"}}, "codec='auto', asked for was codec='raw'"),
        (None, {"options": {"on_full": "block"}}, "on_full='raise', asked for was on_full='block'"),
    ):
        with pytest.raises(ValueError, match=text):
            Service(anywhere, shards, disk, Security(), **more)
    arguments = ["--disk", str(disk), "--listen", "127.0.0.1:0", "--replicas", "1"]
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "replicas=0, asked for was replicas=1" in " ".join(done.stderr.split())
    same = {"replicas": 0, "options": {"segment_steps": 16, "codec": None}}
    with Service(anywhere, 2, disk, Security(), **same) as service, sw.connect(str(service.address)) as cluster:
        assert len(cluster) == 100
        cluster.resize(shards=3)  # the third is as the others are
        writer = cluster.writer(1, shard=2)
        assert writer.delivery.segment_steps == 16
        writer.close()
    with serving("--disk", str(disk), "--listen", "127.0.0.1:0", "--shards", "2") as (address, process):
        with sw.connect(address) as cluster:  # as whatever started it before starts it again
            assert len(cluster.links) == 3
        assert process.stdout is not None
        assert process.stdout.readline().startswith("--shards 2 is for a new folder")


@pytest.mark.slow
def test_a_port_that_a_shard_needs_is_found_in_use_before_a_client_comes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, "--capacity", "100", "--listen", f"127.0.0.1:{port - 1}"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1 and f"127.0.0.1:{port}: cannot listen there" in done.stderr
    assert "shard 0 needs that port" in done.stderr and "Traceback" not in done.stderr


def test_an_address_that_is_in_use_is_refused_before_shards_are_started(tmp_path: Path) -> None:
    ShardPlan(1, tmp_path, capacity=100, disk=tmp_path).manifest(SPEC).write(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = Address.parse(f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(OSError, match="cannot listen there"):
            Service(listen, None, tmp_path, Security())
    assert os.listdir(tmp_path) == ["cluster.json"]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "getuid"), reason="clients use unix sockets")
def test_clients_go_on_when_the_service_was_killed_and_is_started_again(tmp_path: Path) -> None:
    arguments = ["--disk", str(tmp_path / "d"), "--capacity", "1e4", "--listen", f"unix:{tmp_path}/s"]
    with serving(*arguments) as (address, process):
        cluster = sw.Cluster(SPEC, address=address)
        writer, replay = cluster.writer(2, segment_steps=8), cluster.transitions()
        extend(writer, 0, 100)
        writer.flush()
        process.send_signal(signal.SIGKILL)
        process.wait()
        extend(writer, 100, 50)
    with serving(*arguments):  # at once: its shards may still be ending
        writer.flush(30)
        assert len(cluster) == 2 * 144
        replay.refresh()
        batch = replay.sample(32)
        np.testing.assert_array_equal(batch.obs[:, 0], batch.step)
        writer.close()
        cluster.close()


def extend(writer: sw.SegmentWriter, begin: int, steps: int) -> None:
    for step in range(begin, begin + steps):
        writer.extend(
            obs=np.full((2, 3), step, np.float32),
            action=[step, step],
            reward=[1, 1],
            terminated=[False] * 2,
            truncated=[False] * 2,
        )
