"""Limit of a disk: random reads of pieces of files by many threads, without checking or decoding."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]

FORGET_S = 0.05
CALLS = 16
"""Reads between two looks at the clock."""
BLOCK = 4096

_pread = ctypes.CDLL(None).pread
_pread.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)
_pread.restype = ctypes.c_ssize_t
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
MADV_DONTNEED = 4


@njit(nogil=True)  # a pointer to the system's function cannot be cached
def _read(descriptors: Ints, offsets: Ints, nbytes: Ints, chosen: Ints, address: int) -> int:
    done = 0
    for i in chosen:
        done += _pread(descriptors[i], address, nbytes[i], offsets[i])
    return done


def reads(
    descriptors: Ints, offsets: Ints, nbytes: Ints, threads: int, seconds: float, *, direct: bool = False
) -> tuple[float, float]:
    """Measure reads and bytes per second of the given pieces, which each thread picks at random.

    Args:
        direct: the files were opened with O_DIRECT: whole blocks around the pieces are read.
    Raises:
        OSError: a read returned fewer bytes than requested.
    """
    least = nbytes
    if direct:
        ends = offsets + nbytes
        offsets = offsets // BLOCK * BLOCK
        least, nbytes = ends - offsets, -(-ends // BLOCK) * BLOCK - offsets
    counts = [0] * threads
    got = [0] * threads
    begin = threading.Barrier(threads + 1)

    def read(thread: int) -> None:
        rng, out = np.random.default_rng(thread), np.frombuffer(mmap.mmap(-1, int(nbytes.max())), np.uint8)
        out[:] = 1
        _read(descriptors, offsets, nbytes, np.zeros(0, np.int64), out.ctypes.data)
        begin.wait()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            chosen = rng.integers(0, len(nbytes), CALLS)
            done = _read(descriptors, offsets, nbytes, chosen, out.ctypes.data)
            if done < least[chosen].sum():  # a file may end within a block
                raise OSError(f"read {done:,} bytes, expected at least {least[chosen].sum():,}")
            counts[thread] += CALLS
            got[thread] += done

    readers = [threading.Thread(target=read, args=(thread,)) for thread in range(threads)]
    for reader in readers:
        reader.start()
    begin.wait()
    start = time.perf_counter()
    for reader in readers:
        reader.join()
    took = time.perf_counter() - start
    return sum(counts) / took, sum(got) / took


def forget(descriptors: Iterable[int], mappings: Iterable[tuple[int, int]] = ()) -> None:
    """Drop some files from the page cache. Pages that are not on disk yet cannot be dropped.

    Args:
        mappings: (address, bytes) of this process's mappings of them: mapped pages would be kept.
    """
    for address, nbytes in mappings:
        _madvise(address, nbytes, MADV_DONTNEED)
    for descriptor in descriptors:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def forgetful(descriptors: Sequence[int]) -> Iterator[None]:
    """Drop some files from the page cache, now and every 50 ms until the end of the block.

    Otherwise a store of some hundred megabytes is cached before its measurement ends. Caches below the system, such as
    those of a virtual machine's host, cannot be dropped; they also speed up the disk's own limit.
    """
    ended = threading.Event()

    def again() -> None:
        while not ended.wait(FORGET_S):
            forget(descriptors)

    for descriptor in descriptors:
        os.fdatasync(descriptor)
    forget(descriptors)
    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
