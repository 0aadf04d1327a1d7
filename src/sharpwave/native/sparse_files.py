"""Sparse files: a hole of any size costs its writer nothing, so reading it must be bounded."""

from __future__ import annotations

import errno
import os

FREE_BYTES, TIMES = 64 << 20, 64
"""Bounds of reading a file: this many bytes, plus so many times its data. Some file systems do not store zeros, so a
sound file may have holes."""


def max_read_bytes(descriptor: int) -> int:
    """Return the bound of the bytes to read of a file, holes included."""
    return FREE_BYTES + TIMES * data_bytes(descriptor)


def data_bytes(descriptor: int) -> int:
    """Return a file's bytes outside its holes, as far as the system tells. Cost: 1 us a run of data."""
    found = at = 0
    while (begin := next_data(descriptor, at)) >= 0:
        at = os.lseek(descriptor, begin, os.SEEK_HOLE) if hasattr(os, "SEEK_HOLE") else os.fstat(descriptor).st_size
        found += at - begin
    return found


def next_data(descriptor: int, begin: int) -> int:
    """Return the offset of a file's next data from ``begin`` on; -1: none. Holes read as zeros."""
    if not hasattr(os, "SEEK_DATA"):
        return begin if begin < os.fstat(descriptor).st_size else -1
    try:
        return os.lseek(descriptor, begin, os.SEEK_DATA)
    except OSError as error:
        return -1 if error.errno == errno.ENXIO else begin  # a system that cannot tell: all is data
