"""Fused kernels: a codec's decoding, called from the compiled loop that fills a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.native.jit import njit
from sharpwave.native.memory_ops import array_at

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

WINDOW_WORDS = 13
MEMORY, MEMORY_BYTES, BEGIN, ROWS, DICTIONARY, SIZE, LINE, ZEROS, NEWEST, FIRST, OUT, LENGTH, SCRATCH = range(13)
"""Words at the address that a fused kernel receives: numbers, and addresses of arrays."""
SCRATCH_BEGIN = 16
"""Word with which a window's scratch begins: a multiple of a cache line."""


class Window(NamedTuple):
    """Rows ``newest - W + 1`` to ``newest`` of one column, and the memory for them.

    Attributes:
        memory, words: the arena as uint8 and as uint32.
        begin: offset of the column's payload in ``memory``; a multiple of 8.
        rows: number of rows in the column.
        dictionary: uint8 [size]; zeros where the column has none, or one that is not as long as a row.
        line: bytes from a pixel to the one below, 0 for none.
        zeros: whether rows before ``first`` are zeros; else they repeat row ``first``.
        out: uint8 [W, size]. Empty for a prefetch.
        scratch: uint8 [size], working memory, which stays in the cache from window to window.
    """

    memory: Bytes
    words: npt.NDArray[np.uint32]
    begin: int
    rows: int
    dictionary: Bytes
    line: int
    zeros: bool
    newest: int
    first: int
    length: int
    out: Bytes
    scratch: Bytes


@dataclass(frozen=True)
class Fused:
    """Kernels of a codec. Each takes the address of a window's words (``read_window``) and returns 0.

    They may rely on ``Codec.check``. They are plain functions, compiled for the first batch that needs them.

    Attributes:
        gather: decodes the window's rows.
        prefetch: prefetches the memory that ``gather`` will read, some items ahead; the payload's beginning is in
            cache.
    """

    gather: Callable[[int], int]
    prefetch: Callable[[int], int] | None = None


@njit(nogil=True, cache=True, inner=True)
def new_window(size: int) -> Ints:
    """Return a window's words for rows of ``size`` bytes, and its scratch behind them: both live as long."""
    words = np.empty(SCRATCH_BEGIN + (size + 7) // 8, np.int64)
    words[SIZE], words[SCRATCH] = size, words.ctypes.data + 8 * SCRATCH_BEGIN
    return words


@njit(nogil=True, cache=True, inner=True)
def read_window(address: int) -> Window:
    """Return the window whose words lie at ``address``."""
    words = array_at(address, (WINDOW_WORDS,), np.int64)
    memory, nbytes, size = words[MEMORY], words[MEMORY_BYTES], words[SIZE]
    return Window(
        array_at(memory, (nbytes,), np.uint8),
        array_at(memory, (nbytes >> 2,), np.uint32),
        words[BEGIN],
        words[ROWS],
        array_at(words[DICTIONARY], (size,), np.uint8),
        words[LINE],
        words[ZEROS] != 0,
        words[NEWEST],
        words[FIRST],
        words[LENGTH],
        array_at(words[OUT], (words[LENGTH], size), np.uint8),
        array_at(words[SCRATCH], (size,), np.uint8),
    )
