"""The log of steps: every lane's rows come in here, fill its open segment, are sealed into the arena, and leave again.

An open segment lies in the same address space as the sealed ones and is described by the same index, as a segment whose
columns are all raw; so sampling does not know the difference.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from .. import segment
from ..codecs import RAW
from ..sampling.retention import Retention
from ..segment import FIRST_FIELD, FLAGS, REWARD, Column
from ..spec import START, TERMINATED, TRUNCATED, Spec
from .dictionaries import DictionaryTable
from .encoder import ColumnEncoder
from .index import LEAF_MASK, SegmentIndex
from .ram import ALIGNMENT, PAGE, Arena, rounded

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Rows = Mapping[str, npt.NDArray[Any]]

ENDED = TERMINATED | TRUNCATED
DEFAULT_STRIDE = 128


@njit(nogil=True, cache=True)
def _write_rows(
    memory: Bytes, offset: Ints, position: npt.NDArray[np.int32], slots: npt.NDArray[np.int32], rows: Bytes
) -> None:
    """Copy row i of ``rows`` [n, size] to place ``position[slots[i]]`` of slot i's column."""
    count, size = rows.shape
    for i in range(count):
        start = offset[slots[i]] + np.int64(position[slots[i]]) * size
        target, source = memory[start : start + size], rows[i]
        for k in range(size):  # over slices: an index with an offset may be negative, and is not vectorised
            target[k] = source[k]


@njit(nogil=True, cache=True)
def _commit_rows(
    memory: Bytes,
    floats: npt.NDArray[np.float32],
    flags_offset: Ints,
    reward_offset: Ints,
    rows: npt.NDArray[np.int32],
    frames: npt.NDArray[np.int32],
    begins: Bytes,
    steps: Ints,
    slots: npt.NDArray[np.int32],
    lanes: Ints,
    flags: Bytes,
    reward: npt.NDArray[np.float32],
) -> bool:
    """Write flags, with START where an episode begins, and rewards; count the rows. Whether any of them ended."""
    any_ended = False
    for i in range(slots.size):
        slot, row = slots[i], rows[slots[i]]
        place = flags_offset[slot] + row
        starts = memory[place - 1] & ENDED if row > 0 else begins[slot]
        memory[place] = flags[i] | (START if starts else 0)
        floats[(reward_offset[slot] >> 2) + row] = reward[i]
        rows[slot] += 1
        frames[slot] += 1
        steps[lanes[i]] += 1
        any_ended |= flags[i] & ENDED != 0
    return any_ended


@njit(nogil=True, cache=True)
def _any_full(
    rows: npt.NDArray[np.int32],
    frames: npt.NDArray[np.int32],
    slots: npt.NDArray[np.int32],
    most: int,
    most_frames: int,
) -> bool:
    for slot in slots:  # noqa: SIM110 - numba compiles no generators
        if rows[slot] >= most or frames[slot] > most_frames:
            return True
    return False


