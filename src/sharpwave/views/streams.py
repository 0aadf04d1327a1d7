"""Streams: batches drawn ahead of the learner, whose segments are read from disk meanwhile."""

from __future__ import annotations

import contextlib
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

from sharpwave.errors import EmptyError, LimiterTimeoutError, not_to_be_copied
from sharpwave.sampling.limiters import check_timeout
from sharpwave.views.draws_ahead import Drawn, DrawsAhead
from sharpwave.views.items import Undo
from sharpwave.views.view_parts import Choice, Parts, held, turn

B = TypeVar("B")


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
            settings = self._size, self._draw_parts, self._beta, self._timeout
            while len(self.drawn) <= self._lookahead and parts.draw(*settings, wait=not self.drawn):
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

    def _draw_parts(self, choice: Choice) -> bool:
        """Draw all parts of a batch, or none, and start to read their segments."""
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
