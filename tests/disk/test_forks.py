"""Forked processes: what a child of the process that opened a store may do with it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.disk.test_store_folder import SPEC, append, held, made


def child(work: Callable[[], Any]) -> str:
    """What ``work`` gives in a forked process, or the error that it raises, as text."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            signal.alarm(20)
            try:
                answer = str(work())
            except BaseException as error:
                answer = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
            os.write(writer, answer.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        answer = file.read()
    assert os.waitpid(pid, 0)[1] == 0
    return answer


def test_a_store_on_disk_stays_the_parents(tmp_path: Path) -> None:
    store = made(tmp_path / "store", ram="4MiB")
    append(store, range(2000))
    assert store._log.segment_cache is not None
    while store._log.segment_cache.uncache_chunk():
        pass
    view = store.transitions()
    view.sample(32)  # readers are there
    before = {path: path.read_bytes() for path in sorted((tmp_path / "store").rglob("*")) if path.is_file()}
    acts: dict[str, Callable[[], Any]] = {
        "append": lambda: append(store, range(1)),
        "extend": lambda: store.extend(
            obs=np.zeros((1, 4), int), action=[0], reward=[0], terminated=[False], truncated=[False]
        ),
        "flush": store.flush,
        "checkpoint": lambda: store.checkpoint(tmp_path / "checkpoint"),
        "sample": lambda: view.sample(4),
        "fetch": lambda: view.fetch(view.sampleable_ids()[:3]),
        "view": store.transitions,
        "resize": lambda: store.resize(capacity=500),
        "end_episode": lambda: store.end_episode(0, np.zeros(4, int)),
    }
    for name, act in acts.items():
        answer = child(act)
        assert answer.startswith("StoreInUseError") and f"by process {os.getpid()};" in answer, (name, answer)
        assert "forked" in answer

    def leave() -> str:
        with store:
            pass
        return str(open_files(tmp_path / "store"))

    assert child(leave) == "0", "the child has none of its files open"
    after = {path: path.read_bytes() for path in sorted((tmp_path / "store").rglob("*")) if path.is_file()}
    assert after == before and not (tmp_path / "checkpoint").exists()
    with pytest.raises(sw.StoreInUseError):
        sw.Store.open(tmp_path / "store")
    append(store, range(2000, 2010))
    store.flush()
    assert len(view.sample(32).action) == 32
    store.close()
    with sw.Store.open(tmp_path / "store") as store:
        assert held(store)[-1] == 2008


def open_files(folder: Path) -> int:
    """Descriptors of this process that lead to a folder or into it."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith(str(folder))
    return found


def test_forked_workers_do_not_keep_the_folder(tmp_path: Path) -> None:
    store = made(tmp_path)
    append(store, range(10))
    go = multiprocessing.get_context("fork").Event()
    worker = multiprocessing.get_context("fork").Process(target=go.wait, args=(30,))
    worker.start()
    try:
        store.close()
        with sw.Store.open(tmp_path) as again:
            append(again, range(10, 20))
    finally:
        go.set()
        worker.join(30)
    assert worker.exitcode == 0


SILENT = """
import os, sys, numpy as np, sharpwave as sw
spec = sw.Spec(obs=sw.Field((4,), "int64"), action=sw.Field((), "int64"))
memory = sw.Store(spec, capacity=1000)
store = sw.Store(spec, capacity=1000, disk=sys.argv[1])
for k in range(100):
    for one in (memory, store):
        one.append(obs=np.full(4, k), action=k, reward=0.0, terminated=False, truncated=False)
view = store.transitions()
view.sample(8)
pid = os.fork()
if pid == 0:
    sys.exit(0)  # through all that runs at exit
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
view.sample(8)
store.flush()
store.close()
with sw.Store.open(sys.argv[1]) as store:
    assert len(store) >= 99
"""


def test_children_that_touch_nothing_are_silent(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", SILENT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_a_store_in_memory_goes_on_in_a_child_as_a_copy(tmp_path: Path) -> None:
    """Forked again and again while other threads append, sample, and write checkpoints."""
    store = sw.Store(SPEC, capacity=5000, segment_steps=4)
    append(store, range(100))
    view, over = store.transitions(), threading.Event()

    def appending() -> None:
        at = 100
        while not over.is_set():
            append(store, range(at, at + 10))
            at += 10

    def saving() -> None:
        while not over.is_set():
            store.checkpoint(tmp_path / "mine")

    def go_on() -> str:
        begin = store.total_steps
        steps = held(store)
        append(store, range(10**6, 10**6 + 50))
        found = held(store)
        assert store.total_steps == begin + 50 and len(found) > min(begin, 4900)
        assert found == [*steps, begin - 1, *range(10**6, 10**6 + 49)][-len(found) :]
        view.sample(64)
        store.checkpoint(tmp_path / "childs")
        assert len(sw.Store.open(tmp_path / "childs")) == len(store)
        return "went on"

    threads = [threading.Thread(target=one) for one in (appending, saving)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            assert child(go_on) == "went on"
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
    assert held(store)[-1] < 10**6, "what the children wrote is not here"
