"""What lies in the arena when reads are many, joined, damaged, late or waited for by many threads."""

from __future__ import annotations

import gc
import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sharpwave.disk.read_pool import MIN_READERS
from sharpwave.memory.arena import ALIGNMENT
from sharpwave.native import core
from sharpwave.native.descriptors import open_direct
from sharpwave.native.file_operations import Files
from tests.disk.tier import Slow, Tier, wait_for_all


@pytest.fixture(params=[Files, Slow], ids=["native", "python"])
def tier(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Tier]:
    tier = Tier(tmp_path / "store", request.param(), chunks=4, slots=3000)
    yield tier
    tier.close()


def cold(tier: Tier, count: int, nbytes: int = 500) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Slots of that many segments, all of which lie on disk only."""
    slots = [tier.append(nbytes) for _ in range(count)]
    for slot in tier.resident():
        tier.segment_cache.uncache(slot)
    return np.array(slots, np.int64)


def test_more_reads_than_the_queue_has_room_for(tmp_path: Path) -> None:
    count = core.READ_QUEUE + 500
    tier = Tier(tmp_path, Files(), chunks=100, slots=count)
    slots = cold(tier, count, nbytes=60)
    assert tier.segment_cache.fetch(slots) == count
    tier.segment_cache.arrive(slots)
    assert tier.resident() == set(slots.tolist())
    tier.check()
    tier.close()


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("nbytes", [100, 3000])
def test_segments_side_by_side_are_read_at_once(tmp_path: Path, cached: bool, nbytes: int) -> None:
    tier = Tier(tmp_path, Files(), chunks=40)
    slots = cold(tier, 60, nbytes)
    if not cached:
        tier.disk.regions.sync()
        for region in tier.disk.regions.regions.values():
            os.posix_fadvise(region.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    wanted = np.concatenate([slots[:4], slots[20:22], slots[40:41], slots[45:60]])
    tier.segment_cache.require(wanted)
    assert tier.resident() == set(wanted.tolist())
    tier.check()
    # Small ones that lie within a block of one another are worth it as well.
    side_by_side = [22] if nbytes == 100 else [4, 2, 1, 15]
    requests = sum(math.ceil(count / core.MAX_JOINED_READS) for count in side_by_side)
    assert tier.segment_cache.joined == 22 - requests
    tier.close()


def test_a_segment_larger_than_a_window_is_read_in_parts(tmp_path: Path) -> None:
    size = 3 * core.WINDOW_BYTES + 1000
    files = Files()
    path = tmp_path / "file"
    content = np.random.default_rng(0).integers(0, 256, size + 100, dtype=np.uint8)
    path.write_bytes(content.tobytes())
    descriptor = os.open(path, os.O_RDONLY)
    files.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    past = open_direct(descriptor)
    memory = np.zeros(size, np.uint8)
    for begin, end, offset in ((0, size, 100), (7, 4000, 0), (0, 1, size + 99)):
        assert core.read_range(descriptor, past, offset, memory[begin:end])
        assert np.array_equal(memory[begin:end], content[offset : offset + end - begin])
    assert not core.read_range(descriptor, past, size, memory[:101]), "the file ends before"
    os.close(descriptor)
    if past >= 0:
        os.close(past)


def test_each_segment_that_cannot_be_read_is_named_and_the_others_come(tier: Tier) -> None:
    slots = cold(tier, 10)
    (path,) = (tier.disk.folder / "regions").glob("*.region")
    flipped, missing, cut = int(slots[2]), int(slots[5]), int(slots[9])
    place = int(tier.index.region_offset[flipped])
    with path.open("r+b") as file:
        file.seek(place + 100)
        (byte,) = file.read(1)
        file.seek(place + 100)
        file.write(bytes([byte ^ 1]))
        file.truncate(int(tier.index.region_offset[cut]) + 100)
    tier.index.region[missing] = 77
    assert tier.segment_cache.require(slots) == 10
    assert tier.resident() == set(slots.tolist()) - {flipped, missing, cut}
    problems = tier.segment_cache.damaged
    assert set(problems) == {flipped, missing, cut}
    assert f"{path}: byte {place:,}: checksum" in problems[flipped] and "expected" in problems[flipped]
    assert "region 77" in problems[missing]
    assert f"{path}: got 100 bytes" in problems[cut] and "truncated" in problems[cut]
    tier.check()
    tier.index.region[missing] = 0
    tier.segment_cache.forget(flipped)
    assert set(tier.segment_cache.damaged) == {missing, cut}


def test_an_error_of_the_system_is_told_with_its_name(tmp_path: Path) -> None:
    tier = Tier(tmp_path, Slow(always=True))
    slots = cold(tier, 2)
    tier.segment_cache.require(slots)
    assert all("Input/output error" in problem for problem in tier.segment_cache.damaged.values())
    assert len(tier.segment_cache.damaged) == 2 and not tier.resident() and tier.arena.used_bytes == 0
    tier.close()


def test_an_error_that_passes_is_none(tmp_path: Path) -> None:
    tier = Tier(tmp_path, Slow(every=1))
    slots = cold(tier, 9)
    tier.segment_cache.require(slots)
    assert tier.resident() == set(slots.tolist()) and not tier.segment_cache.damaged
    assert not tier.disk.files.failed  # type: ignore[attr-defined]
    tier.check()
    tier.close()


class Held(Files):
    """Reads begin when they are let."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def pread(self, descriptor: int, out: memoryview, offset: int) -> int:
        self.begun.set()
        assert self.go.wait(30)
        return super().pread(descriptor, out, offset)


