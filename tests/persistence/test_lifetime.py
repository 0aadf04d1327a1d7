"""How a store on disk ends: closed, dropped, with the interpreter, in a forked child, on a full disk."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave import store as store_module
from sharpwave.native.file_operations import Files

SPEC = sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((), "int64"))


def episode(store: sw.Store, steps: int, first: int = 0) -> None:
    """A whole episode, which ends with its last step."""
    for k in range(first, first + steps):
        done = k == first + steps - 1
        store.append(obs=np.full(3, k), action=k, reward=1.0, terminated=done, truncated=False)


def made(folder: Path) -> sw.Store:
    return sw.Store(SPEC, capacity=1000, disk=folder)


def actions(folder: Path) -> list[int]:
    """Of all steps that are there, after opening."""
    with sw.Store.open(folder) as store:
        replay = store.transitions()
        return sorted(replay.fetch(replay.sampleable_ids()).action.tolist()) if len(replay) else []


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_close_flushes(tmp_path: Path) -> None:
    store = made(tmp_path)
    episode(store, 50)
    store.close()
    store.close()
    assert actions(tmp_path) == list(range(50))


def test_an_exception_that_leaves_the_block_costs_no_step(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), made(tmp_path) as store:
        episode(store, 50)
        _ = 1 // 0
    assert actions(tmp_path) == list(range(50))


def test_a_store_that_is_dropped_is_flushed_and_lets_its_folder_go_at_once(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    with no_garbage_collection():
        store = made(tmp_path)
        episode(store, 50)
        store.transitions(sampler=sw.Prioritized()).sample(8)
        del store
        assert actions(tmp_path) == list(range(50))
    gc.collect()
    assert sys.platform != "linux" or len(os.listdir("/proc/self/fd")) <= before + 2, "the process's helper threads'"


def test_a_dropped_store_that_was_opened_lets_its_folder_go(tmp_path: Path) -> None:
    """Also where it came from a checkpoint, whose view nobody asked for."""
    store = made(tmp_path / "s")
    replay = store.transitions()
    episode(store, 50)
    store.checkpoint(tmp_path / "c")
    with no_garbage_collection():
        again = sw.Store.open(tmp_path / "c", disk=tmp_path / "o")
        episode(again, 3, 50)
        del again
        assert actions(tmp_path / "o") == list(range(53))
    assert len(replay) == 50
    store.close()


def test_a_view_keeps_the_store_that_it_came_from(tmp_path: Path) -> None:
    with no_garbage_collection():
        store = made(tmp_path)
        replay = store.transitions()
        episode(store, 50)
        del store
        assert len(replay) == 50 and len(replay.sample(20).action) == 20
        with pytest.raises(sw.StoreInUseError):
            sw.Store.open(tmp_path)
        del replay
        assert actions(tmp_path) == list(range(50))


class Full(Files):
    """A disk that takes no more from some moment on."""

    full = False

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super().pwrite(descriptor, data, offset)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Full:
    files = Full()
    monkeypatch.setattr(store_module, "Files", lambda: files)
    return files


def test_a_disk_that_is_full_at_close_is_told_and_the_folder_let_go(tmp_path: Path, full: Full) -> None:
    store = made(tmp_path)
    episode(store, 20)
    store.flush()
    episode(store, 10, 20)
    full.full = True
    with pytest.raises(OSError, match=r"close: .*No space left .* the last steps of 1 lanes, 30 at most, are lost"):
        store.close()
    full.full = False
    store.close()
    assert actions(tmp_path) == list(range(20))


def test_what_leaves_the_block_is_not_replaced_by_a_full_disk(tmp_path: Path, full: Full) -> None:
    with pytest.raises(ZeroDivisionError) as raised, made(tmp_path) as store:
        episode(store, 5)
        full.full = True
        _ = 1 // 0
    assert any("No space left" in note for note in raised.value.__notes__)
    full.full = False
    assert actions(tmp_path) == []


def test_a_full_disk_is_told_of_a_store_that_is_dropped(tmp_path: Path, full: Full) -> None:
    store = made(tmp_path)
    episode(store, 5)
    full.full = True
    with pytest.warns(RuntimeWarning, match="No space left"):
        del store
        gc.collect()
    full.full = False
    assert actions(tmp_path) == []


SCRIPT = """
import os, sys, numpy as np, sharpwave as sw
number = sw.Field((), "int64")
store = sw.Store(sw.Spec(obs=sw.Field((3,), "float32"), action=number), capacity=1000, disk=sys.argv[1])
replay = store.transitions()
def play(first):
    for k in range(first, first + 10):
        store.append(obs=np.full(3, k), action=k, reward=1.0, terminated=k == first + 9, truncated=False)
