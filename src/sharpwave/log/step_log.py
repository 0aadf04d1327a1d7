"""The log of steps: rows arrive lane by lane, fill open segments, are sealed, and are evicted."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Bytes, Int32s, Ints
from sharpwave.codecs.dictionaries import DictionaryTable
from sharpwave.disk.compaction import Compaction
from sharpwave.disk.disk_tier import DiskTier
from sharpwave.format import segment
from sharpwave.format.annotations import Annotations
from sharpwave.format.segment import FLAGS
from sharpwave.format.segment_header import Header
from sharpwave.log.admission import Admission
from sharpwave.log.batch_memory import BatchMemory
from sharpwave.log.boundaries import Boundaries
from sharpwave.log.column_encoder import SegmentEncoder
from sharpwave.log.inventory import Inventory
from sharpwave.log.late_columns import LateColumns
from sharpwave.log.open_columns import MIN_SHARE_BYTES
from sharpwave.log.open_segments import Lanes, Rows, appended
from sharpwave.log.sealed_segments import Sealed
from sharpwave.log.sealing import Sealing
from sharpwave.log.segment_space import SegmentSpace
from sharpwave.log.shared_values import Key, SharedValues, StoredValue
from sharpwave.memory.ledger import MemoryLedger
from sharpwave.memory.segment_index import LEAF_BITS, LEAF_MASK
from sharpwave.memory.segment_layout import SegmentLayout
from sharpwave.native import core
from sharpwave.sampling.retention import Retention
from sharpwave.spec import START, Spec

MAX_VALUE_SHARE = 7 / 8
"""With a disk: share of ``ram`` for the index of shared values, and for values that are in no file yet."""
VALUE_CACHE_SHARE = 1 / 8
"""With a disk: share of ``ram`` for shared values that were read."""


class CheckpointWriter(Protocol):
    """Checkpoint writer that copies segments while the log goes on."""

    nbytes: int

    def waits(self) -> str | None:
        """Return why nothing may be appended now; ``None`` if appending is allowed."""

    def end(self) -> None:
        """Stop copying."""


class ViewWriter(Protocol):
    """Writer of views' states to the store's folder.

    Attributes:
        kept_bytes: size of the copies that are being written.
    """

    @property
    def kept_bytes(self) -> int: ...

    def write(self) -> None:
        """Write it before this returns; failures are warnings."""

    def end(self) -> None:
        """Wait until nothing is being written."""


class StepLog:
    """Lanes and their segments, open and sealed. Knows nothing of sampling.

    A step takes three hops: the caller validates it once, ``Admission`` makes room for it, ``Lanes`` writes
    it into its lane's open segment.

    Args:
        spec: schema of a step.
        codecs: codec name ("auto", ...) by field.
        capacity, ram: limits in steps and in bytes; ``None``: none.
        stride: limit of steps in a segment.
        retention: chooses the segments to evict.
        disk: disk tier that every sealed segment is written to; the arena caches segments.
        slots: minimum number of slots.
        on_full: policy of an append when the disk cannot be written to: "raise", "block", "drop_oldest", "drop_newest".

    Attributes:
        layout: layout of segments.
        opened, sealed: the lanes' open segments, and the sealed ones. ``inventory``: their counts and order.
        boundaries: detects impossible steps.
        space: memory of segments, with ``arena``, ``index`` and (with a disk) ``segment_cache``.
        ledger: division of ``ram``. ``batches``: memory of batches.
        sealing: seals open segments and opens the next. ``admission``: decides which segments to evict for new ones.
        compaction: frees files without evicting; ``None`` without a disk.
        late: columns whose values come after their steps; ``late.spec`` is what views read.
        tables: each column's dictionaries. ``shared``: values of shared fields. ``encoder``: encodes columns.
        tag: mark of this store's ids.
        annotations: of the store and of its lanes.
        closed: whether nothing may be written or read. ``closing``: whether ``close`` was called.
        frozen: why nothing may be written; empty: it may. ``after_close``: called once files are closed.
        parent: the store, and its version, that this one was made from; ``None``: neither.
        keeping: writer of views' states beside the segments.
        copying: the checkpoint being written of segments in memory. ``saving``: held by the thread that writes one.
    """

    def __init__(
        self,
        spec: Spec,
        codecs: Mapping[str, str],
        capacity: int | None,
        ram: int | None,
        stride: int,
        retention: Retention,
        disk: DiskTier | None = None,
        slots: int = 0,
        on_full: str = "raise",
    ) -> None:
        self.spec, self.stride, self.retention, self.disk = spec, stride, retention, disk
        self.layout = layout = SegmentLayout(spec, stride, disk is not None)
        self.tables = tables = [DictionaryTable(int(size)) for size in layout.sizes]
        self.encoder = encoder = SegmentEncoder(layout, codecs, tables)
        self.space = space = SegmentSpace(layout, capacity, ram, disk, slots, retention.in_order)
        self.arena, self.index, self.segment_cache = space.arena, space.index, space.segment_cache
        self.ledger = ledger = MemoryLedger(ram)
        ledger.enter("index", lambda: space.index_bytes + (disk.evictions.nbytes if disk is not None else 0))
        ledger.enter("dictionaries", lambda: sum(table.nbytes for table in tables))
        ledger.enter("encoders", lambda: encoder.nbytes)
        self.inventory = Inventory(self.index)
        self.late = late = LateColumns(spec, self.index)
        self.inventory.tell(late)
        ledger.enter("columns", lambda: late.nbytes)
        self.opened = Lanes(layout, self.arena, self.index)
        self.shared = shared = SharedValues(layout, None if disk is None else disk.regions)
        if shared:
            ledger.enter("shared_values", lambda: shared.nbytes)
            shared.share, shared.cache_limit = self._shared_share, self._cache_limit
        if self.opened.columns.values:
            values = self.opened.columns.values
            ledger.enter("open_values", lambda: values.nbytes)
            values.share = self._value_share
        self.boundaries = Boundaries(self.opened)
        self.sealed = Sealed(space, disk, tables, self.inventory, shared)
        self.compaction = None
        if disk is not None and self.segment_cache is not None:
            self.compaction = Compaction(disk, self.index, self.sealed.needed, self.segment_cache)
        late.room = self.column_room
        self.admission = Admission(
            capacity, retention, space, self.sealed, self.inventory, ledger, self.compaction, on_full
        )
        self.sealing = self._make_sealing()
        self.batches = BatchMemory(self.admission)
        if disk is not None:
            disk.begin(self.admission, stride, retention.in_order, on_full == "drop_oldest")
        self.closed = self.closing = False
        self.frozen = ""
        self.parent: dict[str, Any] | None = None
        self.after_close: Callable[[], object] = lambda: None
        self.tag = object()
        self.annotations = Annotations()
        # Annotations outside segments take some ten times the memory of their JSON.
        ledger.enter("annotations", lambda: 10 * (self.annotations.nbytes + self.opened.annotations.nbytes))
        self.keeping: ViewWriter | None = None
        self.copying: CheckpointWriter | None = None
        self.saving = threading.Lock()

    def _make_sealing(self) -> Sealing:
        return Sealing(self.opened, self.admission, self.encoder)

    @property
    def identity(self) -> dict[str, str]:
        """The store's random name, if it has files."""
        return {} if self.disk is None else {"store": self.disk.regions.identity.store.hex()}

    def _value_share(self) -> float:
        """Return the bytes of memory for the values of one ragged field in one open segment."""
        ram, columns = self.ledger.ram, len(self.layout.ragged_columns)
        return float("inf") if ram is None else ram // (8 * columns * max(1, self.lanes))

    def _shared_share(self) -> float:
        """Return the bytes of memory for the values of shared fields in one open segment."""
        ram = self.ledger.ram
        if ram is None:
            return math.inf
        room = ram // 8
        if self.disk is not None:
            room = min(room, (int(MAX_VALUE_SHARE * ram) - self.shared.needed_bytes) // 4)
        return max(MIN_SHARE_BYTES, room // max(1, self.lanes))

    def _cache_limit(self) -> float:
        """Return the bytes of memory for shared values that were read from disk."""
        ram = self.ledger.ram
        if ram is None:
            return math.inf
        needed = self.shared.needed_bytes
        free = self.admission.arena_bytes(needed) - self.admission.min_segment_bytes
        return min(VALUE_CACHE_SHARE * ram, MAX_VALUE_SHARE * ram - needed, free)

    @property
    def lanes(self) -> int:
        return len(self.opened)

    @property
    def segment_bytes(self) -> int:
        """Bytes of memory available to sealed segments."""
        return self.arena.limit_bytes - self.space.open_bytes()

    def column_room(self) -> float:
        """Return the bytes that a late column may take: without a disk, those that no step takes; with one, a half of
        those for segments, which are read again."""
        if self.ledger.ram is None:
            return math.inf
        if self.disk is not None:
            return self.segment_bytes // 2
        return self.arena.limit_bytes - self.arena.committed_bytes - self.arena.chunk_bytes

    @property
    def steps(self) -> int:
        """Number of held steps that were not deleted, open segments included."""
        return self.inventory.held_steps - self.deleted_steps

    @property
    def deleted_steps(self) -> int:
        """Number of steps that were deleted, and are in segments with others."""
        return self.late.deleted_steps(self.inventory.evicted_steps)

    def max_rows(self, lanes: int) -> int:
        """Return the steps at which a segment is sealed: the stride, or fewer where open segments would fill
        capacity."""
        if self.admission.capacity is None:
            return self.stride
        return max(1, min(self.stride, self.admission.capacity // (4 * max(1, lanes))))

    def check_open(self) -> None:
        """Refuse a closed store.  Raises: ValueError; StoreInUseError in a process forked from the store's."""
        if self.closed:
            raise ValueError("store: closed; make a new Store to go on")
        if self.disk is not None:
            self.disk.check_process()

    def check_writable(self, what: str) -> None:
        """Refuse a closed store, and one that must not change.  Raises: ValueError; StoreInUseError."""
        self.check_open()
        if self.frozen:
            raise ValueError(f"{what}: {self.frozen}")

    # lanes

    def open_lanes(self, count: int, written: Ints | None = None) -> None:
        """Open lanes up to ``count``; give memory to open segments of lanes that are about to be ``written`` to.

        Open segments stay empty in lanes whose segments arrive from elsewhere.

        Raises:
            ValueError: the capacity is too small for so many.  MemoryError: ``ram`` is too small, or address space is
                lacking; then no lane was added.
        """
        more = max(0, count - self.lanes)
        if not more and (written is None or not self.opened.bare):
            return
        bare = self.opened.without_memory(np.zeros(0, np.int64) if written is None else written)
        if not more and not len(bare):
            return
        if more:
            check_lanes(self.admission.capacity, count)
        lanes = self.lanes + more
        self.admission.make_lanes_fit(lanes, len(bare), self.max_rows(lanes), self.opened.slots)
        slots: list[int] = []
        offsets = self.admission.stage(len(bare))
        try:
            staging = np.array(offsets, np.int64)
            slots.extend(self.admission.take_slot() for _ in range(more))
            if more:
                self._add_lanes(np.array(slots), np.zeros(more, np.int64))
                slots = []
            self.opened.place(bare, staging)
        except BaseException:
            for slot in slots:
                self.index.give_back(slot)
            self.admission.unstage(offsets)
            raise

    def reopen_lanes(
        self, slots: Ints, steps: Ints, begins: Bytes, episode_steps: Ints, shares: Int32s, staged: Bytes
    ) -> None:
        """Restore lanes, with ``steps`` [n] steps written so far and empty open segments in ``slots`` [n].

        Args:
            begins: whether the next step of each begins an episode. ``episode_steps``: its number in its episode.
            shares: as ``Lanes.shares``. ``staged``: whether their open segments need memory.

        Raises: MemoryError.
        """
        index = self.index
        lanes = self.lanes + len(slots)
        self.admission.make_lanes_fit(lanes, int(np.count_nonzero(staged)), self.max_rows(lanes), self.opened.slots)
        index.next[slots] = index.previous[slots] = -1
        self._add_lanes(slots, steps)
        self.open_lanes(lanes, np.flatnonzero(staged))
        index.begins[slots], index.episode_step[slots] = begins, episode_steps
        self.opened.shares[-len(slots) :] = shares

    def _add_lanes(self, slots: Ints, steps: Ints) -> None:
        """Add lanes.  Raises: MemoryError; then there are no more than before."""
        oldest = appended(self.inventory.oldest, slots)
        self.opened.add(slots, steps)
        self.inventory.add_lanes(oldest)

    def begin_at(self, lane: int, step: int) -> None:
        """Number the lane's next step, in an open segment that is empty, ``step``."""
        self.opened.begin_at(lane, step)
        self.inventory.total_steps += step

    # limits

    def resize(self, capacity: int | None, ram: int | None, disk_limit: int | None, batch_bytes: int = 0) -> None:
        """Set new limits; ``keep_limits`` evicts segments beyond them.

        Args:
            batch_bytes: size of the largest batch in use; there must be room for one beside the held batches.

        Raises:
            ValueError: too small for the lanes; then nothing changed.  MemoryError: no address space; likewise.
        """
        check_lanes(capacity, self.lanes)
        if ram is not None and self.sealing.behind is not None:
            self.sealing.behind.let_go()
            self.encoder.try_elsewhere(None)
        self.batches.check_ram(ram, batch_bytes)
        self.admission.resize(capacity, ram, disk_limit, self.opened.slots)
        self.batches.pool.trim()
        self.batches.keep(batch_bytes)
        if self.disk is not None:
            self.disk.budget.set_limit(disk_limit, None if capacity is None else capacity * self.spec.step_bytes)
        self.inventory.changes += 1

    def keep_limits(self, files: bool = True) -> None:
        """Evict segments beyond the limits of capacity, ``files`` or memory, and note that on disk."""
        self.make_room_for_steps(0)
        if files:
            self.admission.fit_disk()
        self.admission.fit_memory()
        if self.disk is not None:
            self.disk.try_note()

    def make_room_for_steps(self, coming: int) -> None:
        while not self.admission.make_room_for_steps(coming):
            if self.sealing.settle():
                continue
            # Many lanes that were opened one after another hold all steps there are.
            self.sealing.abandon(int(np.argmax(self.index.rows[self.opened.slots])))

    # steps

    def write(
        self, lanes: Ints, flags: Bytes, rows: Rows, finals: Rows | None = None, nexts: Rows | None = None
    ) -> None:
        """Append one step to each of ``lanes`` [n] (distinct, open).

        Args:
            flags: uint8 [n], TERMINATED and TRUNCATED bits.
            rows: ``reward`` float32 [n] and every field [n, *shape].
            finals: final observations by field [n, *shape]; read only for rows that ended. ``None``: ``nexts``; without
                it the observation is repeated.
            nexts: observations after the steps by field [n, *shape]. An episode whose next step has a different
                observation is truncated there, and the next step begins another.

        Cost: 2 to 3 us a lane for 84x84 frames, sealing included.
        """
        opened, inventory = self.opened, self.inventory
        self.boundaries.look(lanes, flags, rows, nexts)
        if opened.any_known:
            for i in opened.breaks(lanes, rows):
                self.break_off(int(lanes[i]), {name: rows[name][i : i + 1] for name in self.spec.obs_names})
        values, reserve = opened.columns.values, None
        before = values.nbytes
        if values:
            reserve = partial(values.reserve, rows=rows, after=opened.after(flags, rows, finals, nexts))
        self.make_room(lanes, lambda: rows, rows, reserve)
        if reserve is not None:
            for i, slot in enumerate(opened.slots[lanes].tolist()):
                reserve(i, slot)
            if values.nbytes > before:
                self.admission.fit_memory()
        with self._sharing(opened.slots[lanes], rows) as given:
            opened.write(lanes, flags, given, finals, nexts)
        inventory.append(len(lanes))

    @contextlib.contextmanager
    def _sharing(self, slots: npt.NDArray[Any], rows: Rows) -> Iterator[Rows]:
        """Provide rows for the open segments in ``slots`` [n] with keys of shared values, which these hold unless an
        error occurs."""
        if not self.shared:
            yield rows
            return
        before, needed = self.shared.nbytes, self.shared.needed_bytes  # the cache gives its memory up to them
        given, taken = self.shared.put(slots, rows)
        try:
            if self.shared.needed_bytes > needed:
                self.fit_values(self.shared.nbytes - before)
            yield given
        except BaseException:
            self.shared.take_back(taken)
            raise

    def fit_values(self, new: int) -> None:
        """Make room for shared values, of which ``new`` bytes are new.

        Raises: MemoryError: with a disk, their index leaves too little of ``ram``; without, those of open segments
            alone leave no room for a sealed one.
        """
        ram, nbytes = self.ledger.ram, self.shared.nbytes
        if self.disk is not None and ram is not None:
            needed = self.shared.needed_bytes
            if needed > MAX_VALUE_SHARE * ram or not self.admission.fits_beside(needed):
                raise MemoryError(
                    f"store: the index of {len(self.shared):,} shared values, and those that are not on disk yet, take "
                    f"{needed:,} bytes of memory, which leaves too few of ram={ram:,} for segments and batches, even "
                    "without the cache of values; raise it, lower capacity= or disk_limit=, or declare fields whose "
                    "values few steps have without shared=True"
                )
        bounded = ram is not None and self.disk is None
        fits = not bounded or self.admission.fits_open(new)  # first: nothing is evicted for values that never fit
        if fits:
            self.admission.fit_memory()
        if not fits or (bounded and not len(self.retention) and not self.admission.fits_open(self.shared.nbytes)):
            raise MemoryError(
                f"store: {len(self.shared):,} shared values of open segments take {nbytes:,} bytes of memory, which "
                f"leaves too few for a sealed one; raise ram= (now {ram:,}), or use fewer lanes"
            )

    def make_room(
        self,
        lanes: Ints,
        observed: Callable[[], Rows],
        coming: Rows | None = None,
        reserve: Callable[[int, int], None] | None = None,
    ) -> None:
        """Seal full segments before another step is appended to each of ``lanes`` [n], and evict.

        Args:
            observed: returns the steps' observations by field [n, *shape]. ``coming``: as for ``Lanes.full``.
            reserve: as for ``Sealing.seal_full``.
        """
        self.sealing.seal_full(lanes, self.max_rows(len(self.opened)), observed, coming, reserve)
        self.make_room_for_steps(len(lanes))

    def write_run(self, lane: int, flags: Bytes, rows: Rows, final: Rows | None) -> int:
        """Append the first of several steps of one episode to one lane, which is open: as many as fit into a segment.

        Args:
            flags: uint8 [n], of which only the last may end the episode. ``rows``: as for ``write``.
            final: [1, *shape] by field, the observation after the last step, if that ends the episode.

        Returns how many were appended. An error leaves nothing appended.  Cost: a copy, and sealing.
        """
        opened, names = self.opened, self.layout.names
        lanes = np.array([lane])
        if opened.sparse:
            first = {name: values[:1] for name, values in rows.items()}
            self.write(lanes, flags[:1], first, final if len(flags) == 1 else None)
            return 1
        max_rows = self.max_rows(len(opened))
        first = {name: values[:1] for name, values in rows.items()}
        self.sealing.seal_full(
            lanes, max_rows, lambda: {names[c]: first[names[c]] for c in self.layout.obs_columns}, first
        )
        count = min(len(flags), max(1, opened.room(lane, max_rows)))
        if self.admission.capacity is not None:
            count = min(count, max(1, self.admission.capacity // 2))
        values, slot = opened.columns.values, int(opened.slots[lane])
        if values:
            count = min(count, values.fits(slot, {name: rows[name][:count] for name in values.names}))
        if self.shared:
            count = min(count, self.shared.fits(slot, {name: rows[name][:count] for name in self.spec.shared_names}))
        self.make_room_for_steps(count)
        part = {name: values[:count] for name, values in rows.items()}
        if values and values.reserve_run(slot, part, {} if final is None else final):
            self.admission.fit_memory()
        with self._sharing(np.full(count, slot), part) as given:
            opened.write_run(lane, flags[:count], given, final if count == len(flags) else None)
        self.inventory.append(count)
        return count

    def break_off(self, lane: int, observed: Rows | None = None) -> None:
        """End the lane's episode, whose next step's observation differs from the last step's next one.

        Args:
            observed: [1, *shape] by field, the next step's observation.

        Raises: ValueError: if ``boundaries.strict``, for steps that never lead to the next ones; nothing was changed.
        """
        step = int(self.opened.steps[lane])
        known = self.opened.successor(lane)
        nearly = observed is not None and known is not None and self.boundaries.nearly_equal(known, observed)
        self.boundaries.broke(lane, step, step - self.opened.running_episode(lane) == 1, nearly)
        self.end_episode(lane, None)
        self.boundaries.counted["broken_episodes"] += 1

    def write_last_ids(self, lanes: Ints, ids: Ints) -> None:
        """Write the id of the last step of each of ``lanes`` [n] into ``ids`` [n]. Allocates nothing.  Cost: 1 us."""
        index = self.index
        core.write_last_ids(lanes, self.opened.slots, index.rows, index.generation, index.stride, ids)

    def end_episode(self, lane: int, final: Rows | None) -> None:
        """End the lane's unfinished episode: its last step becomes truncated.

        Args:
            final: [1, *shape] by field, the true final observation. ``None``: the known successor; without one, the
                last step cannot be learned from and is dropped: its observation becomes the final observation of the
                step before.
        """
        opened, index, slot = self.opened, self.index, int(self.opened.slots[lane])
        self.inventory.changes += 1
        if index.rows[slot] and final is None and not opened.successor_known[lane]:
            self._drop_last(lane, slot)
            if opened.ended(lane):  # it was the episode's only step
                return
        if index.rows[slot]:
            opened.end_episode(lane, final)
            return
        before = int(index.previous[slot])
        opened.begin_episode(lane)
        self.sealing.settle()
        if before >= 0 and not index.gap[before] and self.sealed.truncate(before):
            # Its final frame is already there: the next observation when it was sealed.
            self.sealed.rewrite_truncated([before], release=True)

    def _drop_last(self, lane: int, slot: int) -> None:
        """Remove the last step of the lane's open segment, which is in ``slot``; its id is never used again."""
        flushed = self.index.segment_id(slot)
        self.opened.drop_last(lane)
        self.inventory.drop_last()
        if self.shared:
            self.shared.hold_only(slot, self.opened.columns.shared_keys(slot))
        if self.disk is not None and not self.index.rows[slot]:
            self.disk.evict_tail(flushed, lane, int(self.opened.steps[lane]))
            self.disk.try_note()  # of the segment's new ids, which a crash must not make forgotten

    def refill_lane(self, lane: int, header: Header, arrays: Rows, values: Mapping[Key, bytes | StoredValue]) -> None:
        """Restore the lane's last rows, from ``Lanes.pack_so_far`` and decoded, to its open segment.

        Args:
            values: the shared values of its rows.
        """
        self.open_lanes(lane + 1, np.array([lane]))
        self.opened.fill(lane, header, arrays)
        if values:
            self.shared.hold(int(self.opened.slots[lane]), values)
        self.inventory.held_steps += header.steps

    # segments

    def annotations_of(self, ids: Iterable[int]) -> list[dict[str, Any]]:
        """Return the annotations of the episode of each step of ``ids``, encoded, as far as the step's segment has
        them.

        Raises:
            KeyError: an evicted id.  DamagedError: a segment on disk that cannot be read.
        """
        index = self.index
        known: dict[int, dict[int, dict[str, Any]]] = {}  # by slot: by the row of the episode's first step there
        found = []
        for id_ in ids:
            slot, row = divmod(id_ & LEAF_MASK, self.stride)
            there = id_ >= 0 and slot < index.slots and row < index.rows[slot]
            deleted = self.late.deleted
            there = there and index.generation[slot] == id_ >> LEAF_BITS
            if not there or (deleted is not None and deleted[id_ & LEAF_MASK]):
                raise KeyError(f"annotations: id {id_} was evicted from the store")
            if slot not in known:
                known[slot] = self.annotations_in(slot)
            begin = int(index.offset[FLAGS, slot])
            starts = np.flatnonzero(self.arena.memory[begin : begin + row + 1] & START)
            found.append(known[slot].get(int(starts[-1]) if starts.size else 0, {}))
        return found

    def annotations_in(self, slot: int) -> dict[int, dict[str, Any]]:
        """Return the annotations of a segment's episodes, encoded, by the row of the episode's first step there.

        Raises: DamagedError: a segment on disk that cannot be read.  Cost: on disk a read of its head.
        """
        index = self.index
        if index.sealed[slot]:
            return dict(segment.annotations_in(self.sealed.head(slot)))
        lane, first = int(index.lane[slot]), int(index.first_step[slot])
        return dict(self.opened.annotations.here(lane, first, int(index.rows[slot])))

    def room(self, lane: int) -> int:
        """Return how many steps of one episode fit into the lane's open segment."""
        most = self.max_rows(self.lanes)
        return 0 if self.opened.full(np.array([lane]), most) else self.opened.room(lane, most)

    def clear(self) -> None:
        """Evict every step, also in open segments; each lane's next step begins an episode.

        Raises: OSError: files could not be deleted; their steps come back when the store is opened again.
        """
        for lane in np.flatnonzero(self.index.rows[self.opened.slots]).tolist():
            self.sealing.abandon(lane)
        self.admission.evict_all()
        for lane in range(self.lanes):  # last: nothing remains that it could change
            if not self.opened.ended(lane):
                self.end_episode(lane, None)
        for column in self.late.columns.values():
            self.late.change_all(column)  # its files have values of no step now
        if self.disk is not None:
            self.disk.clear(self.index.first_step[self.opened.slots])

    def adopt(self, slot: int, content: Bytes) -> bool:
        """Adopt a sealed segment that the index describes already, with offsets from its beginning.

        With a disk it stays there. Without, it is copied into the arena; returns False if there is no room for it.
        """
        if not self.sealed.adopt(slot, content):
            return False
        self.inventory.held_steps += int(self.index.rows[slot])
        self.inventory.changes += 1
        return True


def check_lanes(capacity: int | None, lanes: int) -> None:
    """Refuse a capacity too small for so many lanes.  Raises: ValueError."""
    if capacity is not None and capacity < 2 * lanes:
        raise ValueError(
            f"store: capacity {capacity} is too small for {lanes} lanes; every lane needs at least 2 steps; raise it"
        )
