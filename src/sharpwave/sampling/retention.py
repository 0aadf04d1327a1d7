"""Retention policies: which sealed segment a full store evicts."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from sharpwave.arguments import is_integer
from sharpwave.arrays import Floats, Ints
from sharpwave.sampling.sampler_protocol import checked_array

Priorities = Callable[[Ints], Floats | None]
"""Mean priorities of the steps in slots [n]; ``None`` where no step has a priority."""


class Newcomer(NamedTuple):
    """New segment: its slot, and the id of its first step."""

    slot: int
    id: int


class Retention(Protocol):
    """Policy that keeps account of sealed segments, by slot, and chooses which to evict. A store works on its own
    copy."""

    @property
    def in_order(self) -> bool:
        """Whether segments are evicted in the order in which they were added."""

    @property
    def threshold(self) -> float:
        """Threshold of segments' keys, in [0, 1): segments with a key at or above it were evicted. 1 without keys."""

    def admits(self, id_: int) -> bool:
        """Return whether the segment whose first step is ``id_`` is kept while there is room."""

    def add(self, slot: int, id_: int) -> None:
        """Add a segment that ``admits`` accepts."""

    def choose(self, newcomer: Newcomer | None, priorities: Priorities) -> int:
        """Remove and return the slot of the segment to evict; at least one segment is held.

        Args:
            newcomer: an accepted segment that was not added yet; its slot is returned if it is to be evicted itself.
            priorities: returns the priorities of the steps in slots, by the views.
        """

    def discard(self, slot: int) -> None:
        """Undo the last ``add``."""

    def clear(self) -> None:
        """Forget all segments: the store was emptied, and starts over."""

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments as JSON values."""

    def order(self) -> dict[str, Any]:
        """Return the state for ``restore_order``: ``slots`` int64 [segments], and other arrays of the retention."""

    def restore_order(self, order: dict[str, Any]) -> None:
        """Restore the result of ``order``; called before any other method.  Raises: ValueError."""

    def __len__(self) -> int:
        """Return the number of segments held."""


@dataclass
class Reservoir:
    """Reservoir sampling of segments: of n sealed segments each is held with the same probability, k/n for k held.

    Each segment has a random key; the store holds the segments below a threshold, which drops to the largest held key
    when room is needed. So a segment may be evicted as soon as it is sealed. This is Vitter's reservoir (1985) for any
    k, as bottom-k sampling. Steps whose n-step return reaches into an evicted segment can no longer be sampled.

    A key is a hash of the seed and of the segment's id, which is never reused.

    Args:
        seed: of the keys.

    Raises:
        ValueError: naming the seed.
    """

    seed: int = 0
    in_order: ClassVar[bool] = False
    _heap: list[tuple[float, int]] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if not is_integer(self.seed) or self.seed < 0:
            raise ValueError(f"Reservoir: seed={self.seed!r}, expected an integer of at least 0")
        self.threshold = 1.0

    def key(self, id_: int) -> float:
        """Return a segment's key, in [0, 1): the upper 53 bits of a BLAKE2b hash."""
        digest = hashlib.blake2b(f"{int(self.seed)} {id_}".encode(), digest_size=8).digest()
        return (int.from_bytes(digest, "little") >> 11) * 2.0**-53

    def admits(self, id_: int) -> bool:
        """Return whether the segment's key is below the threshold."""
        return self.key(id_) < self.threshold

    def add(self, slot: int, id_: int) -> None:
        """Add a segment. Cost: O(log segments)."""
        heapq.heappush(self._heap, (-self.key(id_), slot))

    def choose(self, newcomer: Newcomer | None, priorities: Priorities) -> int:
        """Choose the segment of the largest key. Cost: O(log segments)."""
        if newcomer is not None and (key := self.key(newcomer.id)) > -self._heap[0][0]:
            self.threshold = key
            return newcomer.slot
        key, slot = heapq.heappop(self._heap)
        self.threshold = min(self.threshold, -key)  # rows that were open when the store was closed were not rejected
        return slot

    def discard(self, slot: int) -> None:
        """Remove a segment. Cost: O(segments)."""
        self._heap = [entry for entry in self._heap if entry[1] != slot]
        heapq.heapify(self._heap)

    def clear(self) -> None:
        """Forget all segments, and admit any again."""
        self._heap, self.threshold = [], 1.0

    def settings(self) -> dict[str, Any]:
        """Return ``seed``."""
        return {"seed": int(self.seed)}

    def order(self) -> dict[str, Any]:
        """Return ``slots``, their keys, and the threshold."""
        heap = sorted(self._heap)
        return {
            "slots": np.array([slot for _, slot in heap], np.int64),
            "keys": np.array([key for key, _ in heap], np.float64),
            "threshold": self.threshold,
        }

    def restore_order(self, order: dict[str, Any]) -> None:
        """Restore segments, keys and threshold. Cost: O(segments)."""
        slots, keys = checked_array(order, "slots", np.int64), checked_array(order, "keys", np.float64)
        self._heap = list(zip(keys.tolist(), slots.tolist(), strict=True))  # sorted, and so a heap
        self.threshold = float(order["threshold"])

    def __len__(self) -> int:
        return len(self._heap)


@dataclass
class LowestPriority:
    """Retention that evicts the segment of the lowest mean priority (``p^alpha``), of equal segments the oldest.

    By the priorities of the store's first view with ``Prioritized``; without one, it evicts the oldest. Steps that were
    sampled ``max_times_sampled`` times count 0, deleted steps not at all; a segment none of whose steps can be sampled
    yet is kept longest. Steps whose n-step return reaches into an evicted segment can no longer be sampled.
    """

    in_order: ClassVar[bool] = False
    threshold: ClassVar[float] = 1.0
    _slots: dict[int, None] = field(default_factory=dict, init=False, repr=False)

    def admits(self, id_: int) -> bool:
        """Return True: a segment's priority is meaningful only beside the others'."""
        return True

    def add(self, slot: int, id_: int) -> None:
        """Add a segment as the newest. Cost: O(1)."""
        self._slots[slot] = None

    def choose(self, newcomer: Newcomer | None, priorities: Priorities) -> int:
        """Choose the segment of the lowest mean priority. Cost: O(segments); with ``Prioritized`` 0.1 us a segment."""
        slots = np.fromiter(self._slots, np.int64, len(self._slots))
        if newcomer is not None:
            slots = np.append(slots, newcomer.slot)  # the newest
        means = priorities(slots)
        slot = int(slots[0 if means is None else np.argmin(means)])
        self._slots.pop(slot, None)
        return slot

    def discard(self, slot: int) -> None:
        """Remove a segment. Cost: O(1)."""
        del self._slots[slot]

    def clear(self) -> None:
        """Forget all segments."""
        self._slots.clear()

    def settings(self) -> dict[str, Any]:
        """Return an empty dict: there are no settings."""
        return {}

    def order(self) -> dict[str, Any]:
        """Return ``slots``, oldest first."""
        return {"slots": np.fromiter(self._slots, np.int64, len(self._slots))}

    def restore_order(self, order: dict[str, Any]) -> None:
        """Restore the segments and their order. Cost: O(segments)."""
        self._slots = dict.fromkeys(checked_array(order, "slots", np.int64).tolist())

    def __len__(self) -> int:
        return len(self._slots)
