"""Address space that is reserved at once, and takes memory only where it is written to."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from sharpwave.arrays import Bytes
from sharpwave.native import core, windows
from sharpwave.native.untouched import HUGE_PAGE

PAGE = 4096
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


def reserve(nbytes: int) -> AddressSpace:
    """Reserve ``nbytes``, a multiple of PAGE, which read as zeros.

    Raises:
        OSError, ValueError, OverflowError: the system has no such range.
    """
    return _WindowsSpace(nbytes) if windows.KERNEL32 is not None else AddressSpace(nbytes)


class AddressSpace:
    """Range of address space. The system commits its pages as they are written to.

    Attributes:
        memory: uint8 [nbytes]; its array keeps the range.
    """

    memory: Bytes

    def __init__(self, nbytes: int) -> None:
        flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE} if hasattr(mmap, "MAP_PRIVATE") else {}
        self._map = mmap.mmap(-1, nbytes, **flags)
        self.memory = np.frombuffer(self._map, np.uint8)
        self._ahead: core.Ahead | None = None

    def use_huge_pages(self, begin: int) -> bool:
        """Request huge pages from ``begin`` on, the beginning of a page; return whether the system has them."""
        with contextlib.suppress(OSError, AttributeError):  # a kernel without them
            self._map.madvise(mmap.MADV_HUGEPAGE, begin)
            self._ahead = core.Ahead(self.memory)
            weakref.finalize(self, core.stop_touching, self.memory).atexit = False
            return True
        return False

    def committer(self) -> Callable[[int, int], None] | None:
        """Return the function that prepares a range, by its begin and size, for writing; ``None``: none is needed.

        It also prepares a page behind the range, which kernels may read; it may raise MemoryError. It is the core's, as
        it is called amid an append: the step would be lost if a signal handler appended there.
        """
        return None if self._ahead is None else self._ahead.commit

    def committed_behind(self, end: int) -> int:
        """Return the bytes committed behind ``end``, the end of the written bytes.

        These are the rest of a huge page across the end, and bytes touched ahead. 0 if the system does not report them.
        Cost: a system call.
        """
        begin = -(-end // PAGE) * PAGE
        address = self.memory.ctypes.data
        last = max(begin, self._ahead.touched if self._ahead is not None else 0)
        nbytes = min(last + -(address + last) % HUGE_PAGE, len(self.memory)) - begin
        pages = np.zeros(max(0, nbytes) // PAGE, np.uint8)
        if sys.platform != "linux" or nbytes <= 0 or _mincore()(address + begin, nbytes, pages.ctypes.data):
            return 0
        return PAGE * int(np.count_nonzero(pages & 1))

    def release(self, begin: int, nbytes: int) -> bool:
        """Return the memory of whole pages to the system, if it takes it; their content is lost."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return False
        self._map.madvise(mmap.MADV_DONTNEED, begin, nbytes)
        return True


class _WindowsSpace(AddressSpace):
    """Range of which only committed pages can be touched: otherwise a page file would have to hold all of it."""

    def __init__(self, nbytes: int) -> None:
        self._ahead = None
        self._kernel = windows.KERNEL32
        self._address = self._kernel.VirtualAlloc(None, nbytes, windows.MEM_RESERVE, windows.PAGE_READWRITE)
        if not self._address:
            raise OSError(f"VirtualAlloc cannot reserve them, Windows error {_last_error()}")
        held: Any = (ctypes.c_uint8 * nbytes).from_address(self._address)
        end = weakref.finalize(held, self._kernel.VirtualFree, self._address, 0, windows.MEM_RELEASE)
        end.atexit = False  # the process takes it along
        self.memory = np.frombuffer(held, np.uint8)

    def use_huge_pages(self, begin: int) -> bool:
        return False

    def committer(self) -> Callable[[int, int], None] | None:
        return self._commit

    def _commit(self, begin: int, nbytes: int) -> None:
        nbytes = min(nbytes + PAGE, len(self.memory) - begin)
        if nbytes > 0 and not self._allocate(begin, nbytes):
            raise MemoryError(
                f"store: Windows has no {nbytes:,} bytes of memory left (error {_last_error()}); lower capacity= or "
                "ram=, or enlarge the page file"
            )

    def release(self, begin: int, nbytes: int) -> bool:
        self._kernel.VirtualFree(self._address + begin, nbytes, windows.MEM_DECOMMIT)
        self._commit(begin, nbytes)
        return True

    def _allocate(self, begin: int, nbytes: int) -> bool:
        place = self._address + begin
        return bool(self._kernel.VirtualAlloc(place, nbytes, windows.MEM_COMMIT, windows.PAGE_READWRITE))


@functools.cache
def _mincore() -> Any:
    """Return the system call that tells which pages of a range have memory."""
    call = ctypes.CDLL(None).mincore
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    return call


def _last_error() -> int:
    return int(getattr(ctypes, "get_last_error", lambda: 0)())
