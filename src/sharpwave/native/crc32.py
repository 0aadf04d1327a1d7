"""CRC-32 in kernels: equal to ``zlib.crc32``, without the interpreter lock."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sharpwave.native import crc32_folding as folding
from sharpwave.native.jit import njit
from sharpwave.native.memory_ops import load_word

LANES = 4
"""Words processed side by side: a word's eight look-ups depend on those of the word before."""
Table = npt.NDArray[np.uint32]


def _table() -> Table:
    """Return uint32 [8 * LANES, 256]: the CRC of a byte followed by that many zero bytes."""
    table = np.zeros((8 * LANES, 256), np.uint32)
    values: Table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = (values >> np.uint32(1)) ^ (values & np.uint32(1)) * np.uint32(0xEDB88320)
    table[0] = values
    for zeros in range(1, 8 * LANES):
        table[zeros] = (table[zeros - 1] >> np.uint32(8)) ^ table[0][table[zeros - 1] & 0xFF]
    return table


TABLE = _table()
"""The argument ``table`` of ``crc32``."""


@njit(nogil=True, cache=True, inline="always")
def _word(table: Table, zeros: int, word: np.uint64) -> np.uint64:
    """Return the CRC of a word's bytes followed by ``zeros`` zero bytes."""
    low = np.uint64(0xFF)
    return np.uint64(
        table[zeros + 7, word & low]
        ^ table[zeros + 6, (word >> np.uint64(8)) & low]
        ^ table[zeros + 5, (word >> np.uint64(16)) & low]
        ^ table[zeros + 4, (word >> np.uint64(24)) & low]
        ^ table[zeros + 3, (word >> np.uint64(32)) & low]
        ^ table[zeros + 2, (word >> np.uint64(40)) & low]
        ^ table[zeros + 1, (word >> np.uint64(48)) & low]
        ^ table[zeros, word >> np.uint64(56)]
    )


@njit(nogil=True, cache=True)
def by_tables(data: npt.NDArray[np.uint8], at: int, end: int, crc: np.uint64, table: Table) -> np.uint64:
    """Return ``crc``, without CRC-32's first and last inversion, continued over ``data[at:end]``."""
    if end - at >= 16 * LANES:
        far = 8 * (LANES - 1)
        first, second, third, fourth = crc, np.uint64(0), np.uint64(0), np.uint64(0)
        while end - at >= 16 * LANES:
            first = _word(table, far, load_word(data, at) ^ first)
            second = _word(table, far, load_word(data, at + 8) ^ second)
            third = _word(table, far, load_word(data, at + 16) ^ third)
            fourth = _word(table, far, load_word(data, at + 24) ^ fourth)
            at += 8 * LANES
        crc = _word(table, 0, load_word(data, at) ^ first)
        crc = _word(table, 0, load_word(data, at + 8) ^ second ^ crc)
        crc = _word(table, 0, load_word(data, at + 16) ^ third ^ crc)
        crc = _word(table, 0, load_word(data, at + 24) ^ fourth ^ crc)
        at += 8 * LANES
    while at < end:
        crc = np.uint64(table[0, (crc ^ np.uint64(data[at])) & np.uint64(0xFF)]) ^ (crc >> np.uint64(8))
        at += 1
    return crc


@njit(nogil=True, cache=True)
def crc32(data: npt.NDArray[np.uint8], begin: int, end: int, table: Table) -> np.uint64:
    """Return the CRC-32 of ``data[begin:end]``. Cost: O(bytes)."""
    ones = crc = np.uint64(0xFFFFFFFF)
    if folding.AVAILABLE and end - begin >= folding.BLOCK:
        blocks = (end - begin) // folding.BLOCK
        low, high = folding.fold(data, begin, blocks, crc)
        crc = _word(table, 0, high ^ _word(table, 0, low))
        begin += blocks * folding.BLOCK
    return by_tables(data, begin, end, crc, table) ^ ones
