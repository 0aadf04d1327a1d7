"""A store's folder among processes: locks, forks, readers and writers of one checkpoint, and folders taken away."""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.disk.region_opening import open_regions
from sharpwave.disk.store_folder import Hold
from sharpwave.native.directory import Directory
from sharpwave.native.files import Files
from sharpwave.persistence import checkpoint as checkpoint_module
from sharpwave.persistence import opening
from sharpwave.persistence import opening as opening_module
from tests.disk.test_store_folder import SPEC, append, held, made
from tests.support.faults import on


def delete_folder(folder: Path) -> None:
    shutil.rmtree(folder)


def replace_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    made(folder).close()


def delete_lock(folder: Path) -> None:
    (folder / "lock").unlink()


def replace_lock(folder: Path) -> None:
    delete_lock(folder)
    (folder / "lock").write_text("1\n")


def delete_regions(folder: Path) -> None:
    shutil.rmtree(folder / "regions")


def replace_regions(folder: Path) -> None:
    os.rename(folder / "regions", folder / "other")
    (folder / "regions").mkdir()


def delete_region(folder: Path) -> None:
    for path in (folder / "regions").iterdir():
        path.unlink()


WAYS = [
    delete_folder, replace_folder, delete_lock, replace_lock, delete_regions, replace_regions, delete_region
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_folder_that_was_taken_away_is_noticed(tmp_path: Path, way: Callable[[Path], None]) -> None:
    with on(Files()):  # regions are small
        store = made(tmp_path / "store")
        append(store, range(10))
        store.flush()
        append(store, range(10, 20))
        way(tmp_path / "store")
        for _ in range(2):
            with pytest.raises(sw.StoreInUseError, match="was deleted or replaced"):
                store.flush()
        with pytest.raises(sw.StoreInUseError, match="was deleted or replaced"):
            store.checkpoint(tmp_path / "checkpoint")
        assert not (tmp_path / "checkpoint" / "store.json").exists()
        if way is not delete_region:
            with pytest.raises(sw.StoreInUseError, match="was deleted or replaced"):
                store.resize(capacity=500)
        for on_full in ("block", "drop_newest", "drop_oldest", "raise"):
            store._log.admission.on_full = on_full
            with pytest.raises(sw.StoreInUseError, match="was deleted or replaced"):
                append(store, range(20, 1000))
        with pytest.raises(OSError, match="was deleted or replaced"):
            store.close()


def test_a_deleted_lock_file_lets_nobody_else_in(tmp_path: Path) -> None:
    store = made(tmp_path)
    (tmp_path / "lock").unlink()
    for _ in range(2):
        with pytest.raises(sw.StoreInUseError, match="is in use by process"):
            sw.Store.open(tmp_path)
    with pytest.raises(sw.StoreInUseError, match="was deleted or replaced"):
        store.flush()
    assert os.listdir(tmp_path / "regions") == []
    with pytest.raises(OSError, match="was deleted or replaced"):
        store.close()
    sw.Store.open(tmp_path).close()


def test_a_lock_file_that_goes_while_it_is_taken_is_taken_anew(tmp_path: Path) -> None:
    """Between its opening and its locking another one takes its name."""
    opened = Directory.open_or_make
    times = 0

    def late(self: Directory, name: str) -> int:
        nonlocal times
        descriptor = opened(self, name)
        times += 1
        if times < 4:
            (tmp_path / "lock").unlink()
        return descriptor

    late_lock = mock.patch.object(Directory, "open_or_make", late)
    with Directory.open(tmp_path) as directory, late_lock, Hold(directory) as hold:
        hold.check()
        assert times == 4 and (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


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


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
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


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
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


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
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


def test_many_read_a_checkpoint_at_once(tmp_path: Path) -> None:
    store = sw.Store(SPEC, capacity=5000)
    append(store, range(1000))
    store.checkpoint(tmp_path)
    together = threading.Barrier(4, timeout=30)

    def met(*arguments: Any, **settings: Any) -> Any:
        together.wait()  # all hold it now
        return open_regions(*arguments, **settings)

    found: list[int] = []
    with mock.patch.object(opening, "open_regions", met):
        threads = [threading.Thread(target=lambda: found.append(len(sw.Store.open(tmp_path)))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert found == [1000] * 4


def read(folder: Path, found: list[int]) -> None:
    found.append(len(sw.Store.open(folder)))


def test_readers_and_the_writer_of_a_checkpoint_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoint"
    store = sw.Store(SPEC, capacity=5000)
    append(store, range(100))
    store.checkpoint(folder)
    append(store, range(100, 150))
    with Directory.open(folder) as directory:
        for shared, text in ((True, "being read by another process"), (False, f"in use by process {os.getpid()}")):
            monkeypatch.setattr(checkpoint_module, "WAIT_S", 0.05)
            monkeypatch.setattr(opening_module, "WAIT_S", 0.05)
            hold = Hold(directory, shared=shared)
            with pytest.raises(sw.StoreInUseError, match=text):
                store.checkpoint(folder)
            if not shared:
                with pytest.raises(sw.StoreInUseError, match=text):
                    sw.Store.open(folder)
            monkeypatch.undo()
            found: list[int] = []
            thread = threading.Thread(target=store.checkpoint if shared else read, args=(folder, found)[: 2 - shared])
            thread.start()
            time.sleep(0.05)
            hold.close()
            thread.join(30)
    assert found == [150]


def test_a_reader_that_waited_reads_the_checkpoint_that_is_there_then(tmp_path: Path) -> None:
    """The one that it saw at first is replaced before it holds the folder."""
    store = sw.Store(SPEC, capacity=5000)
    append(store, range(100))
    store.checkpoint(tmp_path)
    holding = Hold.__init__

    def late(self: Hold, *args: Any, **settings: Any) -> None:
        if settings.get("shared"):
            append(store, range(100, 150))
            store.checkpoint(tmp_path)
        holding(self, *args, **settings)

    with mock.patch.object(Hold, "__init__", late):
        assert len(sw.Store.open(tmp_path)) == 150


def test_a_checkpoint_that_nobody_may_write_to_is_read(tmp_path: Path) -> None:
    store = sw.Store(SPEC, capacity=5000)
    append(store, range(100))
    store.checkpoint(tmp_path)
    (tmp_path / "lock").unlink()

    def refused(self: Directory, name: str) -> int:
        raise PermissionError(13, "Permission denied")

    with mock.patch.object(Directory, "open_or_make", refused):
        assert len(sw.Store.open(tmp_path)) == 100
    assert not (tmp_path / "lock").exists()


class Elsewhere(Files):
    """Checkpoints go to another file system, where writing fails after some bytes."""

    left = 10**9

    def link(self, directory: Directory, name: str, target: Directory) -> bool:
        return False

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        self.left -= len(data)
        if self.left < 0:
            raise OSError(28, "No space left on device")
        super().pwrite(descriptor, data, offset)


def test_a_checkpoint_that_fails_leaves_no_descriptor_behind(tmp_path: Path) -> None:
    files = Elsewhere()
    with on(files):
        store = made(tmp_path / "store")
        append(store, range(900))
        before = os.listdir("/proc/self/fd")
        store.checkpoint(tmp_path / "checkpoint")
        assert len(os.listdir("/proc/self/fd")) == len(before)
        files.left = 10**9
        store.checkpoint(tmp_path / "checkpoint")
        size = 10**9 - files.left
        for left in range(0, size, size // 20):
            files.left = left
            with pytest.raises(OSError, match="No space left"):
                store.checkpoint(tmp_path / "checkpoint")
            files.left = 10**9
            assert len(os.listdir("/proc/self/fd")) == len(before)
        files.left = 10**9
        store.checkpoint(tmp_path / "checkpoint")
        store.close()
    assert len(sw.Store.open(tmp_path / "checkpoint", disk=tmp_path / "opened")) == 900


class Slow(Files):
    """The n-th write of a segment waits until it is let."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        if len(data) > 10_000:
            self.begun.set()
            assert self.go.wait(60)
        super().pwrite(descriptor, data, offset)


@pytest.mark.parametrize("way", ["append", "resize"])
def test_a_checkpoint_to_a_slow_disk_keeps_few_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    most = 1 << 18
    monkeypatch.setattr(checkpoint_module, "AT_A_TIME", most)
    spec, rng = sw.Spec(obs=sw.Field((1024,), "uint8"), action=sw.Field((), "int64")), np.random.default_rng(0)
    store = sw.Store(spec, capacity=2000, segment_steps=16, codec="raw")
    frames = rng.integers(0, 256, (2000, 1024), np.uint8)

    def go_on(count: int, timeout: float | None = None) -> None:
        for k in range(count):
            store.append(obs=frames[k], action=k, reward=0.0, terminated=False, truncated=False, timeout=timeout)

    go_on(2000)
    view, total, files = store.transitions(), len(store), Slow()
    with on(files):
        saving = threading.Thread(target=store.checkpoint, args=(tmp_path,))
        saving.start()
        assert files.begun.wait(60)
        if way == "append":
            with pytest.raises(sw.LimiterTimeoutError, match="a checkpoint is being written to a slow disk"):
                go_on(2000, timeout=0.01)
            view.sample(8)  # goes on
        else:
            shrinking = threading.Thread(target=store.resize, kwargs={"capacity": 200})
            shrinking.start()
        assert store._log.copying is not None
        copies = store._log.copying.nbytes
        if way == "append":
            assert copies == store.stats()["bytes"]["checkpoint"] > 0
        assert copies <= 3 * most + 40_000
        files.go.set()
        saving.join(60)
        if way == "resize":
            shrinking.join(60)
    assert store.stats()["bytes"]["checkpoint"] == 0
    go_on(100)
    opened = sw.Store.open(tmp_path)
    assert len(opened) == total and opened.recovery is not None and not opened.recovery.damages


def test_an_error_while_an_evicted_segment_is_written_is_the_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_module, "AT_A_TIME", 100)
    store = sw.Store(SPEC, capacity=1000, segment_steps=4, codec="raw")
    append(store, range(1000))
    files, shrunk = Elsewhere(), threading.Event()
    run = checkpoint_module.Copying.run

    def late(self: Any, *args: Any) -> None:
        files.left = 0
        store.resize(capacity=100)
        shrunk.set()
        run(self, *args)

    late_run = mock.patch.object(checkpoint_module.Copying, "run", late)
    with on(files), late_run, pytest.raises(OSError, match="No space left"):
        store.checkpoint(tmp_path)
    assert shrunk.is_set() and len(store) <= 100 and os.listdir(tmp_path) == ["lock"]
    store.checkpoint(tmp_path)
    assert len(sw.Store.open(tmp_path)) == len(store)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX")
def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    code = f"""
import sys, time, sharpwave as sw
spec = sw.Spec(obs=sw.Field((4,), "int64"), action=sw.Field((), "int64"))
store = sw.Store(spec, capacity=1000, disk={str(tmp_path)!r})
print("made", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "made\n"
        with pytest.raises(sw.StoreInUseError, match=f"in use by process {process.pid}"):
            sw.Store.open(tmp_path)
        process.kill()
    sw.Store.open(tmp_path).close()


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_a_store_is_not_copied_nor_sent_to_a_process(tmp_path: Path, disk: bool) -> None:
    store = made(tmp_path / "store") if disk else sw.Store(SPEC, capacity=1000)
    append(store, range(100))
    view = store.transitions()
    for one in (store, view, view.stream(4)):
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=f"{type(one).__name__}: cannot be pickled or copied.*Store.open"):
                way(one)
    batch = view.sample(4)
    sent = pickle.loads(pickle.dumps(batch))
    assert np.array_equal(sent.obs, batch.obs) and view.update_priorities(sent, np.ones(4)) == 0
    store.close()
