"""A store's folder among processes: its lock, folders taken away, and stores that are not sent elsewhere."""

from __future__ import annotations

import copy
import os
import pickle
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.disk.store_folder import Hold
from sharpwave.native.directory import Directory
from sharpwave.native.file_operations import Files
from tests.disk.test_store_folder import SPEC, append, made
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


def test_a_store_that_is_open_here_says_what_to_call(tmp_path: Path) -> None:
    folder = tmp_path / "it's"
    store = made(folder)
    append(store, range(10))
    for again in (lambda: made(folder), lambda: sw.Store.open(folder)):
        with pytest.raises(sw.StoreInUseError, match="an earlier run of a notebook's cell") as refused:
            again()
    call = str(refused.value).partition("with sharpwave.")[2]
    assert eval(f"sw.{call}") is store
    store.close()
    with eval(f"sw.{call}") as opened:
        assert len(opened) == 9


@pytest.mark.slow
def test_the_second_of_two_processes_learns_how_to_read_the_first_ones_store(tmp_path: Path) -> None:
    store = made(tmp_path / "store")
    append(store, range(10))
    code = f"import sharpwave as sw; sw.Store.open({str(tmp_path / 'store')!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    said = done.stderr.splitlines()[-1]
    assert "StoreInUseError" in said and f"process {os.getpid()};" in said
    for remedy in ("sharpwave inspect", "store.checkpoint('COPY')", "Store.open('COPY')", "sharpwave.Cluster"):
        assert remedy in said
    store.flush()
    for command in (shlex.split(said.split("`")[1])[1:], ["verify", str(tmp_path / "store")]):
        run = [sys.executable, "-m", "sharpwave.cli", *command]
        assert subprocess.run(run, capture_output=True, timeout=120, check=False).returncode == 0
    store.checkpoint(tmp_path / "copy")
    assert len(sw.Store.open(tmp_path / "copy")) == len(store)
