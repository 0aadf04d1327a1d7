"""The RAM tier: one flat range of address space that holds all encoded segments and all open rows.

The space is reserved at once and costs nothing until it is written to. It is divided into chunks of equal size;
segments are laid one behind the other into the current chunk, and a chunk whose last segment was freed is reused.
Under FIFO retention this is a ring, and a segment may lie across the border of two neighbours, so that no chunk has an
unused end. Where segments are freed in another order, chunks that are half empty are compacted and refilled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.memory.address_space import PAGE, reserve

HUGE = 64 << 20
"""Smallest arena for which huge pages (2 MiB) are requested: random reads take up to a quarter less time with them."""
ALIGNMENT = 8


def rounded(nbytes: int, unit: int) -> int:
    """Round ``nbytes`` up to a multiple of ``unit``."""
    return -(-nbytes // unit) * unit


class Arena:
    """Allocator of byte ranges in ``memory``.

    Args:
        reserve_bytes: address space to reserve; bounds what the arena can ever hold.
        chunk_bytes: size of a chunk, and of the largest range; a multiple of the page size.
        head_bytes: bytes before the first chunk, the caller's own, and not counted here.
        huge_pages: request them, where little is released again: they are committed as a whole. Not for the first
            chunk, which the open segments of few lanes have to themselves.
        across: whether a range from ``allocate`` may lie across chunks; not where chunks are compacted.

    Attributes:
        memory: uint8 [head_bytes + reserve_bytes], rounded up; all offsets refer to it.
        floats: the same as float32.
        used_bytes: bytes allocated and not freed.
        committed_bytes: bytes written to and not released to the system: what the arena costs in RAM.
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
        self.chunk_bytes, self._across = chunk_bytes, across
        self._begin = rounded(head_bytes, PAGE)
        chunks = -(-max(reserve_bytes, 4 * chunk_bytes) // chunk_bytes)
        reserve_bytes = self._begin + chunks * chunk_bytes
        try:
            self._space = reserve(reserve_bytes)
        except (OSError, ValueError, OverflowError) as error:
            raise MemoryError(
                f"store: cannot reserve {reserve_bytes:,} bytes of address space ({error}); "
                "lower capacity=, or give a lower ram= to bound it"
            ) from error
        self._huge_pages = huge_pages and reserve_bytes >= HUGE and self._space.use_huge_pages(self.begin_of(1))
        self._space.commit(0, self._begin)
        self.memory: npt.NDArray[np.uint8] = self._space.memory
        self.floats = self.memory.view(np.float32)
        self.limit_bytes = chunks * chunk_bytes
        self.used_bytes = 0
        self._live = np.zeros(chunks, np.int64)  # bytes allocated in each chunk
        self._touched = np.zeros(chunks, np.int64)  # highest byte ever written in each chunk since it was committed
        self.committed_bytes = 0
        self._free: list[int] = []  # empty chunks whose memory is still committed
        self._fresh = 0  # chunks from here on are unused so far
        self._current = -1
        self._top = 0
        self._opened = np.zeros(chunks, np.bool_)  # chunks with ranges from ``reserve``
        self._open, self._open_top = -1, 0  # the one that the next of these are cut from

    @property
    def reserved_bytes(self) -> int:
        """Bytes of address space for chunks."""
        return len(self._live) * self.chunk_bytes

    def larger(self, reserve_bytes: int, head_bytes: int) -> Arena:
        """Return an empty arena for ``become``.

        Raises:
            MemoryError: the address space cannot be reserved.
        """
        larger = Arena(reserve_bytes, self.chunk_bytes, head_bytes, huge_pages=self._huge_pages, across=self._across)
        larger._space.commit(larger._begin, self._fresh * self.chunk_bytes)
        return larger

    def become(self, larger: Arena, head_used: int) -> None:
        """Become one from ``larger``: the contents move there, chunk by chunk. Raises nothing.

        Args:
            head_used: bytes of the head to copy.

        Cost: a copy of the memory in use. At no time is more than a chunk held twice.
        """
        larger.memory[:head_used] = self.memory[:head_used]
        shift = larger._begin - self._begin
        for chunk in range(self._fresh):
            begin, nbytes = self.begin_of(chunk), int(self._touched[chunk])
            larger.memory[begin + shift : begin + shift + nbytes] = self.memory[begin : begin + nbytes]
            self._space.release(begin, self.chunk_bytes)
        self._begin, self._space = larger._begin, larger._space
        self.memory, self.floats = larger.memory, larger.floats
        used = slice(0, self._fresh)
        larger._live[used], larger._touched[used] = self._live[used], self._touched[used]
        larger._opened[used] = self._opened[used]
        self._live, self._touched, self._opened = larger._live, larger._touched, larger._opened
        self._huge_pages = larger._huge_pages

    def allocate(self, nbytes: int) -> int | None:
        """Return the offset of ``nbytes`` (at most a chunk), a multiple of 8; ``None`` if limit or space is
        exhausted."""
        nbytes = rounded(nbytes, ALIGNMENT)
        assert 0 < nbytes <= self.chunk_bytes, (nbytes, self.chunk_bytes)
        top = self._top + nbytes
        if self._current < 0 or top > self.chunk_bytes or not self._may_commit(self._current, top):
            if self._reaches_next(top):
                offset = self.begin_of(self._current) + self._top
                self._grow(self._current, self.chunk_bytes, self.chunk_bytes - self._top)
                self._current, self._top = self._current + 1, top - self.chunk_bytes
                self._grow(self._current, self._top, self._top)
                return offset
            chunk = self._take(nbytes)
            if chunk is None:
                return None
            previous, self._current, self._top = self._current, chunk, 0
            if previous >= 0 and self._live[previous] == 0:
                self._free.append(previous)
        offset = self.begin_of(self._current) + self._top
        self._top += nbytes
        self._grow(self._current, self._top, nbytes)
        return offset

    def allocate_some(self, nbytes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return offsets of the first of several ranges ([n], n > 0), as many as fit into one chunk; none as above."""
        spaces = -(-nbytes // ALIGNMENT) * ALIGNMENT
        ends = np.cumsum(spaces)
        begins: npt.NDArray[np.int64] = ends - spaces
        first = self.allocate(int(nbytes[0]))
        if first is None:
            return begins[:0]
        try:
            begins += first
            spare = max(0, self.limit_bytes - self.committed_bytes) // PAGE * PAGE
            end = min(self.chunk_bytes, int(self._touched[self._current]) + spare)
            count = int(np.searchsorted(ends, end - self._top + int(ends[0]), side="right"))
        except BaseException:
            self.free(first, int(nbytes[0]))
            raise
        more = int(ends[count - 1]) - int(ends[0])
        self._top += more
        self._grow(self._current, self._top, more)
        return begins[:count]

    def reserve(self, nbytes: int, count: int) -> range:
        """Return offsets of ``count`` ranges of ``nbytes`` (at most a chunk, a multiple of 8) for rows still being
        written: as many as fit into one chunk, none where the limit or the space is exhausted.

        They lie in chunks of their own, many to a chunk, so that they keep no other chunk in use.
        """
        assert 0 < nbytes <= self.chunk_bytes and nbytes % ALIGNMENT == 0, (nbytes, self.chunk_bytes)
        top = self._open_top + nbytes
        if self._open < 0 or top > self.chunk_bytes or not self._may_commit(self._open, top):
            chunk = self._take(nbytes)
            if chunk is None:
                return range(0)
            self._open, self._open_top = chunk, 0
            self._opened[chunk] = True
        some = min(count, (self.chunk_bytes - self._open_top) // nbytes)
        while not self._may_commit(self._open, self._open_top + some * nbytes):
            some -= 1
        first = self.begin_of(self._open) + self._open_top
        self._open_top += some * nbytes
        self._grow(self._open, self._open_top, some * nbytes)
        return range(first, first + some * nbytes, nbytes)

    def free(self, offset: int, nbytes: int) -> None:
        """Free a range from ``allocate`` or from ``reserve``."""
        chunk, end = self.chunk_of(offset), offset + rounded(nbytes, ALIGNMENT)
        border = self.begin_of(chunk + 1)
        self._free_part(chunk, offset, min(end, border) - offset)
        if end > border:
            self._free_part(chunk + 1, border, end - border)

    def _free_part(self, chunk: int, offset: int, nbytes: int) -> None:
        self.used_bytes -= nbytes
        self._live[chunk] -= nbytes
        assert self._live[chunk] >= 0
        if self._live[chunk] == 0:
            if chunk == self._current:
                self._top = 0
                return
            if chunk == self._open:
                self._open, self._open_top = -1, 0
            self._opened[chunk] = False
            self._free.append(chunk)
        elif chunk == self._open and offset + nbytes == self.begin_of(chunk) + self._open_top:
            self._open_top -= nbytes

    def chunk_of(self, offset: Any) -> Any:
        """Return the number of the chunk of a range; offsets may be an array."""
        return (offset - self._begin) // self.chunk_bytes

    def begin_of(self, chunk: int) -> int:
        """Return the offset of a chunk."""
        return self._begin + chunk * self.chunk_bytes

    @property
    def live(self) -> npt.NDArray[np.int64]:
        """Bytes allocated in each chunk. [chunks]"""
        return self._live

    @property
    def current(self) -> int:
        """Return the number of the chunk that ranges are allocated in; -1 before the first."""
        return self._current

    def emptiest(self, nbytes: int, max_share: float = 1.0) -> int | None:
        """Return the chunk to compact for ``nbytes``, if the current one has no room for them; ``None`` if none serves.

        It is the chunk with the most committed memory to spare, of those with at most ``max_share`` in use.
        """
        nbytes = rounded(nbytes, ALIGNMENT)
        top = self._top + nbytes
        if self._current >= 0 and top <= self.chunk_bytes and self._may_commit(self._current, top):
            return None
        live = self._live[: self._fresh]
        sealed = (live > 0) & ~self._opened[: self._fresh]
        spare = np.where(sealed & (live <= max_share * self.chunk_bytes), self._touched[: self._fresh] - live, 0)
        chunk = int(np.argmax(spare)) if spare.size else 0
        return chunk if spare.size and spare[chunk] >= nbytes else None

    def loosest(self) -> int | None:
        """Return the chunk in use that frees most pages when compacted; ``None`` if none frees any."""
        live = self._live[: self._fresh]
        sealed = (live > 0) & ~self._opened[: self._fresh]
        spare = np.where(sealed, self._touched[: self._fresh] - (live + PAGE - 1) // PAGE * PAGE, 0)
        chunk = int(np.argmax(spare)) if spare.size else 0
        return chunk if spare.size and spare[chunk] > 0 else None

    def trim_tail(self) -> None:
        """Release the unused memory at the end of the current chunk to the system."""
        begin, end = rounded(self._top, PAGE), int(self._touched[self._current])
        if end > begin and self._space.release(self.begin_of(self._current) + begin, end - begin):
            self._touched[self._current] = begin
            self.committed_bytes -= end - begin

    def reopen(self, chunk: int) -> None:
        """Continue allocating in ``chunk``, all of whose ranges were moved to its beginning without holes."""
        previous, self._current, self._top = self._current, chunk, int(self._live[chunk])
        if previous not in (-1, chunk) and self._live[previous] == 0:
            self._free.append(previous)

    @property
    def uncounted_bytes(self) -> int:
        """Bytes of memory of the last huge page that lie behind the last chunk used so far.  Cost: a system call."""
        return self._space.huge_page_behind(self.begin_of(self._fresh)) if self._huge_pages else 0

    def trim(self) -> None:
        """Release the memory of empty chunks to the system."""
        for chunk in self._free:
            if self._touched[chunk] and self._space.release(self.begin_of(chunk), self.chunk_bytes):
                self.committed_bytes -= int(self._touched[chunk])
                self._touched[chunk] = 0

    def _reaches_next(self, top: int) -> bool:
        """Take the chunk behind the current one, for a range that ends at ``top`` of the latter, beyond its border;
        return whether it may."""
        following, here = self._current + 1, self.chunk_bytes
        if not self._across or not 0 <= self._current < len(self._live) - 1 or not self._top < here < top:
            return False
        fresh = following == self._fresh
        if self._free if fresh else following not in self._free:  # empty chunks are used again before fresh ones
            return False
        more = max(0, here - self._touched.item(self._current))
        more += max(0, rounded(top - here, PAGE) - self._touched.item(following))
        if self.committed_bytes + more > self.limit_bytes:
            return False
        if fresh:
            self._space.commit(self.begin_of(following), here)
            self._fresh += 1
        else:
            self._free.remove(following)
        return True

    def _take(self, nbytes: int) -> int | None:
        # The empty chunk with most committed memory, so that memory touched once is reused.
        if self._free:
            best = max(range(len(self._free)), key=lambda i: self._touched[self._free[i]])
            if self._may_commit(self._free[best], nbytes):
                return self._free.pop(best)
            return None
        if self._fresh < len(self._live) and self._may_commit(self._fresh, nbytes):
            self._space.commit(self.begin_of(self._fresh), self.chunk_bytes)
            self._fresh += 1
            return self._fresh - 1
        return None

    def _may_commit(self, chunk: int, top: int) -> bool:
        more = rounded(top, PAGE) - self._touched.item(chunk)
        return more <= 0 or self.committed_bytes + more <= self.limit_bytes

    def _grow(self, chunk: int, top: int, nbytes: int) -> None:
        self.used_bytes += nbytes
        self._live[chunk] += nbytes
        # A huge page is committed as a whole, and with it parts of the chunk that are unwritten so far.
        touched = self.chunk_bytes if self._huge_pages and chunk else rounded(top, PAGE)
        if (more := touched - self._touched.item(chunk)) > 0:
            self._touched[chunk] = touched
            self.committed_bytes += more
