"""Occupancy of region files: the records held in each."""

from __future__ import annotations

from sharpwave.format.region import space


class Occupancy:
    """Counts of the held records of each region, and their bytes. All methods but ``clear`` cost O(1)."""

    def __init__(self) -> None:
        self._records: dict[int, int] = {}
        self._bytes: dict[int, int] = {}
        self.total = 0
        """Bytes held in all regions."""

    def hold(self, region: int, nbytes: int) -> None:
        """Count a record of ``region``, with a payload of ``nbytes``, as held."""
        self._records[region] = self._records.get(region, 0) + 1
        self._bytes[region] = self._bytes.get(region, 0) + space(nbytes)
        self.total += space(nbytes)

    def release(self, region: int, nbytes: int) -> None:
        """Count a record as dead; the file stays."""
        self._records[region] -= 1
        self._bytes[region] -= space(nbytes)
        self.total -= space(nbytes)

    def holds(self, region: int) -> bool:
        """Return whether a record of ``region`` is held."""
        return self._records.get(region, 0) > 0

    def nbytes(self, region: int) -> int:
        """Return the bytes of the held records of ``region``."""
        return self._bytes.get(region, 0)

    def forget(self, region: int) -> None:
        """Forget a deleted region."""
        self._records.pop(region, None)
        self.total -= self._bytes.pop(region, 0)

    def clear(self) -> None:
        """Reset all counts."""
        self._records.clear()
        self._bytes.clear()
        self.total = 0
