"""Open files on every system: reads and writes at an offset, past the page cache, around holes; syncs, locks."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import sys
import threading
from collections.abc import Iterable
from functools import cache
from typing import Any

from sharpwave.native import core

fcntl: Any
msvcrt: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
try:
    import msvcrt
except ImportError:  # every other system
    msvcrt = None

_one_at_a_time = threading.Lock()  # where a file's position must be moved
LOCKED_FROM, READERS = 1 << 30, 64
"""Bytes to lock on Windows, beyond any content, as other processes cannot read locked bytes: a writer locks all, a
reader one of its own."""

FAR = 1 << 24
"""Offset behind the end of a small file."""
FREE_BYTES, TIMES = 64 << 20, 64
"""Bounds of reading a file: this many bytes, plus so many times its data. A hole of any size costs its writer nothing;
some file systems do not store zeros, so a sound file may have holes."""


def pread(descriptor: int, nbytes: int, offset: int) -> bytes:
    """Read up to ``nbytes`` at an offset, fewer at the file's end.  Raises: OSError."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, nbytes, offset)
    with _one_at_a_time:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, nbytes)


def pread_into(descriptor: int, out: memoryview, offset: int) -> int:
    """Read at an offset into ``out``; return how many bytes, fewer at the file's end.  Raises: OSError."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [out], offset)
    found = pread(descriptor, len(out), offset)
    out[: len(found)] = found
    return len(found)


def will_read(ranges: Iterable[tuple[int, int, int]]) -> None:
    """Tell the system, where it listens, that ranges will be read soon: it reads many at once.

    Args:
        ranges: of each the descriptor, the offset and the bytes.
    """
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):  # a hint
            for descriptor, offset, nbytes in ranges:
                os.posix_fadvise(descriptor, offset, nbytes, os.POSIX_FADV_WILLNEED)


def pwrite(descriptor: int, data: bytes | memoryview, offset: int) -> int:
    """Write at an offset; return how many bytes.  Raises: OSError."""
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, data, offset)
    with _one_at_a_time:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.write(descriptor, data)


def sync(descriptor: int) -> None:
    """Sync a file's content to disk; on macOS past the disk's own cache, where ``fsync`` ends.  Raises: OSError."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        with contextlib.suppress(OSError):  # some file systems lack it
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


def lock(descriptor: int, *, shared: bool) -> bool:
    """Lock an open file or folder until it is closed; return False if another descriptor's lock forbids it.

    True without effect on systems without locks.

    Args:
        shared: allow other shared locks; at most READERS of them on Windows.

    Raises:
        OSError: the file system cannot lock.
    """
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        elif msvcrt is not None:
            return _lock_bytes(descriptor, shared)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def unlock(descriptor: int) -> None:
    """Unlock an open file or folder. On Windows, closing it does.  Raises: OSError."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _lock_bytes(descriptor: int, shared: bool) -> bool:
    ranges = [(one, 1) for one in range(READERS)] if shared else [(0, READERS)]
    for begin, nbytes in ranges:
        with _one_at_a_time, contextlib.suppress(PermissionError):
            os.lseek(descriptor, LOCKED_FROM + begin, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, nbytes)
            return True
    return False


def open_direct(descriptor: int) -> int:
    """Return a second descriptor of an open file, for reads that bypass the page cache; -1 if impossible.

    The core makes such reads where the cache does not hold the range.
    """
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
