"""Retention: which sealed segments a full store evicts."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from sharpwave.sampling.protocol import Floats, Ints, checked_array

Priorities = Callable[[Ints], Floats | None]
"""Mean priorities of the steps in slots [n]; ``None`` where no step has one."""


class Newcomer(NamedTuple):
    """A segment that is to be kept: the slot it is in, and the id of its first step."""

    slot: int
    id: int


class Retention(Protocol):
    """Keeps account of the sealed segments, by slot, and chooses among them. A store works with a copy of its own."""

    @property
    def in_order(self) -> bool:
        """Whether segments are evicted in the order in which they came."""

    @property
    def threshold(self) -> float:
        """Where segments have keys in [0, 1): those whose keys are not below this were evicted. Else 1."""

    def admits(self, id_: int) -> bool:
        """Return whether the segment whose first step has ``id_`` is kept as long as there is room."""

    def add(self, slot: int, id_: int) -> None:
        """Count a segment that ``admits`` admits as held."""

    def choose(self, newcomer: Newcomer | None, priorities: Priorities) -> int:
        """Return the slot whose segment is to be evicted, which counts as held no more; at least one is held.

        Args:
            newcomer: an admitted segment that is not held yet. If it is to go rather than any that is held, its slot
                is returned.
            priorities: of the steps in slots, by the views.
        """

    def discard(self, slot: int) -> None:
        """Undo the last ``add``."""

    def settings(self) -> dict[str, Any]:
        """Return its constructor's arguments, as JSON has them."""

    def order(self) -> dict[str, Any]:
        """Return what ``restore_order`` needs: ``slots`` int64 [segments], and what else it remembers."""

    def restore_order(self, order: dict[str, Any]) -> None:
        """Go on as the one whose ``order`` it was; called before anything else.  Raises: ValueError."""

    def __len__(self) -> int:
        """Return the number of segments held."""


@dataclass
class Reservoir:
    """Holds every segment that was ever sealed with the same probability: of n with k/n, where k are held.

    Each has a random key; the store holds those below a threshold, which sinks to the largest key held whenever room
    is needed. So a segment may be evicted as soon as it is sealed. This is Vitter's reservoir (1985) for any k, drawn
    as bottom-k sampling. Steps whose n-step return reaches into an evicted segment cannot be sampled any more.

    A key is a hash of the seed and of the segment's id, which no other segment ever has. So a store on disk that was
    not closed needs nothing but the threshold to know which of the segments in its files had been evicted. The
    threshold is written down before a segment is rejected, and before a file is deleted: whatever older one a crash
    leaves, each segment whose key is below it is there, and none of the others is taken back.

    Args:
        seed: of the keys.

    Raises:
        ValueError: naming the seed.
    """

    seed: int = 0
    in_order: ClassVar[bool] = False
    _heap: list[tuple[float, int]] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, (int, np.integer)) or self.seed < 0:
            raise ValueError(f"Reservoir: seed={self.seed!r}, expected an integer of at least 0")
        self.threshold = 1.0

    def key(self, id_: int) -> float:
        """Return a segment's key, in [0, 1): the upper 53 bits of a BLAKE2b hash."""
        digest = hashlib.blake2b(f"{int(self.seed)} {id_}".encode(), digest_size=8).digest()
        return (int.from_bytes(digest, "little") >> 11) * 2.0**-53

    def admits(self, id_: int) -> bool:
        """Return whether its key is below the threshold."""
        return self.key(id_) < self.threshold

    def add(self, slot: int, id_: int) -> None:
        """Cost: O(log segments)."""
        heapq.heappush(self._heap, (-self.key(id_), slot))

    def choose(self, newcomer: Newcomer | None, priorities: Priorities) -> int:
        """Choose the largest key. Cost: O(log segments)."""
        if newcomer is not None and (key := self.key(newcomer.id)) > -self._heap[0][0]:
            self.threshold = key
            return newcomer.slot
        key, slot = heapq.heappop(self._heap)
        self.threshold = -key
        return slot

    def discard(self, slot: int) -> None:
        """Cost: O(segments)."""
        self._heap = [entry for entry in self._heap if entry[1] != slot]
        heapq.heapify(self._heap)

    def settings(self) -> dict[str, Any]:
        """Return ``seed``."""
        return {"seed": int(self.seed)}

    def order(self) -> dict[str, Any]:
        """Return ``slots`` with their keys, and the threshold."""
        heap = sorted(self._heap)
        return {
            "slots": np.array([slot for _, slot in heap], np.int64),
            "keys": np.array([key for key, _ in heap], np.float64),
            "threshold": self.threshold,
        }

    def restore_order(self, order: dict[str, Any]) -> None:
        """Cost: O(segments)."""
        slots, keys = checked_array(order, "slots", np.int64), checked_array(order, "keys", np.float64)
        self._heap = list(zip(keys.tolist(), slots.tolist(), strict=True))  # in order, and so a heap
        self.threshold = float(order["threshold"])

    def __len__(self) -> int:
        return len(self._heap)


@dataclass
class LowestPriority:
    """Evicts the segment whose steps have the lowest priority (``p^alpha``) on average, of equal ones the oldest.

    By the priorities of the store's first view with ``Prioritized``; without one, it evicts the oldest. Steps that were
    sampled ``max_times_sampled`` times count 0; a segment none of whose steps can be sampled yet is kept longest. Steps
    whose n-step return reaches into an evicted segment cannot be sampled any more.

    On disk, evicted segments whose files are still there come back when the store is opened after its process ended,
    and priorities do not: the oldest are evicted, until a view has new ones. A checkpoint keeps both.
    """

    in_order: ClassVar[bool] = False
    threshold: ClassVar[float] = 1.0
    _slots: dict[int, None] = field(default_factory=dict, init=False, repr=False)

    def admits(self, id_: int) -> bool:
        """Return True: what a segment's steps are worth shows beside the others."""
        return True

    def add(self, slot: int, id_: int) -> None:
        """Cost: O(1)."""
        self._slots[slot] = None

    def choose(self, newcomer: Newcomer | None, priorities: Priorities) -> int:
        """Choose the lowest mean priority. Cost: O(segments); with ``Prioritized`` 0.1 us a segment."""
        slots = np.fromiter(self._slots, np.int64, len(self._slots))
        if newcomer is not None:
            slots = np.append(slots, newcomer.slot)  # the newest
        means = priorities(slots)
        slot = int(slots[0 if means is None else np.argmin(means)])
        self._slots.pop(slot, None)
        return slot

    def discard(self, slot: int) -> None:
        """Cost: O(1)."""
        del self._slots[slot]

    def settings(self) -> dict[str, Any]:
        """Return nothing: there are none."""
        return {}

    def order(self) -> dict[str, Any]:
        """Return ``slots``, oldest first."""
        return {"slots": np.fromiter(self._slots, np.int64, len(self._slots))}

    def restore_order(self, order: dict[str, Any]) -> None:
        """Cost: O(segments)."""
        self._slots = dict.fromkeys(checked_array(order, "slots", np.int64).tolist())

    def __len__(self) -> int:
        return len(self._slots)
