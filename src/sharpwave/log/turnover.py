"""Full segments and the next ones of their lanes, many in one call of the core: for stores in memory that evict in
order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.format.features import features_of
from sharpwave.log.admission import Admission, Made
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
        self._space, self._opened, self._sealed = space, opened, sealed
        self._admission, self._inventory, self._ledger = admission, inventory, ledger
        spec = space.layout.spec
        self.core = core.Turnover(
            opened.fields, space.arena, space.index.free, retention.queue,
            [encoders[c].lanes for c in sorted(encoders)], [table.uses for table in sealed.tables],
            int(spec.schema_hash), features_of(spec), spec.context,
        )  # fmt: skip

    @property
    def seals(self) -> bool:
        """Whether segments can be sealed by the call that appends steps. It stays so until the log has changed."""
        return self._ledger.ram is None and not self._opened.annotations

    @property
    def followers(self) -> list[core.Items] | None:
        """Items of views, which the core tells of evictions; ``None``: they are Python's to tell, or to be finished. It
        stays so until the log has changed."""
        return None if self._sealed.damaged or self._admission.interrupted else self._inventory.followers

    def seal(self, positions: Sequence[int], lanes: Ints, frames: Mapping[str, npt.NDArray[Any]]) -> Sequence[int]:
        """Seal the open segments of the lanes at those ``positions``, one after the other, up to the first that is not
        for the core to encode; return the positions that are left.

        Args:
            lanes: int64 [n]. ``frames``: observations of their next steps by field [n, *shape].

        Raises: MemoryError: some may be sealed.
        """
        opened = self._opened
        if opened.annotations:
            return positions
        rows = {name: np.ascontiguousarray(frames[name]) for name in self._space.layout.spec.obs_names}
        opened.any_known = True
        while positions:
            self._admission.fit_memory()
            some = np.array(positions)
            arrays, first = self._arrays(), opened.first_lane
            found = self.core.seal(*arrays, first, lanes[some], some, rows, len(lanes), self.followers)
            done = found if found >= 0 else -1 - found
            positions = positions[done:]
            if done < len(some) and (found >= 0 or self._admission.free_memory() is not Made.ROOM):
                break
        return positions

    def release(self, slot: int) -> bool:
        """Free an evicted segment and its slot; return whether that was the core's to do: not where a dictionary goes
        with it."""
        if not self.core.release(*self._arrays(), slot):
            return False
        self._sealed.damaged.pop(slot, None)
        return True

    def _arrays(
        self,
    ) -> tuple[npt.NDArray[np.uint8], core.IndexArrays, core.LaneArrays, npt.NDArray[np.int32], Ints]:
        """Return the log's arrays, which are replaced as it grows."""
        return (
            self._space.arena.memory, self._space.index.arrays, self._opened.arrays, self._inventory.oldest,
            self._inventory.counts,
        )  # fmt: skip
