"""Descriptors for reads that bypass the page cache, which the core makes where the cache does not hold the range."""

from __future__ import annotations

import os
import platform
import sys
from functools import cache

from sharpwave.native import core

FAR = 1 << 24
"""Offset behind the end of a small file."""


def open_direct(descriptor: int) -> int:
    """Return a second descriptor of an open file, for reads that bypass the page cache; -1 if impossible."""
    try:
        # The bytes read just now must be in memory, unless another file was opened, below this one (overlayfs).
        if _can_ask() and any(os.pread(descriptor, 1, 0) and core.is_cached(descriptor, 0, 1) for _ in range(3)):
            return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:  # such as a file system without it; or too many open files
        pass
    return -1


@cache
def _can_ask() -> bool:
    """Return whether this system tells which of a file's pages are cached."""
    known = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
    if not known or not hasattr(os, "memfd_create"):
        return False
    descriptor = os.memfd_create("sharpwave")
    try:
        os.pwrite(descriptor, bytes(2), 0)
        return core.is_cached(descriptor, 0, 2) and not core.is_cached(descriptor, FAR, 1)
    finally:
        os.close(descriptor)
