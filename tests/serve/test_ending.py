"""Processes end when they are asked to, whichever thread the system gives the signal to; those that do not say why."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

import sharpwave as sw
from sharpwave.serve import local_shards, supervisor
from sharpwave.serve.fleet import ShardPlan
from tests.serve.serving import SPEC, play

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="signals to a thread by the number of a call"
)
TGKILL = 234


def tell_another_thread(process: int, number: int) -> None:
    """Send a signal to a thread of a process that is not its main thread."""
    threads = [int(name) for name in os.listdir(f"/proc/{process}/task") if int(name) != process]
    assert ctypes.CDLL(None).syscall(TGKILL, process, threads[-1], number) == 0


def test_a_shard_ends_by_a_signal_that_another_thread_is_given() -> None:
    with sw.Cluster(SPEC, shards=1, capacity=10_000) as cluster:
        assert cluster._processes is not None
        (process,) = cluster._processes.processes
        tell_another_thread(process, signal.SIGTERM)
        deadline = time.monotonic() + 20
        while cluster._processes.processes == [process]:  # another is started in its place
            assert time.monotonic() < deadline
            time.sleep(0.05)


def check_ended(process: int, sockets: Path) -> None:
    gc.collect()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{process}").exists() or sockets.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_shards_end_once_nothing_refers_to_their_cluster() -> None:
    """A view, a writer or an episode keeps them running."""
    cluster = sw.Cluster(SPEC, shards=1, capacity=10_000)
    assert cluster._processes is not None
    (process,) = cluster._processes.processes
    sockets = Path(cluster.links[0].address.path).parent
    writer, view = cluster.writer(), cluster.transitions()
    play(writer, 1, 40, 0)
    writer.flush()
    episodes = cluster.episodes()
    del cluster
    gc.collect()
    assert len(view.sample(4)) == 4 and sockets.exists()
    writer.close()
    del view, writer
    gc.collect()
    assert len(episodes[0].action)
    del episodes
    check_ended(process, sockets)


def test_a_blend_goes_on_once_its_cluster_is_freed() -> None:
    """It takes memory of the cluster's empty store."""
    cluster = sw.Cluster(SPEC, shards=1, capacity=10_000)
    assert cluster._processes is not None
    (process,) = cluster._processes.processes
    sockets = Path(cluster.links[0].address.path).parent
    writer = cluster.writer()
    play(writer, 1, 40, 0)
    writer.close()
    blend = sw.Blend([(0.5, cluster.transitions(name=name)) for name in "ab"])
    del cluster, writer
    gc.collect()
    for batch in (blend.sample(16), next(stream := blend.stream(8))):
        assert (batch.shards >= 0).all() and set(batch.source) == {0, 1}
    del blend, stream, batch
    check_ended(process, sockets)


def test_a_shard_ends_without_the_end_of_its_interpreter(tmp_path: Path) -> None:
    """In which a connection's thread that is in the core may abort the process."""
    command = f"import atexit, os; atexit.register(os.abort); {local_shards.COMMAND}"
    settings = asdict(ShardPlan(1, tmp_path, capacity=1000).settings(SPEC)[0])
    with subprocess.Popen(
        [sys.executable, "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(settings) + "\n")
        process.stdin.flush()
        assert "addresses" in process.stdout.readline()
        process.terminate()
        assert process.wait(30) == 0


def test_a_service_ends_by_a_signal_that_another_thread_is_given(tmp_path: Path) -> None:
    listen = f"unix:{tmp_path / 's'}"
    command = [sys.executable, "-m", "sharpwave.cli", "serve", "--capacity", "1000", "--listen", listen]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and "Serving" in process.stdout.readline()
        tell_another_thread(process.pid, signal.SIGINT)
        assert process.wait(30) == 0


def test_a_shard_that_does_not_end_says_what_it_does_and_is_killed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(local_shards, "STOP_S", 0.3)
    monkeypatch.setattr(supervisor.Program, "terminate", lambda program: None)
    cluster = sw.Cluster(SPEC, shards=1, capacity=10_000)
    cluster.close()
    assert "shard 0 did not end in 0.3 s; it is killed" in caplog.text
    said = capfd.readouterr().err
    assert "most recent call first" in said and "log_lines.py" in said and "_accept" in said
