"""Memory of batches: lent in blocks, and reused once the last array or tensor over a block is freed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sharpwave.memory.address_space import PAGE
from sharpwave.memory.arena import rounded
from sharpwave.native import core
from sharpwave.native.untouched import zeros

Block = core.Block
Root = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and dtype of the array over a lent block."""
SMALL = 1 << 16
"""Bytes below which blocks come from the heap: a mapping, and at least a page, would be too much for them."""


def _memory(nbytes: int) -> Any:
    """Return an object with a buffer of ``nbytes`` zeros.  Raises: MemoryError."""
    if nbytes < SMALL:
        return bytearray(nbytes)
    try:
        return zeros(nbytes, np.uint8, huge_pages=True)
    except MemoryError as error:
        raise MemoryError(
            f"sample: the system has no {nbytes:,} bytes for a batch ({error.__cause__ or error}); use a smaller "
            "batch_size, or let go of batches"
        ) from error


class Pool(core.Pool):
    """Blocks of one store's batches.

    A block is lent as an array; every derived object - slices, reshaped arrays, tensors - keeps it alive, and when the
    last is freed, the block returns. So touched memory is reused: fresh memory costs a page fault for every 4 KiB, as
    much time as decoding into it. After every 256 blocks lent, blocks unused since the last time are released to the
    system.

    ``lend`` and methods that release memory run under the store's lock; arrays may be freed in any thread at any time.

    Args:
        memory: returns an object with a buffer of the given size in bytes, or raises MemoryError.
    """

    def __init__(self, memory: Callable[[int], Any] = _memory) -> None:
        super().__init__(memory)

    @property
    def nbytes(self) -> int:
        """Bytes of memory, lent and free."""
        return self.held_bytes + self.free_bytes


def block_size(nbytes: int) -> int:
    """Return the size of the block for ``nbytes`` bytes."""
    return rounded(max(nbytes, 1), 64 if nbytes < SMALL else PAGE)
