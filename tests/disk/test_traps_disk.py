"""Traps 20 to 23: restoring, buffers without bounds, full disks, memory that was not promised.

7, 18 and 19 have theirs in test_retention.py, test_threads.py and test_traps.py.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave import store as store_module
from sharpwave import writing
from sharpwave.native.file_operations import Files

SPEC = sw.Spec(obs=sw.Field((64, 64), "uint8"), action=sw.Field((), "int64"))


def play(store: sw.Store, steps: int) -> None:
    rng = np.random.default_rng(store.total_steps)
    for _ in range(steps):
        obs = rng.integers(0, 256, (64, 64), dtype=np.uint8)
        store.append(obs=obs, action=store.total_steps, reward=0.0, terminated=False, truncated=False)


def test_trap_20_a_restore_holds_nothing_twice(tmp_path: Path) -> None:
    """In memory every segment is read once, to where it stays (arena: not Python's memory); on disk none is kept."""
    memory = sw.Store(SPEC, capacity=4000, segment_steps=16, codec="raw")
    play(memory, 4000)
    memory.checkpoint(tmp_path / "memory")
    tracemalloc.start()
    opened = sw.Store.open(tmp_path / "memory")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert opened.stats()["bytes"]["arena_used"] == memory.stats()["bytes"]["arena_used"] > 15e6
    assert peak < 2e6, "beside the arena a segment at a time, and the arrays"

    disk = sw.Store(SPEC, capacity=4000, segment_steps=16, codec="raw", disk=tmp_path / "disk")
    play(disk, 4000)
    disk.transitions(sampler=sw.Prioritized())
    disk.checkpoint(tmp_path / "checkpoint")
    opened = sw.Store.open(tmp_path / "checkpoint", disk=tmp_path / "other")
    assert len(opened) == len(disk) and opened.stats()["disk"]["resident_segments"] == 0
    assert opened.stats()["bytes"]["arena_used"] == 0


def test_trap_20_a_restore_into_other_limits_ends_and_goes_on(tmp_path: Path) -> None:
    store = sw.Store(SPEC, capacity=2000, segment_steps=16, codec="raw")
    view = store.transitions(limiter=sw.SamplesPerInsert(ratio=4, min_size=100, error_buffer=4000))
    play(store, 1000)
    assert len(view.sample(100)) == 100
    store.checkpoint(tmp_path)
    for limits in ({"capacity": 500}, {"capacity": 100_000}, {"ram": "4MiB"}, {"capacity": 300, "ram": "6MiB"}):
        opened = sw.Store.open(tmp_path, **limits)
        again = opened.transitions(limiter=sw.SamplesPerInsert(ratio=4, min_size=100, error_buffer=4000))
        assert 250 <= len(opened) <= 1000
        for _ in range(20):
            again.sample(100, timeout=5)
            play(opened, 25)


def test_trap_21_what_a_slow_reader_leaves_is_bounded_and_no_wait_is_endless() -> None:
    store = sw.Store(SPEC, capacity=1000, segment_steps=16)
    view = store.transitions(sampler=sw.Fifo(), max_times_sampled=1, limiter=sw.Queue(50))
    play(store, 50)
    zeros = np.zeros((64, 64), np.uint8)
    with pytest.raises(sw.LimiterTimeoutError, match="the learner has to sample"):
        for _ in range(10):
            store.append(obs=zeros, action=0, reward=0.0, terminated=False, truncated=False, timeout=0.05)
    assert len(view) <= 50
    view.sample(30)
    with pytest.raises(sw.LimiterTimeoutError, match="the writer has to append"):
        view.sample(60, timeout=0.05)


def test_trap_22_a_full_disk_is_not_retried_for_ever_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(Files):
        full, tries = False, 0

        def pwrite(self, *args: Any) -> None:
            if Full.full:
                Full.tries += 1
                raise OSError(28, "No space left on device")
            super().pwrite(*args)

    monkeypatch.setattr(store_module, "Files", Full)
    monkeypatch.setattr(writing, "MAX_BLOCK_S", 0.3)
    for on_full in ("raise", "block"):
        store = sw.Store(SPEC, capacity=4000, segment_steps=16, disk=tmp_path / on_full, on_full=on_full)
        Full.full, Full.tries = False, 0
        play(store, 100)
        Full.full = True
        with pytest.raises(OSError, match="could not be written to"):
            play(store, 100)
        assert 1 <= Full.tries <= 50 and store.stats()["disk"]["failures"] == Full.tries
        held = len(store)
        Full.full = False
        play(store, 100)
        assert len(store) == held + 100, "what was refused was not appended, and nothing else is missing"
        store.close()


def test_trap_22_ids_are_not_used_again_after_a_restore(tmp_path: Path) -> None:
    seen: set[int] = set()
    store = sw.Store(SPEC, capacity=200, segment_steps=16, disk=tmp_path / "0")
    for k in range(1, 6):
        view = store.transitions()
        play(store, 150)
        new = set(view.sampleable_ids().tolist())
        for old in seen - new:
            with pytest.raises(KeyError):
                view.fetch([old])
        actions = view.fetch(sorted(new)).action
        assert len(set(actions.tolist())) == len(new)
        seen |= new
        store.checkpoint(tmp_path / f"checkpoint {k}")
        store.close()
        store = sw.Store.open(tmp_path / f"checkpoint {k}", disk=tmp_path / f"{k}")
    assert len(seen) == store.total_steps - 1, "every step had an id of its own"


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_trap_23_no_more_memory_than_promised(tmp_path: Path, disk: bool) -> None:
    place: dict[str, Any] = {"disk": tmp_path} if disk else {}
    store = sw.Store(SPEC, capacity=20_000, ram="12MiB", segment_steps=16, codec="raw", **place)
    uniform, prioritized = store.transitions(n_step=3), store.transitions(sampler=sw.Prioritized())
    stream = uniform.stream(64, lookahead=8)
    for _ in range(40):
        play(store, 200)
        prioritized.update_priorities(prioritized.sample(128).ids, np.ones(128))
        next(stream)
        assert store.stats()["total_bytes"] <= 12 << 20
    assert len(store) == 8000 if disk else len(store) < 2500
