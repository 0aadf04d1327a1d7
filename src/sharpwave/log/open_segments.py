"""Open segments, one a lane: rows as they arrive, raw, in the arena.

The index describes an open segment as a segment whose columns are all raw, so sampling treats both kinds alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Bools, Bytes, Int32s, Ints
from sharpwave.codecs.raw import RAW
from sharpwave.format import segment
from sharpwave.format.segment import FLAGS, SegmentColumn
from sharpwave.format.segment_header import COLUMN_CHECKSUMS, Header, features_of
from sharpwave.log.episode_annotations import EpisodeAnnotations
from sharpwave.log.open_columns import OpenColumns, unshared_column
from sharpwave.log.same_values import compare, equal_rows
from sharpwave.memory.arena import Arena
from sharpwave.memory.segment_index import SegmentIndex
from sharpwave.memory.segment_layout import SegmentLayout
from sharpwave.native import core
from sharpwave.spec import ENDED, START, TRUNCATED

Rows = Mapping[str, npt.NDArray[Any]]

# Marks of lanes, as ``steps.hpp`` of the core has them.
WHOLE = 1 << 16
"""Unit of shares, all steps of a segment: segments are sealed when full, except a lane's first."""
SEALED_NEXT = 1
"""Share of a segment that is sealed before its lane's next step, however few steps it has, unless it has none."""
REFERENCE = np.dtype(np.uint64)
"""Dtype of the rows of ragged fields in the arena (``OpenValues``)."""
JUST_ENDED = 1
"""Bit of ``Lanes.watch``: the last frame of the lane's open segment is an observation after an episode's end that was
given, and that the lane's next step is not compared with yet."""


