"""How much of a file is there: a sparse file of any size costs its writer nothing, and costs its reader no more."""

from __future__ import annotations

import errno
import os

FREE_BYTES, TIMES = 64 << 20, 64
"""A file is read as far as this, and that many times the bytes of it that are there. Some file systems leave zeros out
that were written, so that a sound file may have holes."""


def most_read(descriptor: int) -> int:
    """Bytes of a file that are worth reading, holes included."""
    return FREE_BYTES + TIMES * data_bytes(descriptor)


def data_bytes(descriptor: int) -> int:
    """Bytes of a file that are no holes, as far as the system knows. Cost: 1 us for each run of them."""
    found = at = 0
    while (begin := next_data(descriptor, at)) >= 0:
        at = os.lseek(descriptor, begin, os.SEEK_HOLE) if hasattr(os, "SEEK_HOLE") else os.fstat(descriptor).st_size
        found += at - begin
    return found


def next_data(descriptor: int, begin: int) -> int:
    """Where from ``begin`` on a file has something else than a hole, which reads as zeros; -1: nowhere."""
    if not hasattr(os, "SEEK_DATA"):
        return begin if begin < os.fstat(descriptor).st_size else -1
    try:
        return os.lseek(descriptor, begin, os.SEEK_DATA)
    except OSError as error:
        return -1 if error.errno == errno.ENXIO else begin  # a system that cannot say: all is data
