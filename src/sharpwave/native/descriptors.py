"""Open files on every system: reads and writes at an offset, durable syncs, locks that end with the process."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from typing import Any

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
"""Bytes that are locked on Windows, beyond any content, as nobody else can read what is locked there: a writer locks
all, a reader one of its own."""


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
    """Lock an open file or folder until it is closed; return whether no other descriptor's lock forbids it.

    True without effect on systems without locks.

    Args:
        shared: allow others that are shared too; at most READERS of them on Windows.

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
