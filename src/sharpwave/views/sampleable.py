"""Which steps of a log a view can sample: found as they become known, lost as they leave, counted as they are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sharpwave.format.segment import FLAGS
from sharpwave.sampling.samplers import Draw, Prioritized, Sampler, extended, importance_weights, shuffle
from sharpwave.views.kernels import cut, sync
from sharpwave.views.uses import Uses

if TYPE_CHECKING:
    from sharpwave.log.step_log import StepLog

Ints = npt.NDArray[np.int64]

RUNS = 1024
"""Runs of new steps that one call of ``sync`` reports."""


class Sampleable:
    """The steps whose successors are known, told to ``sampler``. The store's lock is held throughout.

    Args:
        n_step: steps that an item reaches ahead, at most.
        uses: counts how often each step is given out; ``None``: there is no limit.

    Attributes:
        known: int32 [slots], how many of each slot's first steps can be sampled, or could until they were used up.
        count: steps that can be sampled. ``samples``: how many were given out so far.
    """

    def __init__(self, log: StepLog, sampler: Sampler, uses: Uses | None, n_step: int) -> None:
        sampler.bind(log.index.slots, log.index.stride)
        self._log, self.sampler, self.uses, self._n_step = log, sampler, uses, n_step
        self.known = np.zeros(log.index.slots, np.int32)
        self.count = self.samples = 0
        self._cursor = np.zeros(0, np.int32)  # by lane, slot of the segment that was followed so far
        self._seen = -1  # the log's changes when it was followed last
        self._runs = np.empty((3, RUNS), np.int64)
        self._expected: dict[int, npt.NDArray[np.float32]] = {}  # slot -> TD errors of its steps, not all known yet

    def follow(self) -> None:
        """Find the steps that have become known since."""
        log, index = self._log, self._log.index
        if self._seen == log.changes:
            return
        if len(self._cursor) < log.lanes:
            self._cursor = np.concatenate([self._cursor, log.oldest[len(self._cursor) :]])
        slots, begins, ends = self._runs
        found = RUNS
        while found == RUNS:
            found = sync(
                log.arena.memory,
                index.offset[FLAGS],
                index.rows,
                index.next,
                index.gap,
                index.sealed,
                self._cursor,
                self.known,
                self._n_step,
                slots,
                begins,
                ends,
            )
            if found:
                self.sampler.insert(slots[:found], begins[:found], ends[:found])
                if self._expected:
                    self._prioritize(slots[:found], begins[:found], ends[:found])
                came = int(ends[:found].sum() - begins[:found].sum())
                self.count += came
                if self.uses is not None:
                    self.uses.add(came)
        self._seen = log.changes

    @property
    def uses_left(self) -> float:
        """How often steps can be given out in all, as things are."""
        return self.uses.left if self.uses is not None else math.inf if self.count else 0

    def enough(self, batch_size: int) -> bool:
        """Whether there are so many items."""
        return self.count > 0 and self.uses_left >= batch_size

    def written(self) -> None:
        """The log has changed."""
        if self.sampler.in_order:  # else it is followed when next asked
            self.follow()

    def draw(self, draw: Draw, beta: float | None, rng: np.random.Generator) -> Callable[[], None]:
        """Fill ``draw`` and count it as given out; returns what takes that back.

        Args:
            beta: instead of the sampler's.
        """
        ended, unused = 0, None
        if self.uses is None:
            self.sampler.draw(draw, rng)
        else:
            ended, unused = self.uses.draw(self.sampler, draw, rng)
        if not self.sampler.keeps_order:
            rng.random(out=draw.uniforms)
            shuffle(draw.uniforms, draw.leaves, draw.probabilities)
        self.weigh(draw, beta)
        count = len(draw.leaves)
        self.count -= ended
        self.samples += count

        def undo() -> None:
            if unused is not None:
                unused()
            self.count += ended
            self.samples -= count

        return undo

    def weigh(self, draw: Draw, beta: float | None) -> None:
        """Importance weights of what was drawn, by its probabilities; ``beta``: instead of the sampler's."""
        beta = self.sampler.beta if beta is None else float(beta)
        if beta == 0.0:
            draw.weights.fill(1.0)
        else:
            importance_weights(draw.probabilities, beta, draw.weights)

    def resolve(self, ids: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Leaves of ``ids`` [n], and bool [n]: the step is known. A leaf that is not is 0."""
        return self._log.index.resolve(ids, self.known)

    def ids(self) -> Ints:
        """Of all steps that can be sampled: int64 [count], in no particular order."""
        stride = self._log.stride
        runs = [np.arange(s * stride, s * stride + self.known[s]) for s in np.flatnonzero(self.known)]
        leaves = np.concatenate(runs) if runs else np.empty(0, np.int64)
        return self._log.index.ids(leaves if self.uses is None else leaves[self.uses.remaining(leaves)])

    def update(self, ids: Ints, td_error: npt.NDArray[np.float64]) -> int:
        """New priorities by ``td_error`` [n] for the steps ``ids`` [n] that can be sampled: how many those are."""
        leaves, there = self.resolve(ids)
        if self.uses is not None:
            there &= self.uses.remaining(leaves)
        if np.count_nonzero(there) < len(there):  # .2 us; there.all() takes .9 us
            leaves, td_error = leaves[there], td_error[there]
        self.sampler.update(leaves, td_error)
        return len(leaves)

    def expect(self, slot: int, td_error: npt.NDArray[np.float32]) -> None:
        """Steps of the segment in ``slot`` get priorities by ``td_error`` [rows] when they can be sampled."""
        self._expected[slot] = td_error

    def _prioritize(self, slots: Ints, begins: Ints, ends: Ints) -> None:
        """Of runs that can be sampled now, those that were expected get their priorities."""
        for slot, begin, end in zip(slots.tolist(), begins.tolist(), ends.tolist(), strict=True):
            errors = self._expected.get(slot)
            if errors is not None:
                first = slot * self._log.stride
                self.sampler.update(np.arange(first + begin, first + end), errors[begin:end].astype(np.float64))
                if end == len(errors):
                    del self._expected[slot]

    def priorities(self, slots: Ints) -> npt.NDArray[np.float64] | None:
        """Mean priority of the steps that can be sampled, by slot; infinite where none can yet. ``None`` if there are
        no priorities to be had."""
        if not isinstance(self.sampler, Prioritized):
            return None
        self.follow()
        known = self.known[slots]
        return np.where(known > 0, self.sampler.masses(slots) / np.maximum(known, 1), np.inf)

    def forget(self, slot: int) -> None:
        """The segment in ``slot`` is about to go."""
        log, index = self._log, self._log.index
        self.drop(slot)
        reaching = np.empty(self._n_step - 1, np.int64)
        found = cut(
            log.arena.memory, index.offset[FLAGS], index.rows, index.previous, index.gap, slot, log.stride, self.known,
            reaching,
        )  # fmt: skip
        leaves = self._take_away(np.sort(reaching[:found]))
        if len(leaves):
            self.count -= len(leaves)
            self.sampler.exclude(leaves)
        lane = index.lane[slot]
        if lane < len(self._cursor) and self._cursor[lane] == slot:
            self._cursor[lane] = index.next[slot]

    def drop(self, slot: int) -> None:
        """None of the steps in ``slot`` can be sampled any more."""
        first, known = slot * self._log.stride, int(self.known[slot])
        leaves = np.arange(first, first + known)
        self.sampler.remove(slot)  # may be done twice, where there is no memory for it the first time
        self.count -= len(self._take_away(leaves))
        self._expected.pop(slot, None)
        self.known[slot] = 0
        if self.uses is not None:
            self.uses.clear(first, first + self._log.stride)

    def _take_away(self, leaves: Ints) -> Ints:
        """Those of ``leaves`` that could be given out until now."""
        return leaves if self.uses is None else self.uses.drop(leaves)

    def recall_uses(self, given: npt.NDArray[np.int32]) -> None:
        """Go on from how often steps were given out: int32 [leaves].  Raises: ValueError: counts out of range."""
        assert self.uses is not None
        full = self.uses.recall(given, self.known, self._log.stride)
        if len(full):
            self.sampler.exclude(full)
            self.count -= len(full)

    def grow(self, slots: int) -> None:
        """Make room for so many slots; there may be room for more than the log comes to have.  Raises: MemoryError."""
        if slots > len(self.known):
            self.sampler.grow(slots)
            if self.uses is not None:
                self.uses.grow(slots * self._log.stride)
            self.known = extended(self.known, slots)  # at last: it says how many there is room for

    @property
    def nbytes(self) -> int:
        """Bytes of memory, the sampler's included."""
        index = self._log.index
        known = self.known.itemsize * index.highest
        uses = 0 if self.uses is None else self.uses.nbytes(index.highest * index.stride)
        return known + uses + self._runs.nbytes + self.sampler.nbytes
