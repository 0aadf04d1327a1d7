"""Memory of batches: lent in blocks, and reused once the last array or tensor over a block is gone."""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.memory.address_space import PAGE
from sharpwave.memory.arena import rounded

Root = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and dtype of the array over a lent block."""
SMALL = 1 << 16
"""Smaller blocks come from the heap: a mapping, and at least a page, would be too much for a few hundred bytes."""
HUGE = 4 << 20
"""Blocks from this size on request huge pages, as numpy's arrays do."""
SWEEP = 256
"""Blocks lent between sweeps, each of which releases to the system the blocks unused since the last."""


class Block:
    """Piece of memory.

    Attributes:
        memory: object with a buffer of ``nbytes``.
        lent: how many blocks had been lent when this one last was.
        arrays: the borrower's arrays over ``memory`` itself; they do not count as holding the block, and must not be
            handed out.
    """

    __slots__ = ("arrays", "lent", "memory", "nbytes")

    def __init__(self, nbytes: int, memory: Any) -> None:
        self.nbytes = nbytes
        self.memory = memory
        self.lent = 0
        self.arrays: Any = None


class _Lease(weakref.ref[npt.NDArray[Any]]):
    """Weak reference to the array on which all arrays over ``block`` are based."""

    __slots__ = ("block",)
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    block: Block


def _memory(nbytes: int) -> Any:
    """Return an object with a buffer of ``nbytes`` zeros.  Raises: MemoryError."""
    try:
        if nbytes < SMALL:
            return bytearray(nbytes)
        if not hasattr(mmap, "MAP_PRIVATE"):  # Windows
            return mmap.mmap(-1, nbytes)
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if nbytes >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                memory.madvise(mmap.MADV_HUGEPAGE)
        return memory
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryError(
            f"sample: the system has no {nbytes:,} bytes for a batch ({error}); use a smaller batch_size, or let go of "
            "batches"
        ) from error


class Pool:
    """Blocks of one store's batches.

    A block is lent as an array; whatever derives from it - slices, reshaped arrays, tensors - keeps it alive, and when
    the last is gone, the block returns. So memory that was touched once is reused: fresh memory costs a page fault for
    every 4 KiB, as much time as decoding into it.

    ``lend`` and methods that release memory run under the store's lock; arrays may die in any thread at any time.

    Args:
        memory: returns an object with a buffer of so many bytes, or raises MemoryError.

    Attributes:
        held_bytes: of blocks that are lent, as of the last ``collect``. ``free_bytes``: of the others.
    """

    def __init__(self, memory: Callable[[int], Any] | None = None) -> None:
        self._memory = _memory if memory is None else memory
        self.held_bytes = self.free_bytes = 0
        self._free: dict[int, list[Block]] = {}  # by size, the latest to return last
        self._held: set[_Lease] = set()
        # A lease is appended when its array dies, by a call that runs no Python: it may happen at any instruction.
        self._returned: deque[_Lease] = deque()
        self._give_back = self._returned.append
        self._lent = self._swept = 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory, lent and free."""
        return self.held_bytes + self.free_bytes

    def collect(self) -> None:
        """Take back the blocks that nobody holds any more. Cost: O(those blocks)."""
        returned = self._returned
        while returned:
            lease = returned.popleft()
            block = lease.block
            self._held.discard(lease)
            size = block.nbytes
            self.held_bytes -= size
            self.free_bytes += size
            if size in self._free:
                self._free[size].append(block)
            else:
                self._free[size] = [block]

    def missing(self, sizes: Sequence[int]) -> int:
        """Return the bytes of memory that ``lend`` would have to request from the system.

        Args:
            sizes: from ``block_size``.
        """
        self.collect()
        return sum(size * max(0, sizes.count(size) - len(self._free.get(size, ()))) for size in set(sizes))

    def lend(self, size: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Block, npt.NDArray[Any]]:
        """Return a block, and an array of that shape over it, uninitialized, which holds the block.

        Args:
            size: from ``block_size``, at least the array's bytes.

        Raises: MemoryError: the system has none.
        """
        free = self._free.get(size)
        if free:
            block = free.pop()
            self.free_bytes -= size
        else:
            block = Block(size, self._memory(size))
        self.held_bytes += size
        # The base of every view is this array, not its memory: numpy only looks through arrays.
        root: npt.NDArray[Any] = np.ndarray(shape, dtype, block.memory)
        lease = _Lease(root, self._give_back)
        lease.block = block
        self._held.add(lease)
        block.lent = self._lent = self._lent + 1
        if self._lent - self._swept >= SWEEP:
            self._sweep()
        return block, root

    def trim(self) -> int:
        """Release all memory that nobody holds to the system; return how many bytes that were."""
        self.collect()
        freed = self.free_bytes
        self._free.clear()
        self.free_bytes = 0
        return freed

    def _sweep(self) -> None:
        """Release blocks that were not needed since the last sweep: of sizes no longer used, or more than are in
        use."""
        for size, blocks in list(self._free.items()):
            kept = [block for block in blocks if block.lent > self._swept]
            self.free_bytes -= size * (len(blocks) - len(kept))
            if kept:
                self._free[size] = kept
            else:
                del self._free[size]
        self._swept = self._lent


def block_size(nbytes: int) -> int:
    """Return the size of the block for ``nbytes`` bytes."""
    return rounded(max(nbytes, 1), 64 if nbytes < SMALL else PAGE)
