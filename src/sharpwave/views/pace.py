"""Pace of one view: when its next batch may be drawn, and the store's next steps be appended."""

from __future__ import annotations

from typing import Any

import numpy as np

from sharpwave.errors import EmptyError
from sharpwave.log.step_log import StepLog
from sharpwave.sampling.limiters import Cursor, Gate, Limiter, Queue, batch_waits
from sharpwave.sampling.ordered import Fifo
from sharpwave.views.draws_ahead import UnusedDraws
from sharpwave.views.items import Items
from sharpwave.views.view_protocol import STEPS, View

UNSAMPLED = "the store is full of steps not sampled yet"
AHEAD = "the store is full of steps that a stream has drawn ahead: go on with it, or close() it"
"""Why nothing may be evicted."""


class Pace:
    """Admission of one view's batches, and of the appends that they bound. The store's lock is held throughout.

    Args:
        gate: where batches wait for steps. ``unused``: draws of streams.
        limiter: bounds samples against inserts, checked; ``None``: nothing waits.

    Attributes:
        steps_before: steps of the store that the limiter does not count as inserts.
    """

    def __init__(
        self, log: StepLog, gate: Gate, view: View[Any], items: Items, unused: UnusedDraws, limiter: Limiter | None
    ) -> None:
        self._log, self.gate, self._view, self._items, self._unused = log, gate, view, items, unused
        self.max_times_sampled = None if items.uses is None else items.uses.max_uses
        self.limiter = limiter
        self._wanted = 0  # size of the batch asked for last, or of the largest that finds too few uses
        self.steps_before = log.inventory.total_steps - log.inventory.held_steps

    def sample_waits(self, batch_size: int) -> str | None:
        """Return the reason why a batch must wait; ``None`` if it need not."""
        self._log.check_open()
        self._unused.forget_dropped()
        self._items.follow()
        if self.limiter is None:
            return None
        cursor = self._cursor()

        def remedy() -> str:
            self._want(batch_size, short=True)
            if self._never_fits(batch_size):
                return "the store never holds as many; use a smaller batch_size, or raise capacity="
            full = self._evicts_unsampled(max(1, self._log.lanes))
            if full is None:
                return "the writer has to append"
            return full if full is AHEAD else f"{full}; use a smaller batch_size, or raise capacity="

        reason = batch_waits(self.limiter, batch_size, cursor, remedy)
        if reason is None:
            self._want(batch_size, short=False)
        return reason

    def check_admitted(self, batch_size: int) -> None:
        """Refuse a batch that the limiter can never admit.  Raises: ValueError."""
        if self.limiter is not None:
            self._items.follow()
            self.limiter.sample_waits(batch_size, self._cursor())

    def _want(self, batch_size: int, short: bool) -> None:
        """Note a batch that the limiter admits, for ``append_waits``; wake the writers where uses are ``short``."""
        if self._never_fits(batch_size):
            return  # no appends would do: they would only evict steps not sampled yet
        if short and batch_size > self._wanted:
            self.gate.notify()
        self._wanted = max(self._wanted, batch_size) if short else batch_size

    def _never_fits(self, batch_size: int) -> bool:
        """Return whether the capacity's steps cannot be sampled so often in all."""
        capacity, uses = self._log.admission.capacity, self.max_times_sampled
        return capacity is not None and uses is not None and batch_size > capacity * uses

    def append_waits(self, steps: int) -> str | None:
        """Return the reason why an append of ``steps`` steps must wait; ``None`` if it need not.

        It does not wait for a learner that lacks uses for a batch, as that learner waits for the writer, unless the
        append would evict promised items of a queue.
        """
        if self.limiter is None:
            return None
        self._items.follow()
        cursor = self._cursor()
        reason = self.limiter.append_waits(steps, cursor)
        if full := self._evicts_unsampled(steps):
            reason = reason or (full if full is AHEAD else f"{full}: the learner has to sample")
        elif reason is None or cursor.uses < self._wanted:
            return None
        return f"{reason} ({self.limiter}; {cursor})"

    def _evicts_unsampled(self, steps: int) -> str | None:
        """Return the reason against appending ``steps`` more if they would evict promised items.

        Promised items, of a ``Queue`` with ``Fifo``, can be sampled, or a stream drew them and has not returned them
        yet.

        Cost: O(1) for each segment that is to be evicted, and for each batch drawn ahead.
        """
        log, retention = self._log, self._log.retention
        capacity, need = log.admission.capacity, log.inventory.held_steps + steps
        ordered = isinstance(self.limiter, Queue) and isinstance(self._items.sampler, Fifo)
        if capacity is None or need <= capacity or not ordered or not isinstance(retention, Fifo):
            return None
        for slot in retention.oldest():
            if self._sampled_later(slot):
                return UNSAMPLED
            if self._drawn_ahead(slot):
                return AHEAD
            need -= int(log.index.rows[slot])
            if need <= capacity:
                break
        return None

    def _sampled_later(self, slot: int) -> bool:
        """Return whether items that can still be sampled need the oldest segment of a lane.

        Items of later segments may need it for their burn-in.
        """
        items, stride, later, between = self._items, self._log.stride, slot, 0
        assert items.uses is not None  # or Queue had refused the view
        while later >= 0:
            begin, end = items.spans[later].tolist()
            there = later * stride + np.arange(begin, end)
            there = there[items.remaining(there)]
            if there.size and (later == slot or (self._view.segments(there) == slot).any()):
                return True
            between += 0 if later == slot else int(self._log.index.rows[later])
            if there.size or between >= self._view.reach_back:
                break
            later = int(self._log.index.next[later])
        return False

    def _drawn_ahead(self, slot: int) -> bool:
        """Return whether items that a stream has drawn and not returned yet need a segment."""
        for ids in self._unused.ids():
            drawn, held = self._items.resolve(ids)
            if held.any() and (self._view.segments(drawn[held]) == slot).any():
                return True
        return False

    def _cursor(self) -> Cursor:
        items, inserts = self._items, self._log.inventory.total_steps - self.steps_before
        return Cursor(inserts, items.samples, items.count, items.uses_left, self._view.id_space != STEPS)

    def wait(self, batch_size: int, timeout: float | None) -> None:
        """Wait until a batch can be drawn.  Raises: EmptyError, LimiterTimeoutError, ValueError."""
        self.gate.wait("sample", lambda: self.sample_waits(batch_size), timeout)
        self.check_enough(batch_size)

    def check_enough(self, batch_size: int) -> None:
        """Refuse a batch of more items than can be drawn.  Raises: EmptyError."""
        count, left, max_uses = self._items.count, self._items.uses_left, self.max_times_sampled
        if count == 0 and left == 0:
            used = "" if max_uses is None else f" (or all were, max_times_sampled={max_uses} times)"
            judge, waits_for = self._items.judge, self._view.waits_for
            if judge is not None and judge.condition is not None:
                waits_for = f"a step can be sampled once its episode has ended and matches {judge.condition.text!r}"
            raise EmptyError(
                f"sample: no step can be sampled yet{used}: the store holds {self._log.steps}, and {waits_for}"
            )
        if left < batch_size:
            raise EmptyError(
                f"sample: batch_size={batch_size}, but the {count} steps left can be sampled {left} times in total "
                f"(max_times_sampled={max_uses}); nothing was taken: use a smaller batch_size, or append more"
            )

    def can_draw(self, count: int) -> bool:
        return self.sample_waits(count) is None and self._items.enough(count)


def check_limiter(kind: str, limiter: Limiter | None, capacity: int | None, max_times_sampled: int | None) -> None:
    """Refuse a limiter that a store and a view can never satisfy.  Raises: ValueError, TypeError."""
    if limiter is not None:
        if isinstance(limiter, type) or not hasattr(limiter, "sample_waits"):
            raise TypeError(f"{kind}: limiter={limiter!r}, expected a limiter such as sharpwave.MinSize(1000)")
        limiter.check(capacity, max_times_sampled)
