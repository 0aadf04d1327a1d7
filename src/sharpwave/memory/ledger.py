"""Division of ``ram`` between encoded segments, batches, and the rest."""

from __future__ import annotations

from collections.abc import Callable

MAX_BATCH_SHARE = 0.5
"""Share of ``ram`` for batches."""


class MemoryLedger:
    """Account of a store's memory by part, each with a function that returns its bytes.

    The arena of segments gets the rest of ``ram``.

    Attributes:
        ram: limit of all parts together in bytes; ``None``: none.
        kept_for_batches: bytes reserved for batches even while batches take less.
    """

    def __init__(self, ram: int | None) -> None:
        self.ram = ram
        self.kept_for_batches = 0
        self._beside: dict[str, Callable[[], int]] = {}
        self._of_batches: list[Callable[[], int]] = []

    def enter(self, part: str, nbytes: Callable[[], int]) -> None:
        """Enter a part beside segments and batches, of ``nbytes()`` bytes."""
        self._beside[part] = nbytes

    def enter_for_batches(self, nbytes: Callable[[], int]) -> None:
        """Enter ``nbytes()`` bytes of memory of batches."""
        self._of_batches.append(nbytes)

    def parts(self) -> dict[str, int]:
        """Return the bytes of every part beside segments and batches, by name."""
        return {part: nbytes() for part, nbytes in self._beside.items()}

    def beside_bytes(self, ram: int) -> int:
        """Return the bytes for other parts than segments and batches under a limit of ``ram``."""
        # A view sampled after a pause grows with new steps before the arena's limit is set again.
        return sum(nbytes() for nbytes in self._beside.values()) + ram // 256

    @property
    def batch_bytes(self) -> int:
        """Memory of batches: held ones, free blocks, and working memory."""
        return sum(nbytes() for nbytes in self._of_batches)

    def arena_bytes(self, ram: int) -> int:
        """Return the bytes that ``ram`` leaves to segments."""
        return ram - self.beside_bytes(ram) - max(self.kept_for_batches, self.batch_bytes)

    def batch_room_bytes(self, ram: int, segment_bytes: int) -> int:
        """Return the bytes that batches may take beyond theirs, while segments take ``segment_bytes``."""
        return min(int(ram * MAX_BATCH_SHARE), ram - segment_bytes - self.beside_bytes(ram)) - self.batch_bytes