@pytest.mark.parametrize("way", ["forget", "close", "drop"])
def test_memory_that_is_read_into_is_not_given_away_meanwhile(tmp_path: Path, way: str) -> None:
    files, before = Held(), set(threading.enumerate())
    tier = Tier(tmp_path, files)
    slots = cold(tier, 3)
    tier.segment_cache.fetch(slots)
    assert files.begun.wait(30)
    base, descriptor = int(tier.index.base[slots[0]]), next(iter(tier.disk.regions.regions.values())).descriptor
    if way == "drop":
        readers = set(threading.enumerate()) - before
        assert len(readers) == tier.segment_cache._readers.count == MIN_READERS
        content = tier.content[int(slots[0])]
        seen = tier.arena.memory[base : base + len(content)]
        del tier
        gc.collect()
        files.go.set()
        deadline = time.monotonic() + 30
        while seen.tobytes() != content and time.monotonic() < deadline:
            time.sleep(0.001)
        assert seen.tobytes() == content
        for thread in readers:
            thread.join(30)
            assert not thread.is_alive(), "readers end with the last reference to the tier"
        os.close(descriptor)
        return
    taken = sum(-(-len(tier.content[int(slot)]) // ALIGNMENT) * ALIGNMENT for slot in slots)
    done = threading.Event()

    def act() -> None:
        if way == "forget":
            tier.evict(int(slots[0]))
        else:
            tier.close()
        done.set()

    thread = threading.Thread(target=act)
    thread.start()
    assert not done.wait(0.05)
    os.fstat(descriptor)
    assert tier.arena.used_bytes == taken
    files.go.set()
    thread.join(30)
    assert done.is_set()
    if way == "forget":
        wait_for_all(tier)
        assert tier.resident() == set(slots[1:].tolist())
        tier.check()
        tier.close()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted by Linux")
def test_threads_of_the_core_end_with_the_last_reference_to_the_tier(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/task"))  # some of an earlier test's may be ending
    tier = Tier(tmp_path, Files())
    slots = cold(tier, 20)
    tier.segment_cache.fetch(slots)
    started = set(os.listdir("/proc/self/task")) - before
    assert 1 <= len(started) <= tier.segment_cache._readers.count
    descriptor = next(iter(tier.disk.regions.regions.values())).descriptor
    del tier
    gc.collect()
    deadline = time.monotonic() + 30
    while started & set(os.listdir("/proc/self/task")) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not started & set(os.listdir("/proc/self/task"))
    os.close(descriptor)


def test_reads_that_end_while_room_is_looked_for_go_before_what_is_pinned(tmp_path: Path) -> None:
    tier = Tier(tmp_path, Files(), chunks=4)
    cache = tier.segment_cache
    pinned, coming, newest = np.split(cold(tier, 21), 3)  # seven fill a chunk
    cache.require(pinned)
    cache.pin(pinned)
    cache.fetch(coming)
    cache.require(newest)
    land, landed = cache._land, list[int]()

    def land_some(slots: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        land(slots if landed else slots[:3])  # the other four are read just after the first look
        landed.append(len(slots))

    cache._land = land_some  # type: ignore[method-assign]
    assert cache.uncache_chunk() and len(landed) > 1
    assert tier.resident() == {*pinned.tolist(), *newest.tolist()}
    tier.check()
    tier.close()


def test_many_threads_wait_for_the_same_reads(tier: Tier) -> None:
    slots = cold(tier, 20)
    tier.segment_cache.fetch(slots)
    waiting = [threading.Thread(target=tier.segment_cache.wait, args=(slots,)) for _ in range(8)]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join(30)
        assert not thread.is_alive()
    tier.segment_cache.arrive(slots)
    assert tier.resident() == set(slots.tolist())
    tier.check()
