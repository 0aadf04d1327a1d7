"""What a disk allows: pieces of files read from random places by many threads, nothing checked or decoded."""

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
    """Reads a second and bytes a second of the given pieces, picked at random by each of the threads.

    Args:
        direct: the files were opened for reading past the system's memory: whole blocks around the pieces are read.
    Raises:
        OSError: fewer bytes came than were asked for.
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
            if done < least[chosen].sum():  # where a file ends within a block there is less than the whole of it
                raise OSError(f"read {done:,} bytes of {least[chosen].sum():,}")
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
    """Let the system forget what it has cached of some files. What is not on disk yet cannot be forgotten.

    Args:
        mappings: (address, bytes) of where this process has mapped them: mapped pages would be kept.
    """
    for address, nbytes in mappings:
        _madvise(address, nbytes, MADV_DONTNEED)
    for descriptor in descriptors:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def forgetful(descriptors: Sequence[int]) -> Iterator[None]:
    """Let the system forget what it has of some files, now and every 50 ms until the end.

    Otherwise a store of some hundred megabytes is in the system's cache before its measurement ends. What lies below
    the system, as the cache of a virtual machine's host, cannot be reached; the disk's own limit has it as well.
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
