"""The core allocates, frees and counts ranges as a model in Python does, whatever the order of calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sharpwave.native import core
from tests.memory.ranges_model import PAGE, Chunk, RangesModel, rounded

CHUNK = 4 * PAGE
SIZES = st.one_of(st.integers(1, CHUNK), st.integers(1, 600), st.sampled_from([PAGE, CHUNK - 8, CHUNK]))


class Commits:
    """Ranges committed so far; the next call fails if ``fails`` is set."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []
        self.fails = False

    def __call__(self, begin: int, nbytes: int) -> None:
        if self.fails:
            self.fails = False
            raise MemoryError("no memory is left")
        self.calls.append((begin, nbytes))


def make(begin: int, count: int, across: bool, huge_pages: bool, commit: Commits | None) -> core.Ranges:
    return core.Ranges(begin, CHUNK, np.zeros((3, count), np.int64), across, huge_pages, commit)


class RangesMachine(RuleBasedStateMachine):
    """One object of the core, and the model, with the same calls."""

    @initialize(head=st.integers(0, 2), count=st.integers(2, 9), across=st.booleans(), huge_pages=st.booleans())
    def build(self, head: int, count: int, across: bool, huge_pages: bool) -> None:
        self.commits, self.expected_commits = Commits(), Commits()
        self.ranges = make(head * PAGE, count, across, huge_pages, self.commits)
        chunks = [Chunk() for _ in range(count)]
        self.model = RangesModel(head * PAGE, CHUNK, chunks, across, huge_pages, self.expected_commits)
        self.model.limit_bytes = count * CHUNK
        self.held: list[tuple[int, int]] = []

    def take(self, offsets: list[int], sizes: list[int]) -> None:
        self.held += zip(offsets, sizes, strict=False)

    @rule(nbytes=SIZES)
    def allocate(self, nbytes: int) -> None:
        offset = self.ranges.allocate(nbytes)
        assert offset == self.model.allocate(nbytes)
        self.take([] if offset is None else [offset], [nbytes])

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=20))
    def allocate_some(self, sizes: list[int]) -> None:
        offsets = self.ranges.allocate_some(np.array(sizes, np.int64)).tolist()
        assert offsets == self.model.allocate_some(sizes)
        self.take(offsets, sizes)

    @rule(nbytes=st.one_of(st.integers(1, CHUNK // 8), st.integers(1, 80)), count=st.integers(1, 9))
    def reserve(self, nbytes: int, count: int) -> None:
        offsets = list(self.ranges.reserve(8 * nbytes, count))
        assert offsets == self.model.reserve(8 * nbytes, count)
        self.take(offsets, len(offsets) * [8 * nbytes])

    @precondition(lambda self: self.held)
    @rule(data=st.data(), count=st.integers(1, 12), oldest=st.booleans())
    def free(self, data: st.DataObject, count: int, oldest: bool) -> None:
        for _ in range(min(count, len(self.held))):
            offset, nbytes = self.held.pop(0 if oldest else data.draw(st.integers(0, len(self.held) - 1)))
            self.ranges.free(offset, nbytes)
            self.model.free(offset, nbytes)

    @rule(nbytes=SIZES, sizes=st.lists(SIZES, min_size=1, max_size=4), how=st.sampled_from(["one", "some", "reserve"]))
    def a_commit_that_fails_changes_nothing(self, nbytes: int, sizes: list[int], how: str) -> None:
        if self.model.empty or self.model.fresh == len(self.model.chunks):
            return
        for commits, ranges in ((self.commits, self.ranges), (self.expected_commits, self.model)):
            commits.fails = True
            try:
                if how == "one":
                    offset = ranges.allocate(nbytes)
                    offsets = [] if offset is None else [offset]
                elif how == "some":
                    given: Any = np.array(sizes, np.int64) if ranges is self.ranges else sizes
                    offsets = list(ranges.allocate_some(given))
                else:
                    offsets = list(ranges.reserve(rounded(nbytes, 8), 2))
            except MemoryError:
                offsets = [-1]
                assert not commits.fails
            commits.fails = False
            if ranges is self.ranges:
                expected = offsets
        assert offsets == expected
        if offsets != [-1]:
            self.take(offsets, {"one": [nbytes], "some": sizes, "reserve": 2 * [rounded(nbytes, 8)]}[how])

    @rule(pages=st.integers(0, 40))
    def limit(self, pages: int) -> None:
        self.ranges.limit_bytes = self.model.limit_bytes = pages * PAGE

    @rule(nbytes=SIZES, max_share=st.sampled_from([0.0, 0.3, 0.5, 1.0]), compacts=st.booleans())
    def compact(self, nbytes: int, max_share: float, compacts: bool) -> None:
        chunk = self.ranges.emptiest(nbytes, max_share)
        assert chunk == self.model.emptiest(nbytes, max_share)
        assert self.ranges.loosest() == self.model.loosest()
        chunk = self.ranges.loosest() if chunk is None else chunk
        if chunk is None or not compacts or self.model.across:
            return
        end = self.model.begin_of(chunk)
        for i, (offset, held) in sorted(enumerate(self.held), key=lambda one: one[1]):
            if (offset - self.model.begin) // CHUNK == chunk:
                self.held[i] = (end, held)
                end += rounded(held, 8)
        self.ranges.reopen(chunk)
        self.model.reopen(chunk)

    @rule()
    def release_empty_chunks(self) -> None:
        for chunk in self.ranges.empty:
            self.ranges.note_released(chunk, 0)
            self.model.chunks[chunk].touched = 0

    @rule()
    def release_the_tail(self) -> None:
        if self.model.current >= 0 and rounded(self.model.top, PAGE) < self.model.chunks[self.model.current].touched:
            self.ranges.note_released(self.ranges.current, rounded(self.ranges.top, PAGE))
            self.model.chunks[self.model.current].touched = rounded(self.model.top, PAGE)

    @rule(head=st.integers(0, 3), more=st.integers(0, 3), huge_pages=st.booleans())
    def grow(self, head: int, more: int, huge_pages: bool) -> None:
        model = self.model
        before, limit = self.ranges.chunks, self.ranges.limit_bytes
        self.commits = Commits()
        self.commits.calls += self.expected_commits.calls
        count = len(model.chunks) + more
        self.ranges.continue_in(make(head * PAGE, count, model.across, huge_pages, self.commits))
        self.held = [(offset + head * PAGE - model.begin, nbytes) for offset, nbytes in self.held]
        model.begin, model.huge_pages = head * PAGE, huge_pages
        model.chunks += [Chunk() for _ in range(more)]
        assert self.ranges.chunks is not before and self.ranges.limit_bytes == limit

    @invariant()
    def both_are_alike(self) -> None:
        if not hasattr(self, "ranges"):
            return
        ranges, model = self.ranges, self.model
        for name in (
            "chunk_bytes", "limit_bytes", "used_bytes", "committed_bytes", "empty", "fresh", "current", "top", "across",
            "huge_pages",
        ):  # fmt: skip
            assert getattr(ranges, name) == getattr(model, name), name
        assert ranges.chunks.T.tolist() == [[one.live, one.touched, one.opened] for one in model.chunks]
        assert ranges.begin_of(1) == model.begin_of(1)
        assert self.commits.calls == self.expected_commits.calls


TestRanges = RangesMachine.TestCase
TestRanges.settings = settings(stateful_step_count=100)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("huge_pages", [False, True])
def test_a_long_life_is_that_of_the_model(across: bool, huge_pages: bool) -> None:
    """Ranges freed mostly in order, with a limit that moves."""
    rng = np.random.default_rng(17)
    ranges = make(PAGE, 40, across, huge_pages, None)
    model = RangesModel(PAGE, CHUNK, [Chunk() for _ in range(40)], across, huge_pages, lambda begin, nbytes: None)
    model.limit_bytes = ranges.limit_bytes
    held: list[tuple[int, int]] = []
    full = 0
    for step in range(30_000):
        nbytes = int(rng.integers(1, CHUNK if step % 5 == 0 else 2000))
        offset = ranges.allocate(nbytes)
        assert offset == model.allocate(nbytes)
        if offset is not None:
            held.append((offset, nbytes))
        else:
            full += 1
        while held and (len(held) > 150 or offset is None):
            old = held.pop(0 if rng.random() < 0.95 else int(rng.integers(len(held))))
            ranges.free(*old)
            model.free(*old)
            if rng.random() < 0.5:
                break
        if step % 1000 == 0:
            ranges.limit_bytes = model.limit_bytes = int(rng.integers(4, 40)) * CHUNK
        assert ranges.top == model.top and ranges.current == model.current
    assert full > 10
    assert ranges.empty == model.empty and ranges.used_bytes == model.used_bytes
    assert ranges.committed_bytes == model.committed_bytes


def test_a_range_larger_than_a_chunk_is_refused() -> None:
    ranges = make(0, 4, False, False, None)
    for nbytes in (0, -8, CHUNK + 1):
        with pytest.raises(AssertionError, match="in chunks of"):
            ranges.allocate(nbytes)
        with pytest.raises(AssertionError, match="in chunks of"):
            ranges.allocate_some(np.array([nbytes, 8], np.int64))
        with pytest.raises(AssertionError, match="in chunks of"):
            ranges.reserve(nbytes, 1)
    assert ranges.used_bytes == ranges.fresh == 0
