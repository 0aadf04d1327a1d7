"""What lies in the arena, against a dict: fetched, pinned, let go, moved, forgotten and damaged in any order."""

from __future__ import annotations

import gc
import itertools
import math
import os
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sharpwave.disk import disk_budget as disk_module
from sharpwave.disk import read_pool as readers_module
from sharpwave.disk.disk_tier import DiskTier
from sharpwave.disk.segment_cache import SegmentCache
from sharpwave.format.region import Identity
from sharpwave.format.segment import FIRST_FIELD, HEADER
from sharpwave.memory.arena import ALIGNMENT, Arena
from sharpwave.memory.segment_index import SegmentIndex
from sharpwave.native import direct_io as direct
from sharpwave.native.files import Files

CHUNK, COLUMNS, SLOTS = 4096, 4, 60
ME = Identity(bytes(16), 5)


class Slow(Files):
    """Reads through Python; at one in ``every`` places of a file, every second read fails, beginning with the first."""

    def __init__(self, every: int = 10**9, always: bool = False) -> None:
        self.every, self.always = every, always
        self.failed: set[tuple[int, int]] = set()

    def pread(self, descriptor: int, out: memoryview, offset: int) -> int:
        if self.always or ((descriptor, offset) not in self.failed and offset // 8 % self.every == 0):
            self.failed.add((descriptor, offset))
            raise OSError(5, "Input/output error")
        self.failed.discard((descriptor, offset))
        return super().pread(descriptor, out, offset)


class Tier:
    """SegmentCache, and what it needs, with segments of any bytes."""

    def __init__(self, folder: Path, files: Files, chunks: int = 6, slots: int = SLOTS) -> None:
        self.disk = DiskTier(folder, ME, None, None, files)
        self.arena = Arena(chunks * CHUNK, CHUNK)
        self.index = SegmentIndex(slots, 4, COLUMNS)
        self.segment_cache = SegmentCache(self.arena, self.index, self.disk)
        self.content: dict[int, bytes] = {}
        self.rng = np.random.default_rng(0)

    def append(self, nbytes: int) -> int:
        """As the log seals a segment; returns its slot."""
        index, segment_cache = self.index, self.segment_cache
        slot = index.take()
        assert slot is not None
        body = bytes(HEADER.size) + self.rng.integers(0, 256, nbytes, dtype=np.uint8).tobytes()  # of no steps
        body += zlib.crc32(body).to_bytes(4, "little")
        while (base := self.arena.allocate(len(body))) is None:
            assert segment_cache.uncache_chunk()
        index.region[slot], index.place[slot] = self.disk.append(slot, body, 0, {})
        index.nbytes[slot], index.sealed[slot], index.rows[slot] = len(body), 1, 1
        index.offset[FIRST_FIELD:, slot] = base + np.arange(FIRST_FIELD, COLUMNS)
        self.arena.memory[base : base + len(body)] = np.frombuffer(body, np.uint8)
        segment_cache.place(slot, base)
        self.content[slot] = body
        return slot

    def evict(self, slot: int) -> None:
        del self.content[slot]
        self.index.give_back(slot)
        self.segment_cache.forget(slot)
        self.disk.release(int(self.index.region[slot]), int(self.index.nbytes[slot]))

    def resident(self) -> set[int]:
        return {slot for slot in self.content if self.index.resident[slot]}

    def coming(self) -> set[int]:
        return {
            slot for slot in self.content if self.segment_cache._state[slot] and slot not in self.segment_cache.damaged
        }

    def check(self) -> None:
        """Whatever is said to be here is here, once, and nothing else takes room."""
        index, arena = self.index, self.arena
        spaces = {slot: -(-len(data) // 8) * 8 for slot, data in self.content.items()}
        held = Counter[int]()
        taken: list[tuple[int, int]] = []
        resident, coming = self.resident(), self.coming()
        assert not resident & coming
        for slot in resident | coming:
            base = int(index.base[slot])
            taken.append((base, base + spaces[slot]))
            if slot in resident:
                held[arena.chunk_of(base)] += spaces[slot]
                assert arena.memory[base : base + len(self.content[slot])].tobytes() == self.content[slot]
            relative = base if slot in resident else 0
            assert (index.offset[FIRST_FIELD:, slot] == relative + np.arange(FIRST_FIELD, COLUMNS)).all()
        taken.sort()
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(taken))
        assert arena.used_bytes == sum(end - begin for begin, end in taken)
        assert {chunk: int(n) for chunk, n in enumerate(self.segment_cache._lists.held) if n} == held

    def close(self) -> None:
        self.disk.close()


def wait_for_all(tier: Tier) -> None:
    tier.segment_cache.arrive(np.array(sorted(tier.content), np.int64))


class SegmentCacheMachine(RuleBasedStateMachine):
    @initialize(slow=st.booleans(), chunks=st.integers(4, 9))
    def begin(self, slow: bool, chunks: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(disk_module, "MIN_REGION_BYTES", 8192)
        self.patch.setattr(disk_module, "REGION_BYTES", 8192)
        self.folder = tempfile.TemporaryDirectory()
        self.tier = Tier(Path(self.folder.name), Slow(every=3) if slow else Files(), chunks)
        self.pins = Counter[int]()

    def some(self, data: st.DataObject) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        held = sorted(self.tier.content)
        return np.array(data.draw(st.lists(st.sampled_from(held), max_size=25)) if held else [], np.int64)

    @rule(sizes=st.lists(st.integers(1, 1500), min_size=1, max_size=8))
    def append(self, sizes: list[int]) -> None:
        for nbytes in sizes:
            if len(self.tier.content) == SLOTS:
                self.evict(min(self.tier.content))
            self.tier.append(nbytes)

    def evict(self, slot: int) -> None:
        self.tier.evict(slot)
        self.pins.pop(slot, None)

    @rule(data=st.data())
    def evict_some(self, data: st.DataObject) -> None:
        for slot in set(self.some(data).tolist()):
            self.evict(slot)

    @rule(data=st.data(), by=st.sampled_from([1, 1, -1]))
    def pin(self, data: st.DataObject, by: int) -> None:
        slots = self.some(data)
        self.tier.segment_cache.pin(slots, by)
        for slot in slots.tolist():
            self.pins[slot] = max(0, self.pins[slot] + by)

    def pinned(self) -> set[int]:
        return {slot for slot, count in self.pins.items() if count}

    @rule(data=st.data())
    def fetch(self, data: st.DataObject) -> None:
        slots = self.some(data)
        pinned_here = self.tier.resident() & self.pinned()
        ready = self.tier.segment_cache.fetch(slots)
        assert set(slots[:ready].tolist()) <= self.tier.resident() | self.tier.coming()
        assert pinned_here <= self.tier.resident(), "what is pinned moves, but stays"

    @rule(data=st.data())
    def require(self, data: st.DataObject) -> None:
        slots = self.some(data)
        ready = self.tier.segment_cache.require(slots)
        assert ready >= min(2, len(slots)), "four chunks hold any two segments"
        assert set(slots[:ready].tolist()) <= self.tier.resident()

    @rule(data=st.data())
    def wait(self, data: st.DataObject) -> None:
        slots = self.some(data)
        self.tier.segment_cache.wait(slots)
        assert not (self.tier.segment_cache._state[slots] == readers_module.COMING).any()

    @rule()
    def cool(self) -> None:
        tier = self.tier
        before, pinned = tier.resident(), self.pinned()
        there = before | tier.coming()
        elsewhere = {slot for slot in there if tier.arena.chunk_of(tier.index.base[slot]) != tier.arena.current}
        uncached = tier.segment_cache.uncache_chunk()
        assert uncached == bool(elsewhere), "but for the chunk that is being filled, anything can go"
        gone = there - tier.resident() - tier.coming()
        assert not (gone & pinned) or elsewhere <= pinned, "what is pinned goes last"

    @invariant()
    def the_books_are_right(self) -> None:
        if hasattr(self, "tier"):
            self.tier.check()
            assert not self.tier.segment_cache.damaged
            pins = {slot: int(n) for slot, n in enumerate(self.tier.segment_cache._pins) if n}
            assert pins == {slot: count for slot, count in self.pins.items() if count}

    def teardown(self) -> None:
        if hasattr(self, "tier"):
            wait_for_all(self.tier)
            self.tier.check()
            self.tier.close()
            self.patch.undo()
            self.folder.cleanup()


TestSegmentCache = SegmentCacheMachine.TestCase


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
    count = readers_module.QUEUE + 500
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
    requests = sum(math.ceil(count / readers_module.MAX_JOINED_READS) for count in side_by_side)
    assert tier.disk.reads.joined == 22 - requests
    tier.close()


def test_a_segment_larger_than_a_window_is_read_in_parts(tmp_path: Path) -> None:
    size = 3 * direct.WINDOW + 1000
    files = Files()
    path = tmp_path / "file"
    content = np.random.default_rng(0).integers(0, 256, size + 100, dtype=np.uint8)
    path.write_bytes(content.tobytes())
    descriptor = os.open(path, os.O_RDONLY)
    files.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    past = direct.open_direct(descriptor)
    memory = np.zeros(size, np.uint8)
    for begin, end, offset in ((0, size, 100), (7, 4000, 0), (0, 1, size + 99)):
        assert direct.read(descriptor, past, offset, memory, begin, end, direct.window())
        assert np.array_equal(memory[begin:end], content[offset : offset + end - begin])
    assert not direct.read(descriptor, past, size, memory, 0, 101, direct.window()), "the file ends before"
    os.close(descriptor)
    if past >= 0:
        os.close(past)


def test_each_segment_that_cannot_be_read_is_named_and_the_others_come(tier: Tier) -> None:
    slots = cold(tier, 10)
    (path,) = (tier.disk.folder / "regions").glob("*.region")
    flipped, missing, cut = int(slots[2]), int(slots[5]), int(slots[9])
    place = int(tier.index.place[flipped])
    with path.open("r+b") as file:
        file.seek(place + 100)
        (byte,) = file.read(1)
        file.seek(place + 100)
        file.write(bytes([byte ^ 1]))
        file.truncate(int(tier.index.place[cut]) + 100)
    tier.index.region[missing] = 77
    assert tier.segment_cache.require(slots) == 10
    assert tier.resident() == set(slots.tolist()) - {flipped, missing, cut}
    problems = tier.segment_cache.damaged
    assert set(problems) == {flipped, missing, cut}
    assert f"{path}: byte {place:,}: checksum" in problems[flipped] and "expected" in problems[flipped]
    assert "region 77" in problems[missing]
    assert f"{path}: got 100 bytes" in problems[cut] and "cut off" in problems[cut]
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
        assert len(readers) == tier.disk.reads.readers.count == readers_module.MIN_READERS
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
