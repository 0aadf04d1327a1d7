"""Sealing of segments whose columns all stay raw, many lanes at once: a copy and a checksum, in the core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.format.features import features_of
from sharpwave.format.segment import MAX_NUMBER
from sharpwave.log.admission import Admission
from sharpwave.log.column_encoder import ColumnEncoder
from sharpwave.log.open_segments import Lanes
from sharpwave.log.sealed_segments import Sealed
from sharpwave.log.segment_space import SegmentSpace
from sharpwave.native import core
from sharpwave.sampling.ordered import Fifo
from sharpwave.sampling.retention import Retention

Ints = npt.NDArray[np.int64]


class RawSealing:
    """Sealer of open segments, many at once, in a store without a disk that evicts the oldest.

    Args:
        encoders: by column.
    """

    def __init__(
        self,
        space: SegmentSpace,
        opened: Lanes,
        sealed: Sealed,
        encoders: Mapping[int, ColumnEncoder],
        admission: Admission,
        retention: Retention,
    ) -> None:
        self._space, self._opened, self._sealed = space, opened, sealed
        self._encoders = {c: one for c, one in encoders.items() if one.candidates}  # the others keep all raw
        self._admission, self._retention = admission, retention
        spec = space.layout.spec
        self.serves = isinstance(retention, Fifo) and space.segment_cache is None and not spec.sparse_names
        self._schema = int(spec.schema_hash)
        self._features = features_of(spec)

    def seal(self, positions: Sequence[int], lanes: Ints, frames: Mapping[str, npt.NDArray[Any]]) -> list[int]:
        """Seal the open segments of the lanes at those ``positions`` that stay raw, and open their next ones.

        Args:
            lanes: int64 [n]. ``frames``: observations of their next steps by field [n, *shape].

        Returns the positions that are left.  Raises: MemoryError; some may be sealed.
        """
        opened, encoders = self._opened, self._encoders
        if not self.serves or opened.annotations:
            return list(positions)
        raw: list[int] = []
        left: list[int] = []
        for i in positions:
            lane = int(lanes[i])
            slot = opened.slots.item(lane)
            rows = self._space.index.rows.item(slot)
            stays = rows > 0 and opened.steps.item(lane) <= MAX_NUMBER
            for c, encoder in encoders.items():
                stays = stays and encoder.stays_raw(lane, rows, partial(opened.columns.so_far, slot, c))
            (raw if stays else left).append(i)
        while raw:
            done = self._seal_some(np.array(raw), lanes, frames)
            if not done:
                return raw + left  # memory is short: one by one, each evicting for itself
            for i in raw[:done]:
                for encoder in encoders.values():
                    encoder.lanes.count(int(lanes[i]))
            raw = raw[done:]
        return left

    def _seal_some(self, positions: Ints, lanes: Ints, frames: Mapping[str, npt.NDArray[Any]]) -> int:
        """Seal as many as there is room for in one chunk; return how many."""
        opened, space, index, admission = self._opened, self._space, self._space.index, self._admission
        arena = space.arena
        count, lanes = len(lanes), lanes[positions]
        slots = opened.slots[lanes]
        going_on, nbytes = np.empty(len(lanes), np.uint8), np.empty(len(lanes), np.int64)
        core.measure_raw(opened.fields, index.arrays, arena.memory, slots, going_on, nbytes)
        admission.fit_memory()
        bases = arena.allocate_some(nbytes)
        following: list[int] = []
        added: list[int] = []
        try:
            following.extend(admission.take_slot() for _ in range(len(bases)))
            done = len(following)
            if not done:
                return 0
            coming = {name: np.ascontiguousarray(frames[name]) for name in space.layout.spec.obs_names}
            new, total = np.array(following, np.int64), sum(nbytes[:done].tolist())
            for slot in slots[:done].tolist():
                self._retention.add(slot, index.segment_id(slot))
                added.append(slot)
        except BaseException:
            for slot in reversed(added):
                self._retention.discard(slot)
            for slot in following:
                index.give_back(slot)
            for base, size in zip(bases.tolist(), nbytes.tolist(), strict=False):
                arena.free(base, size)
            raise
        # Nothing below fails.
        core.seal_raw(
            opened.fields, index.arrays, opened.arrays, arena.memory, lanes[:done], new, bases, nbytes, going_on,
            coming, positions, count, space.layout.spec.context, opened.first_lane, self._schema, self._features,
        )  # fmt: skip
        opened.any_known = True
        self._sealed.nbytes += total
        return done
