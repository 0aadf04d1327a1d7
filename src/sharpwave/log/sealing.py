"""Sealing: a lane's full segment is encoded and kept, dropped or evicted, and its next one takes over."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Bytes, Int32s, Ints
from sharpwave.format.segment import SegmentColumn
from sharpwave.format.segment_header import features_of
from sharpwave.log.admission import Admission, Made, is_refusal
from sharpwave.log.behind import Behind
from sharpwave.log.column_encoder import MAX_TRIALS, SegmentEncoder
from sharpwave.log.open_segments import Lanes, Rows
from sharpwave.native import core
from sharpwave.sampling.ordered import Fifo


class Sealing:
    """Change from one open segment of a lane to the next. An error leaves the lane with its old segment.

    A segment is encoded by the core, together with other lanes' segments, by a thread behind the caller, or at once.

    Attributes:
        turnover: seals and evicts in the core, if neither trials of codecs nor a codec in Python are needed; ``None``
            with a disk, sparse, ragged or shared fields, or a retention other than ``Fifo``.
        behind: encodes behind the caller; ``None`` with a disk, or with a retention that is not in order.
    """

    def __init__(self, opened: Lanes, admission: Admission, encoder: SegmentEncoder) -> None:
        self._opened, self._admission, self._encoder = opened, admission, encoder
        self._sealed = admission.sealed
        self._index, self._inventory = admission.space.index, admission.inventory
        ram, retention, spec = admission.ledger.ram, admission.retention, opened.layout.spec
        self.behind: Behind | None = None
        self.turnover: core.Turnover | None = None
        if admission.disk is not None:
            return
        if retention.in_order:
            self.behind = Behind(opened, admission, encoder)
            self._inventory.tell(self.behind)
            encoder.try_elsewhere(self.behind.begin if ram is None else None)
        plain = not (spec.sparse_names or spec.ragged_names or spec.shared_names)
        if type(retention) is Fifo and plain:
            lanes = [one.lanes for one in encoder.columns.values()]
            self.turnover = core.Turnover(
                opened.fields, admission.space.arena, self._index.free, retention.queue, lanes,
                [table.uses for table in self._sealed.tables], int(spec.schema_hash), features_of(spec), spec.context,
            )  # fmt: skip
            admission.release = self._release_in_core

    def settle(self) -> bool:
        """Seal the segments that are being encoded; return whether there were any.

        Raises: MemoryError: no room; the next call tries again.
        """
        pending = self._pending
        if self.behind is not None:
            self.behind.settle()
        return pending

    @property
    def _pending(self) -> bool:
        """Whether segments are being encoded: they must be sealed before others."""
        return self.behind is not None and bool(self.behind.pending)

    def seal_full(
        self,
        lanes: Ints,
        max_rows: int,
        observed: Callable[[], Rows],
        coming: Rows | None = None,
        reserve: Callable[[int, int], None] | None = None,
    ) -> None:
        """Seal the open segments of ``lanes`` [n] that have no room for another step.

        Args:
            max_rows: steps at which a segment counts as full.
            observed: returns the next steps' observations by field [n, *shape]. ``coming``: as for ``Lanes.full``.
            reserve: makes room for the step of a position in the segment of a slot, before any other lane's segment is
                sealed, or the one before it: the segment has the coming step's observation, also if that is refused.

        Raises: MemoryError, OSError: no room; some may be sealed.
        """
        self.settle()
        full: Sequence[int] = self._opened.full(lanes, max_rows, coming)
        if self._sealed.shared:
            full = sorted({*full, *self._sealed.shared.full(self._opened.slots[lanes])})
        if not full:
            return
        if reserve is not None:
            for i in set(range(len(lanes))).difference(full):
                reserve(i, int(self._opened.slots[lanes[i]]))
        rows = observed()
        self._encoder.limit_trials(MAX_TRIALS)
        try:
            self._inventory.changes += 1
            while full:
                if not self._pending:
                    full = self._seal_in_core(full, lanes, rows)
                if full and self._try_codecs(int(lanes[full[0]])):
                    continue
                for i in full[:1]:
                    names = self._opened.layout.names
                    successor = {c: rows[names[c]][i] for c in self._opened.layout.obs_columns}
                    self._roll(int(lanes[i]), successor, None if reserve is None else partial(reserve, i))
                full = full[1:]
        finally:
            self._encoder.limit_trials(math.inf)
            if self.behind is not None:
                self.behind.wake()

    def seal_open(self, lane: int) -> None:
        """Seal the lane's open segment, which is not empty and ends an episode, before it is full.

        Raises: MemoryError, OSError: no room; nothing changed.
        """
        self._roll(lane, {})

    def abandon(self, lane: int) -> None:
        """Evict the rows of the lane's open segment, though it is not sealed."""
        going_on = not self._opened.ended(lane)
        context = self._opened.columns.context_behind(int(self._opened.slots[lane])) if going_on else {}
        following, successor = self.prepare_next(lane, self._opened.successor(lane) if going_on else None)
        self.go_on(lane, following, False, context, going_on, successor)

    def prepare_next(
        self, lane: int, successor: Mapping[int, Bytes] | None = None, reserve: Callable[[int], None] | None = None
    ) -> tuple[int, Mapping[int, Bytes] | None]:
        """Return a slot for the lane's next segment, and the ``successor`` for ``go_on``.

        Args:
            successor: observation of the next step, by column; of any length a row's bytes.
            reserve: makes room for that step in the segment of a slot.

        Raises: MemoryError; then no slot is taken.
        """
        highest = self._index.highest
        slot = self._admission.take_slot()
        try:
            if self._index.highest > highest:
                self._admission.check_index()
            self._opened.prepare(lane, slot)
            carried = None if successor is None else self._opened.columns.values.carry(slot, successor)
            if reserve is not None:
                reserve(slot)
            return slot, carried
        except BaseException:
            self._give_back(slot)
            raise

    def _give_back(self, slot: int) -> None:
        self._opened.columns.values.release(slot)
        self._index.give_back(slot)

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
        if self.behind is None or all(one.slot != slot for one in self.behind.pending):
            self._opened.columns.values.release(slot)

    def drops_for(self, error: BaseException) -> bool:
        """Return whether ``on_full`` drops the newest segment for ``error``."""
        return is_refusal(error) and self._admission.on_full == "drop_newest"

    # at once, or behind the caller

    def _roll(
        self, lane: int, successor: Mapping[int, npt.NDArray[Any]], reserve: Callable[[int], None] | None = None
    ) -> None:
        """Seal the lane's open segment and open its next.

        Args:
            successor: the next step's observation, by column. ``reserve``: as for ``prepare_next``.
        """
        index = self._index
        slot = int(self._opened.slots[lane])
        going_on = not self._opened.ended(lane)
        context = self._opened.columns.context_behind(slot) if going_on else {}
        known = {c: np.ascontiguousarray(row).reshape(-1).view(np.uint8) for c, row in successor.items()}
        values = self._opened.columns.values
        used = values.used(slot)
        if going_on:
            self._opened.write_successor(lane, successor)
            self._inventory.changes += 1
        following, carried = -1, None
        try:
            following, carried = self.prepare_next(lane, known if going_on else None, reserve)
            self._try_codecs(lane)
            kept = self.seal(lane, slot, following)
        except BaseException as error:  # out of memory, disk full, or an interrupt by the user
            if following < 0 or not self.drops_for(error):
                index.frames[slot] -= going_on  # the successor was not appended after all
                values.take_back(used)
                if following >= 0:
                    self._give_back(following)
                raise
            kept = False
            self._inventory.dropped_steps += int(index.rows[slot])
        self.go_on(lane, following, kept, context, going_on, carried)

    def _try_codecs(self, lane: int) -> bool:
        """Take the outcome of a trial of codecs that is due before the lane's segment is sealed, or begin a later one.

        A trial that begins now is for later segments. Returns whether either was done.
        """
        rows = self._opened.columns.all_so_far(int(self._opened.slots[lane]))
        if self._pending and self._encoder.depends_on_others(lane, rows):
            self.settle()
        return self._encoder.try_later(lane, rows)

    def seal(self, lane: int, slot: int, following: int) -> bool:
        """Seal the lane's open segment, which is in ``slot``, or have it encoded behind the caller.

        Args:
            following: slot of the lane's next segment.

        Returns False if the retention rejects it.

        Raises:
            MemoryError, OSError: there is no room; the segment is still open.
        """
        if self.behind is not None:
            if self.behind.take(lane, slot, following):
                return True
            self.behind.settle()  # first seal the segments that became full earlier, as they are evicted earlier
        if not self._admission.admits(slot):
            return False
        columns: list[SegmentColumn] = []
        places: list[int] = []
        try:
            self._encoder.encode(lane, self._opened.columns.all_so_far(slot), columns, places)
            packed, begins = self._opened.pack(lane, slot, columns)
        except BaseException:
            self._sealed.drop_dictionaries(places)
            raise
        return self._admission.keep(slot, int(self._index.rows[slot]), packed, begins, columns, places)

    # in the core

    def in_core(self) -> tuple[core.Turnover | None, list[core.Items] | None]:
        """Return the core's sealer for the call that appends steps, and the views' items that it updates on evictions.

        ``None``: the caller must seal, and evict. Both are valid until the log has changed.
        """
        if self.turnover is None:
            return None, None
        admission = self._admission
        seals = admission.ledger.ram is None and not self._opened.annotations and not self._pending
        told_here = self._sealed.damaged or admission.interrupted  # these evictions are Python's to tell, or to finish
        return self.turnover if seals else None, None if told_here else self._inventory.followers

    def _seal_in_core(self, positions: Sequence[int], lanes: Ints, frames: Rows) -> Sequence[int]:
        """Seal the open segments of the lanes at these ``positions``, in turn; return the remaining positions.

        Stops at the first segment that the core cannot encode.

        Args:
            lanes: int64 [n]. ``frames``: observations of their next steps by field [n, *shape].

        Raises: MemoryError: some may be sealed.
        """
        opened = self._opened
        if self.turnover is None or opened.annotations:
            return positions
        rows = {name: np.ascontiguousarray(frames[name]) for name in opened.layout.spec.obs_names}
        opened.any_known = True
        while positions:
            self._admission.fit_memory()
            some = np.array(positions)
            followers = self.in_core()[1]
            found = self.turnover.seal(
                *self._arrays(), opened.first_lane, lanes[some], some, rows, len(lanes), followers
            )
            done = found if found >= 0 else -1 - found
            positions = positions[done:]
            if done < len(some) and (found >= 0 or self._admission.free_memory() is not Made.ROOM):
                break
        return positions

    def _release_in_core(self, slot: int) -> bool:
        """Free an evicted segment and its slot in the core; return whether the core could.

        It cannot if a dictionary is freed with the segment.
        """
        if self.turnover is None or not self.turnover.release(*self._arrays(), slot):
            return False
        self._sealed.damaged.pop(slot, None)
        return True

    def _arrays(self) -> tuple[Bytes, core.IndexArrays, core.LaneArrays, Int32s, Ints]:
        """Return the log's arrays, which are replaced as it grows."""
        inventory = self._inventory
        return self._opened.arena.memory, self._index.arrays, self._opened.arrays, inventory.oldest, inventory.counts
