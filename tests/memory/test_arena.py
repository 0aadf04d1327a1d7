"""The arena hands out memory that overlaps nothing, within its limit, and takes it back."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sharpwave.memory.address_space import PAGE
from sharpwave.memory.arena import Arena
from sharpwave.native import core
from sharpwave.native.untouched import HUGE_PAGE

CHUNK = 4 * PAGE
HAS_ALL = sys.platform == "linux" and all(hasattr(mmap, name) for name in ("MADV_HUGEPAGE", "MAP_PRIVATE"))
touches = pytest.mark.skipif(not HAS_ALL or not hasattr(os, "fork"), reason="other systems have no such call")


class ArenaMachine(RuleBasedStateMachine):
    """Ranges are filled with a number each; whoever overlaps another overwrites it."""

    @initialize(chunks=st.integers(4, 9), across=st.booleans())
    def build(self, chunks: int, across: bool) -> None:
        self.arena, self.across = Arena(chunks * CHUNK, CHUNK, across=across), across
        self.ranges: dict[int, tuple[int, int, bool]] = {}  # mark -> (offset, bytes, reserved)
        self.mark = 0
        self.reserved: set[int] = set()

    def take(self, offset: int | None, nbytes: int, whole: bool) -> None:
        if offset is None:
            return
        assert offset >= 0 and offset + nbytes <= len(self.arena.memory) and offset % 8 == 0
        chunks = {offset // CHUNK, (offset + nbytes - 1) // CHUNK}
        assert len(chunks) == 1 or (self.across and not whole), "a range lies across two chunks"
        self.mark = self.mark % 255 + 1
        while self.mark in self.ranges:
            self.mark = self.mark % 255 + 1
        for where, size, other in self.ranges.values():
            theirs = {where // CHUNK, (where + size - 1) // CHUNK}
            assert other == whole or not theirs & chunks, "rows being written keep a segment's chunk"
        self.arena.memory[offset : offset + nbytes] = self.mark
        self.ranges[self.mark] = (offset, nbytes, whole)

    @precondition(lambda self: len(self.ranges) < 190)
    @rule(nbytes=st.one_of(st.integers(1, CHUNK), st.integers(1, 600)))
    def allocate(self, nbytes: int) -> None:
        self.take(self.arena.allocate(nbytes), nbytes, False)

    @precondition(lambda self: len(self.ranges) < 190)
    @rule(sizes=st.lists(st.one_of(st.integers(1, CHUNK), st.integers(1, 600)), min_size=1, max_size=20))
    def allocate_some(self, sizes: list[int]) -> None:
        offsets = self.arena.allocate_some(np.array(sizes, np.int64)).tolist()
        for offset, nbytes in zip(offsets, sizes, strict=False):
            self.take(offset, nbytes, False)
        if offsets and len(offsets) < len(sizes):
            following = self.arena.allocate(sizes[len(offsets)])
            end = following and (following + sizes[len(offsets)] - 1) // CHUNK
            assert end is None or end != offsets[-1] // CHUNK, "there was room for more"
            self.take(following, sizes[len(offsets)], False)

    @precondition(lambda self: len(self.ranges) < 190)
    @rule(nbytes=st.one_of(st.just(CHUNK), st.integers(1, CHUNK // 8)), count=st.integers(1, 9))
    def reserve(self, nbytes: int, count: int) -> None:
        nbytes *= 8 if nbytes < CHUNK else 1
        offsets = list(self.arena.reserve(nbytes, count))
        assert len({offset // CHUNK for offset in offsets}) <= 1
        for offset in offsets:
            self.take(offset, nbytes, True)
        self.reserved |= {offset // CHUNK for offset in offsets}
        assert self.arena.emptiest(8) not in self.reserved and self.arena.loosest() not in self.reserved

    @precondition(lambda self: self.ranges)
    @rule(data=st.data())
    def free_any(self, data: st.DataObject) -> None:
        self.free(data.draw(st.sampled_from(sorted(self.ranges))))

    @precondition(lambda self: self.ranges)
    @rule()
    def free_the_oldest(self) -> None:
        self.free(next(iter(self.ranges)))

    def free(self, mark: int) -> None:
        offset, nbytes, _ = self.ranges.pop(mark)
        self.arena.free(offset, nbytes)
        self.reserved = {where // CHUNK for where, _, reserved in self.ranges.values() if reserved}

    @rule()
    def trim(self) -> None:
        self.arena.trim()

    @rule(chunks=st.integers(0, 9))
    def limit(self, chunks: int) -> None:
        """A limit below what is committed takes nothing away; it only stops growth."""
        self.arena.limit_bytes = chunks * CHUNK

    @rule()
    def everything_goes_and_all_the_room_is_there_again(self) -> None:
        for mark in list(self.ranges):
            self.free(mark)
        self.arena.limit_bytes = len(self.arena.memory)
        assert self.arena.used_bytes == 0
        chunks = len(self.arena.memory) // CHUNK
        offsets = [self.arena.allocate(CHUNK) for _ in range(chunks)]
        assert None not in offsets and len(set(offsets)) == chunks, "room was lost"
        assert self.arena.allocate(8) is None and not len(self.arena.reserve(8, 1))
        for offset in offsets:
            assert offset is not None
            self.arena.free(offset, CHUNK)

    @invariant()
    def nothing_is_overwritten(self) -> None:
        if not hasattr(self, "arena"):
            return
        for mark, (offset, nbytes, _) in self.ranges.items():
            assert (self.arena.memory[offset : offset + nbytes] == mark).all()
        used = sum(-(-nbytes // 8) * 8 for _, nbytes, _ in self.ranges.values())
        assert self.arena.used_bytes == used <= self.arena.committed_bytes <= len(self.arena.memory)


TestArena = ArenaMachine.TestCase


def test_the_limit_is_a_limit() -> None:
    arena = Arena(8 * CHUNK, CHUNK)
    arena.limit_bytes = 2 * CHUNK + PAGE
    taken = 0
    while arena.allocate(500) is not None:
        taken += 1
        assert arena.committed_bytes <= arena.limit_bytes
    assert taken * 504 > 2 * CHUNK  # and is made use of
    assert not len(arena.reserve(CHUNK, 1))


def test_trimming_gives_memory_back() -> None:
    arena = Arena(8 * CHUNK, CHUNK)
    offsets = [offset for _ in range(4) for offset in arena.reserve(CHUNK, 4)]
    assert arena.committed_bytes == 4 * CHUNK
    for offset in offsets[1:]:
        arena.free(offset, CHUNK)
    assert arena.committed_bytes == 4 * CHUNK  # kept for the next
    arena.trim()
    assert arena.committed_bytes == CHUNK


def test_address_space_that_there_is_not_is_refused() -> None:
    with pytest.raises(MemoryError, match=r"capacity|ram"):
        Arena(1 << 60, CHUNK)


def test_the_memory_begins_as_zeros() -> None:
    assert not np.any(Arena(4 * CHUNK, CHUNK).memory)


def test_ranges_in_order_lie_across_chunks_and_leave_no_end_unused() -> None:
    """A ring of eight chunks, of ranges of two thirds of a chunk: eight would fit otherwise."""
    nbytes, arena = 2 * CHUNK // 3 // 8 * 8, Arena(8 * CHUNK, CHUNK, across=True)
    held = [arena.allocate(nbytes) for _ in range(10)]
    assert None not in held and arena.committed_bytes <= 10 * nbytes + PAGE
    for _ in range(100):  # round and round
        oldest = held.pop(0)
        assert oldest is not None
        arena.free(oldest, nbytes)
        held.append(arena.allocate(nbytes))
        assert held[-1] is not None
        assert arena.used_bytes == 10 * nbytes


def test_a_ring_that_goes_round_and_round_takes_the_memory_of_one_round() -> None:
    nbytes, arena = CHUNK // 5 // 8 * 8, Arena(64 * CHUNK, CHUNK, across=True)
    held: list[int] = []
    for _ in range(1000):
        offset = arena.allocate(nbytes)
        assert offset is not None
        held.append(offset)
        if len(held) > 20:
            arena.free(held.pop(0), nbytes)
    assert arena.used_bytes == 20 * nbytes
    assert arena.committed_bytes <= 20 * nbytes + 3 * CHUNK  # those that are being filled and emptied


def test_a_range_does_not_reach_into_a_chunk_beyond_the_limit() -> None:
    arena = Arena(8 * CHUNK, CHUNK, across=True)
    arena.limit_bytes = CHUNK + PAGE
    assert arena.allocate(CHUNK - PAGE) is not None
    assert arena.allocate(2 * PAGE) is not None
    assert arena.committed_bytes == CHUNK + PAGE
    assert arena.allocate(PAGE + 8) is None


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say which pages have memory")
@pytest.mark.parametrize("chunks", [3, 9, 20])
def test_the_memory_of_huge_pages_is_counted(chunks: int) -> None:
    arena = Arena(128 << 20, 700 << 10, huge_pages=True)
    for _ in range(chunks):
        offset = arena.allocate(700 << 10)
        assert offset is not None
        arena.memory[offset : offset + (700 << 10)] = 1
    assert arena.committed_bytes + arena.uncounted_bytes == resident(arena)


def filled(nbytes: int) -> Arena:
    arena = Arena(2 * nbytes, 512 << 10, huge_pages=True)
    for chunk in range(nbytes >> 19):
        offset = arena.allocate(512 << 10)
        assert offset is not None
        arena.memory[offset : offset + (512 << 10)] = 1
        if chunk >= (nbytes >> 19) - 16:
            time.sleep(0.02)  # the thread has time
    return arena


def touched_ahead(arena: Arena) -> int:
    """Return the bytes that the thread has touched ahead, once it has and touches no more; at most 10 s later."""
    before, now = -1, arena.uncounted_bytes
    for _ in range(200):
        if before == now >= HUGE_PAGE:
            break
        time.sleep(0.05)
        before, now = now, arena.uncounted_bytes
    return now


@touches
def test_memory_is_touched_ahead_of_what_is_written_and_counted() -> None:
    small = filled(64 << 20)
    assert small.committed_bytes + small.uncounted_bytes == resident(small) and small.uncounted_bytes < HUGE_PAGE
    arena = filled(160 << 20)
    ahead = touched_ahead(arena)
    assert HUGE_PAGE <= ahead <= (160 << 20) // 64 + 2 * HUGE_PAGE
    assert arena.committed_bytes + ahead == resident(arena)
    begin = arena.begin_of(arena.fresh)
    assert not arena.memory[begin : begin + ahead].any()


@touches
def test_a_child_touches_memory_ahead_by_a_thread_of_its_own() -> None:
    filled(130 << 20)
    child = os.fork()
    if not child:
        os._exit(0 if touched_ahead(filled(160 << 20)) >= HUGE_PAGE else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@touches
def test_a_child_may_give_up_memory_before_any_of_its_hooks_ran() -> None:
    """One that Python's hooks for forks free would wait for a thread that the child does not have."""
    memory = np.frombuffer(mmap.mmap(-1, 256 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    assert core.touch_ahead(memory)
    time.sleep(0.002)
    child = ctypes.PyDLL(None).fork()  # without hooks
    if not child:
        core.stop_touching(memory)
        os._exit(0)
    deadline = time.monotonic() + 20
    while not (ended := os.waitpid(child, os.WNOHANG)[0]) and time.monotonic() < deadline:
        time.sleep(0.01)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    core.stop_touching(memory)
    assert ended, "it waits"


@touches
def test_memory_that_is_given_up_is_no_longer_touched() -> None:
    """The thread stops between two huge pages, and memory of others is left alone."""
    for turn in range(20):
        memory = np.frombuffer(mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
        assert core.touch_ahead(memory)
        core.stop_touching(np.zeros(8, np.uint8))
        time.sleep(turn * 2e-4)
        core.stop_touching(memory)
        assert core.touch_ahead(memory[:0]), "it is free again"
        core.stop_touching(memory)


def resident(arena: Arena) -> int:
    """Bytes of memory of an arena, as the system counts them."""
    address, found = arena.memory.ctypes.data, 0
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match("[0-9a-f]+-[0-9a-f]+ ", line):
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            inside = begin < address + len(arena.memory) and end > address
        elif inside and line.startswith("Rss:"):
            found += 1024 * int(line.split()[1])
    return found
