"""Batches drawn ahead of the learner, so that what they need is read from disk before it is asked for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from sharpwave.errors import not_to_be_copied
from sharpwave.sampling.samplers import Draw, checked_array
from sharpwave.views.batch import Batch

if TYPE_CHECKING:
    from sharpwave.log.step_log import StepLog
    from sharpwave.views.transitions import Transitions

Ints = npt.NDArray[np.int64]

AHEAD = 0.75
"""Share of the memory for segments that reading ahead may fill. The rest is for what is asked for now."""


@dataclass
class Ahead:
    """A batch that was drawn; ``slots``: those of segments that are read and kept for it, ``nbytes`` theirs."""

    ids: Ints
    probabilities: npt.NDArray[np.float64]
    weights: npt.NDArray[np.float32]
    slots: Ints | None = None
    nbytes: int = 0

    @property
    def draw_bytes(self) -> int:
        """Bytes of what was drawn."""
        return self.ids.nbytes + self.probabilities.nbytes + self.weights.nbytes


class Stream:
    """An endless iterator over batches; made by :meth:`Transitions.stream`.

    All are drawn as far ahead as asked for. Of these as many are read ahead as three quarters of the store's memory for
    segments hold, counted over all streams of the store: what was read is to be there still when it is used.
    """

    def __init__(
        self, view: Transitions, batch_size: int, lookahead: int, beta: float | None, timeout: float | None
    ) -> None:
        self._view, self._size, self._lookahead = view, batch_size, lookahead
        self._beta, self._timeout = beta, timeout
        self.drawn: deque[Ahead] = deque()

    def __reduce__(self) -> NoReturn:
        raise not_to_be_copied(self)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Batch:
        """The batch drawn longest ago.  Raises: as :meth:`Transitions.sample`."""
        view = self._view
        with view._lock:
            while len(self.drawn) <= self._lookahead:
                if not self.drawn:
                    view._gate.wait("sample", lambda: view._sample_waits(self._size), self._timeout)
                    view._check_enough(self._size)
                elif view._sample_waits(self._size) is not None or not view._steps.enough(self._size):
                    break
                self._draw()
            self._read()
            batch = self.drawn.popleft()
        segment_cache = view._log.segment_cache
        try:
            if segment_cache is not None and batch.slots is not None:
                segment_cache.wait(batch.slots)  # while others append and sample
            with view._lock:
                view._log.check_open()
                return view._from_draw(batch, self._beta)
        except MemoryError:  # what was drawn counts as given out: it comes when there is room
            self.drawn.appendleft(replace(batch, slots=None, nbytes=0))
            raise
        finally:
            with view._lock:
                let_go(view._log, deque([batch]))
                self._read()

    def close(self) -> None:
        """Let go of what was drawn and not used."""
        with self._view._lock:
            let_go(self._view._log, self.drawn)

    def ahead(self) -> list[dict[str, Any]]:
        """What was drawn and not used, oldest first, for :meth:`resume`."""
        return [
            {"ids": one.ids.copy(), "probabilities": one.probabilities.copy(), "weights": one.weights.copy()}
            for one in self.drawn
        ]

    def resume(self, ahead: list[dict[str, Any]]) -> None:
        """Begin with what another stream had drawn; batches of another size come as well."""
        for batch in ahead:
            _, there = self._view._steps.resolve(batch["ids"])
            self.drawn.append(Ahead(np.where(there, batch["ids"], -1), batch["probabilities"], batch["weights"]))

    def _draw(self) -> None:
        view = self._view
        draw = Draw.of(self._size)
        view._steps.draw(draw, self._beta, view._rng)
        self.drawn.append(Ahead(view._log.index.ids(draw.leaves), draw.probabilities, draw.weights))
        view._gate.notify()

    def _read(self) -> None:
        """Begin to read what the next batches need, as far as there is room to keep it."""
        log = self._view._log
        segment_cache = log.segment_cache
        if segment_cache is None or log.closed:
            return
        for batch in self.drawn:
            if batch.slots is None:
                slots = self._needed(batch.ids)
                nbytes = int(log.index.nbytes[slots].sum())
                if segment_cache.kept_bytes + nbytes > AHEAD * log.segment_bytes:
                    break
                batch.slots, batch.nbytes = slots, nbytes
                segment_cache.kept_bytes += nbytes
                segment_cache.pin(slots)
                segment_cache.fetch(slots)

    def _needed(self, ids: Ints) -> Ints:
        """Slots of the sealed segments that steps of a batch lie in, as far as they are there still."""
        view, index = self._view, self._view._log.index
        leaves, there = view._steps.resolve(ids)
        leaves = leaves[there]
        slots = leaves // index.stride
        if view.n_step > 1:
            crossing = leaves - slots * index.stride + view.n_step >= index.rows[slots]
            after = index.next[slots[crossing]]
            slots = np.concatenate([slots, after[after >= 0]])
        sealed: Ints = slots[index.sealed[slots] > 0]
        return sealed


def checked(batch: dict[str, Any]) -> dict[str, Any]:
    """What :meth:`Stream.ahead` gives of a batch.  Raises: ValueError: it is none."""
    arrays = {"ids": np.int64, "probabilities": np.float64, "weights": np.float32}
    found = {name: checked_array(batch, name, dtype) for name, dtype in arrays.items()}
    if len({len(array) for array in found.values()}) > 1 or not len(found["ids"]):
        raise ValueError("a batch drawn ahead whose parts are not of one length")
    return found


def let_go(log: StepLog, drawn: deque[Ahead]) -> None:
    """Forget batches, and keep what they need no longer. The store's lock is held."""
    while drawn:
        batch = drawn.popleft()
        if log.segment_cache is not None and batch.slots is not None:
            log.segment_cache.kept_bytes -= batch.nbytes
            log.segment_cache.pin(batch.slots, -1)
