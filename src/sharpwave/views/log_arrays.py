"""The log's arrays for kernels, as one array of their addresses.

Calling a kernel takes 2.0 us with nine such arrays in a NamedTuple, 0.9 us with each as an argument, and 0.1 us with
one array of words, from which ``read_arrays`` makes the NamedTuple in compiled code. Nor does the class become part
of the argument types in numba's cache on disk, which a release that moves it could not load.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.native.jit import njit
from sharpwave.native.memory_ops import array_at

if TYPE_CHECKING:
    from sharpwave.log.step_log import StepLog

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]


class LogArrays(NamedTuple):
    """The arena's memory, as uint8 and as float32, and arrays of ``sharpwave.memory.segment_index.SegmentIndex``
    of these names."""

    memory: Bytes
    floats: npt.NDArray[np.float32]
    offset: Ints
    rows: Int32s
    next: Int32s
    previous: Int32s
    gap: Bytes
    sealed: Bytes
    context: Int32s
    episode_step: Ints
    lane: Int32s
    first_step: Ints


def write_arrays(arrays: LogArrays) -> Ints:
    """Return the words that ``read_arrays`` reads. The arrays must outlive them."""
    memory, offset = arrays.memory, arrays.offset
    by_address: list[npt.NDArray[Any]] = [memory, *arrays[2:]]
    kinds = (
        np.uint8, np.int64, np.int32, np.int32, np.int32, np.uint8, np.uint8, np.int32, np.int64, np.int32, np.int64
    )  # fmt: skip
    for array, kind in zip(by_address, kinds, strict=True):
        assert array.dtype == kind and array.flags.c_contiguous and array.shape[-1] in (memory.size, offset.shape[1])
    return np.array([memory.size, *offset.shape, *(array.ctypes.data for array in by_address)], np.int64)


@njit(nogil=True, cache=True, inner=True)
def read_arrays(words: Ints) -> LogArrays:
    """Return the arrays whose sizes and addresses are in ``words``."""
    nbytes, columns, slots = words[0], words[1], words[2]
    return LogArrays(
        array_at(words[3], (nbytes,), np.uint8),
        array_at(words[3], (nbytes >> 2,), np.float32),
        array_at(words[4], (columns, slots), np.int64),
        array_at(words[5], (slots,), np.int32),
        array_at(words[6], (slots,), np.int32),
        array_at(words[7], (slots,), np.int32),
        array_at(words[8], (slots,), np.uint8),
        array_at(words[9], (slots,), np.uint8),
        array_at(words[10], (slots,), np.int32),
        array_at(words[11], (slots,), np.int64),
        array_at(words[12], (slots,), np.int32),
        array_at(words[13], (slots,), np.int64),
    )


class LogWords:
    """Words of a log's arrays, rewritten when it has grown."""

    def __init__(self, log: StepLog) -> None:
        self._log = log
        self._words = np.empty(0, np.int64)
        # Arrays that a store replaces when it grows, which outdates words; weak, so that they can be freed.
        self._memory: Callable[[], Any] = lambda: None
        self._offset: Callable[[], Any] = lambda: None

    def current(self) -> Ints:
        """Return the words, valid until the log grows."""
        index, arena = self._log.index, self._log.arena
        if self._memory() is not arena.memory or self._offset() is not index.offset:
            self._memory, self._offset = weakref.ref(arena.memory), weakref.ref(index.offset)
            of_index = (getattr(index, name) for name in LogArrays._fields[2:])
            self._words = write_arrays(LogArrays(arena.memory, arena.floats, *of_index))
        return self._words
