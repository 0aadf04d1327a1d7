"""How much of each region's file is still held."""

from __future__ import annotations

from sharpwave.format.region import space


class Occupancy:
    """Counts the records of each region that are held, and their bytes. All methods but ``clear`` cost O(1)."""

    def __init__(self) -> None:
        self._records: dict[int, int] = {}
        self._bytes: dict[int, int] = {}
        self.total = 0
        """Bytes held of all regions."""

    def hold(self, region: int, nbytes: int) -> None:
        """A record of ``region``, with a payload of ``nbytes``, is held."""
        self._records[region] = self._records.get(region, 0) + 1
        self._bytes[region] = self._bytes.get(region, 0) + space(nbytes)
        self.total += space(nbytes)

    def release(self, region: int, nbytes: int) -> None:
        """It is held no more."""
        self._records[region] -= 1
        self._bytes[region] -= space(nbytes)
        self.total -= space(nbytes)

    def holds(self, region: int) -> bool:
        """Whether a record of ``region`` is held."""
        return self._records.get(region, 0) > 0

    def nbytes(self, region: int) -> int:
        """Bytes of the records of ``region`` that are held."""
        return self._bytes.get(region, 0)

    def forget(self, region: int) -> None:
        """The region is no more."""
        self._records.pop(region, None)
        self.total -= self._bytes.pop(region, 0)

    def clear(self) -> None:
        """Nothing is held."""
        self._records.clear()
        self._bytes.clear()
        self.total = 0
