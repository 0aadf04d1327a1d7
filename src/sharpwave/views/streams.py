"""Streams: batches drawn ahead of the learner, whose segments are read from disk meanwhile."""

from __future__ import annotations

import contextlib
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.errors import EmptyError, LimiterTimeoutError, not_to_be_copied
from sharpwave.native.forks import path
from sharpwave.sampling.limiters import check_timeout
from sharpwave.sampling.protocol import Draw
from sharpwave.views.batch_source import Undo
from sharpwave.views.unused_draws import Drawn
from sharpwave.views.view_parts import Choice, Parts, held, turn

Ints = npt.NDArray[np.int64]
B = TypeVar("B")

AHEAD = 0.75
"""Share of the memory for segments that prefetching may fill. The rest is for batches drawn now."""


class DrawsAhead:
    """Draws of one view for the future batches of a stream. The store's lock is held, except in ``wait_for``.

    Segments are read ahead as far as three quarters of the store's memory for them allow, counted over all its streams:
    a segment that was read must still be there when it is used.

    Args:
        view: kept alive: only live views are notified of evictions.

    Attributes:
        drawn: draws not used yet, oldest first.
    """

    def __init__(self, view: Any) -> None:
        self._view, self._source = view, view.source
        self.drawn: deque[Drawn] = deque()
        with view.lock:
            self._source.unused.add(self, self.drawn)
            self._process = self._source.unused.process

    def draw(self, count: int, beta: float | None) -> Undo:
        """Draw ``count`` items, which can be drawn; return a function that undoes it while the lock is still held."""
        source, draw = self._source, Draw.of(count)
        source.unused.forget_dropped()
        undo = source.draw(draw, beta)
        source.items.write_ids(draw.items, ids := np.empty(count, np.int64))
        self.drawn.append(Drawn(ids, draw.probabilities, draw.weights, source.kept_uniforms(draw)))
        source.gate.notify()

        def undraw() -> None:
            source.unused.unpin(self.drawn.pop())
            undo()

        return undraw

    def read(self) -> None:
        """Start to read the segments of the next batches, as far as there is room to keep them."""
        log = self._source.log
        segment_cache = log.segment_cache
        if segment_cache is None or log.closed:
            return
        for batch in self.drawn:
            if batch.slots is None:
                slots = self._needed(batch)
                nbytes = int(log.index.nbytes[slots].sum())
                if segment_cache.kept_bytes + nbytes > AHEAD * log.segment_bytes:
                    break
                batch.slots, batch.nbytes = slots, nbytes
                segment_cache.kept_bytes += nbytes
                segment_cache.pin(slots)
                segment_cache.fetch(slots)

    def _needed(self, batch: Drawn) -> Ints:
        """Return slots of the sealed segments that a batch's items need, as far as they are still held."""
        items, there = self._source.items.resolve(batch.ids)
        uniforms = np.ones(len(items)) if batch.uniforms is None else batch.uniforms
        slots = self._source.view.drawn_segments(items[there], uniforms[there]).reshape(-1)
        sealed: Ints = slots[self._source.log.index.sealed[slots] > 0]
        return sealed

    def wait_for(self, one: Drawn) -> None:
        """Wait until the segments of a draw are read, while others append and sample."""
        segment_cache = self._source.log.segment_cache
        if segment_cache is not None and one.slots is not None:
            segment_cache.wait(one.slots)

    def go_on(self, used: Drawn) -> None:
        """Unpin the segments of a draw that was used, and read on."""
        self._source.unused.unpin(used)
        self._source.gate.notify()  # they may be evicted
        self.read()

    @property
    def inherited(self) -> bool:
        """Whether the draws belong to the parent of this process, a fork that did not call ``clear`` yet."""
        return self._process is not path()

    def clear(self) -> None:
        """Discard all draws; their items can be sampled again, where uses are limited."""
        self._process = path()
        self._source.unused.release(self.drawn)
        self._source.gate.notify()


@dataclass(eq=False)
class BatchAhead:
    """Draw of a future batch: the choice, and the draw of each of this process's views that has a part in it."""

    choice: Choice
    parts: dict[int, Drawn]


