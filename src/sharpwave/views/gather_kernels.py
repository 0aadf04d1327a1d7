"""Columns of a field as kernels of ``cut_kernels`` read them: by one array of their addresses."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.native.jit import njit
from sharpwave.native.memory_ops import array_at

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]


class Column(NamedTuple):
    """Column of one field in every segment.

    Attributes:
        memory, words: the arena as uint8, and as uint32 (offset tables).
        offset, codec, dictionary, counts: the column's arrays of the index; counts are the column's rows by slot.
        references: uint8 [places, size], dictionaries as long as a row.
        line: bytes from a pixel to the one below, 0 for none.
        zeros: whether rows before an episode's first are zeros; else they are the first again.
    """

    memory: Bytes
    words: npt.NDArray[np.uint32]
    offset: Ints
    codec: Bytes
    dictionary: Int32s
    counts: Int32s
    references: Bytes
    line: int
    zeros: bool


def write_column(column: Column) -> Ints:
    """Return the words that ``read_column`` reads. The arrays must outlive them."""
    slots, (places, size) = len(column.offset), column.references.shape
    by_slot = (column.offset, column.codec, column.dictionary, column.counts)
    assert {len(array) for array in by_slot} == {slots}
    arrays: tuple[npt.NDArray[Any], ...] = (column.memory, *by_slot, column.references)
    kinds = (np.uint8, np.int64, np.uint8, np.int32, np.int32, np.uint8)
    for array, kind in zip(arrays, kinds, strict=True):
        assert array.dtype == kind and array.flags.c_contiguous
    return np.array(
        [*(array.ctypes.data for array in arrays), column.memory.size, slots, places, size, column.line, column.zeros],
        np.int64,
    )


@njit(nogil=True, cache=True, inner=True)
def read_column(words: Ints) -> Column:
    """Return the column whose addresses and sizes are in ``words``."""
    nbytes, slots, places, size = words[6], words[7], words[8], words[9]
    return Column(
        array_at(words[0], (nbytes,), np.uint8),
        array_at(words[0], (nbytes >> 2,), np.uint32),
        array_at(words[1], (slots,), np.int64),
        array_at(words[2], (slots,), np.uint8),
        array_at(words[3], (slots,), np.int32),
        array_at(words[4], (slots,), np.int32),
        array_at(words[5], (places, size), np.uint8),
        words[10],
        words[11] != 0,
    )
