"""Room for segments: address space and slots, the arena's share of ``ram``, and the region files' share of the disk."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.codecs.dictionaries import DictionaryTable
from sharpwave.disk.compaction import compact, merge
from sharpwave.disk.disk_budget import MAX_HELD_SHARE
from sharpwave.disk.disk_tier import DiskTier
from sharpwave.disk.mergeable_regions import DEAD_SHARE
from sharpwave.disk.segment_cache import SegmentCache
from sharpwave.log.column_encoder import ColumnEncoder
from sharpwave.memory.arena import ALIGNMENT, Arena, rounded
from sharpwave.memory.batch_pool import Block, Pool, Root
from sharpwave.memory.segment_index import SegmentIndex
from sharpwave.memory.segment_layout import Layout

CHUNK_BYTES = 3 << 19
FEWEST_CHUNKS = 32
"""That ``ram`` has room for, so that a part of it can go while the rest is in use."""
KEPT_TRANSITIONS = 2048
"""Room for so many transitions is kept for batches from the start, as far as :data:`MOST_BATCHES` allows."""
MOST_BATCHES = 0.5
"""Share of ``ram`` that batches may take."""


class Space:
    """The arena and the index, and room in them and on disk.

    Args:
        tables, encoders: by column; their memory leaves the arena less.
        capacity, ram: limits in steps and in bytes; ``None``: none.
        disk: where sealed segments lie, if there is one. ``slots``: as many at least.
        in_order: whether segments leave in the order in which they came.
        evict: lets a segment go; False if there is none that could.

    Attributes:
        arena, index: where the bytes lie, and the arrays that say so.
        segment_cache: what of the disk's segments lies in the arena.
        pool: memory of batches.
        other_bytes: bytes that views take beside their batches, which leave the arena less of ``ram``.
        work_bytes: bytes that views take to make batches, which count as theirs.
        open_bytes: bytes of open segments, which never leave the arena.
        growing: called with their number before there are more slots; what raises MemoryError lets nothing change.
    """

    def __init__(
        self,
        layout: Layout,
        tables: Sequence[DictionaryTable],
        encoders: Iterable[ColumnEncoder],
        capacity: int | None,
        ram: int | None,
        disk: DiskTier | None,
        slots: int,
        in_order: bool,
        evict: Callable[[], bool],
    ) -> None:
        self.layout, self.disk = layout, disk
        self._tables, self._encoders, self._evict = tables, list(encoders), evict
        reserve, most_slots = layout.room(capacity, ram, None if disk is None else disk.budget.limit_bytes)
        slots = max(slots, most_slots)
        chunk = layout.chunk_bytes if disk is None else larger_chunk(layout.chunk_bytes, ram)
        self.arena = Arena(reserve, chunk, slots * layout.spine_bytes, huge_pages=ram is None)
        self.index = SegmentIndex(slots, layout.stride, len(layout.names))
        self.segment_cache = None if disk is None else SegmentCache(self.arena, self.index, disk)
        self._whole = in_order or disk is not None  # chunks go as a whole
        self.pool = Pool()
        self.other_bytes: Callable[[], int] = lambda: 0
        self.work_bytes: Callable[[], int] = lambda: 0
        self.open_bytes: Callable[[], int] = lambda: 0
        self.growing: list[Callable[[int], None]] = []
        self._set_ram(ram)

    def _set_ram(self, ram: int | None, batch_bytes: int = 0) -> None:
        self.ram = ram
        self._kept_for_batches = self._kept(ram or 0, batch_bytes)

    def _kept(self, ram: int, batch_bytes: int) -> int:
        """Bytes that batches have and steps never take: at most their share of ``ram``."""
        if self.disk is not None:
            return 0  # what is read from there can be let go at any time
        kept = max(KEPT_TRANSITIONS * self.layout.transition_bytes, self.pool.held_bytes + batch_bytes)
        return min(int(ram * MOST_BATCHES), kept)

    def check_ram(self, ram: int | None, batch_bytes: int) -> None:
        """Raises: ValueError: too little for what cannot be given back, and a batch of ``batch_bytes`` beside those
        that are held."""
        if ram is None:
            return
        self.pool.collect()
        held, least = self.pool.held_bytes, self.least_bytes(ram)
        batches = held + batch_bytes
        need = max(least + max(batches, self._kept(ram, batch_bytes)), math.ceil(batches / MOST_BATCHES))
        if need > ram:
            raise ValueError(
                f"resize: ram={ram:,}, expected at least {need:,}: {least:,} for open segments, index and samplers, "
                f"and {batches:,} for batches (at most {MOST_BATCHES:g} of ram), {held:,} of which are held"
            )

    def resize(
        self,
        capacity: int | None,
        ram: int | None,
        disk_limit: int | None,
        opened: npt.NDArray[np.int32],
        batch_bytes: int = 0,
    ) -> None:
        """Other limits from now on, but for the disk's own; what is in memory may move.

        Args:
            opened: slots of open segments.  batch_bytes: what batches need beside those that are held.

        Raises:
            MemoryError: no address space; then nothing changed.
        """
        reserve, slots = self.layout.room(capacity, ram, disk_limit)
        if reserve > self.arena.reserved_bytes or slots > self.index.slots:
            self._grow(max(reserve, self.arena.reserved_bytes), max(slots, self.index.slots), opened)
        self.pool.trim()
        self._set_ram(ram, batch_bytes)
        if ram is None:
            self.arena.limit_bytes = self.arena.reserved_bytes

    def make_lanes_fit(
        self, lanes: int, rows: int, capacity: int | None, disk_limit: int | None, opened: npt.NDArray[np.int32]
    ) -> None:
        """Provide address space and slots for so many lanes in all.

        Args:
            rows: steps at which their segments are sealed. ``opened``: slots of open segments.

        Raises:
            MemoryError: no address space, or ``ram`` is too small; then nothing changed.
        """
        if self.ram is not None:
            self.limit_arena()
            need, left = self.lanes_bytes(lanes) + self.arena.chunk_bytes, self.arena.limit_bytes
            if need > left:
                raise MemoryError(
                    f"store: {lanes} lanes need {need:,} bytes for open segments, ram leaves {left:,}; raise it, "
                    f"use fewer lanes or lower segment_steps= (now {self.layout.stride})"
                )
        # For the next power of two, so that what is in memory moves a few times only where lanes come one by one.
        reserve, slots = self.layout.room(capacity, self.ram, disk_limit, 1 << (lanes - 1).bit_length(), rows)
        if reserve > self.arena.reserved_bytes or slots > self.index.slots:
            self._grow(max(reserve, self.arena.reserved_bytes), max(slots, self.index.slots), opened)
            if self.ram is None:
                self.arena.limit_bytes = self.arena.reserved_bytes

    def lanes_bytes(self, lanes: int) -> int:
        """Bytes of the arena that the open segments of so many lanes take, at most."""
        return self.layout.open_chunks(lanes, self.arena.chunk_bytes) * self.arena.chunk_bytes

    def stage(self, count: int) -> npt.NDArray[np.int64]:
        """Take room for so many open segments; returns their offsets.

        Raises:
            MemoryError: there is too little; then none is taken.
        """
        nbytes = self.layout.open_bytes
        places = self.arena.reserve(nbytes, count)
        while len(places) < count:
            if not self.make_room():
                for place in places[::-1].tolist():
                    self.arena.free(place, nbytes)
                raise MemoryError(f"store: no room to open {count} lanes; raise ram=, or use fewer lanes")
            places = np.concatenate([places, self.arena.reserve(nbytes, count - len(places))])
        return places

    def _grow(self, reserve: int, slots: int, opened: npt.NDArray[np.int32]) -> None:
        """More address space and more slots: what is in memory moves.

        Raises:
            MemoryError: then nothing changed, because all that is needed was asked for before any of it counts.
        """
        arena, index, segment_cache = self.arena, self.index, self.segment_cache
        for grow in self.growing:  # first: a slot that a view has no room for is written behind its arrays
            grow(slots)
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
        if larger_cache is not None:
            larger_cache.begin()
            self.segment_cache = larger_cache

    def bytes_beside(self) -> dict[str, int]:
        """Memory that segments cost beside the arena, by use, in bytes."""
        spine = self.layout.spine_bytes * self.index.highest + (self.segment_cache.nbytes if self.segment_cache else 0)
        return {
            "index": self.index.touched_bytes + spine,
            "dictionaries": sum(table.nbytes for table in self._tables),
            "encoders": sum(encoder.nbytes for encoder in self._encoders),
        }

    def least_bytes(self, ram: int) -> int:
        """Memory that cannot be given back: open segments and room to seal or read one, index, samplers, encoders."""
        return self.open_bytes() + 2 * self.arena.chunk_bytes + self._beside(ram)

    def _beside(self, ram: int) -> int:
        # A view that is asked again after a while grows with what it finds, before the arena is limited again.
        return sum(self.bytes_beside().values()) + self.other_bytes() + ram // 256

    @property
    def batch_bytes(self) -> int:
        """Memory of batches: those that are held, what is free for the next, and what making them takes."""
        return self.pool.nbytes + self.work_bytes()

    def limit_arena(self) -> None:
        """Leave the arena what of ``ram`` nothing else takes; what is too much there now goes."""
        if self.ram is None:
            return
        batches = max(self._kept_for_batches, self.batch_bytes)
        self.arena.limit_bytes = self.ram - self._beside(self.ram) - batches
        if self.arena.committed_bytes > self.arena.limit_bytes:
            self.arena.trim()
            while self.arena.committed_bytes > self.arena.limit_bytes and (self._give_back() or self.make_room()):
                self.arena.trim()

    def lend(
        self, sizes: tuple[int, ...], roots: Sequence[Root], work_bytes: int = 0
    ) -> list[tuple[Block, npt.NDArray[Any]]]:
        """Memory for a batch: blocks of ``sizes`` (of :func:`block_size`), of any content. No step leaves for it.

        Args:
            roots: the shape and dtype of the array over each.
            work_bytes: that making it takes beyond what :attr:`work_bytes` says.

        Raises:
            MemoryError: ``ram`` has no room for it; then nothing changed.
        """
        pool = self.pool
        pool.collect()
        more = self.ram is not None and pool.missing(sizes) + work_bytes > 0
        if more:
            self._admit(sizes, work_bytes)
        lent = [pool.lend(size, *root) for size, root in zip(sizes, roots, strict=True)]
        if more:
            # Room that steps had not taken, and that batches need, stays theirs: what works once works later.
            if self.disk is None:
                self._kept_for_batches = max(self._kept_for_batches, self.batch_bytes + work_bytes)
            self.limit_arena()
        return lent

    def _admit(self, sizes: tuple[int, ...], work_bytes: int) -> None:
        """Make room for a batch beside those that are held, if there can be.  Raises: MemoryError."""
        assert self.ram is not None
        if self.pool.missing(sizes) + work_bytes <= self._room_for_batches():
            return
        self.pool.trim()
        self.arena.trim()
        need = self.pool.missing(sizes) + work_bytes
        if need > self._room_for_batches():
            self.limit_arena()  # steps give way for what index and samplers have grown by, not for a batch
        room = self._room_for_batches()
        if need > room:
            raise MemoryError(
                f"sample: a batch of {need:,} bytes does not fit: of ram={self.ram:,} batches may take "
                f"{max(0, room):,} more. {self.pool.held_bytes:,} bytes are held by batches that are still in use "
                f"(together at most {MOST_BATCHES:g} of ram), {self.arena.committed_bytes:,} by steps and "
                f"{self._beside(self.ram):,} by index and samplers. Use a smaller batch_size, let go of batches, or "
                "raise ram="
            )

    def _room_for_batches(self) -> int:
        """Bytes of memory that batches may take beyond what they have."""
        assert self.ram is not None
        if self.disk is None:
            others = self.arena.committed_bytes + self._beside(self.ram)
        else:
            others = self.least_bytes(self.ram)
        return min(int(self.ram * MOST_BATCHES), self.ram - others) - self.batch_bytes

    def make_room(self) -> bool:
        """Free some of the arena: what is on disk as well, or else of the store. False if there is nothing."""
        return self._evict() if self.segment_cache is None else self.segment_cache.uncache_chunk()

    def allocate(self, nbytes: int) -> int | None:
        """Room in the arena. Where segments leave in any order, chunks that are half empty are used before others."""
        arena = self.arena
        if self._whole:
            return arena.allocate(nbytes)
        self._close_up(arena.emptiest(nbytes, most=0.5))
        base = arena.allocate(nbytes)
        if base is None:
            self._close_up(arena.emptiest(nbytes))
            base = arena.allocate(nbytes)
        return base

    def _close_up(self, chunk: int | None) -> None:
        """Move the segments in ``chunk`` to its beginning, and go on there."""
        if chunk is None:
            return
        index, memory, used = self.index, self.arena.memory, slice(0, self.index.highest)
        there = (index.sealed[used] > 0) & (index.rows[used] > 0)
        slots = np.flatnonzero(there & (self.arena.chunk_of(index.base[used]) == chunk))
        begin = self.arena.begin_of(chunk)
        for slot in slots[np.argsort(index.base[slots])]:
            base, nbytes = int(index.base[slot]), int(index.nbytes[slot])
            memory[begin : begin + nbytes] = memory[base : base + nbytes]
            index.base[slot] = begin
            index.offset[:, slot] += begin - base
            begin += rounded(nbytes, ALIGNMENT)
        self.arena.reopen(chunk)

    def _give_back(self) -> bool:
        """Give memory between segments back, where they leave in any order. False if no whole page is left."""
        chunk = None if self._whole or not hasattr(mmap, "MADV_DONTNEED") else self.arena.loosest()
        self._close_up(chunk)
        if chunk is not None:
            self.arena.trim_tail()
        return chunk is not None

    def compact(self, most: float = MAX_HELD_SHARE) -> bool:
        """Make room on disk without letting segments go, by copying a region of which a share of ``most`` is held.

        False if there is none to be made.  Raises: OSError.
        """
        if self.disk is None or self.segment_cache is None:
            return False
        return compact(self.disk, self.index, self._tables, self.segment_cache, most)

    def merge(self) -> None:
        """Copy small regions together, of which there are too many. An error costs nothing."""
        if self.disk is not None and self.segment_cache is not None:
            with contextlib.suppress(OSError):
                while merge(self.disk, self.index, self._tables, self.segment_cache):
                    pass

    def tidy(self, left_out: frozenset[int]) -> None:
        """Leave few files with little waste for the next opening, which reads them all. An error costs nothing.

        Args:
            left_out: regions that stay as they are.
        """
        if self.disk is not None and self.segment_cache is not None:
            with contextlib.suppress(OSError):
                while merge(self.disk, self.index, self._tables, self.segment_cache, left_out):
                    pass
                while compact(self.disk, self.index, self._tables, self.segment_cache, 1 - DEAD_SHARE, left_out):
                    pass

    def room_on_disk(self, disk: DiskTier, need: int) -> bool:
        """Whether there is room, or can be made without letting segments go.  Raises: OSError."""
        if disk.budget.crowded(need):
            return False
        if not disk.regions.room_for(need):  # a region will be begun
            self.merge()
            while not disk.regions.room_for(need) and disk.budget.wasteful and self.compact():
                pass
        while not disk.budget.room_for(need):
            if not (self.compact() if disk.budget.compacts else disk.budget.fragmented and self._try_compact()):
                return False
        return True

    def _try_compact(self) -> bool:
        """As :meth:`compact`, where letting segments go would make room as well: then a full disk is no error."""
        try:
            return self.compact()
        except OSError:
            return False


def larger_chunk(nbytes: int, ram: int | None) -> int:
    """A multiple of ``nbytes`` for a chunk: what is read from disk comes and goes by the chunk, at a cost for each."""
    if ram is None:
        return nbytes
    return nbytes * max(1, min(CHUNK_BYTES, ram // FEWEST_CHUNKS) // nbytes)
