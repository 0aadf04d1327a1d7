"""Rollover: a lane's open segment is sealed, dropped or evicted, and its next one takes over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.log.admission import Admission, is_refusal
from sharpwave.log.behind import Behind
from sharpwave.log.inventory import Inventory
from sharpwave.log.open_segments import Lanes
from sharpwave.log.sealed_segments import Sealed
from sharpwave.log.sealing import Sealing
from sharpwave.memory.segment_index import SegmentIndex

Bytes = npt.NDArray[np.uint8]


class Rollover:
    """Change from one open segment of a lane to the next. An error leaves the lane with the segment that it had.

    Attributes:
        sealing: seals the segment that is full.
        behind: has it encoded behind the caller, where that can be; ``None``: nowhere.
    """

    def __init__(
        self,
        index: SegmentIndex,
        opened: Lanes,
        sealed: Sealed,
        sealing: Sealing,
        admission: Admission,
        inventory: Inventory,
    ) -> None:
        self._index, self._opened, self._sealed, self.sealing = index, opened, sealed, sealing
        self._admission, self._inventory = admission, inventory
        self.behind: Behind | None = None

    def roll(self, lane: int, successor: Mapping[int, npt.NDArray[Any]]) -> None:
        """Seal the lane's open segment and open its next. ``successor``: the next step's observation, by column."""
        index = self._index
        slot = int(self._opened.slots[lane])
        going_on = not self._opened.ended(lane)
        context = self._opened.columns.context_behind(slot) if going_on else {}
        known = {c: np.ascontiguousarray(row).reshape(-1).view(np.uint8) for c, row in successor.items()}
        if going_on:
            self._opened.write_successor(lane, successor)
            self._inventory.changes += 1
        following = -1
        try:
            following = self.prepare_next(lane)
            kept = self._seal(lane, slot, following)
        except BaseException as error:  # out of memory, disk full, or an interrupt by the user
            if following < 0 or not self.drops_for(error):
                index.frames[slot] -= going_on  # the successor was not appended after all
                if following >= 0:
                    index.give_back(following)
                raise
            kept = False
            self._inventory.dropped_steps += int(index.rows[slot])
        self.go_on(lane, following, kept, context, going_on, known)

    def try_codecs(self, lane: int) -> bool:
        """Take the outcome of a trial of codecs that is due before the lane's segment is sealed, and begin one whose
        outcome is for later segments; return whether either was done."""
        rows = self._opened.columns.all_so_far(int(self._opened.slots[lane]))
        if self.behind is not None and self.behind.pending and self._sealed.depends_on_others(lane, rows):
            self.behind.settle()
        return self._sealed.try_later(lane, rows)

    def _seal(self, lane: int, slot: int, following: int) -> bool:
        """Seal the lane's open segment, or have it encoded; return False if it is not kept."""
        self.try_codecs(lane)
        if self.behind is not None:
            if self.behind.take(lane, slot, following):
                return True
            self.behind.settle()  # those that were full before it are sealed, and one day evicted, before it
        return self.sealing.seal(lane, slot)

    def seal_open(self, lane: int) -> None:
        """Seal the lane's open segment, which is not empty and ends an episode, before it is full.

        Raises: MemoryError, OSError: no room; nothing changed.
        """
        self.roll(lane, {})

    def abandon(self, lane: int) -> None:
        """Evict the rows of the lane's open segment, though it is not sealed."""
        going_on = not self._opened.ended(lane)
        context = self._opened.columns.context_behind(int(self._opened.slots[lane])) if going_on else {}
        successor = self._opened.successor(lane)
        following = self.prepare_next(lane)
        self.go_on(lane, following, False, context, going_on, successor)

    def prepare_next(self, lane: int) -> int:
        """Return a slot for the lane's next segment.  Raises: MemoryError; then none is taken."""
        slot = self._admission.take_slot()
        try:
            self._opened.prepare(lane, slot)
        except BaseException:
            self._index.give_back(slot)
            raise
        return slot

    def go_on(
        self,
        lane: int,
        following: int,
        kept: bool,
        context: Mapping[int, Bytes],
        going_on: bool,
        successor: Mapping[int, Bytes] | None = None,
    ) -> None:
        """Open the lane's next segment in the slot ``following``; drop its last unless it is ``kept``."""
        slot = int(self._opened.slots[lane])
        self._opened.reopen(lane, following, context, going_on, successor)
        self._index.link(slot, following)
        if not kept:
            try:
                self._admission.drop(slot)
            except BaseException:  # an interrupt, or out of memory: its bytes are being overwritten already
                self._admission.drop(slot)
                raise

    def drops_for(self, error: BaseException) -> bool:
        """Return whether ``on_full`` drops the newest segment for ``error``."""
        return is_refusal(error) and self._admission.on_full == "drop_newest"
