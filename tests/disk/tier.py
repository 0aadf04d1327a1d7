"""A disk tier with its cache in the arena, and a dict of what it must hold."""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from pathlib import Path

import numpy as np

from sharpwave.disk.disk_tier import DiskTier
from sharpwave.disk.region_notes import Evicted
from sharpwave.disk.segment_cache import SegmentCache
from sharpwave.format.region import Identity
from sharpwave.format.segment import FIRST_FIELD, HEADER
from sharpwave.memory.arena import Arena
from sharpwave.memory.segment_index import SegmentIndex
from sharpwave.native.file_operations import Files

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


class NoClaims:
    """Of a log that evicts nothing."""

    latest_generation = 0

    def evicted(self) -> Evicted:
        return Evicted()

    def shared_values(self, id_: int) -> dict[tuple[int, int], bytes]:
        return {}

    def unsealed(self, slots: np.ndarray) -> np.ndarray:
        return np.ones(len(slots), np.bool_)


class Tier:
    """SegmentCache, and what it needs, with segments of any bytes."""

    def __init__(self, folder: Path, files: Files, chunks: int = 6, slots: int = SLOTS) -> None:
        self.disk = DiskTier(folder, ME, None, None, files)
        self.disk.begin(NoClaims(), 4, in_order=True)
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
        index.region[slot], index.region_offset[slot] = self.disk.append(slot, body, 0, {})
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
