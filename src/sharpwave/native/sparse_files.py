"""Sparse files: one of any size costs its writer nothing, so a reader must not pay for its holes."""

from __future__ import annotations

import errno
import os

FREE_BYTES, TIMES = 64 << 20, 64
"""Of a file at most this is read, plus so many times its data. Some file systems leave out written zeros, so a
sound file may have holes."""


def max_read_bytes(descriptor: int) -> int:
    """Return the bytes of a file that are worth reading, holes included."""
    return FREE_BYTES + TIMES * data_bytes(descriptor)


def data_bytes(descriptor: int) -> int:
    """Return the bytes of a file outside its holes, as far as the system knows. Cost: 1 us a run of data."""
    found = at = 0
    while (begin := next_data(descriptor, at)) >= 0:
        at = os.lseek(descriptor, begin, os.SEEK_HOLE) if hasattr(os, "SEEK_HOLE") else os.fstat(descriptor).st_size
        found += at - begin
    return found


def next_data(descriptor: int, begin: int) -> int:
    """Return where, from ``begin`` on, a file's next data begins; -1: nowhere. Holes read as zeros."""
    if not hasattr(os, "SEEK_DATA"):
        return begin if begin < os.fstat(descriptor).st_size else -1
    try:
        return os.lseek(descriptor, begin, os.SEEK_DATA)
    except OSError as error:
        return -1 if error.errno == errno.ENXIO else begin  # a system that cannot say: all is data
