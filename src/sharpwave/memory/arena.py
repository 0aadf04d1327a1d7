"""The RAM tier: one flat range of address space that holds all encoded segments and all open rows.

The space is reserved at once and costs nothing until it is written to. It is divided into chunks of equal size;
segments are placed one behind the other in the current chunk, and a chunk whose last segment was freed is reused.
Under FIFO retention this is a ring, and a segment may cross the border of two adjacent chunks, so that no chunk has an
unused end. If segments are freed in another order, half-empty chunks are compacted and refilled.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sharpwave.arrays import Bytes, Ints
from sharpwave.memory.address_space import PAGE, reserve
from sharpwave.native import core

HUGE = 64 << 20
"""Smallest arena for which huge pages (2 MiB) are requested: random reads take up to a quarter less time with them."""
ALIGNMENT = 8
_LIVE, _TOUCHED = 0, 1  # rows of ``chunks``


def rounded(nbytes: int, unit: int) -> int:
    """Round ``nbytes`` up to a multiple of ``unit``."""
    return -(-nbytes // unit) * unit


class Arena(core.Ranges):
    """Allocator of byte ranges in ``memory``.

    The core allocates ranges, by their offsets; this reserves the memory and returns it to the system.

    Args:
        reserve_bytes: address space to reserve; bounds the arena's content.
        chunk_bytes: size of a chunk, and of the largest range; a multiple of the page size.
        head_bytes: bytes before the first chunk, the caller's own, and not counted here.
        huge_pages: request them, if little is released again: they are committed as a whole. Not for the first chunk,
            which few lanes' open segments have to themselves.
        across: whether a range from ``allocate`` may cross chunks; false if chunks are compacted.

    Attributes:
        memory: uint8 [head_bytes + reserve_bytes], rounded up; all offsets refer to it.
        floats: the same as float32.
        used_bytes: bytes allocated and not freed.
        committed_bytes: bytes written to and not released to the system: the arena's cost in RAM.
        limit_bytes: limit of the bytes of memory that are committed (touched); settable at any time.

    Raises:
        MemoryError: the address space cannot be reserved.
    """

    def __init__(
        self,
        reserve_bytes: int,
        chunk_bytes: int,
        head_bytes: int = 0,
        *,
        huge_pages: bool = False,
        across: bool = False,
    ) -> None:
        begin = rounded(head_bytes, PAGE)
        count = -(-max(reserve_bytes, 4 * chunk_bytes) // chunk_bytes)
        reserve_bytes = begin + count * chunk_bytes
        try:
            space = reserve(reserve_bytes)
        except (OSError, ValueError, OverflowError) as error:
            raise MemoryError(
                f"store: cannot reserve {reserve_bytes:,} bytes of address space ({error}); "
                "lower capacity=, or give a lower ram= to bound it"
            ) from error
        huge_pages = huge_pages and reserve_bytes >= HUGE and space.use_huge_pages(begin + chunk_bytes)
        commit = space.committer()
        super().__init__(begin, chunk_bytes, np.zeros((3, count), np.int64), across, huge_pages, commit)
        if commit is not None:
            commit(0, begin)
        self._space = space
        self.memory: Bytes = space.memory
        self.floats = self.memory.view(np.float32)

    @property
    def reserved_bytes(self) -> int:
        """Bytes of address space for chunks."""
        return len(self.live) * self.chunk_bytes

    def larger(self, reserve_bytes: int, head_bytes: int) -> Arena:
        """Return an empty arena for ``become``.  Raises: MemoryError: the address space cannot be reserved."""
        larger = Arena(reserve_bytes, self.chunk_bytes, head_bytes, huge_pages=self.huge_pages, across=self.across)
        if (commit := larger._space.committer()) is not None:
            commit(larger.begin_of(0), self.fresh * self.chunk_bytes)
        return larger

    def become(self, larger: Arena, head_used: int) -> None:
        """Become one from ``larger``: the contents move there, chunk by chunk. Raises nothing.

        Args:
            head_used: bytes of the head to copy.

        Cost: a copy of the memory in use. At no time is more than a chunk held twice.
        """
        larger.memory[:head_used] = self.memory[:head_used]
        for chunk, nbytes in enumerate(self.chunks[_TOUCHED, : self.fresh].tolist()):
            begin, to = self.begin_of(chunk), larger.begin_of(chunk)
            larger.memory[to : to + nbytes] = self.memory[begin : begin + nbytes]
            self._space.release(begin, self.chunk_bytes)
        self.continue_in(larger)
        self._space, self.memory, self.floats = larger._space, larger.memory, larger.floats

    def chunk_of(self, offset: Any) -> Any:
        """Return the number of the chunk of a range; offsets may be an array."""
        return (offset - self.begin_of(0)) // self.chunk_bytes

    @property
    def live(self) -> Ints:
        """Bytes allocated in each chunk. [chunks]"""
        live: Ints = self.chunks[_LIVE]
        return live

    def trim_tail(self) -> None:
        """Release the unused memory at the end of the current chunk to the system."""
        begin, end = rounded(self.top, PAGE), int(self.chunks[_TOUCHED, self.current])
        if end > begin and self._space.release(self.begin_of(self.current) + begin, end - begin):
            self.note_released(self.current, begin)

    @property
    def uncounted_bytes(self) -> int:
        """Bytes of memory behind the last chunk used so far: of its huge page, and touched ahead.

        Cost: a system call.
        """
        return self._space.committed_behind(self.begin_of(self.fresh)) if self.huge_pages else 0

    def trim(self) -> None:
        """Release the memory of empty chunks to the system."""
        for chunk in self.empty:
            if self.chunks[_TOUCHED, chunk] and self._space.release(self.begin_of(chunk), self.chunk_bytes):
                self.note_released(chunk, 0)
