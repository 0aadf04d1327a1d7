"""Retentions that let segments leave in any order, on disk: what is held of half empty regions is copied together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave import store as store_module
from sharpwave.disk import disk_budget as disk_module
from sharpwave.native.directory import Directory
from sharpwave.native.file_operations import Files
from sharpwave.offline.folder_check import check
from sharpwave.persistence import settings as settings_module
from tests.sampling.test_retention import held, number_store, set_by_number
from tests.sampling.test_samplers import chi_square, chi_square_bound
from tests.support.faults import killed


class Unsynced(Files):
    """Nothing here survives a power cut, and nothing waits for a disk."""

    def fsync(self, descriptor: int) -> None:
        pass

    def fsync_folder(self, directory: Directory) -> None:
        pass


@pytest.fixture
def region(monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes of a region, and of the smallest limit."""
    nbytes = 2048
    for name in ("REGION_BYTES", "MIN_REGION_BYTES"):
        monkeypatch.setattr(disk_module, name, nbytes)
    monkeypatch.setattr(settings_module, "MIN_DISK_BYTES", nbytes)
    monkeypatch.setattr(store_module, "Files", Unsynced)
    return nbytes


def append(store: sw.Store, numbers: range) -> None:
    for k in numbers:
        store.append(obs=k, action=k, reward=0.0, terminated=True, truncated=False)


def bytes_held(store: sw.Store) -> int:
    index = store._log.index
    return int(index.nbytes[(index.sealed == 1) & (index.rows > 0)].sum())


@pytest.mark.parametrize(
    "retention",
    [
        pytest.param(sw.Reservoir(1), id="reservoir"),
        pytest.param(sw.LowestPriority(), id="lowest", marks=pytest.mark.nightly),
    ],
)
def test_thousands_of_segments_pass_through_a_few_regions_within_the_limit(
    tmp_path: Path, region: int, retention: Any
) -> None:
    limit = 10 * region
    rng = np.random.default_rng(0)
    with number_store(retention, None, disk=tmp_path, disk_limit=limit, segment_steps=2, ram="4MiB") as store:
        replay = store.transitions(sampler=sw.Prioritized(alpha=1.0))
        disk = store._log.disk
        assert disk is not None
        for begin in range(0, 8000, 8):
            append(store, range(begin, begin + 8))
            assert sum(path.stat().st_size for path in (tmp_path / "regions").iterdir()) <= limit
            if begin % 80 == 0:
                store.flush()
                batch = replay.sample(32)
                assert (batch.obs.reshape(-1) == batch.action).all()
                replay.update_priorities(batch.ids, rng.random(32))
        assert bytes_held(store) > 0.4 * limit, "what is free is used"
        appended = disk.regions.next_number * region / 2  # more than was ever written of new segments
        stats = store.stats()
        assert stats["disk"]["failures"] == 0 and stats["disk"]["damaged"] == [] and appended > 3 * limit
        here = held(store)
        assert len(here) > 40
        assert min(here) < 4000 or isinstance(retention, sw.LowestPriority), "some old ones are there"
    assert check(tmp_path).damages == []


@pytest.mark.slow
def test_a_byte_is_copied_three_times_for_each_that_is_appended_at_most(tmp_path: Path, region: int) -> None:
    """Priorities without any order: segments leave from all regions alike, which is the dearest case."""
    with number_store(sw.LowestPriority(), None, disk=tmp_path, disk_limit=20 * region, segment_steps=1) as store:
        replay = store.transitions(sampler=sw.Prioritized(alpha=1.0))
        rng = np.random.default_rng(1)
        sealed = 0
        for k in range(4000):
            append(store, range(k, k + 1))
            sealed += k > 0
            if k % 50 == 0:
                ids = replay.sampleable_ids()
                replay.update_priorities(ids, rng.random(len(ids)))
        disk, log = store._log.disk, store._log
        assert disk is not None
        size = int(log.index.nbytes[log.index.sealed == 1].max())
        assert 1.2 * sealed * size < disk.bytes_written <= 4 * sealed * size


def test_without_a_limit_files_take_twice_what_is_held_and_some_regions(tmp_path: Path, region: int) -> None:
    with number_store(sw.Reservoir(2), 64, disk=tmp_path, segment_steps=1) as store:
        disk = store._log.disk
        assert disk is not None
        disk.regions.region_bytes = region
        for begin in range(0, 4000, 10):
            append(store, range(begin, begin + 10))
            assert disk.nbytes <= 2 * (bytes_held(store) + 64 * 48) + 6 * region
        assert disk.regions.next_number > 20


# trap 7, on disk


def crash(store: sw.Store, tmp_path: Path) -> sw.Store:
    """As a process that is killed leaves it, and opened again."""
    killed(store)
    return sw.Store.open(tmp_path)


