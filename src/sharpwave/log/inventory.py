"""Inventory of a log: every lane's chain of segments, counts of their steps, and the listeners to evictions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sharpwave.memory.segment_index import SegmentIndex
from sharpwave.native import core

Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

HELD, TOTAL, CHANGES, EVICTED, EVICTED_SEGMENTS, SEALED_BYTES = range(6)
"""Places in ``Inventory.counts``, as the core has them."""


class LogListener:
    """Base class for listeners to a log's segments; methods do nothing unless overridden."""

    @property
    def followers(self) -> list[core.Items] | None:
        """Items of views of which the core can drop what an eviction takes; ``None``: ``evicting`` must be called. A
        listener that has others changes the log, unless some were dropped."""
        return None

    def evicting(self, slot: int) -> None:
        """Forget the segment in ``slot``, whose rows can be read for the last time. A call that raised is repeated."""

    def growing(self, slots: int) -> None:
        """Prepare for ``slots`` slots.  Raises: MemoryError; then the log does not grow."""

    def priorities(self, slots: Ints) -> Floats | None:
        """Return the mean priorities of the steps in ``slots`` [n]; ``None`` where no step has one."""
        return None


class Inventory:
    """Segments of every lane in order, and counts of their steps.

    Attributes:
        counts: int64 [6], those below but for ``dropped_steps``: in an array, so that the core can append steps, evict
            others and count them at once.
        dropped_steps: steps that ``on_full`` dropped.
        oldest: int32 [lanes], slot of each lane's oldest segment.
        listeners: notified of evictions and of growth, in this order.
    """

    def __init__(self, index: SegmentIndex) -> None:
        self._index = index
        self.counts = np.zeros(6, np.int64)
        self.dropped_steps = 0
        self.oldest = np.zeros(0, np.int32)
        self.listeners: list[LogListener] = []

    @property
    def held_steps(self) -> int:
        """Steps held, open segments included."""
        return self.counts.item(HELD)

    @held_steps.setter
    def held_steps(self, steps: int) -> None:
        self.counts[HELD] = steps

    @property
    def total_steps(self) -> int:
        """Steps ever appended."""
        return self.counts.item(TOTAL)

    @total_steps.setter
    def total_steps(self, steps: int) -> None:
        self.counts[TOTAL] = steps

    @property
    def changes(self) -> int:
        """Number that is incremented with every change of what is held, so that readers notice."""
        return self.counts.item(CHANGES)

    @changes.setter
    def changes(self, number: int) -> None:
        self.counts[CHANGES] = number

    @property
    def evicted_steps(self) -> int:
        """Steps evicted, or removed from open segments."""
        return self.counts.item(EVICTED)

    @evicted_steps.setter
    def evicted_steps(self, steps: int) -> None:
        self.counts[EVICTED] = steps

    @property
    def evicted_segments(self) -> int:
        """Segments evicted."""
        return self.counts.item(EVICTED_SEGMENTS)

    @evicted_segments.setter
    def evicted_segments(self, segments: int) -> None:
        self.counts[EVICTED_SEGMENTS] = segments

    @property
    def sealed_bytes(self) -> int:
        """Bytes of all sealed segments, on disk or in memory."""
        return self.counts.item(SEALED_BYTES)

    @sealed_bytes.setter
    def sealed_bytes(self, nbytes: int) -> None:
        self.counts[SEALED_BYTES] = nbytes

    def tell(self, listener: LogListener) -> None:
        """Add a listener, behind the others."""
        self.listeners.append(listener)
        self.changes += 1

    @property
    def followers(self) -> list[core.Items] | None:
        """Those of all listeners, in order; ``None``: one must be told of evictions by ``announce``."""
        found: list[core.Items] = []
        for listener in self.listeners:
            if (followers := listener.followers) is None:
                return None
            found += followers
        return found

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return len(self.oldest)

    def add_lanes(self, oldest: Int32s) -> None:
        """Count further lanes: ``oldest`` with the slots of their first segments behind it."""
        self.changes += len(oldest) - self.lanes
        self.oldest = oldest

    def append(self, steps: int) -> None:
        """Count steps appended to open segments."""
        self.held_steps += steps
        self.total_steps += steps
        self.changes += 1

    def drop_last(self) -> None:
        """Count a step removed from an open segment."""
        self.held_steps -= 1
        self.evicted_steps += 1

    def chain(self, lane: int, slots: list[int], opened: int) -> None:
        """Link sealed segments, in order, before the lane's open one in the slot ``opened``."""
        self._index.chain([*slots, opened])
        self.oldest[lane] = slots[0]
        self.changes += 1

    def announce(self, slot: int) -> None:
        """Notify listeners that the segment in ``slot`` is about to be evicted."""
        for listener in self.listeners:
            listener.evicting(slot)

    def remove(self, slot: int) -> None:
        """Unlink a segment from its lane's chain, free its slot, and count its steps as evicted."""
        index = self._index
        core.unlink(index.arrays, self.oldest, slot)
        rows = int(index.rows[slot])
        index.give_back(slot)
        self.held_steps -= rows
        self.evicted_steps += rows
        self.evicted_segments += 1
        self.changes += 1

    def priorities(self, slots: Ints) -> Floats | None:
        """Return the mean priorities of the steps in ``slots`` [n] by the first listener that has any."""
        return next((p for one in self.listeners if (p := one.priorities(slots)) is not None), None)
