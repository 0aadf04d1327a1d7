"""Admission to a full store: decides which segments are evicted for a new one, and whether the new one is kept."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import TypeVar

import numpy as np

from sharpwave.arrays import Bools, Int32s, Ints
from sharpwave.disk.compaction import Compaction
from sharpwave.disk.disk_budget import MAX_HELD_SHARE
from sharpwave.disk.region_files import FULL, Needed
from sharpwave.disk.region_notes import Evicted
from sharpwave.errors import StoreInUseError
from sharpwave.format.segment import SegmentColumn
from sharpwave.format.segment_header import Placed
from sharpwave.log.inventory import Inventory
from sharpwave.log.sealed_segments import Location, Sealed
from sharpwave.log.segment_space import SegmentSpace
from sharpwave.memory.ledger import MemoryLedger
from sharpwave.memory.segment_index import LEAF_MASK
from sharpwave.sampling.retention import Newcomer, Retention

MAX_HELD_OF_COPIED = 0.95
"""A region of which at most this share is held is compacted when a limit was lowered."""
BATCH_ROOM_SHARE = 1 / 16
"""With a disk: share of ``ram`` that the index of segments and shared values leaves to a batch."""
INDEX_SHARE = 1 / 64
"""With a disk: share of ``ram`` that the index may take where open segments alone leave less than that to a batch."""
VIEW_BYTES = 32
"""Bytes that a view takes for each segment, of a store that may get one."""

W = TypeVar("W")


class Made(Enum):
    """Outcome of an attempt to make room."""

    ROOM = "something was evicted or uncached"
    NOT_KEPT = "the retention policy rejects the newcomer"
    NOTHING = "there is nothing to evict"


class Admission:
    """Gate for new segments: decides, before anything is committed, which segments to evict for one, and evicts them.

    An error midway leaves the store consistent: segments evicted by then are gone, and nothing else has changed.

    Args:
        capacity: limit in steps; ``None``: none. ``ledger`` has the limit in bytes, ``compaction`` the limit of the
            disk.
        retention: chooses the segment to evict.
        on_full: the store's policy when the disk cannot be written to.

    Attributes:
        capacity: limit in steps. ``disk``: the compaction's. ``retention``, ``space``, ``sealed``, ``inventory`` and
            ``ledger`` are as given.
        release: frees an evicted segment, or returns False; ``None``: this object does.
    """

    def __init__(
        self,
        capacity: int | None,
        retention: Retention,
        space: SegmentSpace,
        sealed: Sealed,
        inventory: Inventory,
        ledger: MemoryLedger,
        compaction: Compaction | None,
        on_full: str,
    ) -> None:
        self.capacity, self.retention, self.on_full = capacity, retention, on_full
        self.space, self.sealed, self.inventory, self.ledger = space, sealed, inventory, ledger
        self._compaction = compaction
        self.disk = None if compaction is None else compaction.disk
        self._interrupted = -1  # slot of a segment whose eviction an error interrupted; evicted next
        self.release: Callable[[int], bool] | None = None

    # for notes on disk (``disk_tier.Claims``)

    @property
    def latest_generation(self) -> int:
        """The highest generation of any id so far."""
        return self.space.index.latest_generation

    def evicted(self) -> Evicted:
        """Return the retention's threshold and the counts of evictions."""
        return Evicted(self.retention.threshold, self.inventory.evicted_segments, self.inventory.dropped_steps)

    def unsealed(self, slots: Ints) -> Bools:
        """Return which of ``slots`` [n] hold no sealed segment."""
        index = self.space.index
        there = np.minimum(slots, index.slots - 1)
        free: Bools = (index.sealed[there] == 0) | (index.rows[there] == 0) | (there != slots)
        return free

    def shared_values(self, id_: int) -> Needed:
        """Return the shared values of a segment, by (column, key)."""
        return self.sealed.shared.needed((id_ & LEAF_MASK) // self.space.layout.stride)

    # eviction

    @property
    def interrupted(self) -> bool:
        """Whether a segment's eviction is to be finished before another one's."""
        return self._interrupted >= 0

    def evict(self, newcomer: Newcomer | None = None) -> Made:
        """Evict the sealed segment that the retention chooses, unless it chooses the ``newcomer``."""
        slot = self._interrupted
        if slot < 0:
            if not len(self.retention):
                return Made.NOTHING
            slot = self.retention.choose(newcomer, self.inventory.priorities)
            if newcomer is not None and slot == newcomer.slot:
                return Made.NOT_KEPT
            self._interrupted = slot
            self.inventory.changes += 1  # until this one is evicted, no append may evict another segment by itself
        self._evict(slot)
        self._interrupted = -1
        return Made.ROOM

    def _announce(self, slot: int) -> None:
        self.inventory.announce(slot)
        self.sealed.shared.release(slot)  # last: a checkpoint copies the segment with its values

    def _evict(self, slot: int) -> None:
        self._announce(slot)
        if self.release is not None and self.release(slot):
            return
        if self.disk is not None:  # first: a file without held segments is deleted at once
            self.disk.evict(self.space.index.segment_id(slot))
        self.sealed.free(slot)
        self._remove(slot)

    def evict_one(self, slot: int) -> None:
        """Evict the sealed segment in ``slot``, regardless of the retention."""
        while self._interrupted >= 0:
            self.evict()
        self.retention.discard(slot)
        self._interrupted = slot
        self._evict(slot)
        self._interrupted = -1

    def evict_all(self) -> None:
        """Evict every sealed segment; the retention starts over. A call that raised can be repeated."""
        while self._interrupted >= 0:
            self.evict()
        for slot in self.retention.order()["slots"].tolist():
            self.evict_one(slot)
        self.retention.clear()

    def drop(self, slot: int) -> None:
        """Remove a segment from the store, but not its bytes. A call that raised can be repeated."""
        self._announce(slot)
        self._remove(slot)
        self._note_not_kept()

    def _remove(self, slot: int) -> None:
        if self.disk is not None:
            index = self.space.index
            end = int(index.first_step[slot]) + int(index.rows[slot])
            self.disk.evict_tail(index.segment_id(slot), int(index.lane[slot]), end)
        self.inventory.remove(slot)

    def admits(self, slot: int) -> bool:
        """Return whether the retention admits the segment in ``slot``, which is about to be sealed."""
        if self.retention.admits(self.space.index.segment_id(slot)):
            return True
        self._note_not_kept()
        return False

    def _note_not_kept(self) -> None:
        """Note on disk that a segment is not kept: its ids were handed out, and rows of it may have been flushed."""
        if self.disk is not None:
            self.disk.try_note()

    def make_room_for_steps(self, coming: int) -> bool:
        """Evict until the capacity has room for ``coming`` steps; return False once no sealed segment is left."""
        while self.capacity is not None and self.inventory.held_steps + coming > self.capacity:
            if self.evict() is Made.NOTHING:
                return False
        return True

    def take_slot(self) -> int:
        """Return a free slot, reset.  Raises: MemoryError: all slots hold open segments."""
        index = self.space.index
        while (slot := index.take()) is None:
            if self.evict() is Made.NOTHING:
                raise MemoryError(
                    f"store: all {index.slots} segments are open; use fewer lanes, or raise capacity= or ram="
                )
        return slot

    def make_lanes_fit(self, lanes: int, staged: int, max_rows: int, opened: Int32s) -> None:
        """Provide address space and slots for ``lanes`` lanes in total, and check that memory has room for ``staged``
        further open segments.

        Args:
            max_rows: steps at which a segment is sealed. ``opened``: slots of open segments.

        Raises:
            MemoryError: no address space, or ``ram`` is too small; then nothing changed.
        """
        space, arena, ram = self.space, self.space.arena, self.ledger.ram
        if ram is not None:
            self.fit_memory()
            self._limit_arena(staged * space.layout.open_bytes)
            need, left = space.open_bytes(staged) + arena.chunk_bytes, arena.limit_bytes
            if need > left:
                raise MemoryError(
                    f"store: {space.staged + staged} lanes need {need:,} bytes for open segments, ram leaves {left:,}"
                    f"{self._beside()}; raise it, use fewer lanes, or {space.layout.remedy}"
                )
        # For the next power of two, so that memory is moved only a few times where lanes are added one by one.
        disk_limit = None if self.disk is None else self.disk.budget.limit_bytes
        to_come = 1 << (lanes - 1).bit_length()
        self._grow(*space.layout.room(self.capacity, ram, disk_limit, to_come, max_rows), opened)

    def resize(self, capacity: int | None, ram: int | None, disk_limit: int | None, opened: Int32s) -> None:
        """Provide address space and slots for these limits and ``disk_limit``, and set the limits in steps and of
        memory.

        Raises:
            MemoryError: no address space; then nothing changed.
        """
        self._grow(*self.space.layout.room(capacity, ram, disk_limit), opened)
        self.capacity, self.ledger.ram = capacity, ram
        if ram is None:
            self.space.arena.limit_bytes = self.space.arena.reserved_bytes

    def _grow(self, reserve: int, slots: int, opened: Int32s) -> None:
        """Provide address space and slots.  Raises: MemoryError; then nothing changed."""
        space = self.space
        if space.fits(reserve, slots):
            return
        self.inventory.changes += 1  # addresses are about to change
        for listener in self.inventory.listeners:  # first: one without room would write past its arrays
            listener.growing(max(slots, space.index.slots))
        space.grow(reserve, slots, opened)
        if self.ledger.ram is None:
            space.arena.limit_bytes = space.arena.reserved_bytes

    def stage(self, count: int) -> list[int]:
        """Return offsets for the rows of ``count`` open segments.  Raises: MemoryError: no room; then none is taken."""
        arena, nbytes = self.space.arena, self.space.layout.open_bytes
        offsets: list[int] = []
        try:
            while len(offsets) < count:
                some = arena.reserve(nbytes, count - len(offsets))
                offsets += some
                self.space.staged += len(some)
                if not some and self.free_memory() is Made.NOTHING:
                    raise MemoryError(f"store: no room to open {count} lanes; raise ram=, or use fewer lanes")
        except BaseException:
            self.unstage(offsets)
            raise
        return offsets

    def unstage(self, offsets: list[int]) -> None:
        """Free the result of ``stage``."""
        for offset in reversed(offsets):
            self.space.arena.free(offset, self.space.layout.open_bytes)
            self.space.staged -= 1

    def keep(
        self,
        slot: int,
        rows: int,
        packed: bytes,
        begins: Sequence[int],
        columns: Sequence[SegmentColumn | Placed],
        places: Sequence[int],
    ) -> bool:
        """Make room for an encoded segment, write it to disk if there is one, and only then seal the one in ``slot``.

        Args:
            rows: its steps. ``begins``: offset in ``packed`` of each column.
            places: of the columns' dictionaries, with references, which are released unless the segment is kept.

        Returns False if the retention rejects it.

        Raises:
            MemoryError, OSError: there is no room; the segment is still open.
        """
        newcomer, location, added = Newcomer(slot, self.space.index.segment_id(slot)), None, False
        try:
            dictionaries: Needed = {} if self.disk is None else self.sealed.needed(slot, places)
            location = self._place(newcomer, packed, dictionaries)
            if location is not None:
                self.retention.add(*newcomer)
                added = True
                self.sealed.enter(slot, rows, location, packed, begins, columns, places)
                return True
            self._note_not_kept()
        except BaseException:
            if location is not None:
                if self.disk is not None:
                    self.disk.held.release(location.region, len(packed))
                self.space.arena.free(location.base, len(packed))
            if added:
                self.retention.discard(slot)
            self.sealed.drop_dictionaries(places)
            raise
        self.sealed.drop_dictionaries(places)
        return False

    def _place(self, newcomer: Newcomer, packed: bytes, dictionaries: Needed) -> Location | None:
        """Take room for a segment in memory and on disk, and write it there; ``None``: the retention chose it itself.

        Raises:
            MemoryError, OSError: there is no room; then none is taken.
        """
        base = self._allocate(newcomer, len(packed)) if self.fit_memory(newcomer) else None
        if base is None or self._compaction is None:
            return None if base is None else Location(base)
        try:
            written = self._write(self._compaction, newcomer, packed, dictionaries)
        except BaseException:
            self.space.arena.free(base, len(packed))
            raise
        if written is None:
            self.space.arena.free(base, len(packed))
            return None
        return Location(base, *written)

    def _allocate(self, newcomer: Newcomer, nbytes: int) -> int | None:
        """Return the offset of ``nbytes`` of the arena; ``None`` as ``_place``."""
        space = self.space
        while (base := space.allocate(nbytes)) is None:
            made = self.free_memory(newcomer)
            if made is Made.NOT_KEPT:
                return None
            if made is Made.NOTHING:
                raise MemoryError(
                    f"store: ram leaves {space.arena.limit_bytes:,} bytes for data, too few for the open segments of"
                    f" {space.staged} lanes and one sealed one{self._beside()}; raise ram=, or {space.layout.remedy}"
                )
            self._limit_arena()  # an eviction may have freed shared values, too
        return base

    def _beside(self) -> str:
        """Return the words of a memory error on the bytes of shared values; "" without any."""
        nbytes = self.sealed.shared.nbytes
        return f" beside {nbytes:,} bytes of shared values" if nbytes else ""

    def _limit_arena(self, coming: int = 0) -> None:
        """Limit the arena to the free part of ``ram``.

        The cache of shared values takes none of it that open segments need, or ``coming`` bytes of further ones.
        """
        if self.ledger.ram is not None:
            self.sealed.shared.reserve(coming)
            self.space.arena.limit_bytes = self.ledger.arena_bytes(self.ledger.ram)

    def _write(
        self, compaction: Compaction, newcomer: Newcomer, packed: bytes, dictionaries: Needed
    ) -> tuple[int, int] | None:
        """Append a segment to the newest region; return its region and offset. ``None`` as ``_place``."""
        disk, generation = compaction.disk, self.space.index.latest_generation
        return self._with_room(
            compaction,
            partial(disk.need, len(packed), dictionaries),
            lambda: disk.append(newcomer.id, packed, generation, dictionaries),
            newcomer,
        )

    def write_tail(self, id_: int, packed: bytes) -> None:
        """Write an open segment's rows so far to the region files, evicting for them.  Raises: OSError."""
        assert self._compaction is not None
        disk, generation = self._compaction.disk, self.space.index.latest_generation
        need = partial(disk.need, len(packed), self.shared_values(id_))
        self._with_room(self._compaction, need, lambda: disk.append_tail(id_, packed, generation))

    def _with_room(
        self, compaction: Compaction, need: Callable[[], int], write: Callable[[], W], newcomer: Newcomer | None = None
    ) -> W | None:
        """Make room for ``need()`` bytes, on a full disk by the policy ``on_full``; return the result of ``write``.

        Returns ``None`` if the retention chose the ``newcomer``.
        """
        disk, copies = compaction.disk, True
        while True:
            refusal: OSError | None = None
            try:
                if compaction.make_room(need):
                    return write()
            except OSError as error:
                if not is_refusal(error):
                    raise
                remedy = f"make room, or choose another on_full= (now {self.on_full!r})"
                drops = self.on_full == "drop_oldest" and error.errno in FULL
                if drops and not disk.dropping_frees:
                    drops = False
                    remedy = "make room: a checkpoint holds the same files, so dropping steps frees nothing"
                refusal = OSError(
                    error.errno,
                    f"disk: {disk.folder} could not be written to ({error.strerror}); {remedy}. This step was not "
                    "appended",
                )
                if not drops:
                    raise refusal from error
            before = self.inventory.evicted_steps
            made = self.evict(newcomer) if refusal is None else self._drop(compaction, newcomer, copies)
            copies = self.inventory.evicted_steps > before  # copying made no room: evict next
            if made is Made.NOT_KEPT:
                return None
            if made is Made.NOTHING:
                limit = disk.budget.limit_bytes or 0
                raise refusal or OSError(
                    f"disk: a segment of {need():,} bytes does not fit into disk_limit={limit:,}; raise it"
                )

    def _drop(self, compaction: Compaction, newcomer: Newcomer | None, copies: bool) -> Made:
        """Evict until a file on a full disk could be deleted; count the steps as dropped.

        Args:
            copies: a nearly empty file may be deleted after its held records were copied.
        """
        disk, inventory = compaction.disk, self.inventory
        before, nbytes = inventory.evicted_steps, disk.nbytes
        linked = disk.linked()
        most = inventory.sealed_bytes - 2 * max((one.allocated for one in disk.regions.regions.values()), default=0)
        try:
            if len(disk.regions.regions) == 1:  # it is deleted only once nothing is written to it any more
                with contextlib.suppress(OSError):
                    disk.regions.finish()
            while disk.nbytes >= nbytes:
                if (copies and disk.budget.emptied(linked) is not None) or inventory.sealed_bytes < most:
                    made = self._drop_region(compaction, linked)
                    if made is Made.ROOM or not self.retention.in_order:
                        return made
                    copies, most = False, -1
                made = self.evict(newcomer)
                if made is Made.NOT_KEPT and newcomer is not None:
                    inventory.dropped_steps += int(self.space.index.rows[newcomer.slot])
                if made is not Made.ROOM:
                    tried = made is Made.NOTHING and inventory.evicted_steps > before
                    return Made.ROOM if tried else made
                if disk.stuck:
                    return Made.NOTHING
            return Made.ROOM
        finally:
            inventory.dropped_steps += inventory.evicted_steps - before

    def _drop_region(self, compaction: Compaction, linked: frozenset[int]) -> Made:
        """Delete the emptiest region: copy its held records, or evict them if a full disk takes no copy.

        With evictions in order nothing is evicted here: the oldest segments leave first.

        Args:
            linked: regions whose deletion frees nothing.
        """
        disk, index = compaction.disk, self.space.index
        number = disk.budget.emptiest(1.0, linked)
        if number is None:
            return Made.NOTHING
        disk.regions.release_spare()
        with contextlib.suppress(OSError):
            if disk.budget.emptied(linked) == number and compaction.compact(1.0, linked):
                return Made.ROOM
        if self.retention.in_order:
            return Made.NOTHING
        used = slice(0, index.highest)
        held = (index.region[used] == number) & (index.sealed[used] > 0) & (index.rows[used] > 0)
        for slot in np.flatnonzero(held).tolist():
            self.evict_one(slot)
        if number not in disk.regions.regions:
            return Made.ROOM
        try:
            return Made.ROOM if disk.vacate([number], index.latest_generation) else Made.NOTHING
        except OSError:
            return Made.NOTHING

    def free_memory(self, newcomer: Newcomer | None = None) -> Made:
        """Uncache segments; without a disk, evict one."""
        segment_cache = self.space.segment_cache
        if segment_cache is None:
            return self.evict(newcomer)
        return Made.ROOM if segment_cache.uncache_chunk() else Made.NOTHING

    def fit_memory(self, newcomer: Newcomer | None = None) -> bool:
        """Limit the arena to the free part of ``ram``, and free memory beyond it.

        Returns False if this would evict the ``newcomer``.
        """
        ram, space, arena = self.ledger.ram, self.space, self.space.arena
        if ram is None:
            return True
        self._limit_arena()
        made = Made.ROOM
        if arena.committed_bytes > arena.limit_bytes:
            arena.trim()
            while arena.committed_bytes > arena.limit_bytes and made is Made.ROOM:
                made = Made.ROOM if space.free_pages() else self.free_memory(newcomer)
                arena.trim()
                self._limit_arena()  # an eviction may have freed shared values, too
        return made is not Made.NOT_KEPT

    def fits_values(self) -> bool:
        """Return whether shared values leave room for the segments in memory. With a disk, none has to be there."""
        if self.disk is not None or not self.sealed.shared:
            return True
        self._limit_arena()
        return self.space.arena.committed_bytes <= self.space.arena.limit_bytes

    def fits_open(self, values: int) -> bool:
        """Return whether there would be room for a sealed segment and the open ones beside ``values`` bytes of shared
        values."""
        return self.space.open_bytes() + self.space.arena.chunk_bytes <= self.arena_bytes(values)

    def fits_beside(self, values: int) -> bool:
        """Return whether segments, a view and a batch fit beside ``values`` bytes of shared values, outside their
        cache."""
        room = self.arena_bytes(values) - self.min_segment_bytes - VIEW_BYTES * self.space.index.highest
        return max(0, (self.ledger.ram or 0) * BATCH_ROOM_SHARE - self.ledger.batch_bytes) <= room

    def check_index(self) -> None:
        """Refuse another segment on disk where the index would leave too little of ``ram``.  Raises: MemoryError."""
        ram, index = self.ledger.ram, self.space.index
        if self.disk is None or ram is None or index.touched_bytes <= INDEX_SHARE * ram:
            return
        if self.fits_beside(self.sealed.shared.needed_bytes):
            return
        raise MemoryError(
            f"store: the index of {index.highest:,} segments takes {index.touched_bytes:,} bytes of memory"
            f"{self._beside()}, which leaves too few of ram={ram:,} for open segments and batches; raise it, lower "
            f"capacity= or disk_limit=, or raise segment_steps= (now {self.space.layout.stride})"
        )

    @property
    def min_segment_bytes(self) -> int:
        """Return the bytes of open segments, which never leave the arena, and of room to seal or read one."""
        return self.space.open_bytes() + 2 * self.space.arena.chunk_bytes

    def arena_bytes(self, values: int) -> float:
        """Return the bytes that ``ram`` would leave to segments beside ``values`` bytes of shared values."""
        ram = self.ledger.ram
        return math.inf if ram is None else self.ledger.arena_bytes(ram) + self.sealed.shared.nbytes - values

    def fit_disk(self) -> None:
        """Evict until the region files are within their limit. A full disk is no error: room is made when needed."""
        compaction = self._compaction
        if compaction is None:
            return
        budget, before = compaction.disk.budget, compaction.disk.regions.next_number
        with contextlib.suppress(OSError):
            while budget.crowded() and self.evict() is Made.ROOM:
                pass
            while budget.over_limit:
                # Evictions in order free whole regions, except regions older than a lowered limit.
                share = MAX_HELD_SHARE if budget.compacts else MAX_HELD_OF_COPIED
                if not (budget.fits and compaction.compact(share, before=before)) and self.evict() is Made.NOTHING:
                    break


def is_refusal(error: BaseException) -> bool:
    """Return whether a disk is full or failing, rather than taken over by another process."""
    return isinstance(error, OSError) and not isinstance(error, StoreInUseError)
