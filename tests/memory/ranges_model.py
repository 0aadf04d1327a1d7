"""The rules by which ranges are allocated, in plain Python: what ``core.Ranges`` is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

PAGE = 4096


def rounded(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit


@dataclass
class Chunk:
    """Bytes allocated in a chunk, bytes committed, and whether ranges of open segments lie in it."""

    live: int = 0
    touched: int = 0
    opened: bool = False


@dataclass
class RangesModel:
    begin: int
    chunk_bytes: int
    chunks: list[Chunk]
    across: bool
    huge_pages: bool
    commit: Callable[[int, int], None]
    limit_bytes: int = 0
    empty: list[int] = field(default_factory=list)
    fresh: int = 0
    current: int = -1
    top: int = 0
    open: int = -1
    open_top: int = 0

    @property
    def used_bytes(self) -> int:
        return sum(chunk.live for chunk in self.chunks)

    @property
    def committed_bytes(self) -> int:
        return sum(chunk.touched for chunk in self.chunks)

    def begin_of(self, chunk: int) -> int:
        return self.begin + chunk * self.chunk_bytes

    def allocate(self, nbytes: int) -> int | None:
        nbytes = rounded(nbytes, 8)
        if not self._fits_current(nbytes):
            if self._reaches_next(nbytes):
                offset, here = self.begin_of(self.current) + self.top, self.chunk_bytes - self.top
                self._grow(self.current, self.chunk_bytes, here)
                self.current, self.top = self.current + 1, nbytes - here
                self._grow(self.current, self.top, self.top)
                return offset
            chunk = self._take(nbytes)
            if chunk is None:
                return None
            previous, self.current, self.top = self.current, chunk, 0
            if previous >= 0 and not self.chunks[previous].live:
                self.empty.append(previous)
        offset = self.begin_of(self.current) + self.top
        self.top += nbytes
        self._grow(self.current, self.top, nbytes)
        return offset

    def allocate_some(self, sizes: Sequence[int]) -> list[int]:
        """As one after another, as long as they lie behind each other in the chunk of the first one's end."""
        offsets: list[int] = []
        for nbytes in sizes:
            if offsets and not self._fits_current(rounded(nbytes, 8)):
                break
            offset = self.allocate(nbytes)
            if offset is None:
                break
            offsets.append(offset)
        return offsets

    def reserve(self, nbytes: int, count: int) -> list[int]:
        if self.open < 0 or self.open_top + nbytes > self.chunk_bytes or not self._may_grow(self.open, nbytes, True):
            chunk = self._take(nbytes)
            if chunk is None:
                return []
            self.open, self.open_top = chunk, 0
            self.chunks[chunk].opened = True
        offsets: list[int] = []
        first = self.open_top
        while len(offsets) < count and self.open_top + nbytes <= self.chunk_bytes:
            top = self.open_top + nbytes
            if not self._may_commit(self.open, top):
                break
            offsets.append(self.begin_of(self.open) + self.open_top)
            self.open_top = top
        self._grow(self.open, self.open_top, self.open_top - first)
        return offsets

    def free(self, offset: int, nbytes: int) -> None:
        end = offset + rounded(nbytes, 8)
        while offset < end:
            chunk = (offset - self.begin) // self.chunk_bytes
            part = min(end, self.begin_of(chunk + 1)) - offset
            self.chunks[chunk].live -= part
            if self.chunks[chunk].live == 0:
                self._empty(chunk)
            elif chunk == self.open and offset + part == self.begin_of(chunk) + self.open_top:
                self.open_top -= part
            offset += part

    def emptiest(self, nbytes: int, max_share: float) -> int | None:
        nbytes = rounded(nbytes, 8)
        if self._fits_current(nbytes):
            return None
        spare = {c: one.touched - one.live for c, one in self._sealed() if one.live <= max_share * self.chunk_bytes}
        best = max(spare, key=lambda c: spare[c], default=None)
        return best if best is not None and spare[best] >= nbytes else None

    def loosest(self) -> int | None:
        spare = {c: one.touched - rounded(one.live, PAGE) for c, one in self._sealed()}
        best = max(spare, key=lambda c: spare[c], default=None)
        return best if best is not None and spare[best] > 0 else None

    def reopen(self, chunk: int) -> None:
        previous, self.current, self.top = self.current, chunk, self.chunks[chunk].live
        if previous not in (-1, chunk) and not self.chunks[previous].live:
            self.empty.append(previous)

    def _sealed(self) -> list[tuple[int, Chunk]]:
        return [(c, one) for c, one in enumerate(self.chunks[: self.fresh]) if one.live and not one.opened]

    def _empty(self, chunk: int) -> None:
        if chunk == self.current:
            self.top = 0
            return
        if chunk == self.open:
            self.open, self.open_top = -1, 0
        self.chunks[chunk].opened = False
        self.empty.append(chunk)

    def _fits_current(self, nbytes: int) -> bool:
        return self.current >= 0 and self.top + nbytes <= self.chunk_bytes and self._may_grow(self.current, nbytes)

    def _may_grow(self, chunk: int, nbytes: int, is_open: bool = False) -> bool:
        return self._may_commit(chunk, (self.open_top if is_open else self.top) + nbytes)

    def _may_commit(self, chunk: int, top: int) -> bool:
        more = rounded(top, PAGE) - self.chunks[chunk].touched
        return more <= 0 or self.committed_bytes + more <= self.limit_bytes

    def _reaches_next(self, nbytes: int) -> bool:
        """Take the chunk behind the current one, if a range may lie across their border."""
        following, here = self.current + 1, self.chunk_bytes - self.top
        if not self.across or self.current < 0 or following == len(self.chunks) or not 0 < here < nbytes:
            return False
        if self.empty if following == self.fresh else following not in self.empty:
            return False
        more = self.chunk_bytes - self.chunks[self.current].touched
        more += max(0, rounded(nbytes - here, PAGE) - self.chunks[following].touched)
        if self.committed_bytes + more > self.limit_bytes:
            return False
        if following == self.fresh:
            self._use_fresh()
        else:
            self.empty.remove(following)
        return True

    def _take(self, nbytes: int) -> int | None:
        if self.empty:
            best = max(self.empty, key=lambda chunk: self.chunks[chunk].touched)
            if not self._may_commit(best, nbytes):
                return None
            self.empty.remove(best)
            return best
        if self.fresh == len(self.chunks) or not self._may_commit(self.fresh, nbytes):
            return None
        return self._use_fresh()

    def _use_fresh(self) -> int:
        self.commit(self.begin_of(self.fresh), self.chunk_bytes)
        self.fresh += 1
        return self.fresh - 1

    def _grow(self, chunk: int, top: int, nbytes: int) -> None:
        one = self.chunks[chunk]
        one.live += nbytes
        one.touched = max(one.touched, self.chunk_bytes if self.huge_pages and chunk else rounded(top, PAGE))
