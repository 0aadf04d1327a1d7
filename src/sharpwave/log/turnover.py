"""Full segments and the next ones of their lanes, many in one call of the core: for stores in memory that evict in
order."""

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
from sharpwave.log.inventory import Inventory
from sharpwave.log.open_segments import Lanes
from sharpwave.log.sealed_segments import Sealed
from sharpwave.log.segment_space import SegmentSpace
from sharpwave.memory.ledger import MemoryLedger
from sharpwave.native import core
from sharpwave.sampling.ordered import Fifo

Ints = npt.NDArray[np.int64]


class Turnover:
    """Sealer of segments that need neither trials of codecs nor a codec of Python's, in a store in memory.

    Args:
        encoders: by column.

    Attributes:
        core: what seals them, and evicts.
    """

    def __init__(
        self,
        space: SegmentSpace,
        opened: Lanes,
        sealed: Sealed,
        encoders: Mapping[int, ColumnEncoder],
        admission: Admission,
        retention: Fifo,
        inventory: Inventory,
        ledger: MemoryLedger,
    ) -> None:
        self._space, self._opened, self._sealed, self._encoders = space, opened, sealed, encoders
        self._admission, self._inventory, self._ledger = admission, inventory, ledger
        spec = space.layout.spec
        self.core = core.Turnover(
            opened.fields, space.arena, space.index.free, retention.queue,
            [encoders[c].lanes for c in sorted(encoders)], [table.uses for table in sealed.tables],
            int(spec.schema_hash), features_of(spec), spec.context,
        )  # fmt: skip

    @property
    def alone(self) -> bool:
        """Whether segments can be evicted without anybody's knowing, and sealed without anybody's waiting for it.

        It stays so until the log has changed.
        """
        return (
            self._ledger.ram is None
            and not self._opened.annotations
            and not self._sealed.damaged
            and not self._admission.interrupted
            and not self._inventory.followed
        )

    def seal_raw(self, positions: Sequence[int], lanes: Ints, frames: Mapping[str, npt.NDArray[Any]]) -> list[int]:
        """Seal the open segments of the lanes at those ``positions`` that stay raw; return the positions that are left.

        Args:
            lanes: int64 [n]. ``frames``: observations of their next steps by field [n, *shape].

        Raises: MemoryError: some may be sealed.
        """
        opened, index = self._opened, self._space.index
        raw: list[int] = []
        left: list[int] = []
        if opened.annotations:
            return list(positions)
        for i in positions:
            lane = int(lanes[i])
            slot = opened.slots.item(lane)
            rows = index.rows.item(slot)
            stays = rows > 0 and opened.steps.item(lane) <= MAX_NUMBER
            for c, encoder in self._encoders.items():
                stays = stays and encoder.stays_raw(lane, rows, partial(opened.columns.so_far, slot, c))
            (raw if stays else left).append(i)
        if raw and self._ledger.ram is not None:
            self._admission.fit_memory()
        return self._seal(raw, lanes, frames, True) + left

    def seal(self, positions: Sequence[int], lanes: Ints, frames: Mapping[str, npt.NDArray[Any]]) -> list[int]:
        """Seal segments as ``seal_raw``, whatever their columns become, up to the first that is not for the core."""
        if self._opened.annotations or self._ledger.ram is not None:
            return list(positions)
        return self._seal(positions, lanes, frames, False)

    def _seal(
        self, positions: Sequence[int], lanes: Ints, frames: Mapping[str, npt.NDArray[Any]], raw: bool
    ) -> list[int]:
        if not positions:
            return []
        which = np.array(positions)
        rows = {name: np.ascontiguousarray(frames[name]) for name in self._space.layout.spec.obs_names}
        self._opened.any_known = True
        done = self.core.seal(
            *self.arrays(), self._opened.first_lane, lanes[which], which, rows, len(lanes), raw, self.alone
        )
        return list(positions[done:])

    def release(self, slot: int) -> bool:
        """Free an evicted segment and its slot; return whether that was the core's to do: not where a dictionary goes
        with it."""
        if not self.core.release(*self.arrays(), slot):
            return False
        self._sealed.damaged.pop(slot, None)
        return True

    def arrays(
        self,
    ) -> tuple[npt.NDArray[np.uint8], core.IndexArrays, core.LaneArrays, npt.NDArray[np.int32], Ints]:
        """Return the log's arrays, which are replaced as it grows."""
        return (
            self._space.arena.memory, self._space.index.arrays, self._opened.arrays, self._inventory.oldest,
            self._inventory.counts,
        )  # fmt: skip
