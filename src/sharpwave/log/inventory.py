"""Inventory of a log: every lane's chain of segments, counts of their steps, and the listeners to evictions."""

from __future__ import annotations

import numpy as np

from sharpwave.arrays import Floats, Int32s, Ints
from sharpwave.memory.segment_index import SegmentIndex
from sharpwave.native import core


class _Count:
    """Entry of ``Inventory.counts``."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, inventory: Inventory, owner: type) -> int:
        return inventory.counts.item(self._place)

    def __set__(self, inventory: Inventory, number: int) -> None:
        inventory.counts[self._place] = number


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
        counts: int64 [6], in the order of the next six; the core appends steps, evicts others and counts them at
            once.
        held_steps: steps held, open segments included. ``total_steps``: steps ever appended.
        changes: incremented with every change of the held steps, so that readers notice.
        evicted_steps: steps evicted, or removed from open segments. ``evicted_segments``: segments evicted.
        sealed_bytes: of all sealed segments, on disk or in memory.
        dropped_steps: steps that ``on_full`` dropped.
        oldest: int32 [lanes], slot of each lane's oldest segment.
        listeners: notified of evictions and of growth, in this order.
    """

    held_steps, total_steps, changes = _Count(0), _Count(1), _Count(2)
    evicted_steps, evicted_segments, sealed_bytes = _Count(3), _Count(4), _Count(5)

    def __init__(self, index: SegmentIndex) -> None:
        self._index = index
        self.counts = np.zeros(6, np.int64)
        self.dropped_steps = 0
        self.oldest = np.zeros(0, np.int32)
        self.listeners: list[LogListener] = []

    def tell(self, listener: LogListener) -> None:
        """Add a listener, behind the others."""
        self.listeners.append(listener)
        self.changes += 1

    @property
    def followers(self) -> list[core.Items] | None:
        """All listeners' followers, in order; ``None``: ``announce`` must notify one of evictions."""
        found: list[core.Items] = []
        for listener in self.listeners:
            if (followers := listener.followers) is None:
                return None
            found += followers
        return found

    @property
    def lanes(self) -> int:
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
