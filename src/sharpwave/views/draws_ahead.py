"""Draws of streams for future batches: their segments are read meanwhile, checkpoints keep them, closing returns their
items."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharpwave.arrays import Ints
from sharpwave.log.step_log import StepLog
from sharpwave.native.forks import path
from sharpwave.sampling.sampler_protocol import checked_array
from sharpwave.views.items import Items, Undo

AHEAD = 0.75
"""Share of the memory for segments that prefetching may fill. The rest is for batches drawn now."""
ARRAYS = {"ids": np.int64, "probabilities": np.float64, "weights": np.float32, "uniforms": np.float64}
"""Arrays of a draw, of which only some views have the last."""


@dataclass(eq=False, slots=True)
class Drawn:
    """Draw of a view's part of a future batch.

    Attributes:
        ids, probabilities, weights: as of a batch. ``uniforms``: random numbers of a view that draws them.
        slots: of segments read and pinned for it, ``nbytes`` theirs.
    """

    ids: Any
    probabilities: Any
    weights: Any
    uniforms: Any = None
    slots: Ints | None = None
    nbytes: int = 0

    @property
    def arrays(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in ARRAYS}
        return {name: array for name, array in found.items() if array is not None}


class DrawsAhead:
    """Draws of one view for the future batches of a stream. The store's lock is held, except in ``wait_for``.

    Segments are read ahead as far as three quarters of the store's memory for them allow, counted over all its streams:
    a segment that was read must still be there when it is used.

    Args:
        view: kept alive: only live views are notified of evictions.

    Attributes:
        drawn: draws not used yet, oldest first.
    """

    def __init__(self, view: Any) -> None:
        self._view, self._source = view, view.source
        self.drawn: deque[Drawn] = deque()
        with view.lock:
            self._source.unused.add(self, self.drawn)
            self._process = self._source.unused.process

    def draw(self, count: int, beta: float | None) -> Undo:
        """Draw ``count`` items, which can be drawn; return a function that undoes it while the lock is still held."""
        drawn: Drawn
        undo: Undo
        drawn, undo = self._source.draw_ids(count, beta)
        self.drawn.append(drawn)

        def undraw() -> None:
            self._source.unused.unpin(self.drawn.pop())
            undo()

        return undraw

    def read(self) -> None:
        """Start to read the segments of the next batches, as far as there is room to keep them."""
        log = self._source.log
        segment_cache = log.segment_cache
        if segment_cache is None or log.closed:
            return
        for batch in self.drawn:
            if batch.slots is None:
                slots = self._needed(batch)
                nbytes = int(log.index.nbytes[slots].sum())
                if segment_cache.kept_bytes + nbytes > AHEAD * log.segment_bytes:
                    break
                batch.slots, batch.nbytes = slots, nbytes
                segment_cache.kept_bytes += nbytes
                segment_cache.pin(slots)
                if columns := self._source.view.read_columns:
                    slots = slots[~segment_cache.reads_apart(slots, columns)]  # columns are read when they are needed
                segment_cache.fetch(slots)

    def _needed(self, batch: Drawn) -> Ints:
        """Return slots of the sealed segments that a batch's items need, as far as they are still held."""
        items, there = self._source.items.resolve(batch.ids)
        uniforms = np.ones(len(items)) if batch.uniforms is None else batch.uniforms
        slots = self._source.view.drawn_segments(items[there], uniforms[there]).reshape(-1)
        sealed: Ints = slots[self._source.log.index.sealed[slots] > 0]
        return sealed

    def wait_for(self, one: Drawn) -> None:
        """Wait until the segments of a draw are read, while others append and sample."""
        segment_cache = self._source.log.segment_cache
        if segment_cache is not None and one.slots is not None:
            segment_cache.wait(one.slots)

    def go_on(self, used: Drawn) -> None:
        """Unpin the segments of a draw that was used, and read on."""
        self._source.unused.unpin(used)
        self._source.gate.notify()  # they may be evicted
        self.read()

    @property
    def inherited(self) -> bool:
        """Whether the draws belong to the parent of this process, a fork that did not call ``clear`` yet."""
        return self._process is not path()

    def clear(self) -> None:
        """Discard all draws; their items can be sampled again, where uses are limited."""
        self._process = path()
        self._source.unused.release(self.drawn)
        self._source.gate.notify()


