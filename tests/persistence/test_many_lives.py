"""What a store costs that is opened again and again: no steps, few files; and what no life gives twice."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave import store as store_module
from sharpwave.disk import disk_budget as disk_module
from sharpwave.offline.folder_check import check
from sharpwave.persistence import settings as settings_module
from tests.disk.test_compaction import Unsynced
from tests.support.examples import examples
from tests.support.faults import killed

REGION = 16 << 10
SPEC = sw.Spec(obs=sw.Field((16,), "uint8"), action=sw.Field((), "int64"))


@pytest.fixture(autouse=True)
def small_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REGION_BYTES", "MIN_REGION_BYTES"):
        monkeypatch.setattr(disk_module, name, REGION)
    monkeypatch.setattr(settings_module, "MIN_DISK_BYTES", REGION)
    monkeypatch.setattr(disk_module, "MIN_COPY_BYTES", REGION // 4)
    monkeypatch.setattr(store_module, "Files", Unsynced)


def append(store: sw.Store, numbers: range, lane: int = 0) -> None:
    """Episodes of one step."""
    for k in numbers:
        obs = np.frombuffer(hashlib.md5(k.to_bytes(8, "little")).digest(), np.uint8)  # which no codec compresses
        store.append(lane=lane, obs=obs, action=k, reward=1.0, terminated=True, truncated=False)


def actions(store: sw.Store) -> list[int]:
    replay = store.transitions()
    return sorted(replay.fetch(replay.sampleable_ids()).action.tolist()) if len(replay) else []


def files(folder: Path) -> list[Path]:
    return sorted((folder / "regions").iterdir())


def bytes_of(folder: Path) -> int:
    """That the files take of the disk; never less than what is in them."""
    return sum(min(path.stat().st_size, path.stat().st_blocks * 512) for path in files(folder))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0


@pytest.mark.parametrize("end", ["close", "kill"])
def test_opening_a_full_store_again_and_again_costs_no_steps(tmp_path: Path, end: str) -> None:
    limit = 10 * REGION
    store = sw.Store(SPEC, disk=tmp_path, disk_limit=limit, segment_steps=16)
    append(store, range(6000))
    store.flush()
    full, last = len(store), 6000
    assert 2000 < full < 6000
    for _ in range(examples(25, most=25)):
        store.close() if end == "close" else killed(store)
        store = sw.Store.open(tmp_path)
        append(store, range(last, last + 4))
        last += 4
        store.flush()
        assert len(store) > 0.7 * full, "one region's worth may leave at a time"
        assert bytes_of(tmp_path) <= limit + REGION
    assert actions(store) == list(range(last - len(store), last))
    store.close()


@pytest.mark.parametrize("other", [100 * REGION, 20 * REGION, 9 * REGION])
def test_a_life_with_another_limit_costs_what_that_limit_costs(tmp_path: Path, other: int) -> None:
    with sw.Store(SPEC, disk=tmp_path, disk_limit=10 * REGION, segment_steps=16) as store:
        append(store, range(6000))
        full = len(store)
    lowers = other < 10 * REGION
    lowered: Any = pytest.warns(RuntimeWarning, match="are evicted now") if lowers else contextlib.nullcontext()
    with lowered, sw.Store.open(tmp_path, disk_limit=other) as store:
        append(store, range(6000, 6040))
    with sw.Store.open(tmp_path) as store:
        append(store, range(6040, 6080))
        assert len(store) > 0.65 * full
        assert actions(store) == list(range(6080 - len(store), 6080))
    assert bytes_of(tmp_path) <= 11 * REGION


def test_a_store_from_before_there_was_a_limit_is_cut_down_to_it_and_no_further(tmp_path: Path) -> None:
    """All its steps lie in one region, which is larger than what it may keep."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk_module, "REGION_BYTES", 100 * REGION)
        with sw.Store(SPEC, disk=tmp_path, capacity=1_000_000, segment_steps=16) as store:
            append(store, range(6000))
        assert len(files(tmp_path)) == 1
    with (
        pytest.warns(RuntimeWarning, match="are evicted now"),
        sw.Store.open(tmp_path, disk_limit=10 * REGION) as store,
    ):
        assert bytes_of(tmp_path) <= 10 * REGION
        assert len(store) > 1500 and actions(store) == list(range(6000 - len(store), 6000))


