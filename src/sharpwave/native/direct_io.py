"""File reads in kernels: through the page cache where it holds the range, and directly where it does not.

A read through the page cache fills pages, copies from them, and evicts others: on a fast disk that costs the processor
more than the disk needs for the read. Data written lately is still in the page cache, and is read from there. Asking
whether it is (``cachestat``) takes Linux 6.5; elsewhere, and on file systems without direct reads, all reads go through
the page cache.
"""

from __future__ import annotations

import mmap
import os
import platform
import sys
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from sharpwave.native.jit import njit
from sharpwave.native.memory_ops import INTERPRETED, copy, pointer_to

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

BLOCK = 4096
"""Alignment of direct reads, in the file and in memory; disks require 512 or this."""
PAGE = mmap.PAGESIZE
WINDOW = 128 << 10
"""Largest read at once, into a window: direct reads need aligned memory."""
_CACHESTAT = 451

_pread: Any = types.ExternalFunction("pread", types.int64(types.int32, types.voidptr, types.uint64, types.int64))
_syscall: Any = types.ExternalFunction(
    "syscall", types.int64(types.int64, types.int64, types.int64, types.int64, types.int64)
)


def window() -> Bytes:
    """Return uint8 [WINDOW], aligned, for one thread; pages that are never read into cost no memory."""
    return np.frombuffer(mmap.mmap(-1, WINDOW), np.uint8)


def open_direct(descriptor: int) -> int:
    """Return a second descriptor of an open file, for reads that bypass the page cache; -1 if impossible."""
    try:
        # The bytes read just now must be in memory, unless another file was opened, below this one (overlayfs).
        if _can_ask() and any(os.pread(descriptor, 1, 0) and _cached(descriptor, 0, 1, window()) for _ in range(3)):
            return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:  # such as a file system without it; or too many open files
        pass
    return -1


@njit(nogil=True, cache=True)
def read(descriptor: int, direct: int, offset: int, memory: Bytes, begin: int, end: int, window: Bytes) -> bool:
    """Fill ``memory[begin:end]`` from ``offset`` of a file; return whether all of it was read.

    Args:
        direct: descriptor from ``open_direct``; -1: read through the page cache.
        window: memory from ``window``.
    """
    if direct >= 0 and not _cached(descriptor, offset, end - begin, window):
        while begin < end:
            place = offset // BLOCK * BLOCK
            skip = offset - place
            nbytes = min(window.size, (skip + end - begin + BLOCK - 1) // BLOCK * BLOCK)
            got = min(_pread(direct, pointer_to(window.ctypes.data), nbytes, place) - skip, end - begin)
            if got <= 0:
                break
            copy(memory, begin, window, skip, got)
            begin += got
            offset += got
    while begin < end:
        got = _pread(descriptor, pointer_to(memory.ctypes.data + begin), end - begin, offset)
        if got <= 0:
            return False
        begin += got
        offset += got
    return True


@njit(nogil=True, cache=True)
def look(descriptor: int, direct: int, offset: int, nbytes: int, window: Bytes) -> int:
    """Read ``nbytes`` (WINDOW - BLOCK at most) at ``offset`` of a file; return where in ``window``, or -1."""
    if direct >= 0 and not _cached(descriptor, offset, nbytes, window):
        skip = offset % BLOCK
        whole = (skip + nbytes + BLOCK - 1) // BLOCK * BLOCK
        if _pread(direct, pointer_to(window.ctypes.data), whole, offset - skip) >= skip + nbytes:
            return skip
    return 0 if read(descriptor, -1, offset, window, 0, nbytes, window) else -1


@njit(nogil=True, cache=True)
def _cached(descriptor: int, offset: int, nbytes: int, window: Bytes) -> bool:
    """Return whether the page cache holds all of a range. Pages are evicted at any time: the answer is a hint."""
    asked = window.view(np.int64)  # offset, bytes; then the answer, whose first word is the number of cached pages
    asked[0], asked[1] = offset, nbytes
    answer = asked.ctypes.data + 2 * asked.itemsize
    if _syscall(_CACHESTAT, descriptor, asked.ctypes.data, answer, 0) != 0:
        return True  # unknown
    return bool(asked[2] >= (offset + nbytes + PAGE - 1) // PAGE - offset // PAGE)


@cache
def _can_ask() -> bool:
    """Return whether this system tells which of a file's pages are cached."""
    known = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
    if INTERPRETED or not known or not hasattr(os, "memfd_create"):
        return False
    descriptor = os.memfd_create("sharpwave")
    try:
        os.pwrite(descriptor, bytes(2), 0)
        return bool(_cached(descriptor, 0, 2, window()) and not _cached(descriptor, PAGE * BLOCK, 1, window()))
    finally:
        os.close(descriptor)
