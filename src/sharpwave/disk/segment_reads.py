"""Reads of segments from region files: many at once by a pool of readers, or one."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from sharpwave.disk.read_pool import BASE, DESCRIPTOR, DIRECT, NBYTES, OFFSET, SLOT, Readers
from sharpwave.disk.region_files import RegionFiles
from sharpwave.native import core


class SegmentReads:
    """Reads of segments from ``regions``.

    Attributes:
        nbytes: bytes that the pool was asked for.
    """

    def __init__(self, regions: RegionFiles) -> None:
        self._regions = regions
        self._readers: Readers | None = None
        self._joined = 0
        self.nbytes = 0

    def use(self, readers: Readers) -> None:
        """Set the pool that reads segments, and close the one before."""
        if self._readers is not None:
            self._readers.close()
            self._joined += self._readers.joined
        self._readers = readers

    def plan(
        self,
        slots: npt.NDArray[np.int64],
        regions: npt.NDArray[np.int32],
        offsets: npt.NDArray[np.int64],
        bases: npt.NDArray[np.int64],
        nbytes: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """Return reads for ``start``: segments [n] from ``offsets`` in ``regions`` to ``bases``."""
        reads = np.empty((len(slots), core.READ_COLUMNS), np.int64)
        reads[:, SLOT], reads[:, OFFSET], reads[:, BASE], reads[:, NBYTES] = slots, offsets, bases, nbytes
        reads[:, [DESCRIPTOR, DIRECT]] = self._regions.descriptors(regions)
        return reads[np.lexsort((offsets, regions))]

    def start(self, reads: npt.NDArray[np.int64]) -> None:
        """Begin reads. Cost: 50 us for 256, with ``plan``."""
        nbytes = sum(reads[:, NBYTES].tolist())
        self.readers.start(reads)
        self.nbytes += nbytes

    @property
    def joined(self) -> int:
        """Reads that were joined with the read of the range before them in the file."""
        return self._joined + self.readers.joined

    @property
    def readers(self) -> Readers:
        """The pool that reads segments; after ``use``."""
        assert self._readers is not None
        return self._readers

    def read(self, number: int, offset: int, out: memoryview) -> str | None:
        """Read a segment at once; return what is wrong with it, or ``None``."""
        region = self._regions.regions.get(number)
        try:
            self._regions.read(number, offset, out)
        except (OSError, KeyError) as error:
            return f"region {number}: {error}"
        stored, found = int.from_bytes(out[-4:], "little"), zlib.crc32(out[:-4])
        if stored != found:
            path = region.path if region else number
            return f"{path}: byte {offset:,}: checksum {found:08x}, expected {stored:08x}"
        return None

    def close(self) -> None:
        """End the pool."""
        if self._readers is not None:
            self._readers.close()
