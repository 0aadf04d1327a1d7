"""Draws of streams whose batches were not returned yet: checkpoints keep them, closing returns their items."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sharpwave.native.forks import path
from sharpwave.sampling.protocol import checked_array
from sharpwave.views.items import Items

if TYPE_CHECKING:
    from sharpwave.log.step_log import StepLog

Ints = npt.NDArray[np.int64]
ARRAYS = {"ids": np.int64, "probabilities": np.float64, "weights": np.float32, "uniforms": np.float64}
"""Arrays of a draw, of which only some views have the last."""


@dataclass(eq=False)
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
    slots: npt.NDArray[np.int64] | None = None
    nbytes: int = 0

    @property
    def arrays(self) -> dict[str, Any]:
        """Its arrays by name."""
        found = {name: getattr(self, name) for name in ARRAYS}
        return {name: array for name, array in found.items() if array is not None}


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
