"""The log of steps: every lane's rows come in here, fill its open segment, are sealed into the arena, and leave again.

An open segment lies in the same address space as the sealed ones and is described by the same index, as a segment whose
columns are all raw; so sampling does not know the difference.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import segment
from ..codecs import RAW, ZSTD, encode
from ..sampling.retention import Retention
from ..segment import FIRST_FIELD, FLAGS, REWARD, Column
from ..spec import START, TRUNCATED, Spec
from .compaction import compact
from .dictionaries import DictionaryTable, key_of
from .disk import Disk
from .encoder import AUTO_MIN_BYTES, ColumnEncoder
from .index import LEAF_BITS, LEAF_MASK, SegmentIndex
from .ram import ALIGNMENT, PAGE, Arena, rounded
from .residency import Residency
from .rows import ENDED, any_full, commit_rows, write_rows

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Rows = Mapping[str, npt.NDArray[Any]]

DEFAULT_STRIDE, DISK_STRIDE = 128, 64
"""Steps in a segment. An item sampled from disk is a read of its segment, of which it uses a few frames; shorter ones
take more memory for the index."""


class StepLog:
    """Lanes, segments and the arena. Knows nothing of sampling.

    Args:
        spec: what a step is.
        codecs: codec name ("auto", ...) by field.
        capacity, ram: limits in steps and in bytes; ``None``: none. ``ram`` bounds the arena by ``limit_arena``.
        stride: most steps in a segment.
        retention: chooses what leaves.
        disk: where every sealed segment is written to; those that the arena has no room for lie only there.
        slots: as many at least.
        on_full: what an append does when the disk cannot be written to: "raise", "block", "drop_oldest", "drop_newest".

    Attributes:
        arena, index: where the bytes lie, and the arrays that say so.
        floats, words: the arena's memory as float32 and as uint32.
        tables: each field's dictionaries.
        held_steps, total_steps, evicted_steps, evicted_segments, dropped_steps: counts.
        changes: grows with every change of what is held; who has seen this many has seen them all.
        oldest: int32 [lanes], slot of each lane's oldest segment.
        watchers: called with a slot before the segment in it goes.
        other_bytes: bytes that views take, which leave the arena less of ``ram``.
    """

    def __init__(
        self,
        spec: Spec,
        codecs: Mapping[str, str],
        capacity: int | None,
        ram: int | None,
        stride: int,
        retention: Retention,
        disk: Disk | None = None,
        slots: int = 0,
        on_full: str = "raise",
    ) -> None:
        self.spec = spec
        self.retention = retention
        self.capacity = capacity
        self.ram = ram
        self.stride = stride
        self.names = ("flags", "reward", *spec.fields)
        self.sizes = np.array([1, 4, *(field.row_bytes for field in spec.fields.values())], np.int64)
        self.obs_columns = [self.names.index(name) for name in spec.obs_names]
        self.step_columns = [self.names.index(name) for name in spec.step_names]
        self.most_frames = spec.context + stride + max(3, stride // 8)
        limits = [self.most_frames if c in self.obs_columns else stride for c in range(len(self.names))]
        starts = np.cumsum([0, *(rounded(n * int(size), 64) for n, size in zip(limits, self.sizes, strict=True))])
        self.column_starts = starts[:-1].astype(np.int64)
        overhead = segment.HEADER.size + 64 * len(self.names)
        self.chunk_bytes = rounded(int(starts[-1]) + overhead, max(PAGE, 64 * 1024))
        reserve, most_slots = self._room(None if disk is None else disk.limit, disk is not None)
        slots = max(slots, most_slots)
        # With a disk, flags and rewards of all segments lie before the chunks: which steps can be sampled, and their
        # returns, are known without reading.
        self.spine_bytes = rounded(5 * stride, ALIGNMENT) if disk is not None else 0
        self.arena = Arena(reserve, self.chunk_bytes, slots * self.spine_bytes, huge_pages=ram is None)
        self.floats = self.arena.memory.view(np.float32)
        self.words = self.arena.memory.view(np.uint32)
        self.index = SegmentIndex(slots, stride, len(self.names))
        self.disk = disk
        self.residency = None if disk is None else Residency(self.arena, self.index, disk)
        if disk is not None:
            if not retention.in_order:
                disk.leave_in_any_order()
            disk.noted = lambda: (self.retention.threshold, self.index.latest_generation)
        self.tables = [DictionaryTable(int(size)) for size in self.sizes]
        self.encoders = {
            self.names.index(name): ColumnEncoder(
                field, codecs[name], self.tables[self.names.index(name)], limits[self.names.index(name)]
            )
            for name, field in spec.fields.items()
        }
        self.held_steps = self.total_steps = self.evicted_steps = self.evicted_segments = 0
        self.changes = 0
        self.on_full = on_full
        self.dropped_steps = 0
        self.sealed_bytes = 0
        self.closed = False
        self.first_lane = 0  # what segments call lane 0
        self._sealing = False  # the segment that the retention was told of last is not sealed yet
        self._slot = np.zeros(0, np.int32)  # the open segment of each lane
        self._staging = np.zeros(0, np.int64)  # where in the arena its rows lie
        self._steps = np.zeros(0, np.int64)  # steps ever written to each lane
        self.oldest = np.zeros(0, np.int32)
        self.watchers: list[Callable[[int], None]] = []
        self.other_bytes: Callable[[], int] = lambda: 0

    def _room(self, disk_limit: int | None, on_disk: bool) -> tuple[int, int]:
        """Bytes of address space and slots that the limits call for."""
        limit = disk_limit if on_disk else self.ram
        steps = LEAF_MASK if limit is None else limit // (len(self.names) * 4 + 16)  # no step takes less
        steps = steps if self.capacity is None else min(self.capacity, steps)
        reserve = self.ram
        if reserve is None:
            reserve = int(2.2 * steps * self.spec.step_bytes) + 1024 * self.chunk_bytes
        return reserve, min(2 * -(-steps // self.stride) + 1024, LEAF_MASK // self.stride)

    @property
    def identity(self) -> dict[str, str]:
        """The store's random name, where it has files."""
        return {} if self.disk is None else {"store": self.disk.regions.identity.store.hex()}

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return len(self._slot)

    @property
    def most_rows(self) -> int:
        """Steps at which an open segment is sealed: the stride, or less where open segments would fill the capacity."""
        if self.capacity is None:
            return self.stride
        return max(1, min(self.stride, self.capacity // (4 * max(1, self.lanes))))

    def check_open(self) -> None:
        """Raises: ValueError once the store is closed."""
        if self.closed:
            raise ValueError("store: closed; make a new Store to go on")

    def open_lanes(self, count: int) -> None:
        """Make lanes up to ``count``.

        Raises:
            ValueError: the capacity is too small for so many.  MemoryError: ``ram`` is.
        """
        check_lanes(self.capacity, count)
        if count > self.lanes:
            self.limit_arena()
            if (count + 1) * self.chunk_bytes > self.arena.limit_bytes:
                raise MemoryError(
                    f"store: {count} lanes need {(count + 1) * self.chunk_bytes:,} bytes for open segments, ram leaves "
                    f"{self.arena.limit_bytes:,}; raise it, use fewer lanes or lower segment_steps= (now {self.stride})"
                )
        for lane in range(self.lanes, count):
            while (staging := self.arena.reserve()) is None:
                if not self._make_room():
                    raise MemoryError(f"store: no room to open lane {lane}; raise ram=")
            slot = self._take_slot()
            self._slot = np.append(self._slot, np.int32(slot))
            self._staging = np.append(self._staging, np.int64(staging))
            self._steps = np.append(self._steps, np.int64(0))
            self.oldest = np.append(self.oldest, np.int32(slot))
            self._open(lane, slot)
            self.changes += 1

    def ended(self, lane: int) -> bool:
        """Whether the lane's next step begins an episode."""
        slot = self._slot[lane]
        rows = self.index.rows[slot]
        return rows == 0 or bool(self._column(FLAGS, slot)[rows - 1, 0] & ENDED)

    def write(self, lanes: Ints, flags: Bytes, rows: Rows, finals: Mapping[str, npt.NDArray[Any]] | None) -> None:
        """Append one step to each of ``lanes`` [n] (distinct, open).

        Args:
            flags: uint8 [n], TERMINATED and TRUNCATED bits.
            rows: ``reward`` float32 [n] and every field [n, *shape].
            finals: final observations by field [n, *shape]; only rows that ended are read. ``None``: the observation
                is repeated.

        Cost: 5 to 8 us a lane for 84x84 frames, sealing included.
        """
        index, memory = self.index, self.arena.memory
        slots = self._slot[lanes]
        if any_full(index.rows, index.frames, slots, self.most_rows, self.most_frames - 3):
            for i, lane in enumerate(lanes):
                slot = self._slot[lane]
                if index.rows[slot] >= self.most_rows or index.frames[slot] > self.most_frames - 3:
                    self._roll(int(lane), {c: rows[self.names[c]][i] for c in self.obs_columns})
        self._keep_capacity(len(lanes))
        slots = self._slot[lanes]
        count = len(lanes)
        for columns, position in ((self.obs_columns, index.frames), (self.step_columns, index.rows)):
            for c in columns:
                data = rows[self.names[c]].reshape(count, -1).view(np.uint8)
                write_rows(memory, index.offset[c], position, slots, data)
        if commit_rows(
            memory, self.floats, index.offset[FLAGS], index.offset[REWARD], index.rows, index.frames, index.begins,
            self._steps, slots, lanes, flags, rows["reward"],
        ):  # fmt: skip
            ended = (flags & ENDED) != 0
            source = rows if finals is None else finals
            self._write_frames(slots[ended], {c: source[self.names[c]][ended] for c in self.obs_columns})
        self.held_steps += count
        self.total_steps += count
        self.changes += 1

    def resize(self, capacity: int | None, ram: int | None, disk_limit: int | None) -> None:
        """Other limits from now on; :meth:`keep_limits` lets go what is too much.

        Raises:
            ValueError: too small for the lanes; then nothing changed.  MemoryError: no address space; likewise.
        """
        check_lanes(capacity, self.lanes)
        if ram is not None and (self.lanes + 2) * self.chunk_bytes > ram:
            raise ValueError(
                f"resize: ram={ram:,}, expected at least {(self.lanes + 2) * self.chunk_bytes:,} for the open segments "
                f"of {self.lanes} lanes"
            )
        before = self.capacity, self.ram
        self.capacity, self.ram = capacity, ram
        try:
            reserve, slots = self._room(disk_limit, self.disk is not None)
            if reserve > self.arena.reserved_bytes or slots > self.index.slots:
                self._grow(max(reserve, self.arena.reserved_bytes), max(slots, self.index.slots))
        except BaseException:
            self.capacity, self.ram = before
            raise
        if self.ram is None:
            self.arena.limit_bytes = self.arena.reserved_bytes
        if self.disk is not None:
            self.disk.set_limit(disk_limit, None if capacity is None else capacity * self.spec.step_bytes)
        self.changes += 1

    def _grow(self, reserve: int, slots: int) -> None:
        """More address space and more slots: what is in memory moves."""
        index = self.index
        if self.residency is not None:
            self.residency.clear()
        used = index.highest * self.spine_bytes
        shift = self.arena.grow(reserve, slots * self.spine_bytes, used)
        self.floats, self.words = self.arena.memory.view(np.float32), self.arena.memory.view(np.uint32)
        moved = self._slot if self.residency is not None else np.arange(index.highest)
        index.offset[:, moved] += shift
        index.base[moved] += shift
        self._staging += shift
        index.grow(slots)
        if self.residency is not None:
            self.residency = self.residency.anew()

    def keep_limits(self) -> None:
        """Let go what is too much of memory, of steps, or of files."""
        self._keep_capacity(0)
        if self.disk is not None:
            with contextlib.suppress(OSError):  # then room is made when it is needed
                while self.disk.crowded() and self.evict():
                    pass
                while self.disk.over_limit and (self._compact() or self.evict()):
                    pass
        self.limit_arena()

    def _keep_capacity(self, coming: int) -> None:
        while self.capacity is not None and self.held_steps + coming > self.capacity:
            if not self.evict():  # many lanes that were opened one after another and hold all there is
                self._abandon(int(np.argmax(self.index.rows[self._slot])))

    def limit_arena(self) -> None:
        """Leave the arena what of ``ram`` nothing else takes; what is too much there now goes."""
        if self.ram is None:
            return
        taken = self.bytes()
        other = taken["index"] + taken["dictionaries"] + taken["encoders"] + self.other_bytes()
        # A view that is asked again after a while grows with what it finds, before the arena is limited again.
        self.arena.limit_bytes = self.ram - other - self.ram // 256
        if self.arena.committed_bytes > self.arena.limit_bytes:
            self.arena.trim()
            while self.arena.committed_bytes > self.arena.limit_bytes and (self._give_back() or self._make_room()):
                self.arena.trim()

    def end_episode(self, lane: int, final: Mapping[str, npt.NDArray[Any]]) -> None:
        """Truncate the lane's last step, with ``final`` [1, *shape] by field as its true final observation."""
        slot = self._slot[lane]
        self._column(FLAGS, slot)[self.index.rows[slot] - 1] |= TRUNCATED
        self._write_frames(self._slot[[lane]], {c: final[self.names[c]] for c in self.obs_columns})

    def _write_frames(self, slots: npt.NDArray[np.int32], frames: Mapping[int, npt.NDArray[Any]]) -> None:
        for c, data in frames.items():
            data = np.ascontiguousarray(data).reshape(len(slots), -1).view(np.uint8)
            write_rows(self.arena.memory, self.index.offset[c], self.index.frames, slots, data)
        self.index.frames[slots] += 1
        self.changes += 1

    def _column(self, c: int, slot: int, rows: int | None = None) -> Bytes:
        """An open segment's column as uint8 [rows, size], a view of the arena."""
        limit = self.most_frames if c in self.obs_columns else self.stride
        begin = int(self.index.offset[c, slot])
        size = int(self.sizes[c])
        return self.arena.memory[begin : begin + limit * size].reshape(limit, size)[:rows]

    def _roll(self, lane: int, successor: Mapping[int, npt.NDArray[Any]]) -> None:
        """Seal the lane's open segment and open its next. ``successor``: the next step's observation, by column."""
        index = self.index
        slot = int(self._slot[lane])
        going_on = not self.ended(lane)
        context = self._newest_frames(lane) if going_on else {}
        following = self._take_slot()
        if going_on:
            self._write_frames(self._slot[[lane]], {c: frame[None] for c, frame in successor.items()})
        try:
            kept = self._seal(lane, slot)
        except BaseException as error:  # no memory, no disk, or an interrupt by the user
            if not (isinstance(error, OSError) and self.on_full == "drop_newest"):
                index.frames[slot] -= going_on  # the successor was not appended after all
                index.give_back(following)
                raise
            kept = False
            self.dropped_steps += int(index.rows[slot])
        self._reopen(lane, following, context, going_on)
        index.next[slot], index.previous[following] = following, slot
        if not kept:
            self._remove(slot)

    def _abandon(self, lane: int) -> None:
        """Let the rows of the lane's open segment go, though it is not sealed."""
        slot = int(self._slot[lane])
        going_on = not self.ended(lane)
        context = self._newest_frames(lane) if going_on else {}
        following = self._take_slot()
        self._reopen(lane, following, context, going_on)
        self.index.next[slot], self.index.previous[following] = following, slot
        self._remove(slot)

    def _newest_frames(self, lane: int) -> dict[int, Bytes]:
        """Copies of the present episode's newest frames, as many as a stack reaches back, by column."""
        slot = int(self._slot[lane])
        frames = int(self.index.frames[slot])
        flags = self._column(FLAGS, slot, int(self.index.rows[slot]))[:, 0]
        starts = np.flatnonzero(flags & START)
        first = 0
        if starts.size:
            first = int(self.index.context[slot] + starts[-1] + np.count_nonzero(flags[: starts[-1]] & ENDED))
        keep = min(self.spec.context, frames - first)
        return {c: self._column(c, slot, frames)[frames - keep :].copy() for c in self.obs_columns}

    def _reopen(self, lane: int, slot: int, context: Mapping[int, Bytes], going_on: bool) -> None:
        """Open the lane's next segment, in ``slot``, where the bytes of its last were."""
        self._slot[lane] = slot
        self._open(lane, slot)
        self.index.begins[slot] = not going_on
        for c, frames in context.items():
            self._column(c, slot)[: len(frames)] = frames
            self.index.context[slot] = self.index.frames[slot] = len(frames)

    def _open(self, lane: int, slot: int) -> None:
        index = self.index
        index.lane[slot] = lane
        index.first_step[slot] = self._steps[lane]
        index.offset[:, slot] = self._staging[lane] + self.column_starts
        index.codec[:, slot] = RAW
        index.dictionary[:, slot] = 0
        index.begins[slot] = True
        index.resident[slot] = True

    def _take_slot(self) -> int:
        while (slot := self.index.take()) is None:
            if not self.evict():
                raise MemoryError(f"store: all {self.index.slots} segments are open; use fewer lanes")
        return slot

    def _seal(self, lane: int, slot: int) -> bool:
        """Pack the open segment in ``slot`` and move it into the arena. False if it is not kept, and was not moved."""
        self._sealing = self.retention.add(slot, self._id(slot))
        if not self._sealing:
            self._note()
            return False
        columns: list[Column] = []
        places: list[int] = []
        try:
            packed, placed = self._pack(lane, slot, columns, places)
        except BaseException:
            self.retention.discard(slot)
            self._sealing = False
            self.drop_dictionaries(places)
            raise
        return self._keep(slot, int(self.index.rows[slot]), packed, placed, columns, places)

    def _pack(self, lane: int, slot: int, columns: list[Column], places: list[int]) -> tuple[bytes, list[int]]:
        """An open segment's bytes, and where each column begins; columns and places of dictionaries are appended."""
        index = self.index
        rows, frames = int(index.rows[slot]), int(index.frames[slot])
        for c in range(len(self.names)):
            data = self._column(c, slot, frames if c in self.obs_columns else rows)
            if c < FIRST_FIELD:
                column, place = Column(RAW, len(data), data.tobytes()), 0
            else:
                column, place = self.encoders[c].pack(lane, data)
            columns.append(column)
            places.append(place)
        return segment.pack(
            self.spec.schema_hash, self.first_lane + lane, int(index.first_step[slot]), rows, frames,
            int(index.context[slot]), columns,
        )  # fmt: skip

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
        index = self.index
        base: int | None = None
        try:
            self.limit_arena()
            while self._sealing and (base := self._allocate(len(packed))) is None:
                if not self._make_room():
                    raise MemoryError(
                        f"store: ram leaves {self.arena.limit_bytes:,} bytes for data, too few for the open segments of"
                        f" {self.lanes} lanes and one sealed one; raise ram=, or lower segment_steps= "
                        f"(now {self.stride})"
                    )
            if self.disk is not None and base is not None:
                self._to_disk(self.disk, slot, packed, columns, places)
        except BaseException:
            if base is not None:
                self.arena.free(base, len(packed))
            if self._sealing:
                self.retention.discard(slot)
                self._sealing = False
            self.drop_dictionaries(places)
            raise
        if not self._sealing:
            if base is not None:
                self.arena.free(base, len(packed))
            self.drop_dictionaries(places)
            self._note()
            return False
        assert base is not None
        self.arena.memory[base : base + len(packed)] = np.frombuffer(packed, np.uint8)
        index.codec[:, slot] = [column.codec for column in columns]
        index.dictionary[:, slot] = places
        index.offset[:, slot] = base + np.array(placed)
        index.base[slot], index.nbytes[slot] = base, len(packed)
        index.sealed[slot] = 1
        if self.residency is not None:
            self._fill_spine(slot, self.arena.memory, rows)
            self.residency.place(slot, base)
        self.sealed_bytes += len(packed)
        self._sealing = False
        return True

    def take_in(self, header: segment.Header, packed: bytes, places: Sequence[int]) -> int:
        """Let the lane's open segment, which is empty, become one that was sealed elsewhere; the next one is opened.

        Args:
            places: of its columns' dictionaries, counted as used.

        Returns its slot; -1 if the retention does not keep it.

        Raises:
            MemoryError: no room.  OSError: it cannot be written; then nothing changed but what has left.
        """
        index, lane, rows = self.index, header.lane, header.steps
        slot = int(self._slot[lane])
        try:
            self._keep_capacity(rows)
            following = self._take_slot()
            self._sealing = self.retention.add(slot, self._id(slot))
        except BaseException:
            self.drop_dictionaries(places)
            raise
        kept = self._sealing
        try:
            if kept:
                begins = [column.offset for column in header.placed]
                kept = self._keep(slot, rows, packed, begins, header.placed, places)
            else:
                self.drop_dictionaries(places)
        except BaseException as error:
            if not (isinstance(error, OSError) and self.on_full == "drop_newest"):
                index.give_back(following)
                raise
            kept = False
            self.dropped_steps += rows
        before = int(index.previous[slot])
        if before >= 0 and header.first_step > self._steps[lane]:
            self.truncate(before)  # what came after it was lost on the way
        index.rows[slot], index.frames[slot], index.context[slot] = rows, header.frames, header.context
        index.first_step[slot] = header.first_step
        self._steps[lane] = header.first_step + rows
        self.held_steps += rows
        self.total_steps += rows
        self.changes += 1
        self._reopen(lane, following, {}, going_on=False)
        index.next[slot], index.previous[following] = following, slot
        if not kept:
            self._remove(slot)
        return slot if kept else -1

    def _fill_spine(self, slot: int, source: Bytes, rows: int) -> None:
        """Copy a segment's flags and rewards from ``source``, where they are at ``offset``, to where they stay."""
        index, memory = self.index, self.arena.memory
        spine = slot * self.spine_bytes
        for c, to, size in ((FLAGS, spine + 4 * self.stride, rows), (REWARD, spine, 4 * rows)):
            begin = int(index.offset[c, slot])
            memory[to : to + size] = source[begin : begin + size]
            index.offset[c, slot] = to

    def adopt(self, slot: int, content: Bytes) -> bool:
        """Take in a sealed segment that the index describes already, offsets counting from its beginning.

        With a disk it stays there. Without, it is copied into the arena; False if there is no room for it.
        """
        index = self.index
        if self.residency is not None:
            self._fill_spine(slot, content, int(index.rows[slot]))
        else:
            base = self.arena.allocate(len(content))
            if base is None:
                index.rows[slot] = 0
                return False
            self.arena.memory[base : base + len(content)] = content
            index.base[slot] = base
            index.offset[:, slot] += base
        index.sealed[slot] = 1
        self.held_steps += int(index.rows[slot])
        self.sealed_bytes += len(content)
        self.changes += 1
        return True

    def truncate(self, slot: int) -> None:
        """Let the episode of a sealed segment's last step end there, with the successor's frame as the final one."""
        index, memory = self.index, self.arena.memory
        last = index.offset[FLAGS, slot] + index.rows[slot] - 1
        if not memory[last] & ENDED:
            memory[last] |= TRUNCATED
            if self.residency is None:  # the flags are those in the segment's own bytes
                segment.seal_again(memory[index.base[slot] : index.base[slot] + index.nbytes[slot]])

    def chain(self, lane: int, slots: list[int]) -> None:
        """Put sealed segments, in their order, before the lane's open one."""
        index, opened = self.index, int(self._slot[lane])
        index.next[slots] = [*slots[1:], opened]
        index.previous[[*slots, opened]] = [-1, *slots]
        self.oldest[lane] = slots[0]
        self.changes += 1

    def begin_at(self, lane: int, step: int) -> None:
        """Let the lane's next step, in an open segment that is empty, be the one of that number."""
        self._steps[lane] = self.index.first_step[self._slot[lane]] = step
        self.total_steps += step

    def reopen_lane(
        self,
        slot: int,
        steps: int,
        header: segment.Header | None,
        arrays: Mapping[str, npt.NDArray[Any]],
        begins: bool,
    ) -> None:
        """Make one more lane, to which ``steps`` were written, with an open segment in ``slot``.

        Args:
            header, arrays: its rows, from :meth:`pack_open`, decoded; ``None``: it is empty.

        Raises: MemoryError.
        """
        staging = self.arena.reserve()
        if staging is None:
            raise MemoryError(f"store: no room to open lane {self.lanes}; raise ram=")
        self._slot = np.append(self._slot, np.int32(slot))
        self._staging = np.append(self._staging, np.int64(staging))
        self._steps = np.append(self._steps, np.int64(steps - header.steps if header else steps))
        self.oldest = np.append(self.oldest, np.int32(slot))
        index = self.index
        self._open(self.lanes - 1, slot)
        index.next[slot] = index.previous[slot] = -1
        index.begins[slot] = begins
        if header is None:
            return
        index.rows[slot], index.frames[slot], index.context[slot] = header.steps, header.frames, header.context
        for c, name in enumerate(self.names):
            data = np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).reshape(-1, self.sizes[c])
            self._column(c, slot, len(data))[:] = data
        self._steps[-1] += header.steps
        self.held_steps += header.steps

    @property
    def segment_bytes(self) -> int:
        """Bytes of memory that there are for sealed segments."""
        return self.arena.limit_bytes - self.lanes * self.chunk_bytes

    @property
    def open_slots(self) -> npt.NDArray[np.int32]:
        """int32 [lanes], the slot of each lane's open segment."""
        return self._slot

    @property
    def lane_steps(self) -> Ints:
        """int64 [lanes], steps ever written to each lane."""
        return self._steps

    def pack_open(self, lane: int) -> tuple[int, bytes]:
        """The id and the bytes of a lane's open segment as far as it goes, without dictionaries."""
        slot = int(self._slot[lane])
        rows, frames = int(self.index.rows[slot]), int(self.index.frames[slot])
        id_ = self._id(slot)
        columns = []
        for c, size in enumerate(self.sizes.tolist()):
            data = self._column(c, slot, frames if c in self.obs_columns else rows)
            packed = encode(ZSTD, data) if size >= AUTO_MIN_BYTES and len(data) else None
            columns.append(Column(RAW if packed is None else ZSTD, len(data), packed or data.tobytes()))
        first, context = int(self.index.first_step[slot]), int(self.index.context[slot])
        return id_, segment.pack(self.spec.schema_hash, lane, first, rows, frames, context, columns)[0]

    def packed(self, slot: int) -> tuple[int, bytes, dict[tuple[int, int], bytes]]:
        """A sealed segment in memory: its id, its bytes, and the dictionaries it needs by (column, key)."""
        index = self.index
        begin = int(index.base[slot])
        content = self.arena.memory[begin : begin + int(index.nbytes[slot])].tobytes()
        shared = {}
        for c, place in enumerate(index.dictionary[:, slot].tolist()):
            if place:
                data = self.tables[c].data(place)
                shared[c, key_of(data)] = data
        return self._id(slot), content, shared

    def _id(self, slot: int) -> int:
        """Of the first step of the segment in ``slot``."""
        return int(self.index.generation[slot]) << LEAF_BITS | slot * self.stride

    def _note(self) -> None:
        """A segment is not kept: say so on disk first, where it may have been flushed."""
        if self.disk is not None:
            self.disk.try_note()

    def _compact(self) -> bool:
        """Make room on disk without letting segments go. False if there is none to be made.  Raises: OSError."""
        if self.disk is None or self.residency is None or not self.disk.compacts:
            return False
        return compact(self.disk, self.index, self.tables, self.residency)

    def _to_disk(
        self, disk: Disk, slot: int, packed: bytes, columns: Sequence[Column | segment.Placed], places: Sequence[int]
    ) -> None:
        """Append a segment to the newest region, unless making room for it takes itself.  Raises: OSError."""
        index = self.index
        dictionaries = {
            (c, column.dictionary): self.tables[c].data(places[c])
            for c, column in enumerate(columns)
            if column.dictionary
        }
        need = len(packed) + sum(len(data) + 64 for data in dictionaries.values())
        while self._sealing:
            try:
                if self._room_on_disk(disk, need):
                    index.region[slot], index.place[slot] = disk.append(
                        self._id(slot), packed, index.latest_generation, dictionaries
                    )
                    return
            except OSError as error:
                if self.on_full == "drop_oldest" and self.evict():
                    continue
                raise OSError(
                    error.errno,
                    f"disk: {disk.folder} could not be written to ({error.strerror}); make room, or choose another "
                    f"on_full= (now {self.on_full!r}). This step was not appended",
                ) from error
            if not self.evict():
                raise too_large(disk, need)

    def write_tails(self, disk: Disk) -> None:
        """Write every open segment to disk as far as it goes.  Raises: OSError."""
        for lane in range(self.lanes):
            if self.index.rows[self._slot[lane]]:
                id_, packed = self.pack_open(lane)
                while not self._room_on_disk(disk, len(packed)):
                    if not self.evict():
                        raise too_large(disk, len(packed))
                disk.append_tail(id_, packed, self.index.latest_generation)

    def _room_on_disk(self, disk: Disk, need: int) -> bool:
        """Whether there is room, or can be made without letting segments go.  Raises: OSError."""
        if disk.crowded(need):
            return False
        while not disk.regions.room_for(need) and disk.wasteful and self._compact():
            pass
        while not disk.room_for(need):
            if not self._compact():
                return False
        return True

    def _make_room(self) -> bool:
        """Free some of the arena: what is on disk as well, or else of the store. False if there is nothing."""
        return self.evict() if self.residency is None else self.residency.cool()

    def _allocate(self, nbytes: int) -> int | None:
        """Room in the arena. Where segments leave in any order, chunks that are half empty are used before others."""
        arena = self.arena
        if self.retention.in_order or self.residency is not None:
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
        whole = self.retention.in_order or self.residency is not None or not hasattr(mmap, "MADV_DONTNEED")
        chunk = None if whole else self.arena.loosest()
        self._close_up(chunk)
        if chunk is not None:
            self.arena.trim_tail()
        return chunk is not None

    def evict(self) -> bool:
        """Let the segment go that the retention chooses. False if no segment is sealed."""
        if len(self.retention) <= self._sealing:
            return False
        index = self.index
        slot = self.retention.choose()
        if not index.sealed[slot]:  # the one that is being sealed: it is not kept
            self._sealing = False
            return True
        base, nbytes = int(index.base[slot]), int(index.nbytes[slot])
        self._remove(slot)
        self.drop_dictionaries(index.dictionary[:, slot])
        if self.residency is None or self.disk is None:
            self.arena.free(base, nbytes)
        else:
            self.residency.forget(slot)
            self.disk.release(int(index.region[slot]), nbytes)
        self.sealed_bytes -= nbytes
        return True

    def drop_dictionaries(self, places: Iterable[int]) -> None:
        """A segment goes whose columns' dictionaries are at ``places``."""
        for table, place in zip(self.tables, places, strict=False):
            table.drop(int(place))

    def _remove(self, slot: int) -> None:
        """Tell the watchers, take the segment out of its lane's chain, free the slot, count."""
        for watcher in self.watchers:
            watcher(slot)
        if self.disk is not None:
            self.disk.drop_tail(self._id(slot))
        index = self.index
        before, following = int(index.previous[slot]), int(index.next[slot])
        if before >= 0:
            index.next[before] = following
            index.gap[before] = 1
        else:
            self.oldest[index.lane[slot]] = following
        index.previous[following] = before
        rows = int(index.rows[slot])
        index.give_back(slot)
        self.held_steps -= rows
        self.evicted_steps += rows
        self.evicted_segments += 1
        self.changes += 1

    def bytes(self) -> dict[str, int]:
        """Memory by use, in bytes."""
        staging = self.lanes * self.chunk_bytes
        used = self.sealed_bytes if self.residency is None else self.arena.used_bytes - staging
        spine = self.spine_bytes * self.index.highest + (self.residency.nbytes if self.residency else 0)
        return {
            "arena_used": used,
            "arena_free": self.arena.committed_bytes - staging - used,
            "open_segments": staging,
            "index": self.index.touched_bytes + spine,
            "dictionaries": sum(table.nbytes for table in self.tables),
            "encoders": sum(encoder.nbytes for encoder in self.encoders.values()),
        }


def too_large(disk: Disk, need: int) -> OSError:
    """What to raise where even an empty disk tier has no room."""
    return OSError(f"disk: a segment of {need:,} bytes does not fit into disk_limit={disk.limit or 0:,}; raise it")


def check_lanes(capacity: int | None, lanes: int) -> None:
    """Raises: ValueError."""
    if capacity is not None and capacity < 2 * lanes:
        raise ValueError(
            f"store: capacity {capacity} is too small for {lanes} lanes; every lane needs at least 2 steps"
        )
