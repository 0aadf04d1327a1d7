"""Batches drawn ahead of the learner, so that what they need is read from disk before it is asked for."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..sampling.samplers import Draw, checked_array
from .batch import Batch

if TYPE_CHECKING:
    from .transitions import Transitions

Ints = npt.NDArray[np.int64]


class Stream:
    """An endless iterator over batches; made by :meth:`Transitions.stream`."""

    def __init__(
        self, view: Transitions, batch_size: int, lookahead: int, beta: float | None, timeout: float | None
    ) -> None:
        self._view, self._size, self._lookahead = view, batch_size, lookahead
        self._beta, self._timeout = beta, timeout
        self._drawn: deque[tuple[Draw, Ints, Ints]] = deque()  # draw, its ids, the slots it needs

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Batch:
        """The batch drawn longest ago.  Raises: as :meth:`Transitions.sample`."""
        view = self._view
        with view._lock:
            while len(self._drawn) <= self._lookahead:
                if not self._drawn:
                    view._gate.wait("sample", lambda: view._sample_waits(self._size), self._timeout)
                    view._check_enough(self._size)
                elif view._sample_waits(self._size) is not None or not view._enough(self._size):
                    break
                self._draw()
            draw, ids, slots = self._drawn.popleft()
            try:
                return view._from_draw(draw, ids, self._beta)
            finally:
                self._pin(slots, -1)

    def close(self) -> None:
        """Let go of what was drawn and not used."""
        with self._view._lock:
            while self._drawn:
                self._pin(self._drawn.popleft()[2], -1)

    def ahead(self) -> list[dict[str, Any]]:
        """What was drawn and not used, oldest first, for :meth:`resume`."""
        return [
            {"ids": ids.copy(), "probabilities": draw.probabilities.copy(), "weights": draw.weights.copy()}
            for draw, ids, _ in self._drawn
        ]

    def resume(self, ahead: list[dict[str, Any]]) -> None:
        """Begin with what another stream had drawn; batches of another size come as well.  Raises: ValueError."""
        for batch in ahead:
            ids = checked_array(batch, "ids", np.int64)
            draw = Draw.of(len(ids))
            draw.leaves[:], there = self._view._log.index.resolve(ids, self._view._known)
            draw.probabilities[:] = checked_array(batch, "probabilities", np.float64)
            draw.weights[:] = checked_array(batch, "weights", np.float32)
            self._expect(draw, np.where(there, ids, -1))

    def _draw(self) -> None:
        view = self._view
        draw = Draw.of(self._size)
        view._take(draw, self._beta)
        self._expect(draw, view._log.index.ids(draw.leaves))
        view._gate.notify()

    def _expect(self, draw: Draw, ids: Ints) -> None:
        """Let the segments come that a batch needs."""
        view, index = self._view, self._view._log.index
        leaves = draw.leaves[ids >= 0]
        slots = leaves // index.stride
        if view.n_step > 1:
            crossing = leaves - slots * index.stride + view.n_step >= index.rows[slots]
            after = index.next[slots[crossing]]
            slots = np.concatenate([slots, after[after >= 0]])
        self._pin(slots, 1)
        if view._log.residency is not None:
            view._log.residency.fetch(slots)
        self._drawn.append((draw, ids, slots))

    def _pin(self, slots: Ints, by: int) -> None:
        if self._view._log.residency is not None:
            self._view._log.residency.pin(slots, by)
