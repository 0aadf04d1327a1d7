"""Streams of a blend: its batches drawn ahead of the learner, each view's part in its own store."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

from sharpwave.errors import EmptyError, not_to_be_copied
from sharpwave.sampling.limiters import check_timeout
from sharpwave.views.batch import Arrays, Drawn
from sharpwave.views.batch_source import Undo
from sharpwave.views.blend_source import BlendSource, Choice
from sharpwave.views.turns import held, turn

B = TypeVar("B", bound=Arrays)


@dataclass(frozen=True, eq=False)
class BlendDrawn:
    """Draw of a future batch: the choice, and the draw of each view that has a part in it, by view."""

    choice: Choice
    parts: dict[int, Drawn]


class BlendStream(Generic[B]):
    """Endless iterator over batches; made by ``blend.Blend.stream``. Threads take turns.

    All views' parts of a batch are drawn under all their stores' locks, filled and discarded so: a view that has to
    wait, an error or an interrupt never leaves a part of a batch, and a fork finds none.

    Args:
        resumed: choices of a stream before a checkpoint; the draws are in the checkpoints of the views.

    Attributes:
        drawn: batches drawn and not used yet, oldest first.
    """

    def __init__(
        self,
        source: BlendSource[B],
        batch_size: int,
        lookahead: int,
        beta: float | None,
        timeout: float | None,
        resumed: Sequence[Choice],
    ) -> None:
        self._source = source
        self._size, self._lookahead = batch_size, lookahead
        self._beta, self._timeout = beta, timeout
        self._turn = turn()  # taken before the blend's
        self._ahead = [view.draws_ahead() for view in source.views]
        self.drawn: deque[BlendDrawn] = deque()
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

    def __iter__(self) -> BlendStream[B]:
        return self

    def __next__(self) -> B:
        """Return the batch drawn longest ago.  Raises: as ``blend.Blend.sample``."""
        source = self._source
        with held(self._turn, check_timeout("stream", self._timeout), "stream", source.waits):
            if any(ahead.inherited for ahead in self._ahead):
                self._clear()
            while len(self.drawn) <= self._lookahead and self._draw(wait=not self.drawn):
                pass
            first = self.drawn[0]
            for k, part in first.parts.items():
                self._ahead[k].wait_for(part)
            with source.held():
                try:
                    batch = source.fill_drawn(first.choice, first.parts, self._beta)
                except (MemoryError, EmptyError):  # it counts as sampled: it is returned once there is room, or steps
                    self._go_on(first)
                    raise
                except BaseException:
                    for k, part in first.parts.items():
                        source.views[k].source.items.take_back(part.ids)
                    self._drop(first)
                    raise
                self._drop(first)
                return batch

    def _draw(self, wait: bool) -> bool:
        """Draw a batch, and start to read its segments. Return False if it would have to wait, but may not.

        Raises:
            as ``blend.Blend.sample``; then nothing was drawn.
        """
        return bool(self._source.draw(self._size, self._draw_parts, beta=self._beta, timeout=self._timeout, wait=wait))

    def _draw_parts(self, choice: Choice) -> bool:
        undos: list[Undo] = []
        try:
            for k, count in choice.counts.items():
                undos.append(self._ahead[k].draw(count, self._beta))
            for k in choice.counts:
                self._ahead[k].read()
            self.drawn.append(BlendDrawn(choice, {k: self._ahead[k].drawn[-1] for k in choice.counts}))
        except BaseException:
            for undo in reversed(undos):
                undo()
            raise
        return True

    def _drop(self, first: BlendDrawn) -> None:
        """Discard the batch drawn longest ago."""
        self.drawn.popleft()
        for k in first.parts:
            self._ahead[k].drawn.popleft()
        self._go_on(first)

    def _go_on(self, used: BlendDrawn) -> None:
        """Unpin the segments of a batch, and read on."""
        for k, part in used.parts.items():
            self._ahead[k].go_on(part)

    def _resume(self, choices: Sequence[Choice]) -> bool:
        """Join the parts that the views resumed to batches; return whether they are those of ``choices``."""
        parts = [iter(list(ahead.drawn)) for ahead in self._ahead]
        for choice in choices:
            found = {k: next(parts[k], None) for k in choice.counts}
            joined = {k: part for k, part in found.items() if part and len(part.ids) == choice.counts[k]}
            if len(joined) < len(found):
                return False
            self.drawn.append(BlendDrawn(choice, joined))
        return all(next(left, None) is None for left in parts)

    def close(self) -> None:
        """Discard batches that were drawn and not used, as ``Stream.close`` does."""
        seconds = check_timeout("stream", self._timeout)
        with held(self._turn, seconds, "stream", self._source.waits):
            self._clear()

    def _clear(self) -> None:
        with self._source.held():
            self.drawn.clear()
            for ahead in self._ahead:
                ahead.clear()
