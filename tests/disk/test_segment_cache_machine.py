"""What lies in the arena, against a dict: fetched, pinned, let go, moved and forgotten in any order."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sharpwave.disk import disk_budget as disk_module
from sharpwave.native import core
from sharpwave.native.file_operations import Files
from tests.disk.tier import SLOTS, Slow, Tier, wait_for_all


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
        assert not (self.tier.segment_cache._state[slots] == core.COMING).any()

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