play(0)
"""


def ran(folder: Path, then: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + then, folder], capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("then", ["", "raise SystemExit(0)", "del store", "del replay"])
def test_the_end_of_the_interpreter_flushes(tmp_path: Path, then: str) -> None:
    assert ran(tmp_path, then) == (0, "")
    assert actions(tmp_path) == list(range(10))


def test_an_uncaught_exception_costs_no_step(tmp_path: Path) -> None:
    code, text = ran(tmp_path, "1 // 0")
    assert code == 1 and text.strip().endswith("ZeroDivisionError: integer division or modulo by zero")
    assert actions(tmp_path) == list(range(10))


def test_a_forked_child_that_ends_leaves_the_store_to_its_parent(tmp_path: Path) -> None:
    """The child has unflushed steps as well, and writes none of them."""
    then = """
child = os.fork()
if child == 0:
    raise SystemExit(0)
assert os.waitpid(child, 0)[1] == 0
play(10)
"""
    assert ran(tmp_path, then) == (0, "")
    assert actions(tmp_path) == list(range(20))


def test_the_interpreter_says_what_it_could_not_write(tmp_path: Path) -> None:
    then = """
def full(*_):
    raise OSError(28, "No space left on device")
store._log.disk.files.pwrite = full
"""
    code, text = ran(tmp_path, then)
    assert code == 0 and "No space left on device" in text and "10 at most, are lost" in text
    assert actions(tmp_path) == []


@pytest.mark.parametrize("disk", [False, True])
def test_what_a_store_gave_out_keeps_it_open(disk: bool, tmp_path: Path) -> None:
    def filled() -> sw.Store:
        store = sw.Store(SPEC, capacity=1000, disk=tmp_path / "d" if disk and not (tmp_path / "d").exists() else None)
        episode(store, 50)
        return store

    with no_garbage_collection():
        assert [len(one.reward) for one in filled().episodes()] == [50]
        first, episodes = filled().episodes()[0], filled().episodes()
        assert len(first.obs) >= 50
        assert len(episodes[0].ids) == 50
        assert len(filled().transitions().sample(4)) == 4
        assert len(next(filled().transitions().stream(4))) == 4


@pytest.mark.parametrize("where", ["task = 'push'", "action >= 30", "length > 3 and action < 30"])
def test_episodes_are_judged_while_a_store_is_closed(where: str, tmp_path: Path) -> None:
    """By their annotations and fields: closing kept them from every later draw, or raised that the store is closed."""
    pytest.importorskip("duckdb")
    spec = sw.Spec(obs=sw.Field((), "float32"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=3000, disk=tmp_path / "store", segment_steps=8)
    store.transitions(name="some", where=where)
    for k in range(6):
        store.annotate(0, {"task": "push" if k % 2 else "pull"}, episode=True)
        store.add_episode(obs=np.zeros(11), action=10 * k + np.arange(10), reward=np.ones(10), terminated=True)
    chosen = {
        "task = 'push'": {action for action in range(60) if action // 10 % 2},
        "action >= 30": set(range(30, 60)),
    }.get(where, set(range(30)))
    store.close()
    store.close()
    with sw.Store.open(tmp_path / "store") as again:
        view = again.transitions(name="some", where=where)
        assert len(view) == len(chosen) and set(view.sample(2000).action.tolist()) == chosen
