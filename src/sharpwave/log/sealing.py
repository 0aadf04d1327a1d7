"""Sealing of open segments: encode, admit, write to disk, and only then enter into the store."""

from __future__ import annotations

from collections.abc import Sequence

from sharpwave.disk.disk_tier import DiskTier
from sharpwave.format.segment import Column
from sharpwave.format.segment_header import Placed
from sharpwave.log.admission import Admission
from sharpwave.log.open_packing import pack
from sharpwave.log.open_segments import Lanes
from sharpwave.log.sealed_segments import Sealed
from sharpwave.memory.segment_index import SegmentIndex
from sharpwave.sampling.retention import Newcomer, Retention


class Sealing:
    """Sealer of open segments; a segment that is not kept stays open until its lane goes on."""

    def __init__(
        self,
        index: SegmentIndex,
        disk: DiskTier | None,
        opened: Lanes,
        sealed: Sealed,
        admission: Admission,
        retention: Retention,
    ) -> None:
        self._index, self._disk, self._opened, self._sealed = index, disk, opened, sealed
        self._admission, self._retention = admission, retention

    def seal(self, lane: int, slot: int) -> bool:
        """Encode the lane's segment in ``slot``, and keep it; return False if the retention rejects it.

        Raises:
            MemoryError, OSError: there is no room; the segment is still open.
        """
        if not self._admission.admits(slot):
            return False
        columns: list[Column] = []
        places: list[int] = []
        try:
            packed, begins = self.encode(lane, slot, columns, places)
        except BaseException:
            self._sealed.drop_dictionaries(places)
            raise
        return self.keep(slot, int(self._index.rows[slot]), packed, begins, columns, places)

    def encode(
        self,
        lane: int,
        slot: int,
        columns: list[Column],
        places: list[int],
        may_try: Sequence[bool] | None = None,
    ) -> tuple[bytes, list[int]]:
        """Return the bytes of the lane's segment in ``slot``, and the offset of each column.

        Args:
            columns, places: appended to: the columns and the places of their dictionaries, with references to them,
                also where this raises.
            may_try: as for ``Sealed.encode``.
        """
        self._sealed.encode(lane, self._opened.columns.all_so_far(slot), columns, places, may_try)
        return pack(self._opened, lane, slot, columns)

    def keep(
        self,
        slot: int,
        rows: int,
        packed: bytes,
        begins: Sequence[int],
        columns: Sequence[Column | Placed],
        places: Sequence[int],
    ) -> bool:
        """Make room for a segment, and seal the one in ``slot`` as ``packed``.

        Args:
            begins: offset in ``packed`` of each column.
            places: of their dictionaries, with references, which are released unless the segment is kept.

        Returns and raises as ``seal``.
        """
        newcomer, location, added = Newcomer(slot, self._index.segment_id(slot)), None, False
        try:
            dictionaries = {} if self._disk is None else self._sealed.dictionaries(columns, places)
            location = self._admission.keep(newcomer, packed, dictionaries)
            if location is not None:
                self._retention.add(*newcomer)
                added = True
                self._sealed.enter(slot, rows, location, packed, begins, columns, places)
                return True
        except BaseException:
            if location is not None:
                self._admission.give_back(location, len(packed))
            if added:
                self._retention.discard(slot)
            self._sealed.drop_dictionaries(places)
            raise
        self._sealed.drop_dictionaries(places)
        return False
