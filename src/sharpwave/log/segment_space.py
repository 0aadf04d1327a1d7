"""Memory of segments: the arena, the index, and the cache of segments on disk, which grow together."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from sharpwave.arrays import Int32s
from sharpwave.disk.disk_tier import DiskTier
from sharpwave.disk.segment_cache import SegmentCache
from sharpwave.memory.address_space import PAGE
from sharpwave.memory.arena import ALIGNMENT, Arena, rounded
from sharpwave.memory.segment_index import SegmentIndex
from sharpwave.memory.segment_layout import SegmentLayout

CACHE_CHUNK_BYTES = 3 << 19
"""Approximate size of a chunk of segments read from disk: a chunk costs time to fill and to free."""
MAX_CHUNK_BYTES = 1 << 19
"""Largest chunk of segments in memory, unless a segment needs a larger one."""
CHUNKS = 128
"""Least number of chunks of a store in memory, unless a segment needs larger ones: the oldest is emptied before it is
reused."""
MIN_CHUNKS = 32
"""Chunks for which ``ram`` has room at least, so that one can be freed while the others are in use."""


class SegmentSpace:
    """Arena of segments, and its index.

    Args:
        capacity, ram: limits in steps and in bytes; ``None``: none.
        disk: disk tier of sealed segments, if any. ``slots``: minimum.
        in_order: whether segments are evicted in the order in which they were added.

    Attributes:
        arena, index: the bytes of segments, and the arrays that describe them.
        segment_cache: cache of the disk's segments in the arena; ``None`` without a disk.
        staged: number of open segments with memory: of lanes that received steps in this process.
    """

    def __init__(
        self,
        layout: SegmentLayout,
        capacity: int | None,
        ram: int | None,
        disk: DiskTier | None,
        slots: int,
        in_order: bool,
    ) -> None:
        self.layout = layout
        reserve, max_slots = layout.room(capacity, ram, None if disk is None else disk.budget.limit_bytes)
        slots = max(slots, max_slots)
        if disk is None:
            chunk_bytes = memory_chunk_bytes(layout.chunk_bytes, capacity, ram, layout.spec.max_step_bytes)
        else:
            chunk_bytes = cache_chunk_bytes(layout.chunk_bytes, ram)
        across = in_order and disk is None
        self.arena = Arena(reserve, chunk_bytes, slots * layout.spine_bytes, huge_pages=ram is None, across=across)
        self.index = SegmentIndex(slots, layout.stride, len(layout.names), len(layout.sparse_columns))
        self.segment_cache = None if disk is None else SegmentCache(self.arena, self.index, disk)
        self._free_whole_chunks = in_order or disk is not None
        self.staged = 0

    @property
    def index_bytes(self) -> int:
        """Bytes of memory of the index and of the cache's bookkeeping."""
        spine_bytes = self.layout.spine_bytes * self.index.highest
        return self.index.touched_bytes + spine_bytes + (self.segment_cache.nbytes if self.segment_cache else 0)

    def open_bytes(self, more: int = 0) -> int:
        """Return an upper bound of the arena's bytes for open segments: the ones with memory and ``more``."""
        return self.layout.open_chunks(self.staged + more, self.arena.chunk_bytes) * self.arena.chunk_bytes

    def fits(self, reserve: int, slots: int) -> bool:
        """Return whether address space and slots suffice."""
        return reserve <= self.arena.reserved_bytes and slots <= self.index.slots

    def grow(self, reserve: int, slots: int, opened: Int32s) -> None:
        """Enlarge to ``reserve`` bytes of address space and ``slots`` slots; memory may move.

        Args:
            opened: slots of open segments.

        Raises:
            MemoryError: nothing changed: everything is allocated before any of it is used.
        """
        arena, index, segment_cache = self.arena, self.index, self.segment_cache
        reserve, slots = max(reserve, arena.reserved_bytes), max(slots, index.slots)
        if reserve == arena.reserved_bytes and not self.layout.spine_bytes:
            index.become(index.larger(slots))
            return
        if segment_cache is not None:
            segment_cache.clear()
        larger_arena, larger_index = arena.larger(reserve, slots * self.layout.spine_bytes), index.larger(slots)
        larger_cache = None if segment_cache is None else segment_cache.larger(larger_arena, slots)
        shift = larger_arena.begin_of(0) - arena.begin_of(0)
        moved: Any = slice(index.highest) if segment_cache is None else opened
        larger_index.offset[:, moved] += shift
        larger_index.base[moved] += shift
        arena.become(larger_arena, index.highest * self.layout.spine_bytes)
        index.become(larger_index)
        if segment_cache is not None and larger_cache is not None:
            segment_cache.become(larger_cache)

    def allocate(self, nbytes: int) -> int | None:
        """Return the offset of ``nbytes`` of the arena; ``None`` if there is no room.

        Where segments are evicted in any order, chunks that are half empty are filled before others.
        """
        arena = self.arena
        if self._free_whole_chunks:
            return arena.allocate(nbytes)
        self._close_up(arena.emptiest(nbytes, max_share=0.5))
        base = arena.allocate(nbytes)
        if base is None:
            self._close_up(arena.emptiest(nbytes))
            base = arena.allocate(nbytes)
        return base

    def free_pages(self) -> bool:
        """Free memory between segments that are evicted in any order; return False if no whole page is freed."""
        loose = not self._free_whole_chunks and hasattr(mmap, "MADV_DONTNEED")
        chunk = self.arena.loosest() if loose else None
        self._close_up(chunk)
        if chunk is not None:
            self.arena.trim_tail()
        return chunk is not None

    def _close_up(self, chunk: int | None) -> None:
        """Compact the segments in ``chunk`` to its beginning, and continue allocating there."""
        if chunk is None:
            return
        index, memory, used = self.index, self.arena.memory, slice(0, self.index.highest)
        there = (index.sealed[used] > 0) & (index.rows[used] > 0)
        slots = np.flatnonzero(there & (self.arena.chunk_of(index.base[used]) == chunk))
        begin = self.arena.begin_of(chunk)
        for slot in slots[np.argsort(index.base[slots])]:
            base, nbytes = int(index.base[slot]), int(index.nbytes[slot])
            offset = index.offset[:, slot] + (begin - base)
            memory[begin : begin + nbytes] = memory[base : base + nbytes]
            index.base[slot], index.offset[:, slot] = begin, offset
            begin += rounded(nbytes, ALIGNMENT)
        self.arena.reopen(chunk)


def memory_chunk_bytes(nbytes: int, capacity: int | None, ram: int | None, step_bytes: int) -> int:
    """Return the size of a chunk of segments in memory: at least ``nbytes``, which holds any segment.

    Where segments are not evicted in order, a chunk's last part stays empty: half a segment, of a few KB where steps
    are small.
    """
    held = min(limit for limit in (None if capacity is None else capacity * step_bytes, ram) if limit is not None)
    return max(nbytes, rounded(min(MAX_CHUNK_BYTES, held // CHUNKS), PAGE))


def cache_chunk_bytes(nbytes: int, ram: int | None) -> int:
    """Return the size of a chunk of segments read from disk, a multiple of ``nbytes``."""
    if ram is None:
        return nbytes
    return nbytes * max(1, min(CACHE_CHUNK_BYTES, ram // MIN_CHUNKS) // nbytes)