class UnusedDraws:
    """Unused draws of one view's streams; it keeps no stream alive. The store's lock is held throughout.

    Attributes:
        resumed: draws of streams before a checkpoint, for the next streams made.
        process: the fork that made the view. ``dropped``: deleted streams, appended by any thread.
    """

    def __init__(self, log: StepLog, items: Items) -> None:
        self.process = path()
        self._log, self._items = log, items
        self._made: list[tuple[weakref.ref[Any], deque[Drawn]]] = []
        self.dropped: deque[Any] = deque()
        self.resumed: list[list[dict[str, Any]]] = []

    def add(self, stream: Any, drawn: deque[Drawn]) -> None:
        """Register a new stream, whose draws will be in ``drawn``; it resumes one from a checkpoint, if any is left.

        Batches of other sizes are resumed as well.
        """
        for state in self.resumed.pop(0) if self.resumed else ():
            _, there = self._items.resolve(state["ids"])
            drawn.append(Drawn(**state | {"ids": np.where(there, state["ids"], -1)}))
        self.forget_dropped()
        self._made.append((weakref.ref(stream, self.dropped.append), drawn))

    def forget_dropped(self) -> None:
        """Release draws of streams that were deleted, as ``Stream.close`` does."""
        if self.dropped:
            self.dropped.clear()
            unused = deque(one for ref, drawn in self._made if ref() is None for one in drawn)
            self._made = [one for one in self._made if one[0]() is not None]
            self.release(unused)

    def release(self, drawn: deque[Drawn]) -> None:
        """Discard draws: unpin their segments, and make their items available again where their uses are limited."""
        if drawn:
            ids = np.concatenate([one.ids for one in drawn])
            while drawn:
                self.unpin(drawn.popleft())
            if not self._log.closed:
                self._items.take_back(ids)

    def unpin(self, one: Drawn) -> None:
        """Unpin the segments that were read for a draw."""
        if self._log.segment_cache is not None and one.slots is not None:
            self._log.segment_cache.kept_bytes -= one.nbytes
            self._log.segment_cache.pin(one.slots, -1)
            one.slots, one.nbytes = None, 0

    def state(self) -> list[list[dict[str, Any]]]:
        """Return each stream's unused draws, in the order of making, for ``resumed``."""
        self.forget_dropped()
        in_use = (drawn for ref, drawn in self._made if ref() is not None)
        copies = [[{name: array.copy() for name, array in one.arrays.items()} for one in drawn] for drawn in in_use]
        return [*copies, *self.resumed]

    def ids(self) -> list[Ints]:
        """Return the ids of each stream's draws whose batches were not returned yet."""
        self.forget_dropped()
        return [one.ids for _, drawn in self._made for one in drawn]

    @property
    def nbytes(self) -> int:
        """Bytes of memory of all draws."""
        return sum(array.nbytes for _, drawn in self._made for one in drawn for array in one.arrays.values())


def checked(batch: Any) -> dict[str, Any]:
    """Return a batch of ``UnusedDraws.state``.  Raises: ValueError: invalid state."""
    names = [name for name in ARRAYS if name != "uniforms" or (isinstance(batch, dict) and name in batch)]
    found = {name: checked_array(batch, name, ARRAYS[name]) for name in names}
    if "uniforms" in found and not ((found["uniforms"] >= 0) & (found["uniforms"] <= 1)).all():
        raise ValueError("drawn ahead: uniforms, expected numbers from 0 to 1")
    if len({len(array) for array in found.values()}) > 1 or not len(found["ids"]):
        raise ValueError("drawn ahead: arrays of different lengths, expected one of each an item")
    return found
