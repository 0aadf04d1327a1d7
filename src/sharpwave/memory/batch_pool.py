"""Memory of batches: lent block by block, and used again when the last array or tensor over a block is gone."""

from __future__ import annotations

import contextlib
import mmap
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.memory.arena import PAGE, rounded

Root = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and dtype of the array that a block is lent as."""
SMALL = 1 << 16
"""Blocks below this many bytes come from the heap: a page each, and a mapping, would be too much for a few hundred."""
HUGE = 4 << 20
"""Blocks from this many bytes on ask for huge pages, as numpy's arrays do."""
SWEEP = 256
"""After this many blocks were lent, those that were not needed since the last time are given back to the system."""


class Block:
    """A piece of memory.

    Attributes:
        memory: an object with a buffer of ``nbytes``.
        lent: how many blocks had been lent when this one was, last.
        arrays: what the borrower keeps with it: arrays over ``memory`` itself, which are not counted as holding it, and
            must not be handed out.
    """

    __slots__ = ("arrays", "lent", "memory", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.memory = _memory(nbytes)
        self.lent = 0
        self.arrays: Any = None


class _Lease(weakref.ref[npt.NDArray[Any]]):
    """A weak reference to the array that all arrays over ``block`` are views of."""

    __slots__ = ("block",)
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    block: Block


def _memory(nbytes: int) -> Any:
    """Return an object with a buffer of so many bytes, zeros.  Raises: MemoryError."""
    try:
        if nbytes < SMALL:
            return bytearray(nbytes)
        if sys.platform == "win32":
            return mmap.mmap(-1, nbytes)
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if nbytes >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                memory.madvise(mmap.MADV_HUGEPAGE)
        return memory
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryError(f"sample: {nbytes:,} bytes for a batch are not to be had ({error})") from error


class Pool:
    """Blocks of one store's batches.

    A block is lent as an array; whatever is made of that - slices, other shapes, tensors - keeps it alive, and when the
    last of them is gone, the block comes back. Memory that was touched once is so used again: fresh memory costs a page
    fault for every 4 KiB, as much time as decoding into it.

    :meth:`lend` and what gives memory back take turns under the store's lock; arrays may die in any thread at any time.

    Attributes:
        held_bytes: of blocks that are lent, as far as :meth:`collect` has noticed. ``free_bytes``: of the others.
    """

    def __init__(self) -> None:
        self.held_bytes = self.free_bytes = 0
        self._free: dict[int, list[Block]] = {}  # by size, the last one that came back last
        self._held: set[_Lease] = set()
        # A lease goes here when its array dies, by a call that runs no Python: it may come in the midst of anything.
        self._returned: deque[_Lease] = deque()
        self._give_back = self._returned.append
        self._lent = self._swept = 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory, lent and free."""
        return self.held_bytes + self.free_bytes

    def collect(self) -> None:
        """Take back the blocks that nobody holds any more. Cost: O(those)."""
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
        """Return the bytes of memory that :meth:`lend` would have to ask the system for.

        Args:
            sizes: as :func:`block_size` gives them.
        """
        self.collect()
        return sum(size * max(0, sizes.count(size) - len(self._free.get(size, ()))) for size in set(sizes))

    def lend(self, size: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Block, npt.NDArray[Any]]:
        """Return a block, and an array of that shape over it, of any content, by which it is held.

        Args:
            size: as :func:`block_size` gives it, of at least the array's bytes.

        Raises: MemoryError: the system has none.
        """
        free = self._free.get(size)
        if free:
            block = free.pop()
            self.free_bytes -= size
        else:
            block = Block(size)
        self.held_bytes += size
        # The base of every view is this array, not what it lies in: numpy looks through arrays only.
        root: npt.NDArray[Any] = np.ndarray(shape, dtype, block.memory)
        lease = _Lease(root, self._give_back)
        lease.block = block
        self._held.add(lease)
        block.lent = self._lent = self._lent + 1
        if self._lent - self._swept >= SWEEP:
            self._sweep()
        return block, root

    def trim(self) -> int:
        """Give all memory that nobody holds back to the system; how many bytes that were."""
        self.collect()
        freed = self.free_bytes
        self._free.clear()
        self.free_bytes = 0
        return freed

    def _sweep(self) -> None:
        """Give back what was not needed since the last time: sizes that nobody asks for, or more than are in use."""
        for size, blocks in list(self._free.items()):
            kept = [block for block in blocks if block.lent > self._swept]
            self.free_bytes -= size * (len(blocks) - len(kept))
            if kept:
                self._free[size] = kept
            else:
                del self._free[size]
        self._swept = self._lent


def block_size(nbytes: int) -> int:
    """Return the bytes of the block that holds so many."""
    return rounded(max(nbytes, 1), 64 if nbytes < SMALL else PAGE)