class StepLog:
    """Lanes, segments and the arena. Knows nothing of sampling.

    Args:
        spec: what a step is.
        codecs: codec name ("auto", ...) by field.
        capacity, ram: limits in steps and in bytes; ``None``: none. ``ram`` bounds the arena by ``limit_arena``.
        stride: most steps in a segment.
        retention: chooses what leaves.

    Attributes:
        arena, index: where the bytes lie, and the arrays that say so.
        floats, words: the arena's memory as float32 and as uint32.
        tables: each field's dictionaries.
        held_steps, total_steps, evicted_steps, evicted_segments: counts.
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
        if ram is not None:
            reserve = ram
            by_ram = ram // (len(self.names) * 4 + 16)  # no step takes less
        else:
            assert capacity is not None
            reserve = int(2.2 * capacity * spec.step_bytes) + 1024 * self.chunk_bytes
            by_ram = capacity
        steps = by_ram if capacity is None else min(capacity, by_ram)
        slots = min(2 * -(-steps // stride) + 1024, LEAF_MASK // stride)
        self.arena = Arena(reserve, self.chunk_bytes)
        self.floats = self.arena.memory.view(np.float32)
        self.words = self.arena.memory.view(np.uint32)
        self.index = SegmentIndex(slots, stride, len(self.names))
        self.tables = [DictionaryTable(int(size)) for size in self.sizes]
        self.encoders = {
            self.names.index(name): ColumnEncoder(
                field, codecs[name], self.tables[self.names.index(name)], limits[self.names.index(name)]
            )
            for name, field in spec.fields.items()
        }
        self.held_steps = self.total_steps = self.evicted_steps = self.evicted_segments = 0
        self.changes = 0
        self.sealed_bytes = 0
        self.closed = False
        self._sealing = False  # the segment that the retention was told of last is not sealed yet
        self._slot = np.zeros(0, np.int32)  # the open segment of each lane
        self._staging = np.zeros(0, np.int64)  # where in the arena its rows lie
        self._steps = np.zeros(0, np.int64)  # steps ever written to each lane
        self.oldest = np.zeros(0, np.int32)
        self.watchers: list[Callable[[int], None]] = []
        self.other_bytes: Callable[[], int] = lambda: 0

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
        if self.capacity is not None and self.capacity < 2 * count:
            raise ValueError(
                f"store: capacity {self.capacity} is too small for {count} lanes; every lane needs at least 2 steps"
            )
        if count > self.lanes:
            self.limit_arena()
            if (count + 1) * self.chunk_bytes > self.arena.limit_bytes:
                raise MemoryError(
                    f"store: {count} lanes need {(count + 1) * self.chunk_bytes:,} bytes for open segments, ram leaves "
                    f"{self.arena.limit_bytes:,}; raise it, use fewer lanes or lower segment_steps= (now {self.stride})"
                )
        for lane in range(self.lanes, count):
            while (staging := self.arena.reserve()) is None:
                if not self.evict():
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
        if _any_full(index.rows, index.frames, slots, self.most_rows, self.most_frames - 3):
            for i, lane in enumerate(lanes):
                slot = self._slot[lane]
                if index.rows[slot] >= self.most_rows or index.frames[slot] > self.most_frames - 3:
                    self._roll(int(lane), {c: rows[self.names[c]][i] for c in self.obs_columns})
        while self.capacity is not None and self.held_steps + len(lanes) > self.capacity:
            if not self.evict():  # many lanes that were opened one after another and hold all there is
                self._abandon(int(np.argmax(index.rows[self._slot])))
        slots = self._slot[lanes]
        count = len(lanes)
        for columns, position in ((self.obs_columns, index.frames), (self.step_columns, index.rows)):
            for c in columns:
                data = rows[self.names[c]].reshape(count, -1).view(np.uint8)
                _write_rows(memory, index.offset[c], position, slots, data)
        if _commit_rows(
            memory, self.floats, index.offset[FLAGS], index.offset[REWARD], index.rows, index.frames, index.begins,
            self._steps, slots, lanes, flags, rows["reward"],
        ):  # fmt: skip
            ended = (flags & ENDED) != 0
            source = rows if finals is None else finals
            self._write_frames(slots[ended], {c: source[self.names[c]][ended] for c in self.obs_columns})
        self.held_steps += count
        self.total_steps += count
        self.changes += 1

    def limit_arena(self) -> None:
        """Leave the arena what of ``ram`` nothing else takes; what is too much there now goes."""
        if self.ram is None:
            return
        taken = self.bytes()
        other = taken["index"] + taken["dictionaries"] + taken["encoders"] + self.other_bytes()
        self.arena.limit_bytes = self.ram - other
        if self.arena.committed_bytes > self.arena.limit_bytes:
            self.arena.trim()
            while self.arena.committed_bytes > self.arena.limit_bytes and (self._give_back() or self.evict()):
                self.arena.trim()

    def end_episode(self, lane: int, final: Mapping[str, npt.NDArray[Any]]) -> None:
        """Truncate the lane's last step, with ``final`` [1, *shape] by field as its true final observation."""
        slot = self._slot[lane]
        self._column(FLAGS, slot)[self.index.rows[slot] - 1] |= TRUNCATED
        self._write_frames(self._slot[[lane]], {c: final[self.names[c]] for c in self.obs_columns})

    def _write_frames(self, slots: npt.NDArray[np.int32], frames: Mapping[int, npt.NDArray[Any]]) -> None:
        for c, data in frames.items():
            data = np.ascontiguousarray(data).reshape(len(slots), -1).view(np.uint8)
            _write_rows(self.arena.memory, self.index.offset[c], self.index.frames, slots, data)
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
        except BaseException:  # no memory, or an interrupt by the user
            index.frames[slot] -= going_on  # the successor was not appended after all
            index.give_back(following)
            raise
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

    def _take_slot(self) -> int:
        while (slot := self.index.take()) is None:
            if not self.evict():
                raise MemoryError(f"store: all {self.index.slots} segments are open; use fewer lanes")
        return slot

    def _seal(self, lane: int, slot: int) -> bool:
        """Pack the open segment in ``slot`` and move it into the arena. False if it is not kept, and was not moved."""
        self._sealing = self.retention.add(slot)
        if not self._sealing:
            return False
        index = self.index
        rows, frames = int(index.rows[slot]), int(index.frames[slot])
        columns, places = [], []
        try:
            for c in range(len(self.names)):
                data = self._column(c, slot, frames if c in self.obs_columns else rows)
                if c < FIRST_FIELD:
                    column, place = Column(RAW, len(data), data.tobytes()), 0
                else:
                    column, place = self.encoders[c].pack(lane, data)
                columns.append(column)
                places.append(place)
            packed, placed = segment.pack(
                self.spec.schema_hash, lane, int(index.first_step[slot]), rows, frames, int(index.context[slot]),
                columns,
            )  # fmt: skip
            self.limit_arena()
            while self._sealing and (base := self._allocate(len(packed))) is None:
                if not self.evict():
                    raise MemoryError(
                        f"store: ram leaves {self.arena.limit_bytes:,} bytes for data, too few for the open segments of"
                        f" {self.lanes} lanes and one sealed one; raise ram=, or lower segment_steps= "
                        f"(now {self.stride})"
                    )
        except BaseException:
            if self._sealing:
                self.retention.discard(slot)
                self._sealing = False
            self._drop_dictionaries(places)
            raise
        if not self._sealing:
            self._drop_dictionaries(places)
            return False
        assert base is not None
        self.arena.memory[base : base + len(packed)] = np.frombuffer(packed, np.uint8)
        index.offset[:, slot] = base + np.array(placed)
        index.codec[:, slot] = [column.codec for column in columns]
        index.dictionary[:, slot] = places
        index.base[slot], index.nbytes[slot] = base, len(packed)
        index.sealed[slot] = 1
        self.sealed_bytes += len(packed)
        self._sealing = False
        return True

    def _allocate(self, nbytes: int) -> int | None:
        """Room in the arena. Where segments leave in any order, chunks that are half empty are used before others."""
        arena = self.arena
        if self.retention.in_order:
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
        slots = np.flatnonzero(there & (index.base[used] // self.arena.chunk_bytes == chunk))
        begin = chunk * self.arena.chunk_bytes
        for slot in slots[np.argsort(index.base[slots])]:
            base, nbytes = int(index.base[slot]), int(index.nbytes[slot])
            memory[begin : begin + nbytes] = memory[base : base + nbytes]
            index.base[slot] = begin
            index.offset[:, slot] += begin - base
            begin += rounded(nbytes, ALIGNMENT)
        self.arena.reopen(chunk)

    def _give_back(self) -> bool:
        """Give memory between segments back, where they leave in any order. False if no whole page is left."""
        chunk = None if self.retention.in_order or not hasattr(mmap, "MADV_DONTNEED") else self.arena.loosest()
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
        self._drop_dictionaries(index.dictionary[:, slot])
        self.arena.free(base, nbytes)
        self.sealed_bytes -= nbytes
        return True

    def _drop_dictionaries(self, places: Iterable[int]) -> None:
        for table, place in zip(self.tables, places, strict=False):
            table.drop(int(place))

    def _remove(self, slot: int) -> None:
        """Tell the watchers, take the segment out of its lane's chain, free the slot, count."""
        for watcher in self.watchers:
            watcher(slot)
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
        return {
            "arena_used": self.sealed_bytes,
            "arena_free": self.arena.committed_bytes - staging - self.sealed_bytes,
            "open_segments": staging,
            "index": self.index.touched_bytes,
            "dictionaries": sum(table.nbytes for table in self.tables),
            "encoders": sum(encoder.nbytes for encoder in self.encoders.values()),
        }
