"""Memory lent to batches: beside the segments, and never at their expense."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.log.admission import Admission
from sharpwave.memory.batch_pool import Block, Pool, Root, block_size
from sharpwave.memory.ledger import MAX_BATCH_SHARE

KEPT_TRANSITIONS = 2048
"""Transitions for which room is reserved from the start, as far as the batches' share of ``ram`` allows."""


class BatchMemory:
    """Lender of memory to batches, within ``ram``. No step is evicted for a batch.

    Attributes:
        pool: blocks that are lent, or free for the next batch.
    """

    def __init__(self, admission: Admission) -> None:
        self._space, self._ledger, self._admission = admission.space, admission.ledger, admission
        self._shared = admission.sealed.shared
        self.pool = Pool()
        self._ledger.enter_for_batches(lambda: self.pool.nbytes)
        self.keep(0)

    def keep(self, batch_bytes: int) -> None:
        """Reserve room for a batch of ``batch_bytes`` beside the held batches, under a new limit of memory."""
        self._ledger.kept_for_batches = self._kept(self._ledger.ram or 0, batch_bytes)

    def _kept(self, ram: int, batch_bytes: int) -> int:
        """Return the bytes reserved for batches, which segments never take: at most the batches' share of ``ram``."""
        if self._space.segment_cache is not None:
            return 0  # segments can be uncached at any time
        kept = max(KEPT_TRANSITIONS * self._space.layout.transition_bytes, self.pool.held_bytes + batch_bytes)
        return min(int(ram * MAX_BATCH_SHARE), kept)

    def check_ram(self, ram: int | None, batch_bytes: int) -> None:
        """Refuse a ``ram`` too small for unevictable memory and a batch of ``batch_bytes`` beside the held batches.

        Raises:
            ValueError: naming the least sufficient ``ram``.
        """
        if ram is None:
            return
        self.pool.collect()
        held, least = self.pool.held_bytes, self._admission.min_segment_bytes + self._beside_bytes(ram)
        batches = held + batch_bytes
        need = max(least + max(batches, self._kept(ram, batch_bytes)), math.ceil(batches / MAX_BATCH_SHARE))
        if need > ram:
            raise ValueError(
                f"resize: ram={ram:,}, expected at least {need:,}: {least:,} for open segments, index and samplers, "
                f"and {batches:,} for batches (at most {MAX_BATCH_SHARE:g} of ram), {held:,} of which are held"
            )

    def lend(
        self, sizes: tuple[int, ...], roots: Sequence[Root], work_bytes: int = 0
    ) -> list[tuple[Block, npt.NDArray[Any]]]:
        """Lend blocks of ``sizes`` (from ``block_size``), uninitialized, for one batch.

        Args:
            roots: shape and dtype of the array over each block.
            work_bytes: working memory for making the batch, beyond the ledger's count.

        Raises:
            MemoryError: ``ram`` has no room for it; then nothing changed.
        """
        pool, ledger = self.pool, self._ledger
        pool.collect()
        more = ledger.ram is not None and pool.missing(sizes) + work_bytes > 0
        if more:
            self._make_room(sizes, work_bytes)
        lent = [pool.lend(size, *root) for size, root in zip(sizes, roots, strict=True)]
        if more:
            # Room that batches once took from free memory stays theirs: a batch that fits once fits later.
            if self._space.segment_cache is None:
                ledger.kept_for_batches = max(ledger.kept_for_batches, ledger.batch_bytes + work_bytes)
            # The cache of shared values shrinks by as much.
            self._admission.fit_memory()
        return lent

    def lend_more(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Lend memory while a batch is filled, when no segment may move or be evicted.

        Raises:
            MemoryError: ``ram`` has no room for it.
        """
        size, pool, ledger = block_size(math.prod(shape) * dtype.itemsize), self.pool, self._ledger
        pool.collect()
        missing = pool.missing((size,))
        if ledger.ram is not None and missing > self._room_bytes(ledger.ram):
            pool.trim()  # blocks of other sizes, which rows of any length leave behind
            missing = pool.missing((size,))
            if missing > self._room_bytes(ledger.ram):
                raise self._too_large(missing, ledger.ram)
        array: npt.NDArray[Any] = pool.lend(size, shape, dtype)[1]
        if ledger.ram is not None and self._space.segment_cache is None:
            ledger.kept_for_batches = max(ledger.kept_for_batches, ledger.batch_bytes)
        self._shared.reserve()
        return array

    def _make_room(self, sizes: tuple[int, ...], work_bytes: int) -> None:
        """Make room for a batch beside the held batches.  Raises: MemoryError: impossible."""
        ram, arena, pool = self._ledger.ram, self._space.arena, self.pool
        assert ram is not None
        if pool.missing(sizes) + work_bytes <= self._room_bytes(ram):
            return
        pool.trim()
        arena.trim()
        need = pool.missing(sizes) + work_bytes
        if need > self._room_bytes(ram):
            self._admission.fit_memory()  # evicts for the growth of index and samplers, not for a batch
        if need > self._room_bytes(ram):
            raise self._too_large(need, ram)

    def _too_large(self, need: int, ram: int) -> MemoryError:
        """Return the error of a batch for which there is no room."""
        shared = f", with {self._shared.needed_bytes:,} by shared values outside their cache" if self._shared else ""
        return MemoryError(
            f"sample: a batch of {need:,} bytes does not fit: of ram={ram:,} batches may take "
            f"{max(0, self._room_bytes(ram)):,} more. {self.pool.held_bytes:,} bytes are held by batches that are "
            f"still in use (together at most {MAX_BATCH_SHARE:g} of ram), {self._space.arena.committed_bytes:,} by "
            f"steps and {self._beside_bytes(ram):,} by index and samplers{shared}. Use a smaller batch_size, let go of "
            "batches, or raise ram="
        )

    def _room_bytes(self, ram: int) -> int:
        """Return the bytes of memory that batches may take in addition."""
        space = self._space
        cached = space.segment_cache is not None  # then sealed segments are uncached for a batch
        segment_bytes = self._admission.min_segment_bytes if cached else space.arena.committed_bytes
        return self._ledger.batch_room_bytes(ram, segment_bytes - self._shared.reserved)

    def _beside_bytes(self, ram: int) -> int:
        """Return the bytes for other parts than segments and batches, without the cache of shared values."""
        return self._ledger.beside_bytes(ram) - self._shared.reserved
