"""How ``ram`` is divided: between encoded segments, batches, and all that is beside them."""

from __future__ import annotations

from collections.abc import Callable

MAX_BATCH_SHARE = 0.5
"""Of ``ram``, for batches."""


class MemoryLedger:
    """The parts of a store's memory, each with what says how many bytes it takes.

    The arena of segments gets what of ``ram`` no other part takes.

    Attributes:
        ram: limit of all parts together in bytes; ``None``: none.
        kept_for_batches: bytes that segments leave to batches even while these take less.
    """

    def __init__(self, ram: int | None) -> None:
        self.ram = ram
        self.kept_for_batches = 0
        self._beside: dict[str, Callable[[], int]] = {}
        self._of_batches: list[Callable[[], int]] = []

    def enter(self, part: str, nbytes: Callable[[], int]) -> None:
        """Count ``nbytes()`` as the memory of a part beside segments and batches."""
        self._beside[part] = nbytes

    def enter_for_batches(self, nbytes: Callable[[], int]) -> None:
        """Count ``nbytes()`` as memory of batches."""
        self._of_batches.append(nbytes)

    def parts(self) -> dict[str, int]:
        """Return the bytes of every part beside segments and batches, by name."""
        return {part: nbytes() for part, nbytes in self._beside.items()}

    def beside_bytes(self, ram: int) -> int:
        """Return the bytes that segments and batches leave to the other parts under a limit of ``ram``."""
        # A view that is asked again after a while grows with what it finds, before the arena is limited again.
        return sum(nbytes() for nbytes in self._beside.values()) + ram // 256

    @property
    def batch_bytes(self) -> int:
        """Memory of batches: those that are held, what is free for the next, and what making them takes."""
        return sum(nbytes() for nbytes in self._of_batches)

    def arena_bytes(self, ram: int) -> int:
        """Return the bytes that ``ram`` leaves to segments."""
        return ram - self.beside_bytes(ram) - max(self.kept_for_batches, self.batch_bytes)

    def batch_room_bytes(self, ram: int, segment_bytes: int) -> int:
        """Return the bytes that batches may take beyond what they have, where segments take ``segment_bytes``."""
        return min(int(ram * MAX_BATCH_SHARE), ram - segment_bytes - self.beside_bytes(ram)) - self.batch_bytes