class Stream(Generic[B]):
    """Endless iterator over batches of one view or of a blend's; made by their ``stream``. Threads take turns.

    All parts of a batch are drawn under all their stores' locks, filled and discarded so: a view that has to wait, an
    error or an interrupt never leaves a part of a batch, and a fork finds none.

    Args:
        resumed: choices of a blend's stream before a checkpoint; the draws are in the checkpoints of the views.

    Attributes:
        drawn: batches drawn and not used yet, oldest first.
    """

    def __init__(
        self,
        parts: Parts[B],
        batch_size: int,
        lookahead: int,
        beta: float | None,
        timeout: float | None,
        resumed: Sequence[Choice] = (),
    ) -> None:
        self._parts = parts
        self._size, self._lookahead = batch_size, lookahead
        self._beta, self._timeout = beta, timeout
        self._turn = turn()  # taken before the parts' locks
        self._ahead = {k: DrawsAhead(view) for k, view in enumerate(parts.views) if not view.remote}
        self.drawn: deque[BatchAhead] = deque()
        if parts.alone:
            resumed = [Choice.alone(len(one.ids)) for one in self._ahead[0].drawn]
        if not self._resume(resumed):
            self.close()
            warnings.warn(
                "Blend: batches drawn ahead before the checkpoint are dropped, as the blend's state and its views' are "
                "of different moments; save state() with the stores' checkpoints, and restore it before stream()",
                RuntimeWarning,
                stacklevel=3,
            )

    def __reduce__(self) -> NoReturn:
        raise not_to_be_copied(self)

    def __iter__(self) -> Stream[B]:
        return self

    def __next__(self) -> B:
        """Return the batch drawn longest ago.  Raises: as ``sample``."""
        parts = self._parts
        with held(self._turn, check_timeout("stream", self._timeout), "stream", parts.waits):
            for ahead in self._ahead.values():
                if ahead.inherited:
                    self._clear()
                    break
            while len(self.drawn) <= self._lookahead and self._draw(wait=not self.drawn):
                pass
            first = self.drawn[0]
            for k, part in first.parts.items():
                self._ahead[k].wait_for(part)
            with parts.held():
                try:
                    batch = parts.fill_drawn(first.choice, first.parts, self._beta)
                except (MemoryError, EmptyError):  # it counts as sampled: it is returned once there is room, or steps
                    self._go_on(first)
                    raise
                except BaseException:
                    self._drop(first)
                    for k, part in first.parts.items():
                        parts.views[k].source.unused.release(deque([part]))
                    raise
                self._drop(first)
                return batch

    def _draw(self, wait: bool) -> bool:
        """Draw a batch, and start to read its segments. Return False if it would have to wait, but may not.

        Raises:
            as ``sample``; then nothing was drawn.
        """
        return bool(self._parts.draw(self._size, self._draw_parts, beta=self._beta, timeout=self._timeout, wait=wait))

    def _draw_parts(self, choice: Choice) -> bool:
        undos: list[Undo] = []
        try:
            for k, count in choice.near.items():
                undos.append(self._ahead[k].draw(count, self._beta))
            for k in choice.near:
                self._ahead[k].read()
            self.drawn.append(BatchAhead(choice, {k: self._ahead[k].drawn[-1] for k in choice.near}))
        except BaseException:
            for undo in reversed(undos):
                undo()
            raise
        return True

    def _drop(self, first: BatchAhead) -> None:
        """Discard the batch drawn longest ago."""
        self.drawn.popleft()
        for k in first.parts:
            self._ahead[k].drawn.popleft()
        self._go_on(first)

    def _go_on(self, used: BatchAhead) -> None:
        """Unpin the segments of a batch, and read on."""
        for k, part in used.parts.items():
            self._ahead[k].go_on(part)

    def _resume(self, choices: Sequence[Choice]) -> bool:
        """Join the parts that the views resumed to batches; return whether they match ``choices``."""
        parts = {k: iter(list(ahead.drawn)) for k, ahead in self._ahead.items()}
        for choice in choices:
            found = {k: next(parts[k], None) for k in choice.counts}
            joined = {k: part for k, part in found.items() if part and len(part.ids) == choice.counts[k]}
            if len(joined) < len(found):
                return False
            self.drawn.append(BatchAhead(choice, joined))
        return all(next(left, None) is None for left in parts.values())

    def close(self) -> None:
        """Discard batches that were drawn and not used. With ``max_times_sampled`` their items can be drawn again.

        It does not wait for a thread that waits for steps in ``next``; that thread goes on.
        """
        with (
            contextlib.suppress(LimiterTimeoutError),  # it waits, and has drawn nothing
            held(self._turn, 0.0, "stream", lambda: self._parts.waits() and not self.drawn),
        ):
            self._clear()

    def _clear(self) -> None:
        with self._parts.held():
            self.drawn.clear()
            for ahead in self._ahead.values():
                ahead.clear()
