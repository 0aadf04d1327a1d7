"""Streams of a blend: its batches drawn ahead of the learner, each view's part in its own store."""

from __future__ import annotations

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.errors import LimiterTimeoutError, not_to_be_copied
from sharpwave.sampling.limiters import check_timeout
from sharpwave.views.batch import Arrays
from sharpwave.views.blend_source import BlendSource, Choice, held
from sharpwave.views.layout import Target
from sharpwave.views.prefetch import Drawn

B = TypeVar("B", bound=Arrays)
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class BlendDrawn:
    """Draw of a future batch: the choice, and the draw of each view that has a part in it, by view."""

    choice: Choice
    parts: dict[int, Drawn]


class BlendStream(Generic[B]):
    """Endless iterator over batches; made by ``blend.Blend.stream``. Threads take turns.

    All views' parts of a batch are drawn under all their stores' locks, and discarded so: a view that has to wait, an
    error or an interrupt never leaves a part of a batch.

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
        self._turn = threading.Lock()  # taken before the blend's
        self._ahead = [view.draws_ahead() for view in source.views]
        locks = {id(ahead.lock): ahead.lock for ahead in self._ahead}
        self._locks = [locks[key] for key in sorted(locks)]  # in one order, or streams could wait for each other
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
        with held(self._turn, self._timeout, "stream"):
            while len(self.drawn) <= self._lookahead and self._draw(wait=not self.drawn):
                pass
            first = self.drawn[0]
            try:
                for k, part in first.parts.items():
                    self._ahead[k].wait_for(part)
                batch = self._source.batch(first.choice, lambda k, target: self._fill(k, first.parts[k], target))
            except MemoryError:  # the draw counts as sampled: it is returned when there is room
                self._go_on(first)
                raise
            except BaseException:
                self._drop(first)
                raise
            self._drop(first)
            return batch

    def _draw(self, wait: bool) -> bool:
        """Draw a batch. Return False if it would have to wait, but may not; then nothing was drawn.

        Raises:
            as ``blend.Blend.sample``; then nothing was drawn.
        """
        source, end = self._source, time.monotonic() + check_timeout("sample", self._timeout)
        try:
            with held(source.lock, self._timeout if wait else 0, "blend"):
                choice, rng = source.choose(self._size)
                while (waiting := self._draw_parts(choice, rng)) is not None:
                    if not wait:
                        return False
                    left = max(0.0, end - time.monotonic())
                    source.views[waiting].wait(choice.counts[waiting], beta=self._beta, timeout=left)
        except LimiterTimeoutError:
            if wait:
                raise
            return False  # another thread waits for steps: the batches drawn already are ready nevertheless
        return True

    def _draw_parts(self, choice: Choice, rng: Mapping[str, Any]) -> int | None:
        """Draw the parts of a batch and start to read their segments; or return a view that has to wait for its own."""
        with self._all_locks():
            for k, count in choice.counts.items():
                if not self._ahead[k].can_draw(count):
                    return k
            undos: list[Callable[[], None]] = []
            try:
                for k, count in choice.counts.items():
                    undos.append(self._ahead[k].draw(count, self._beta))
            except BaseException:
                for undo in reversed(undos):
                    undo()
                raise
            self._source.took(choice, rng)
            self.drawn.append(BlendDrawn(choice, {k: self._ahead[k].drawn[-1] for k in choice.counts}))
            for k in choice.counts:
                self._ahead[k].read()
        return None

    def _fill(self, k: int, part: Drawn, target: Target) -> None:
        ahead = self._ahead[k]
        with ahead.lock:
            ahead.source.log.check_open()
            ahead.source.fill_drawn(target, part.ids, part.probabilities, part.weights, self._beta)

    def _drop(self, first: BlendDrawn) -> None:
        """Discard the batch drawn longest ago."""
        with self._all_locks():
            self.drawn.popleft()
            for k in first.parts:
                self._ahead[k].drawn.popleft()
            self._go_on(first)

    def _go_on(self, used: BlendDrawn) -> None:
        """Unpin the segments of a batch, and read on."""
        with self._all_locks():
            for k, part in used.parts.items():
                self._ahead[k].go_on(part)

    @contextmanager
    def _all_locks(self) -> Iterator[None]:
        """Hold the locks of all stores."""
        with ExitStack() as stack:
            for lock in self._locks:
                stack.enter_context(lock)
            yield

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
        """Discard batches that were drawn and not used."""
        with held(self._turn, self._timeout, "stream"), self._all_locks():
            self.drawn.clear()
            for ahead in self._ahead:
                ahead.clear()
