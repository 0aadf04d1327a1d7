"""Memory that a client shares with the shards of its machine: batches are decoded into it, and nothing is copied."""

from __future__ import annotations

import itertools
import mmap
import os
import weakref
from collections import deque

_NUMBERS = itertools.count(1)


class SharedBlock(mmap.mmap):
    """Memory without a name, of which a file descriptor can be passed on. It can neither shrink nor grow.

    Attributes:
        number: of this block, never used again. ``fd``: its descriptor, closed with it.
    """

    number: int
    fd: int


class SharedBlocks:
    """Maker of shared memory for a pool of batches.

    Args:
        gone: numbers of blocks that were freed, for the shards to forget: the client's, whose views come and go.
    """

    def __init__(self, gone: deque[int]) -> None:
        self.gone = gone

    def make(self, nbytes: int) -> SharedBlock:
        """Return new memory of ``nbytes`` zeros.  Raises: MemoryError."""
        import fcntl

        try:
            fd = os.memfd_create("sharpwave", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                os.ftruncate(fd, nbytes)
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
                block = SharedBlock(fd, nbytes)
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            raise MemoryError(f"sample: the system has no {nbytes:,} bytes of shared memory ({error})") from error
        block.number, block.fd = next(_NUMBERS), fd
        weakref.finalize(block, _freed, fd, block.number, self.gone)
        return block


def _freed(fd: int, number: int, gone: deque[int]) -> None:
    os.close(fd)
    gone.append(number)
