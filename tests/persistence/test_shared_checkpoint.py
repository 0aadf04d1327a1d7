"""One checkpoint among processes and threads: its readers and its writer, slow disks and failing ones."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.disk.region_files import RegionFiles
from sharpwave.disk.store_folder import Hold
from sharpwave.native.directory import Directory
from sharpwave.native.file_operations import Files
from sharpwave.persistence import checkpoint as checkpoint_module
from sharpwave.persistence import opening as opening_module
from tests.disk.test_store_folder import SPEC, append, made
from tests.support.faults import on


def test_many_read_a_checkpoint_at_once(tmp_path: Path) -> None:
    store = sw.Store(SPEC, capacity=5000)
    append(store, range(1000))
    store.checkpoint(tmp_path)
    together = threading.Barrier(4, timeout=30)

    find = RegionFiles.find

    def met(*arguments: Any, **settings: Any) -> Any:
        together.wait()  # all hold it now
        return find(*arguments, **settings)

    found: list[int] = []
    with mock.patch.object(RegionFiles, "find", met):
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


def test_segments_that_are_evicted_meanwhile_are_copied_with_their_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = sw.Field((None,), "int32", shared=True)
    spec = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"), prompt=prompt)
    store = sw.Store(spec, capacity=1000, segment_steps=8)
    values = [np.random.default_rng(k).integers(0, 1 << 30, 100).astype(np.int32) for k in range(250)]
    for k in range(1000):
        store.append(obs=[k, 0], action=k, reward=0.0, terminated=k % 5 == 4, truncated=False, prompt=values[k // 4])
    run = checkpoint_module.SegmentCopier.run
    copied: list[int] = []

    def late(self: Any, *args: Any) -> None:
        store.resize(capacity=100)
        copied.append(self.nbytes)
        run(self, *args)

    with mock.patch.object(checkpoint_module.SegmentCopier, "run", late):
        store.checkpoint(tmp_path)
    assert copied[0] > 220 * 400  # the values that only the copies hold
    opened = sw.Store.open(tmp_path)
    assert len(opened) == 1000 and opened.recovery is not None and not opened.recovery.damages
    replay = opened.transitions()
    batch = replay.fetch(replay.sampleable_ids())
    assert len(batch.action) >= 999
    for i, k in enumerate(batch.action.tolist()):
        assert (batch["prompt"][i] == values[k // 4]).all()


def test_an_error_while_an_evicted_segment_is_written_is_the_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_module, "AT_A_TIME", 100)
    store = sw.Store(SPEC, capacity=1000, segment_steps=4, codec="raw")
    append(store, range(1000))
    files, shrunk = Elsewhere(), threading.Event()
    run = checkpoint_module.SegmentCopier.run

    def late(self: Any, *args: Any) -> None:
        files.left = 0
        store.resize(capacity=100)
        shrunk.set()
        run(self, *args)

    late_run = mock.patch.object(checkpoint_module.SegmentCopier, "run", late)
    with on(files), late_run, pytest.raises(OSError, match="No space left"):
        store.checkpoint(tmp_path)
    assert shrunk.is_set() and len(store) <= 100 and os.listdir(tmp_path) == ["lock"]
    store.checkpoint(tmp_path)
    assert len(sw.Store.open(tmp_path)) == len(store)