class Lanes:
    """Open segments of all lanes. Knows nothing of sealed segments or of retention.

    Attributes:
        slots: int32 [lanes], slot of each lane's open segment.
        steps: int64 [lanes], number of steps ever written to each lane.
        successor_known: uint8 [lanes], whether the row after an open segment's last frame, which ``index.frames`` does
            not count, holds the observation of the lane's next step if its episode goes on.
        any_known: whether it may be set for any lane.
        shares: int32 [lanes], how full each open segment gets before it is sealed, ``WHOLE`` being full. The first
            segments of lanes differ, so that lanes written to together are not sealed in the same call, unless
            ``staggered`` is False. ``SEALED_NEXT``: a step was removed, and the next one begins another segment.
        staging: int64 [lanes], offset of each lane's rows from the arena's first chunk; -1: its open segment is empty
            and has no memory, as no step was appended here. ``bare``: how many such lanes there are.
        first_lane: number of lane 0 in segments.
        watch: uint8 [lanes], lanes that ``Boundaries`` must check (``JUST_ENDED``). ``fresh``: int64 [lanes],
            episodes that began with another observation than the one before had ended with.
        annotations: of the episodes in open segments. ``columns``: their columns, read. ``sparse``: whether there
            are sparse fields. ``framed_values``: columns of observations of any length.
        fields, arrays: the columns, and the arrays by lane, for the core.
    """

    def __init__(self, layout: SegmentLayout, arena: Arena, index: SegmentIndex) -> None:
        self.layout, self.arena, self.index = layout, arena, index
        self.slots = np.zeros(0, np.int32)
        self.steps = np.zeros(0, np.int64)
        self.successor_known = np.zeros(0, np.uint8)
        self.any_known = False
        self.shares = np.zeros(0, np.int32)
        self.staging = np.zeros(0, np.int64)
        self.bare = 0
        self.first_lane = 0
        self.watch = np.zeros(0, np.uint8)
        self.fresh = np.zeros(0, np.int64)
        self.annotations = EpisodeAnnotations()
        self.sparse = bool(layout.sparse_columns)
        self.framed_values = [c for c in layout.obs_columns if c in layout.ragged_columns]
        self.columns = OpenColumns(layout, arena, index)
        self.staggered = True
        self.fields = core.Columns(
            [
                (
                    name,
                    (REFERENCE if field.ragged else field.np_dtype).num,
                    field.row_bytes,
                    name in layout.spec.obs_names,
                    field.every or 0,
                )
                for name, field in layout.spec.columns.items()
            ]
        )
        self.arrays = self._arrays()

    def _arrays(self) -> core.LaneArrays:
        return core.LaneArrays(
            self.slots, self.steps, self.shares, self.successor_known, self.watch, self.staging, self.fresh
        )

    def __len__(self) -> int:
        return len(self.slots)

    def add(self, slots: Ints, steps: Ints) -> None:
        """Add lanes, with ``steps`` [n] steps written so far and empty segments in ``slots`` [n], without memory.

        Raises:
            MemoryError: there are no more lanes than before.

        Cost: amortized O(1) a lane.
        """
        lanes = np.arange(len(self), len(self) + len(slots))
        shares = first_shares(lanes) if self.staggered else np.full(len(lanes), WHOLE, np.int32)
        staging = np.full(len(lanes), -1)
        self._open(lanes, slots, steps, staging)
        more = {"slots": slots, "steps": steps, "staging": staging, "shares": shares}
        more |= {name: np.zeros(len(lanes), np.uint8) for name in ("successor_known", "watch")}
        more["fresh"] = np.zeros(len(lanes), np.int64)
        grown = {name: appended(getattr(self, name), values) for name, values in more.items()}  # all, before any counts
        vars(self).update(grown)
        self.arrays = self._arrays()
        self.bare += len(lanes)

    def without_memory(self, lanes: Ints) -> Ints:
        """Return the ``lanes`` whose open segments have no memory, including lanes that do not exist yet."""
        if not self.bare and (not lanes.size or lanes.max() < len(self)):
            return lanes[:0]
        there = np.minimum(lanes, len(self) - 1)
        return lanes[(lanes >= len(self)) | (self.staging[there] < 0)] if len(self) else lanes

    def place(self, lanes: Ints, offsets: Ints) -> None:
        """Give the open segments of ``lanes`` [n], which have no memory, that at ``offsets`` [n] of the arena."""
        staging = offsets - self.arena.begin_of(0)
        self.index.offset[:, self.slots[lanes]] = offsets + self.layout.column_starts[:, None]
        self.staging[lanes] = staging
        self.bare -= len(lanes)

    def move(self, lane: int, slot: int, staging: int) -> None:
        """Give the lane's next segment, in ``slot``, the memory at ``staging``. Allocates nothing."""
        self.staging[lane] = staging
        np.add(self.layout.column_starts, self.arena.begin_of(0) + staging, out=self.index.offset[:, slot])

    def reopen(
        self, lane: int, slot: int, context: Mapping[int, Bytes], going_on: bool, successor: Mapping[int, Bytes] | None
    ) -> None:
        """Open the lane's next segment, in ``slot``, in the memory of its last.

        Allocates nothing once ``prepare`` was called: between the end of one segment and the next the lane has none.

        Args:
            context: from ``OpenColumns.context_behind``. ``going_on``: whether the episode goes on.
            successor: observation of the next step if it does, [size] by column; ``None``: unknown.
        """
        self.slots[lane], self.shares[lane] = slot, WHOLE
        self.forget_end(lane)
        if not going_on:
            self.index.episode_step[slot] = 0
        if self.annotations:
            self.annotations.keep_from(lane, int(self.steps[lane]) - int(self.index.episode_step[slot]))
        self.index.first_step[slot] = self.steps[lane]
        self.index.begins[slot] = not going_on
        for c, frames in context.items():
            self.columns.of(c, slot)[: len(frames)] = frames
            if c in self.layout.sparse_columns:
                self.index.sparse[self.layout.sparse_columns.index(c), slot] = len(frames)
            else:
                self.index.context[slot] = self.index.frames[slot] = len(frames)
        self._foresee(lane, successor if going_on else None)

    def prepare(self, lane: int, slot: int) -> None:
        """Give ``slot`` the memory and the episode of the lane's open segment.

        Raises:
            MemoryError: nothing changed.
        """
        number = self.columns.next_episode_step(int(self.slots[lane]))
        lanes = np.array([lane])
        self._open(lanes, np.array([slot]), self.steps[lanes], self.staging[lanes])
        self.index.episode_step[slot] = number

    def running_episode(self, lane: int) -> int:
        """Return the lane's number of the first step of the current episode, or else of the next one."""
        going_on = not self.ended(lane)
        return int(self.steps[lane]) - (self.columns.next_episode_step(int(self.slots[lane])) if going_on else 0)

    def forget_end(self, lane: int) -> None:
        """Forget that the lane's episode has just ended: the observation after it is not at hand any more."""
        self.watch[lane] = self.watch.item(lane) & ~JUST_ENDED  # allocates nothing

    def _foresee(self, lane: int, successor: Mapping[int, Bytes] | None) -> None:
        self.successor_known[lane] = successor is not None
        for c, row in (successor or {}).items():
            self.columns.of(c, int(self.slots[lane]))[self.index.frames[self.slots[lane]]] = row
            self.any_known = True

    def successor(self, lane: int) -> dict[int, Bytes] | None:
        """Return a copy of the observation that the lane's next step must have, [size] by column, of any length a row's
        bytes; ``None``: unknown."""
        if not self.successor_known[lane]:
            return None
        slot = int(self.slots[lane])
        frame = int(self.index.frames[slot])
        found = {c: self.columns.of(c, slot)[frame].copy() for c in self.layout.obs_columns}
        return found | {c: self.columns.values.row(c, slot, frame) for c in self.framed_values}

    def _open(self, lanes: Ints, slots: Ints, steps: Ints, staging: Ints) -> None:
        """Describe empty segments in ``slots`` [n], which nothing refers to yet."""
        index = self.index
        index.lane[slots] = lanes
        index.first_step[slots] = steps
        # An empty segment without memory: the bytes at its offset belong to another segment, and none of them is read.
        index.offset[:, slots] = self.arena.begin_of(0) + np.maximum(staging, 0) + self.layout.column_starts[:, None]
        index.codec[:, slots] = RAW
        index.dictionary[:, slots] = 0
        index.begins[slots] = True
        index.resident[slots] = True

    def fill(self, lane: int, header: Header, arrays: Rows) -> None:
        """Fill the lane's empty open segment with rows from ``pack_so_far``, decoded."""
        index, slot = self.index, int(self.slots[lane])
        index.rows[slot], index.frames[slot], index.context[slot] = header.steps, header.frames, header.context
        index.first_step[slot] = header.first_step
        index.episode_step[slot] = header.episode_step
        for c, name in enumerate(self.layout.names):
            values = arrays if c not in self.layout.ragged_columns else self._refilled(slot, arrays)
            data = np.ascontiguousarray(values[name]).reshape(-1).view(np.uint8).reshape(-1, self.layout.sizes[c])
            self.columns.of(c, slot, len(data))[:] = data
        index.sparse[:, slot] = [len(arrays[self.layout.names[c]]) for c in self.layout.sparse_columns]
        if header.metadata:
            self.annotations.load(lane, header, arrays["flags"])
        ended = int(np.count_nonzero(arrays["flags"] & ENDED))
        if header.frames > header.context + header.steps + ended:
            index.frames[slot] -= 1
            self.successor_known[lane] = self.any_known = True

    def _refilled(self, slot: int, arrays: Rows) -> Rows:
        """Write the values of ragged fields, beside the arena; return the rows by field, with references there."""
        values, names = self.columns.values, self.columns.values.names
        values.release(slot)
        values.reserve_run(slot, arrays)
        found: dict[str, npt.NDArray[Any]] = {}
        for name in names:
            found |= values.put(np.full(len(arrays[name]), slot), {name: arrays[name]})[0]
        return found

    def pack(
        self, lane: int, slot: int, columns: Sequence[SegmentColumn], *, sealed: bool = True
    ) -> tuple[bytes, list[int]]:
        """Return the bytes of the lane's segment in ``slot``, with ``columns`` encoded, and the offset of each.

        Args:
            sealed: as a sealed segment, without annotations of the episode that begins after it.
        """
        index, spec = self.index, self.layout.spec
        first, rows, notes = int(index.first_step[slot]), int(index.rows[slot]), self.annotations
        return segment.pack(
            spec.schema_hash,
            self.first_lane + lane,
            first,
            rows,
            int(index.frames[slot]),
            int(index.context[slot]),
            columns,
            features=features_of(spec) | (COLUMN_CHECKSUMS if sealed and self.layout.spine_bytes else 0),
            episode_step=int(index.episode_step[slot]),
            metadata=notes.pack(lane, first, rows, with_next=not sealed) if notes else b"",
        )

    def pack_so_far(self, lane: int) -> tuple[int, bytes]:
        """Return the id and the bytes of the lane's open segment so far, without dictionaries.

        A known successor of its last step is its last frame, as in a sealed segment.
        """
        frames, slot = self.index.frames, int(self.slots[lane])
        frames[slot] += self.successor_known[lane]
        try:
            columns = [unshared_column(data) for data in self.columns.all_so_far(slot)]
            return self.index.segment_id(slot), self.pack(lane, slot, columns, sealed=False)[0]
        finally:
            frames[slot] -= self.successor_known[lane]

    def begin_at(self, lane: int, step: int) -> None:
        """Number the lane's next step, in an open segment that is empty, ``step``."""
        self.steps[lane] = self.index.first_step[self.slots[lane]] = step

    def full(self, lanes: Ints, max_rows: int, coming: Rows | None = None) -> list[int]:
        """Return the positions in ``lanes`` [n] whose segment must be sealed before another step.

        Args:
            max_rows: steps at which a segment counts as full.
            coming: the coming steps' ragged fields [n], if there are any; ``None``: their room does not count.
        """
        positions = core.find_full(self.index.arrays, self.arrays, lanes, max_rows, self.layout.max_frames - 3)
        if coming is not None and (names := self.columns.values.names):
            slots = self.slots[lanes].tolist()
            rows = ({name: coming[name][i : i + 1] for name in names} for i in range(len(slots)))
            filled = [not self.columns.values.fits(slot, one) for slot, one in zip(slots, rows, strict=True)]
            positions = sorted({*positions, *np.flatnonzero(filled).tolist()})
        if self.annotations or self.sparse:
            positions = sorted({*positions, *np.flatnonzero(self._crowded(lanes)).tolist()})
        return positions

    def _crowded(self, lanes: Ints) -> Bools:
        """Return which open segments lack room for a sparse field's value, or for annotations: bool [n]."""
        crowded = self.columns.sparse_full(self.slots[lanes])
        if self.annotations:
            ends = self.steps[lanes].tolist()
            crowded |= [self.annotations.crowded(*one) for one in zip(lanes.tolist(), ends, strict=True)]
        return crowded

    def breaks(self, lanes: Ints, rows: Rows) -> list[int]:
        """Return the positions in ``lanes`` [n] whose coming step observes something other than the known successor.

        Args:
            rows: observations of the coming steps by field [n, *shape].
        """
        given = rows
        for c in self.framed_values:
            name = self.layout.names[c]
            given = {**given, name: self._successor_references(c, lanes, rows[name])}
        found = core.find_breaks(self.fields, self.index.arrays, self.arrays, self.arena.memory, lanes, given)
        return [i for i in found if not self._equals_successor(int(lanes[i]), i, rows)]

    def _equals_successor(self, lane: int, i: int, rows: Rows) -> bool:
        """Return whether observation i of ``rows`` equals the lane's successor by value, which takes its bits then."""
        slot, known = int(self.slots[lane]), list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]()
        frame, replaced = int(self.index.frames[slot]), dict[int, npt.NDArray[Any]]()
        for c in self.layout.obs_columns:
            row = rows[self.layout.names[c]][i : i + 1]
            if c in self.framed_values:
                replaced[c] = row[0]
                if not equal_rows(self.columns.values.row(c, slot, frame), row[0])[0]:
                    return False
                continue
            known.append((self.columns.of(c, slot)[frame].view(row.dtype).reshape(row.shape), row))
            if compare(*known[-1])[0][0]:
                return False
        for c, one in replaced.items():
            self.columns.of(c, slot)[frame] = self.columns.values.add(c, slot, one, frame).view(np.uint8)
        for there, row in known:
            there[...] = row
        return True

    def _successor_references(self, c: int, lanes: Ints, rows: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
        """Return references [n] that equal those of the lanes' known successors where ``rows`` [n] do."""
        found = np.zeros(len(lanes), np.uint64)
        for i, lane in enumerate(lanes.tolist()):
            if self.successor_known[lane]:
                slot = int(self.slots[lane])
                frame = int(self.index.frames[slot])
                content = rows[i].reshape(-1).view(np.uint8)
                reference = self.columns.of(c, slot)[frame].view(np.uint64)[0]
                found[i] = reference if np.array_equal(self.columns.values.row(c, slot, frame), content) else ~reference
        return found

    def write(self, lanes: Ints, flags: Bytes, rows: Rows, finals: Rows | None, nexts: Rows | None) -> None:
        """Append one step to each of ``lanes`` [n] (distinct), none of them full.

        Memory is allocated before any step is counted, so that a MemoryError changes nothing.

        Args:
            flags: uint8 [n]. ``rows``: ``reward`` float32 [n] and every field [n, *shape]; where a lane's successor is
                known, the observation equals it.
            finals: final observations by field [n, *shape], read only for rows that ended; ``None``: ``nexts`` or else
                ``rows``.
            nexts: observations after the steps by field [n, *shape], read only for rows that did not end.
        """
        self.any_known |= nexts is not None  # first: a signal's handler may raise after the call
        values, before = self.columns.values, dict[tuple[int, int], int]()
        given: Rows = rows
        if values:
            after, known = self.after(flags, rows, finals, nexts), self.successor_known[lanes]
            given, following, before = values.put(self.slots[lanes], rows, after, known)
            finals = None if finals is None else {**finals, **following}
            nexts = None if nexts is None else {**nexts, **following}
        try:
            self.any_known = core.write_steps(
                self.fields, self.index.arrays, self.arrays, self.arena.memory, lanes, flags, given, finals, nexts,
                self.any_known,
            )  # fmt: skip
        except BaseException:
            values.take_back(before)
            raise

    def after(self, flags: Bytes, rows: Rows, finals: Rows | None, nexts: Rows | None) -> dict[str, npt.NDArray[Any]]:
        """Return the observations of any length after steps, as ``write`` has them: by field [n], ``None`` where there
        is none, or the step's own is repeated."""
        found: dict[str, npt.NDArray[Any]] = {}
        for c in self.framed_values:
            name = self.layout.names[c]
            following = np.full(len(flags), None, object)
            for i, flag in enumerate(flags.tolist()):
                source = (nexts if finals is None else finals) if flag & ENDED else nexts
                if source is not None:
                    following[i] = source[name][i]
            if finals is not None or nexts is not None:
                found[name] = following
        return found

    def room(self, lane: int, max_rows: int) -> int:
        """Return how many steps of one episode fit into the lane's open segment before it must be sealed.

        Args:
            max_rows: as for ``full``.
        """
        slot = self.slots[lane]
        rows = -(-max_rows * int(self.shares[lane]) // WHOLE) - int(self.index.rows[slot])
        return min(rows, self.layout.max_frames - 2 - int(self.index.frames[slot]))

    def write_run(self, lane: int, flags: Bytes, rows: Rows, final: Rows | None) -> None:
        """Append steps of one episode to one lane, as many as there is ``room`` for. No sparse fields. Memory is
        allocated before the first is counted, so that a MemoryError changes nothing.

        Args:
            flags: uint8 [n], of which only the last may end the episode. ``rows``: as for ``write``.
            final: [1, *shape] by field, the observation after the last step, if that ends the episode.

        Cost: a copy.
        """
        values, before = self.columns.values, dict[tuple[int, int], int]()
        given: Rows = rows
        if values:
            after = {name: last_only(one, len(flags)) for name, one in (final or {}).items() if one.dtype == object}
            given, following, before = values.put(np.full(len(flags), self.slots[lane]), rows, after)
            final = None if final is None else {**final, **{name: one[-1:] for name, one in following.items()}}
        try:
            core.write_run(self.fields, self.index.arrays, self.arrays, self.arena.memory, lane, flags, given, final)
        except BaseException:
            values.take_back(before)
            raise

    def write_successor(self, lane: int, frames: Mapping[int, npt.NDArray[Any]]) -> None:
        """Write the observation after the lane's last step, [*shape] by column, after the frames of its segment."""
        self._add_frame(lane, {self.layout.names[c]: np.asarray(frame) for c, frame in frames.items()})

    def end_episode(self, lane: int, final: Rows | None) -> None:
        """Truncate the last step of the lane's open segment, which is not empty.

        Args:
            final: [1, *shape] by field, the true final observation; ``None``: the known successor.
        """
        slot = self.slots[lane]
        if final is not None:
            self._add_frame(lane, final)
        else:
            self.index.frames[slot] += 1
        self.arena.memory[self.index.offset[FLAGS, slot] + self.index.rows[slot] - 1] |= TRUNCATED  # takes no memory
        self.successor_known[lane] = False

    def drop_last(self, lane: int) -> None:
        """Remove the last step of the lane's open segment: its observation becomes the successor of the one before.

        The segment gets no further step, which would have the id of the one removed.
        """
        index, slot = self.index, int(self.slots[lane])
        began = self.columns.of(FLAGS, slot)[index.rows[slot] - 1, 0] & START
        index.rows[slot] -= 1
        index.frames[slot] -= 1
        core.count_sparse(self.fields, index.arrays, self.arena.memory, slot)
        self.steps[lane] -= 1
        if began:
            self.annotations.drop(lane, int(self.steps[lane]))
        self.successor_known[lane] = not began
        self.any_known |= not began
        if index.rows[slot]:
            self.shares[lane] = SEALED_NEXT
        else:
            index.renew(slot)
            if began:
                self.columns.values.forget(slot)

    def begin_episode(self, lane: int) -> None:
        """Mark the lane's next step, the first of its open segment, as beginning an episode."""
        slot = self.slots[lane]
        self.index.begins[slot] = True
        self.index.context[slot] = self.index.frames[slot] = self.index.episode_step[slot] = 0
        self.index.sparse[:, slot] = 0
        self.columns.values.forget(int(slot))
        self.successor_known[lane] = False
        self.forget_end(lane)
        self.annotations.keep_from(lane, int(self.steps[lane]))

    def _add_frame(self, lane: int, rows: Rows) -> None:
        """Append a frame, of one row by field, to the lane's open segment."""
        given, slot = dict(rows), int(self.slots[lane])
        for c in self.framed_values:
            name = self.layout.names[c]
            row = rows[name][0] if rows[name].dtype == object else rows[name]
            given[name] = self.columns.values.add(c, slot, row, int(self.index.frames[slot]))
        core.add_frame(self.fields, self.index.arrays, self.arena.memory, slot, given)

    def ended(self, lane: int) -> bool:
        """Return whether the lane's next step begins an episode."""
        index, slot = self.index, self.slots.item(lane)  # items are Python's: 0.6 us less
        if not (rows := index.rows.item(slot)):
            return bool(index.begins.item(slot))
        return bool(self.arena.memory.item(index.offset.item(FLAGS, slot) + rows - 1) & ENDED)


def last_only(row: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """Return rows of any length [count], of which only the last is there."""
    rows = np.full(count, None, object)
    rows[-1] = row[0]
    return rows


def first_shares(lanes: Ints) -> Int32s:
    """Return how full the first segment of each of ``lanes`` [n] gets: an eighth at least, spread evenly for any
    number of lanes (van der Corput's sequence). Lane 0 fills its whole segment."""
    reversed_bits = np.zeros(len(lanes), np.int64)
    for bit in range(16):
        reversed_bits |= (lanes >> bit & 1) << 15 - bit
    return (WHOLE - reversed_bits * 7 // 8).astype(np.int32)


def appended(array: npt.NDArray[Any], values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return ``array`` with ``values`` appended. Memory grows by doubling; pass the latest result in again to reuse
    it."""
    count, total = len(array), len(array) + len(values)
    memory = array.base if isinstance(array.base, np.ndarray) else array
    if len(memory) < total:
        memory = np.zeros(max(16, 2 * total), array.dtype)
        memory[:count] = array
    memory[count:total] = values
    return memory[:total]