@pytest.mark.parametrize("checkpoints", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_many_short_lives_take_few_files_and_no_step(tmp_path: Path, checkpoints: bool) -> None:
    store = sw.Store(SPEC, disk=tmp_path / "s", capacity=10_000, segment_steps=16)
    before, last = descriptors(), 0
    for life in range(60):
        append(store, range(last, last + 3))
        last += 3
        if checkpoints:
            store.checkpoint(tmp_path / "c")
        store.close() if life % 3 else store.flush()
        if not life % 3:
            killed(store)
        store = sw.Store.open(tmp_path / "s")
        assert store.recovery is not None and store.recovery.damages == []
        assert len(files(tmp_path / "s")) <= 24 and descriptors() <= before + 50
    assert actions(store) == list(range(last))
    store.flush()
    assert bytes_of(tmp_path / "s") <= 12 * REGION
    store.close()
    assert check(tmp_path / "s").damages == []


def test_a_region_is_written_on_where_it_is_whole_and_nobody_elses(tmp_path: Path) -> None:
    with sw.Store(SPEC, disk=tmp_path / "s", capacity=1000, segment_steps=4) as store:
        append(store, range(10))
    with sw.Store.open(tmp_path / "s") as store:
        append(store, range(10, 20))
    (path,) = files(tmp_path / "s")
    other = tmp_path / "another name"
    os.link(path, other)
    before = other.read_bytes()
    with sw.Store.open(tmp_path / "s") as store:
        append(store, range(20, 30))
    assert other.read_bytes() == before
    (path,) = files(tmp_path / "s")
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with sw.Store.open(tmp_path / "s") as store:
        assert store.recovery is not None and len(store.recovery.damages) == 1
        append(store, range(30, 40))
        assert actions(store) == list(range(40))
    assert path.read_bytes() == bytes(data) and len(files(tmp_path / "s")) == 2


def test_a_region_takes_the_disk_as_it_fills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "REGION_BYTES", 64 << 20)
    with sw.Store(SPEC, disk=tmp_path, capacity=30_000_000) as store:
        append(store, range(100))
        store.flush()
        (path,) = files(tmp_path)
        assert path.stat().st_size == 64 << 20
        assert bytes_of(tmp_path) <= store.stats()["disk"]["bytes"] + 4096 <= 1 << 20