@pytest.mark.parametrize(
    "limit", [pytest.param("capacity", marks=pytest.mark.nightly), pytest.param("disk_limit", marks=pytest.mark.slow)]
)
def test_trap_07_each_segment_is_held_with_the_same_probability(tmp_path: Path, region: int, limit: str) -> None:
    """Across two crashes, in each of which the segment that was open is flushed.

    A quarter of the segments too many or too few by a quarter, or one that is held twice to three times as often as it
    should be, is found; one false alarm in a million seeds.
    """
    runs, n = 100, 80
    counts = np.zeros(n)
    limits: dict[str, Any] = {"disk_limit": 5 * region} if limit == "disk_limit" else {"capacity": 21}
    for seed in range(runs):
        folder = tmp_path / str(seed)
        store = number_store(sw.Reservoir(seed), **{"capacity": None, **limits}, disk=folder, segment_steps=1)
        for k in range(n + 1):
            append(store, range(k, k + 1))
            if k in (n // 3, 2 * n // 3):
                store.flush()
                store = crash(store, folder)
                assert store.recovery is not None and not store.recovery.damages
        now = held(store)
        assert now[-1] == n and (limit == "disk_limit" or len(now) == 21)
        counts[now[:-1]] += 1
        store.close()
    share = counts.sum() / n
    assert 0.1 < share / runs < 0.6
    statistic = chi_square(counts, np.full(n, share)) / (1 - share / runs)
    assert statistic < chi_square_bound(n)
    ages = counts.reshape(4, -1).sum(1)
    assert chi_square(ages, np.full(4, ages.mean())) < chi_square_bound(4), "old and new alike"


def test_what_had_left_does_not_come_back_to_a_reservoir_and_no_id_is_given_out_twice(
    tmp_path: Path, region: int
) -> None:
    """Also those of segments that were turned away, of which nothing was ever written."""
    store = number_store(sw.Reservoir(4), None, disk=tmp_path, disk_limit=5 * region, segment_steps=1)
    seen: set[int] = set()
    for round_ in range(6):
        for k in range(200 * round_, 200 * (round_ + 1)):
            append(store, range(k, k + 1))
            log = store._log
            id_ = log.index.segment_id(int(log.opened.slots[0]))
            assert id_ not in seen
            seen.add(id_)
        before, threshold = set(held(store)), store._log.retention.threshold
        store = crash(store, tmp_path)
        after = set(held(store))
        assert store._log.retention.threshold <= threshold < 1
        assert after <= before - {200 * (round_ + 1) - 1}, "nothing comes back that had left, or was not sealed"
        assert len(before) - len(after) <= 4, "opening needs a region for itself, and room for it"
        assert check(tmp_path).damages == []
    store.close()


def test_flushed_rows_of_segments_that_were_turned_away_keep_no_region(tmp_path: Path, region: int) -> None:
    with number_store(sw.Reservoir(4), 20, disk=tmp_path, segment_steps=4) as store:
        disk = store._log.disk
        assert disk is not None
        for k in range(2000):
            append(store, range(k, k + 1))
            store.flush()
        assert len(disk._tails) <= 1
        assert disk.nbytes <= 12 * region


def test_a_region_that_cannot_be_read_is_left_alone(tmp_path: Path, region: int) -> None:
    store = number_store(sw.Reservoir(0), None, disk=tmp_path, disk_limit=8 * region, segment_steps=1)
    append(store, range(30))
    log, disk = store._log, store._log.disk
    assert disk is not None
    first = disk.regions.regions[0]
    slots = np.flatnonzero((log.index.region == 0) & (log.index.sealed == 1))
    data = bytearray(first.path.read_bytes())
    for slot in slots.tolist():
        data[int(log.index.region_offset[slot]) + 60] ^= 1
    with first.path.open("r+b") as file:
        file.write(data)
    append(store, range(30, 600))
    assert disk.nbytes <= 8 * region
    assert len(held(store)) > 20 - len(slots) or store.stats()["disk"]["damaged"]
    store.close()


def test_segments_of_high_priority_stay_on_disk(tmp_path: Path, region: int) -> None:
    with number_store(sw.LowestPriority(), None, disk=tmp_path, disk_limit=8 * region, segment_steps=1) as store:
        replay = store.transitions(sampler=sw.Prioritized(alpha=1.0))
        for k in range(600):
            append(store, range(k, k + 1))
            if k % 10 == 9:
                set_by_number(replay, lambda number: 1e3 if number % 40 == 0 else 1.0 + number / 1e4)
        assert set(range(0, 600, 40)) <= set(held(store))


def test_a_smaller_limit_is_kept_at_once(tmp_path: Path, region: int) -> None:
    with number_store(sw.Reservoir(3), None, disk=tmp_path, disk_limit=40 * region, segment_steps=1) as store:
        append(store, range(600))
        before = set(held(store))
        disk = store._log.disk
        assert disk is not None
        for limit in (20, 9, 16):
            store.resize(disk_limit=limit * region)
            assert disk.nbytes <= limit * region
        after = held(store)
        assert len(after) > 15 and set(after) <= before
        append(store, range(600, 900))
        assert disk.nbytes <= 16 * region


def test_regions_grow_with_the_limit_so_that_files_stay_few() -> None:
    assert disk_module.region_bytes(None, None) == 64 << 20
    assert disk_module.region_bytes(16 << 20, None) == 2 << 20
    assert disk_module.region_bytes(16 << 30, None) == 64 << 20
    for limit in (64 << 30, 1 << 40, 100 << 40):
        assert limit // disk_module.region_bytes(limit, None) <= 256
        assert disk_module.region_bytes(limit, None, 32) == disk_module.region_bytes(limit, None)
