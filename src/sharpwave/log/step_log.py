"""The log of steps: every lane's rows come in here, fill its open segment, are sealed, and leave again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sharpwave.codecs.dictionaries import DictionaryTable
from sharpwave.disk.disk_budget import MAX_HELD_SHARE
from sharpwave.disk.disk_tier import DiskTier
from sharpwave.errors import StoreInUseError
from sharpwave.format import segment
from sharpwave.format.segment import Column
from sharpwave.log.admission import Space
from sharpwave.log.column_encoder import ColumnEncoder
from sharpwave.log.episode_breaks import write_down
from sharpwave.log.open_segments import Lanes, Rows, appended
from sharpwave.log.sealed_segments import Sealed
from sharpwave.memory.segment_layout import layout_of
from sharpwave.sampling.retention import Retention
from sharpwave.spec import Spec

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


NEARLY = 0.95
"""Of a region that is copied because a limit sank, this share is held at most."""


class Copying(Protocol):
    """What copies segments while the log goes on."""

    nbytes: int

    def waits(self) -> str | None:
        """Why nothing may be appended now; ``None``: it may."""

    def end(self) -> None:
        """Copy nothing more."""


class StepLog:
    """Lanes, segments and the arena. Knows nothing of sampling.

    Args:
        spec: what a step is.
        codecs: codec name ("auto", ...) by field.
        capacity, ram: limits in steps and in bytes; ``None``: none. ``ram`` bounds the arena by ``Space.limit_arena``.
        stride: most steps in a segment.
        retention: chooses what leaves.
        disk: where every sealed segment is written to; those that the arena has no room for lie only there.
        slots: as many at least.
        on_full: what an append does when the disk cannot be written to: "raise", "block", "drop_oldest", "drop_newest".

    Attributes:
        layout: where things are in a segment.
        opened, sealed: the lanes' open segments, and the others. ``space``: room for them.
        arena, index: where the bytes lie, and the arrays that say so. ``segment_cache``: which of them, with a disk.
        tables: each column's dictionaries.
        held_steps, total_steps, evicted_steps, evicted_segments, dropped_steps: counts.
        broken_episodes: that went on with something else than their last step's ``next_obs``.
        changes: grows with every change of what is held; who has seen this many has seen them all.
        oldest: int32 [lanes], slot of each lane's oldest segment.
        watchers: called with a slot before the segment in it goes.
        tag: what ids of this store know it by.
        copying: the checkpoint that is being written of segments in memory. ``saving``: held by who writes one.
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
        self.spec, self.stride, self.capacity = spec, stride, capacity
        self.retention, self.disk, self.on_full = retention, disk, on_full
        self.layout = layout = layout_of(spec, stride, disk is not None)
        self.tables = [DictionaryTable(int(size)) for size in layout.sizes]
        columns = {layout.names.index(name): name for name in spec.fields}
        encoders = {
            c: ColumnEncoder(spec.fields[name], codecs[name], self.tables[c], layout.limits[c])
            for c, name in columns.items()
        }
        self.space = Space(
            layout, self.tables, encoders.values(), capacity, ram, disk, slots, retention.in_order, self.evict
        )
        self.arena, self.index, self.segment_cache = self.space.arena, self.space.index, self.space.segment_cache
        if disk is not None:
            if not retention.in_order:
                disk.budget.evict_in_any_order()
            disk.noted = lambda: (self.retention.threshold, self.index.latest_generation)
        self.opened = Lanes(layout, self.arena, self.index)
        self.space.open_bytes = lambda: self.space.lanes_bytes(self.lanes)
        self.sealed = Sealed(self.space, self.tables, encoders)
        self.held_steps = self.total_steps = self.evicted_steps = self.evicted_segments = self.dropped_steps = 0
        self.broken_episodes = 0
        self.changes = 0
        self.closed = False
        self._sealing = False  # the segment that the retention was told of last is not sealed yet
        self._leaving = -1  # the slot of the one that it chose last, if an error kept it from going: it goes next
        self.oldest = np.zeros(0, np.int32)
        self.watchers: list[Callable[[int], None]] = []
        self.tag = object()
        self.copying: Copying | None = None
        self.saving = threading.Lock()

    @property
    def identity(self) -> dict[str, str]:
        """The store's random name, where it has files."""
        return {} if self.disk is None else {"store": self.disk.regions.identity.store.hex()}

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return len(self.opened)

    @property
    def most_rows(self) -> int:
        """Steps at which an open segment is sealed: the stride, or less where open segments would fill the capacity."""
        return self._most_rows(self.lanes)

    def _most_rows(self, lanes: int) -> int:
        if self.capacity is None:
            return self.stride
        return max(1, min(self.stride, self.capacity // (4 * max(1, lanes))))

    def check_open(self) -> None:
        """Raises: ValueError once the store is closed; StoreInUseError in a process that was forked from its own."""
        if self.closed:
            raise ValueError("store: closed; make a new Store to go on")
        if self.disk is not None:
            self.disk.check_process()

    def open_lanes(self, count: int) -> None:
        """Make lanes up to ``count``.

        Raises:
            ValueError: the capacity is too small for so many.  MemoryError: ``ram`` is, or there is no address space;
                then there are no more lanes than before.
        """
        check_lanes(self.capacity, count)
        more = count - self.lanes
        if more <= 0:
            return
        self._make_lanes_fit(count)
        slots: list[int] = []
        places = self.space.stage(more)
        try:
            slots.extend(self._take_slot() for _ in range(more))
        except BaseException:
            for slot in slots:
                self.index.give_back(slot)
            for place in places[::-1].tolist():
                self.arena.free(place, self.layout.open_bytes)
            raise
        self._add_lanes(np.array(slots), places, np.zeros(more, np.int64))

    def _make_lanes_fit(self, count: int) -> None:
        limit = None if self.disk is None else self.disk.budget.limit_bytes
        self.space.make_lanes_fit(count, self._most_rows(count), self.capacity, limit, self.opened.slots)
        self.segment_cache = self.space.segment_cache

    def _add_lanes(self, slots: Ints, places: Ints, steps: Ints) -> None:
        self.opened.add(slots, places, steps)
        self.oldest = appended(self.oldest, slots)
        self.changes += len(slots)

    def write(
        self, lanes: Ints, flags: Bytes, rows: Rows, finals: Rows | None = None, nexts: Rows | None = None
    ) -> None:
        """Append one step to each of ``lanes`` [n] (distinct, open).

        Args:
            flags: uint8 [n], TERMINATED and TRUNCATED bits.
            rows: ``reward`` float32 [n] and every field [n, *shape].
            finals: final observations by field [n, *shape]; only rows that ended are read. ``None``: ``nexts``, or
                else the observation is repeated.
            nexts: observations after the steps by field [n, *shape]. An episode whose next step observes something
                else was broken off: it is truncated there, and the next step begins another.

        Cost: 5 to 8 us a lane for 84x84 frames, sealing included.
        """
        if self.opened.any_known:
            for i in self.opened.breaks(lanes, rows):
                self.end_episode(int(lanes[i]), None)
                self.broken_episodes += 1
        for i in self.opened.full(lanes, self.most_rows):
            self._roll(int(lanes[i]), {c: rows[self.layout.names[c]][i] for c in self.layout.obs_columns})
        count = len(lanes)
        self._keep_capacity(count)
        self.opened.write(lanes, flags, rows, finals, nexts)
        self.held_steps += count
        self.total_steps += count
        self.changes += 1

    def resize(self, capacity: int | None, ram: int | None, disk_limit: int | None, batch_bytes: int = 0) -> None:
        """Other limits from now on; :meth:`keep_limits` lets go what is too much.

        Args:
            batch_bytes: of the largest batch that is drawn; there is to be room for one beside those that are held.

        Raises:
            ValueError: too small for the lanes; then nothing changed.  MemoryError: no address space; likewise.
        """
        check_lanes(capacity, self.lanes)
        self.space.check_ram(ram, batch_bytes)
        self.space.resize(capacity, ram, disk_limit, self.opened.slots, batch_bytes)
        self.segment_cache = self.space.segment_cache
        self.capacity = capacity
        if self.disk is not None:
            self.disk.budget.set_limit(disk_limit, None if capacity is None else capacity * self.spec.step_bytes)
        self.changes += 1

    def keep_limits(self) -> None:
        """Let go what is too much of memory, of steps, or of files."""
        self._keep_capacity(0)
        if self.disk is not None:
            with contextlib.suppress(OSError):  # then room is made when it is needed
                while self.disk.budget.crowded() and self.evict():
                    pass
                while self.disk.budget.over_limit:
                    # Where segments leave in order, whole regions come free, but for those from before a limit sank.
                    most = MAX_HELD_SHARE if self.disk.budget.compacts else NEARLY
                    if not (self.disk.budget.fits and self.space.compact(most)) and not self.evict():
                        break
        self.space.limit_arena()

    def _keep_capacity(self, coming: int) -> None:
        while self.capacity is not None and self.held_steps + coming > self.capacity:
            if not self.evict():  # many lanes that were opened one after another and hold all there is
                self._abandon(int(np.argmax(self.index.rows[self.opened.slots])))

    def end_episode(self, lane: int, final: Rows | None) -> None:
        """End the lane's episode, which goes on: its last step becomes truncated.

        Args:
            final: [1, *shape] by field, the true final observation. ``None``: the successor that is known; where none
                is, the last step cannot be learned from and goes: what it observed is the final observation of the one
                before.
        """
        opened, index, slot = self.opened, self.index, int(self.opened.slots[lane])
        self.changes += 1
        if index.rows[slot] and final is None and not opened.successor_known[lane]:
            opened.drop_last(lane)
            self.held_steps -= 1
            self.evicted_steps += 1
            if opened.ended(lane):  # it was the episode's only one
                return
        if index.rows[slot]:
            opened.end_episode(lane, final)
            return
        before = int(index.previous[slot])
        opened.begin_episode(lane)
        if before >= 0 and not index.gap[before] and self.sealed.truncate(before):
            write_down(self, [before], release=True)  # with the frame that is there: what came next when it was sealed

    def _roll(self, lane: int, successor: Mapping[int, npt.NDArray[Any]]) -> None:
        """Seal the lane's open segment and open its next. ``successor``: the next step's observation, by column."""
        index = self.index
        slot = int(self.opened.slots[lane])
        going_on = not self.opened.ended(lane)
        context = self.opened.newest_frames(lane) if going_on else {}
        known = {c: np.ascontiguousarray(row).reshape(-1).view(np.uint8) for c, row in successor.items()}
        if going_on:
            self.opened.write_successor(lane, successor)
            self.changes += 1
        following = -1
        try:
            following = self._take_slot()
            self.opened.prepare(lane, following)
            kept = self._seal(lane, slot)
        except BaseException as error:  # no memory, no disk, or an interrupt by the user
            if following < 0 or not (is_refusal(error) and self.on_full == "drop_newest"):
                index.frames[slot] -= going_on  # the successor was not appended after all
                if following >= 0:
                    index.give_back(following)
                raise
            kept = False
            self.dropped_steps += int(index.rows[slot])
        self._go_on(lane, following, kept, context, going_on, known)

    def _abandon(self, lane: int) -> None:
        """Let the rows of the lane's open segment go, though it is not sealed."""
        going_on = not self.opened.ended(lane)
        context, successor = self.opened.newest_frames(lane) if going_on else {}, self.opened.successor(lane)
        following = self._prepared(lane)
        self._go_on(lane, following, False, context, going_on, successor)

    def _prepared(self, lane: int) -> int:
        """A slot for the lane's next segment."""
        slot = self._take_slot()
        try:
            self.opened.prepare(lane, slot)
        except BaseException:
            self.index.give_back(slot)
            raise
        return slot

    def _go_on(
        self,
        lane: int,
        following: int,
        kept: bool,
        context: Mapping[int, Bytes],
        going_on: bool,
        successor: Mapping[int, Bytes] | None = None,
    ) -> None:
        """Open the lane's next segment in the slot ``following``; its last goes unless it is ``kept``."""
        slot = int(self.opened.slots[lane])
        self.opened.reopen(lane, following, context, going_on, successor)
        self.index.link(slot, following)
        if not kept:
            try:
                self._remove(slot)
            except BaseException:  # an interrupt, or no memory: it goes all the same, its bytes are written over now
                self._remove(slot)
                raise

    def _take_slot(self) -> int:
        while (slot := self.index.take()) is None:
            if not self.evict():
                raise MemoryError(f"store: all {self.index.slots} segments are open; use fewer lanes")
        return slot

    def _seal(self, lane: int, slot: int) -> bool:
        """Pack the open segment in ``slot`` and move it into the arena. False if it is not kept, and was not moved."""
        self._sealing = self.retention.add(slot, self.index.segment_id(slot))
        if not self._sealing:
            self._note()
            return False
        columns: list[Column] = []
        places: list[int] = []
        try:
            packed, placed = self._pack(lane, columns, places)
        except BaseException:
            self.retention.discard(slot)
            self._sealing = False
            self.sealed.drop_dictionaries(places)
            raise
        return self._keep(slot, int(self.index.rows[slot]), packed, placed, columns, places)

    def _pack(self, lane: int, columns: list[Column], places: list[int]) -> tuple[bytes, list[int]]:
        """An open segment's bytes, and where each column begins; columns and places of dictionaries are appended."""
        self.sealed.encode(lane, self.opened.columns(lane), columns, places)
        return self.opened.pack(lane, columns)

    def _keep(
        self,
        slot: int,
        rows: int,
        packed: bytes,
        placed: Sequence[int],
        columns: Sequence[Column | segment.Placed],
        places: Sequence[int],
    ) -> bool:
        """Move a segment's bytes into the arena, the retention having been told of it. False as :meth:`_seal`."""
        base: int | None = None
        region = -1
        try:
            self.space.limit_arena()
            while self._sealing and (base := self.space.allocate(len(packed))) is None:
                if not self.space.make_room():
                    raise MemoryError(
                        f"store: ram leaves {self.arena.limit_bytes:,} bytes for data, too few for the open segments of"
                        f" {self.lanes} lanes and one sealed one; raise ram=, or lower segment_steps= "
                        f"(now {self.stride})"
                    )
            if self.disk is not None and base is not None and self._to_disk(self.disk, slot, packed, columns, places):
                region = int(self.index.region[slot])
            if self._sealing:
                assert base is not None
                self.sealed.enter(slot, rows, base, packed, placed, columns, places)
                self._sealing = False
                return True
        except BaseException:
            if self.disk is not None and region >= 0:
                self.disk.held.release(region, len(packed))
            if base is not None:
                self.arena.free(base, len(packed))
            if self._sealing:
                self.retention.discard(slot)
                self._sealing = False
            self.sealed.drop_dictionaries(places)
            raise
        if base is not None:
            self.arena.free(base, len(packed))
        self.sealed.drop_dictionaries(places)
        self._note()
        return False

    def take_in(self, header: segment.Header, packed: bytes, places: Sequence[int]) -> int:
        """Let the lane's open segment, which is empty, become one that was sealed elsewhere; the next one is opened.

        Args:
            places: of its columns' dictionaries, counted as used.

        Returns its slot; -1 if the retention does not keep it.

        Raises:
            MemoryError: no room.  OSError: it cannot be written; then nothing changed but what has left.
        """
        index, lane, rows = self.index, header.lane, header.steps
        slot = int(self.opened.slots[lane])
        try:
            self._keep_capacity(rows)
            following = self._prepared(lane)
            self._sealing = self.retention.add(slot, index.segment_id(slot))
        except BaseException:
            self.sealed.drop_dictionaries(places)
            raise
        kept = self._sealing
        try:
            if kept:
                begins = [column.offset for column in header.placed]
                kept = self._keep(slot, rows, packed, begins, header.placed, places)
            else:
                self.sealed.drop_dictionaries(places)
        except BaseException as error:
            if not (is_refusal(error) and self.on_full == "drop_newest"):
                index.give_back(following)
                raise
            kept = False
            self.dropped_steps += rows
        before = int(index.previous[slot])
        if before >= 0 and header.first_step > self.opened.steps[lane]:
            self.sealed.truncate(before)  # what came after it was lost on the way
        index.rows[slot], index.frames[slot], index.context[slot] = rows, header.frames, header.context
        index.first_step[slot], index.episode_step[slot] = header.first_step, header.episode_step
        self.opened.steps[lane] = header.first_step + rows
        self.held_steps += rows
        self.total_steps += rows
        self.changes += 1
        self._go_on(lane, following, kept, {}, going_on=False)
        return slot if kept else -1

    def adopt(self, slot: int, content: Bytes) -> bool:
        """Take in a sealed segment that the index describes already, offsets counting from its beginning.

        With a disk it stays there. Without, it is copied into the arena; False if there is no room for it.
        """
        if not self.sealed.adopt(slot, content):
            return False
        self.held_steps += int(self.index.rows[slot])
        self.changes += 1
        return True

    def chain(self, lane: int, slots: list[int]) -> None:
        """Put sealed segments, in their order, before the lane's open one."""
        self.index.chain([*slots, int(self.opened.slots[lane])])
        self.oldest[lane] = slots[0]
        self.changes += 1

    def begin_at(self, lane: int, step: int) -> None:
        """Let the lane's next step, in an open segment that is empty, be the one of that number."""
        self.opened.begin_at(lane, step)
        self.total_steps += step

    def reopen_lanes(
        self, slots: Ints, steps: Ints, begins: Bytes, episode_steps: Ints, shares: npt.NDArray[np.int32]
    ) -> None:
        """Make lanes, to which ``steps`` [n] were written, with empty open segments in ``slots`` [n].

        Args:
            begins: whether the next step of each begins an episode. ``episode_steps``: its number in its episode.
            shares: as ``Lanes.shares``.

        Raises: MemoryError.
        """
        index = self.index
        self._make_lanes_fit(self.lanes + len(slots))
        index.next[slots] = index.previous[slots] = -1
        self._add_lanes(slots, self.space.stage(len(slots)), steps)
        index.begins[slots], index.episode_step[slots] = begins, episode_steps
        self.opened.shares[-len(slots) :] = shares

    def refill_lane(self, lane: int, header: segment.Header, arrays: Rows) -> None:
        """Put the lane's last rows, from :meth:`Lanes.pack_raw` and decoded, into its open segment."""
        self.opened.fill(lane, header, arrays)
        self.held_steps += header.steps

    @property
    def segment_bytes(self) -> int:
        """Bytes of memory that there are for sealed segments."""
        return self.arena.limit_bytes - self.space.lanes_bytes(self.lanes)

    def _note(self) -> None:
        """A segment is not kept: say so on disk first, where it may have been flushed."""
        if self.disk is not None:
            self.disk.try_note()

    def _to_disk(
        self,
        disk: DiskTier,
        slot: int,
        packed: bytes,
        columns: Sequence[Column | segment.Placed],
        places: Sequence[int],
    ) -> bool:
        """Append a segment to the newest region. False: making room for it took itself.  Raises: OSError."""
        index = self.index
        dictionaries = self.sealed.dictionaries(columns, places)
        need = len(packed) + sum(len(data) + 64 for data in dictionaries.values())
        while self._sealing:
            try:
                if self.space.room_on_disk(disk, need):
                    index.region[slot], index.place[slot] = disk.append(
                        index.segment_id(slot), packed, index.latest_generation, dictionaries
                    )
                    return True
            except OSError as error:
                if not is_refusal(error):
                    raise
                if self.on_full == "drop_oldest" and self.evict():
                    continue
                raise OSError(
                    error.errno,
                    f"disk: {disk.folder} could not be written to ({error.strerror}); make room, or choose another "
                    f"on_full= (now {self.on_full!r}). This step was not appended",
                ) from error
            if not self.evict():
                raise too_large(disk, need)
        return False

    def write_tails(self, disk: DiskTier) -> None:
        """Write every open segment to disk as far as it goes, and how far its lane has come.  Raises: OSError."""
        for lane in range(self.lanes):
            if self.index.rows[self.opened.slots[lane]]:
                id_, packed = self.opened.pack_raw(lane)
                if disk.has_tail(id_, packed):
                    continue  # and nothing leaves for it
                while not self.space.room_on_disk(disk, len(packed)):
                    if not self.evict():
                        raise too_large(disk, len(packed))
                disk.append_tail(id_, packed, self.index.latest_generation)
        disk.note_ends(self.index.first_step[self.opened.slots])  # beyond what is there, where segments were let go

    def evict(self) -> bool:
        """Let the segment go that the retention chooses. False if no segment is sealed."""
        if self._leaving < 0:
            if len(self.retention) <= self._sealing:
                return False
            slot = self.retention.choose()
            if not self.index.sealed[slot]:  # the one that is being sealed: it is not kept
                self._sealing = False
                return True
            self._leaving = slot
        self._remove(self._leaving)
        slot, self._leaving = self._leaving, -1
        self.sealed.free(slot)
        return True

    def _remove(self, slot: int) -> None:
        """Tell the watchers, take the segment out of its lane's chain, free the slot, count."""
        for watcher in self.watchers:
            watcher(slot)
        if self.disk is not None:
            self.disk.drop_tail(self.index.segment_id(slot))
        index = self.index
        if index.previous[slot] < 0:
            self.oldest[index.lane[slot]] = index.next[slot]
        index.unlink(slot)
        rows = int(index.rows[slot])
        index.give_back(slot)
        self.held_steps -= rows
        self.evicted_steps += rows
        self.evicted_segments += 1
        self.changes += 1


def is_refusal(error: BaseException) -> bool:
    """Whether a disk is full or failing, and not taken away."""
    return isinstance(error, OSError) and not isinstance(error, StoreInUseError)


def too_large(disk: DiskTier, need: int) -> OSError:
    """What to raise where even an empty disk tier has no room."""
    return OSError(
        f"disk: a segment of {need:,} bytes does not fit into disk_limit={disk.budget.limit_bytes or 0:,}; raise it"
    )


def check_lanes(capacity: int | None, lanes: int) -> None:
    """Raises: ValueError."""
    if capacity is not None and capacity < 2 * lanes:
        raise ValueError(
            f"store: capacity {capacity} is too small for {lanes} lanes; every lane needs at least 2 steps"
        )