def test_more_regions_than_a_process_may_open_become_fewer(tmp_path: Path) -> None:
    """As each life left one, before regions were written on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk_module, "MANY", 10**9)
        with sw.Store(SPEC, disk=tmp_path, capacity=10_000, segment_steps=2) as store:
            disk = store._log.disk
            assert disk is not None
            for k in range(200):
                append(store, range(k, k + 1))
                if k % 2:
                    disk.regions.finish()
        assert len(files(tmp_path)) > 90
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 40, hard))
    try:
        with sw.Store.open(tmp_path) as store:
            assert actions(store) == list(range(200)) and len(files(tmp_path)) < 30
            append(store, range(200, 210))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with sw.Store.open(tmp_path) as store:
        assert actions(store) == list(range(210))


# what is never given twice


def ids(store: sw.Store) -> dict[int, int]:
    replay = store.transitions()
    batch = replay.fetch(replay.sampleable_ids()) if len(replay) else None
    return {} if batch is None else dict(zip(batch.ids.tolist(), batch.action.tolist(), strict=True))


def test_an_id_that_was_seen_is_no_other_steps_in_any_life(tmp_path: Path) -> None:
    """Those among them of steps that were lost, because they were not flushed."""
    store = sw.Store(SPEC, disk=tmp_path, capacity=60, segment_steps=4)
    seen: dict[int, int] = {}
    last = 0
    for life in range(12):
        for _ in range(life % 5):
            append(store, range(last, last + 7))
            last += 7
            for id_, action in ids(store).items():
                assert seen.setdefault(id_, action) == action
        killed(store)
        store = sw.Store.open(tmp_path)
    store.close()


@pytest.mark.parametrize(
    ("retention", "segment_steps"),
    [
        pytest.param(retention, steps, marks=() if steps == first else pytest.mark.nightly)
        for retention, first in ((sw.Fifo(), 2), (sw.LowestPriority(), 5), (sw.Reservoir(2), 2))
        for steps in (2, 5)
    ],
    ids=lambda one: repr(one)[:5],
)
def test_a_lane_goes_on_behind_its_last_step_though_that_has_left(
    tmp_path: Path, retention: Any, segment_steps: int
) -> None:
    """Slots are used again by other lanes, and the regions go in which the lane's segments lay."""
    rng = np.random.default_rng(segment_steps)
    store = sw.Store(SPEC, disk=tmp_path, capacity=40, segment_steps=segment_steps, retention=retention)
    counts = [0, 0, 0, 0]
    for lane in range(4):
        append(store, range(12), lane)
        counts[lane] += 12
    for life in range(examples(12, most=12)):
        lane = life % 2  # the other two are never written to again
        steps = int(rng.integers(1, 400))
        append(store, range(steps), lane)
        counts[lane] += steps
        if life % 3:
            store.close()
        else:
            store.flush()
            killed(store)
        assert check(tmp_path).damages == []
        store = sw.Store.open(tmp_path)
        assert store.lane_steps.tolist() == counts
    store.close()


@pytest.mark.slow
def test_a_full_store_of_mixed_regions_loses_no_more_than_it_must(tmp_path: Path) -> None:
    """Merged regions hold old segments and new ones: to let segments go until one is empty would let most go."""
    limit = 8 * REGION
    spec = sw.Spec(obs=sw.Field((64,), "uint8"), action=sw.Field((), "int64"))
    rng = np.random.default_rng(0)
    no = np.zeros(8, np.bool_)
    held = []
    for life in range(90):
        if life == 0:
            store = sw.Store(spec, disk=tmp_path / "r", disk_limit=limit, codec="raw", segment_steps=16, ram="16MiB")
        else:
            store = sw.Store.open(tmp_path / "r")
        for k in range(int(rng.integers(2, 12))):
            obs = rng.integers(0, 256, (8, 64), np.uint8)
            store.extend(obs=obs, action=np.arange(8), reward=np.ones(8), terminated=no, truncated=no)
            if k % 6 == 5:
                store.flush()
        if life % 3 == 0:
            store.checkpoint(tmp_path / "checkpoint")
        held.append(store.stats()["encoded_bytes_per_step"] * len(store) / limit)
        store.close()
    assert min(held[60:]) > 0.45, held


@pytest.mark.nightly
def test_a_life_with_a_larger_limit_leaves_no_region_that_takes_most_of_the_store_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merged region is free only when all of it has left: it must be no large part of what is held."""
    monkeypatch.setattr(disk_module, "REGION_BYTES", 64 * REGION)
    spec = sw.Spec(obs=sw.Field((64,), "uint8"), action=sw.Field((), "int64"))
    limit, rng, no = 16 * REGION, np.random.default_rng(0), np.zeros(8, np.bool_)
    store = sw.Store(spec, disk=tmp_path / "r", disk_limit=limit, codec="raw", segment_steps=16, ram="8MiB", seed=0)
    held = []
    for _ in range(120):
        for _ in range(int(rng.integers(1, 20))):
            obs = rng.integers(0, 256, (8, 64), np.uint8)
            store.extend(obs=obs, action=np.arange(8), reward=np.ones(8), terminated=no, truncated=no)
        stats = store.stats()
        held.append(stats["encoded_bytes_per_step"] * stats["steps"] / limit)
        store.close()
        store = sw.Store.open(tmp_path / "r", disk_limit=16 * limit if rng.random() < 0.2 else None)
    store.close()
    assert min(held[60:]) > 0.45, held
