"""What leaves when the store is full: which of the sealed segments."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from .samplers import Floats, Ints, checked_array


class Retention(Protocol):
    """Keeps account of the sealed segments, by slot, and chooses among them. A store works with a copy of its own."""

    @property
    def in_order(self) -> bool:
        """Whether segments leave in the order in which they came."""

    def add(self, slot: int) -> bool:
        """A segment is being sealed. False: it is not kept."""

    def choose(self) -> int:
        """The slot whose segment leaves; it counts no more. At least one is there."""

    def discard(self, slot: int) -> None:
        """The segment added last was not sealed after all."""

    def order(self) -> dict[str, Any]:
        """What :meth:`restore` needs: ``slots`` int64 [segments], and what else it remembers."""

    def restore(self, order: dict[str, Any]) -> None:
        """Go on as the one whose ``order`` it was; called before anything else.  Raises: ValueError."""

    def __len__(self) -> int:
        """Segments there."""


@dataclass
class Reservoir:
    """Every segment that was ever sealed is held with the same probability: of n with k/n, where k are held.

    Each gets a random key; the store holds those below a threshold, which sinks to the largest key held whenever room
    is needed. So a segment may leave as soon as it is sealed. This is Vitter's reservoir (1985) for any k, drawn as
    bottom-k sampling. Steps whose n-step return reaches into a segment that has left cannot be sampled any more.

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
        self._rng = np.random.default_rng(self.seed)
        self._threshold = 1.0

    def add(self, slot: int) -> bool:
        """Cost: O(log segments)."""
        key = float(self._rng.random())
        if key >= self._threshold:
            return False
        heapq.heappush(self._heap, (-key, slot))
        return True

    def choose(self) -> int:
        """The largest key. Cost: O(log segments)."""
        key, slot = heapq.heappop(self._heap)
        self._threshold = -key
        return slot

    def discard(self, slot: int) -> None:
        """Cost: O(segments)."""
        self._heap = [entry for entry in self._heap if entry[1] != slot]
        heapq.heapify(self._heap)

    def order(self) -> dict[str, Any]:
        """With keys, threshold and the random state."""
        heap = sorted(self._heap)
        return {
            "slots": np.array([slot for _, slot in heap], np.int64),
            "keys": np.array([key for key, _ in heap], np.float64),
            "threshold": self._threshold,
            "rng": self._rng.bit_generator.state,
        }

    def restore(self, order: dict[str, Any]) -> None:
        """Cost: O(segments)."""
        slots, keys = checked_array(order, "slots", np.int64), checked_array(order, "keys", np.float64)
        self._heap = list(zip(keys.tolist(), slots.tolist(), strict=True))  # in order, and so a heap
        self._threshold = float(order["threshold"])
        self._rng.bit_generator.state = order["rng"]

    def __len__(self) -> int:
        return len(self._heap)


@dataclass
class LowestPriority:
    """The segment leaves whose steps have the lowest priority (``p^alpha``) on average, of equal ones the oldest.

    By the priorities of the store's first view with ``Prioritized``; as long as there is none, the oldest leaves. Steps
    that were sampled ``max_times_sampled`` times count 0; a segment none of whose steps can be sampled yet stays
    longest. Steps whose n-step return reaches into a segment that has left cannot be sampled any more.
    """

    in_order: ClassVar[bool] = False
    _slots: dict[int, None] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.priorities: Callable[[Ints], Floats | None] = lambda slots: None
        """Set by the store: mean priorities of the steps in slots, or ``None``."""

    def add(self, slot: int) -> bool:
        """Cost: O(1)."""
        self._slots[slot] = None
        return True

    def choose(self) -> int:
        """Cost: O(segments); with ``Prioritized`` 0.1 us a segment."""
        slots = np.fromiter(self._slots, np.int64, len(self._slots))
        priorities = self.priorities(slots)
        slot = int(slots[0 if priorities is None else np.argmin(priorities)])
        del self._slots[slot]
        return slot

    def discard(self, slot: int) -> None:
        """Cost: O(1)."""
        del self._slots[slot]

    def order(self) -> dict[str, Any]:
        """Oldest first."""
        return {"slots": np.fromiter(self._slots, np.int64, len(self._slots))}

    def restore(self, order: dict[str, Any]) -> None:
        """Cost: O(segments)."""
        self._slots = dict.fromkeys(checked_array(order, "slots", np.int64).tolist())

    def __len__(self) -> int:
        return len(self._slots)
