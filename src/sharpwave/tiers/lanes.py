"""The open segment of every lane: rows as they come, raw, in the arena's own address space.

An open segment is described by the same index as the sealed ones, as a segment whose columns are all raw; so sampling
does not know the difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import segment
from ..codecs import RAW, ZSTD, encode
from ..segment import FLAGS, REWARD, Column
from ..spec import START, TRUNCATED
from .encoder import AUTO_MIN_BYTES
from .index import SegmentIndex
from .layout import Layout
from .ram import Arena
from .rows import ENDED, any_full, commit_rows, write_rows

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Rows = Mapping[str, npt.NDArray[Any]]


class Lanes:
    """The open segments. Knows nothing of sealed ones, nor of what is kept.

    Attributes:
        slots: int32 [lanes], of each lane's open segment.
        steps: int64 [lanes], ever written to each lane.
        first_lane: what segments call lane 0.
    """

    def __init__(self, layout: Layout, arena: Arena, index: SegmentIndex) -> None:
        self.layout, self.arena, self.index = layout, arena, index
        self.slots = np.zeros(0, np.int32)
        self.steps = np.zeros(0, np.int64)
        self._staging = np.zeros(0, np.int64)  # where each lane's rows lie, counted from the arena's first chunk
        self.first_lane = 0

    def __len__(self) -> int:
        return len(self.slots)

    def add(self, slot: int, staging: int, steps: int) -> None:
        """One more lane, to which ``steps`` were written, with an empty segment in ``slot``.

        Args:
            staging: where its rows lie in the arena, from ``reserve``.
        """
        self.slots = np.append(self.slots, np.int32(slot))
        self._staging = np.append(self._staging, np.int64(staging - self.arena.begin_of(0)))
        self.steps = np.append(self.steps, np.int64(steps))
        self._open(len(self.slots) - 1, slot)

    def reopen(self, lane: int, slot: int, context: Mapping[int, Bytes], going_on: bool) -> None:
        """Open the lane's next segment, in ``slot``, where the bytes of its last were.

        Args:
            context: from :meth:`newest_frames`. ``going_on``: whether the episode does.
        """
        self.slots[lane] = slot
        self._open(lane, slot)
        self.index.begins[slot] = not going_on
        for c, frames in context.items():
            self._column(c, slot)[: len(frames)] = frames
            self.index.context[slot] = self.index.frames[slot] = len(frames)

    def _open(self, lane: int, slot: int) -> None:
        index = self.index
        index.lane[slot] = lane
        index.first_step[slot] = self.steps[lane]
        index.offset[:, slot] = self.arena.begin_of(0) + int(self._staging[lane]) + self.layout.column_starts
        index.codec[:, slot] = RAW
        index.dictionary[:, slot] = 0
        index.begins[slot] = True
        index.resident[slot] = True

    def fill(self, lane: int, header: segment.Header, arrays: Rows) -> None:
        """Put rows from :meth:`pack_raw`, decoded, into the lane's open segment, which is empty."""
        index, slot = self.index, int(self.slots[lane])
        index.rows[slot], index.frames[slot], index.context[slot] = header.steps, header.frames, header.context
        for c, name in enumerate(self.layout.names):
            data = np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).reshape(-1, self.layout.sizes[c])
            self._column(c, slot, len(data))[:] = data
        self.steps[lane] += header.steps

    def begin_at(self, lane: int, step: int) -> None:
        """Let the lane's next step, in an open segment that is empty, be the one of that number."""
        self.steps[lane] = self.index.first_step[self.slots[lane]] = step

    def full(self, lanes: Ints, most_rows: int) -> list[int]:
        """Places in ``lanes`` [n] of those whose segment takes no further step.

        Args:
            most_rows: steps at which a segment counts as full.
        """
        index, slots, most_frames = self.index, self.slots[lanes], self.layout.most_frames - 3
        if not any_full(index.rows, index.frames, slots, most_rows, most_frames):
            return []
        places: list[int] = np.flatnonzero(
            (index.rows[slots] >= most_rows) | (index.frames[slots] > most_frames)
        ).tolist()
        return places

    def write(self, lanes: Ints, flags: Bytes, rows: Rows, finals: Rows | None) -> None:
        """Append one step to each of ``lanes`` [n] (distinct), which are not full.

        Args:
            flags: uint8 [n]. ``rows``: ``reward`` float32 [n] and every field [n, *shape].
            finals: final observations by field [n, *shape], of which only rows that ended are read; ``None``: ``rows``.
        """
        layout, index, memory, floats = self.layout, self.index, self.arena.memory, self.arena.floats
        slots, count, names = self.slots[lanes], len(lanes), layout.names
        for columns, position in ((layout.obs_columns, index.frames), (layout.step_columns, index.rows)):
            for c in columns:
                data = rows[names[c]].reshape(count, -1).view(np.uint8)
                write_rows(memory, index.offset[c], position, slots, data)
        if commit_rows(
            memory, floats, index.offset[FLAGS], index.offset[REWARD], index.rows, index.frames, index.begins,
            self.steps, slots, lanes, flags, rows["reward"],
        ):  # fmt: skip
            ended = (flags & ENDED) != 0
            source = rows if finals is None else finals
            self._write_frames(slots[ended], {c: source[names[c]][ended] for c in layout.obs_columns})

    def write_successor(self, lane: int, frames: Mapping[int, npt.NDArray[Any]]) -> None:
        """Put the observation after the lane's last step, [*shape] by column, behind those of its segment."""
        self._write_frames(self.slots[[lane]], {c: frame[None] for c, frame in frames.items()})

    def end_episode(self, lane: int, final: Rows) -> None:
        """Truncate the lane's last step, with ``final`` [1, *shape] by field as its true final observation."""
        slot = self.slots[lane]
        self._column(FLAGS, slot)[self.index.rows[slot] - 1] |= TRUNCATED
        layout = self.layout
        self._write_frames(self.slots[[lane]], {c: final[layout.names[c]] for c in layout.obs_columns})

    def _write_frames(self, slots: npt.NDArray[np.int32], frames: Mapping[int, npt.NDArray[Any]]) -> None:
        for c, data in frames.items():
            data = np.ascontiguousarray(data).reshape(len(slots), -1).view(np.uint8)
            write_rows(self.arena.memory, self.index.offset[c], self.index.frames, slots, data)
        self.index.frames[slots] += 1

    def ended(self, lane: int) -> bool:
        """Whether the lane's next step begins an episode."""
        slot = self.slots[lane]
        rows = self.index.rows[slot]
        return rows == 0 or bool(self._column(FLAGS, slot)[rows - 1, 0] & ENDED)

    def newest_frames(self, lane: int) -> dict[int, Bytes]:
        """Copies of the present episode's newest frames, as many as a stack reaches back, by column."""
        slot = int(self.slots[lane])
        frames = int(self.index.frames[slot])
        flags = self._column(FLAGS, slot, int(self.index.rows[slot]))[:, 0]
        starts = np.flatnonzero(flags & START)
        first = 0
        if starts.size:
            first = int(self.index.context[slot] + starts[-1] + np.count_nonzero(flags[: starts[-1]] & ENDED))
        keep = min(self.layout.spec.context, frames - first)
        return {c: self._column(c, slot, frames)[frames - keep :].copy() for c in self.layout.obs_columns}

    def columns(self, lane: int) -> list[Bytes]:
        """The open segment's columns as far as it goes, uint8 [rows, size], views of the arena."""
        slot, obs_columns = int(self.slots[lane]), self.layout.obs_columns
        rows, frames = int(self.index.rows[slot]), int(self.index.frames[slot])
        return [self._column(c, slot, frames if c in obs_columns else rows) for c in range(len(self.layout.names))]

    def pack(self, lane: int, columns: Sequence[Column]) -> tuple[bytes, list[int]]:
        """The open segment's bytes, with its columns encoded as ``columns``, and where each of them begins."""
        index, slot = self.index, int(self.slots[lane])
        rows, frames, context = int(index.rows[slot]), int(index.frames[slot]), int(index.context[slot])
        first = int(index.first_step[slot])
        schema = self.layout.spec.schema_hash
        return segment.pack(schema, self.first_lane + lane, first, rows, frames, context, columns)

    def pack_raw(self, lane: int) -> tuple[int, bytes]:
        """The id and the bytes of a lane's open segment as far as it goes, without dictionaries."""
        columns = []
        for size, data in zip(self.layout.sizes.tolist(), self.columns(lane), strict=True):
            packed = encode(ZSTD, data) if size >= AUTO_MIN_BYTES and len(data) else None
            columns.append(Column(RAW if packed is None else ZSTD, len(data), packed or data.tobytes()))
        return self.index.segment_id(int(self.slots[lane])), self.pack(lane, columns)[0]

    def _column(self, c: int, slot: int, rows: int | None = None) -> Bytes:
        """An open segment's column as uint8 [rows, size], a view of the arena."""
        limit, size = self.layout.limits[c], int(self.layout.sizes[c])
        begin = int(self.index.offset[c, slot])
        return self.arena.memory[begin : begin + limit * size].reshape(limit, size)[:rows]
