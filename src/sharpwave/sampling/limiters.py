"""Rate limiters: bound samples against inserts, and the gate at which the side that is ahead waits."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from sharpwave.arguments import is_integer, is_number
from sharpwave.errors import LimiterTimeoutError

DEFAULT_TIMEOUT_S = 60.0
"""Seconds that ``sample``, ``append`` and ``extend`` wait by default."""
LOOK_S = 0.5
"""Waiting threads check again this often unasked: a view that was garbage-collected limits nothing and wakes nobody."""


@dataclass(frozen=True)
class Cursor:
    """Progress of a view: inserts, samples, and steps that can be sampled.

    Attributes:
        inserts: steps held when the view was made, plus later appended steps.
        samples: transitions drawn.
        size: steps that can be sampled now.
        uses: total of remaining uses; infinite without ``max_times_sampled``.
        windows: whether windows are sampled: then ``samples``, ``size`` and ``uses`` count windows.
    """

    inserts: int
    samples: int
    size: int
    uses: float
    windows: bool = False

    def __str__(self) -> str:
        kind = "windows" if self.windows else "steps"
        return f"{self.inserts} inserts, {self.samples} samples, {self.size} {kind} to sample"


class Limiter(Protocol):
    """Rate limiter: decides whether a view's next batch, or the store's next steps, must wait.

    Stateless: the counts are in the cursor. With ``max_times_sampled`` a batch that lacks uses waits for the writer;
    until there are enough, steps are appended regardless of ``append_waits``, or both sides would wait.
    """

    def check(self, capacity: int | None, max_times_sampled: int | None) -> None:
        """Refuse a store and view with which the limiter can never be satisfied.  Raises: ValueError."""

    def sample_waits(self, batch_size: int, cursor: Cursor) -> str | None:
        """Return the reason why a batch must wait, and the side that must act; ``None`` if it need not wait.

        Raises:
            ValueError: it would wait forever.
        """

    def append_waits(self, steps: int, cursor: Cursor) -> str | None:
        """Return the reason why an append of ``steps`` steps must wait, like ``sample_waits``."""


@dataclass(frozen=True)
class MinSize:
    """Limiter that blocks sampling while fewer than ``size`` steps can be sampled. Writing never waits."""

    size: int

    def __post_init__(self) -> None:
        _positive(self, "size", self.size)

    def check(self, capacity: int | None, max_times_sampled: int | None) -> None:
        """Require a store that holds ``size`` steps."""
        _fits(self, "size", self.size, capacity)

    def sample_waits(self, batch_size: int, cursor: Cursor) -> str | None:
        """Wait until ``size`` steps can be sampled."""
        if cursor.size >= self.size:
            return None
        return f"the writer has to append until {self.size} steps can be sampled"

    def append_waits(self, steps: int, cursor: Cursor) -> str | None:
        """Return None: writing never waits."""
        return None


@dataclass(frozen=True)
class SamplesPerInsert:
    """Limiter of the sample-to-insert ratio, like Reverb's SampleToInsertRatio.

    Keeps ``samples - ratio * (inserts - min_size)`` within ``error_buffer`` of 0. No sampling while fewer than
    ``min_size`` steps can be sampled; until then writing does not wait. Each step of a batch is a sample, each step
    appended an insert. Batches of B and appends of R rows never wait for each other as long as
    ``B + ratio * R <= 2 * error_buffer``.

    With ``max_times_sampled`` there may be fewer uses than the ratio needs: steps are lost before all their uses
    (episodes broken off, evictions), or windows begin only every few steps. Then samples fall short of the ratio, by
    more than ``error_buffer``: writing waits only while there are uses for a batch of the last size.

    Args:
        ratio: samples for each step appended, positive.
        min_size: steps that must be sampleable before sampling begins.
        error_buffer: number of samples that either side may be ahead, at least ``max(1, ratio)``.

    Raises:
        ValueError: naming the argument out of range.
    """

    ratio: float
    min_size: int
    error_buffer: float

    def __post_init__(self) -> None:
        _positive(self, "ratio", self.ratio, whole=False)
        _positive(self, "min_size", self.min_size)
        _positive(self, "error_buffer", self.error_buffer, whole=False)
        if self.error_buffer < max(1.0, self.ratio):
            raise ValueError(
                f"SamplesPerInsert: error_buffer={self.error_buffer!r}, expected at least {max(1.0, self.ratio):g}, "
                "max(1, ratio); else one step and one sample would wait for each other"
            )

    def check(self, capacity: int | None, max_times_sampled: int | None) -> None:
        """Require a store that holds ``min_size`` steps, and as many uses of a step as ``ratio`` asks for."""
        _fits(self, "min_size", self.min_size, capacity)
        if max_times_sampled is not None and max_times_sampled < self.ratio:
            raise ValueError(
                f"transitions: {self} asks for more samples of a step than max_times_sampled={max_times_sampled}"
            )

    def _ahead(self, cursor: Cursor) -> float:
        """Return by how many samples writing is ahead."""
        return self.ratio * (cursor.inserts - self.min_size) - cursor.samples

    def sample_waits(self, batch_size: int, cursor: Cursor) -> str | None:
        """Wait while the batch would put sampling ahead by more than ``error_buffer`` samples."""
        if batch_size > 2 * self.error_buffer:
            raise ValueError(
                f"sample: batch_size={batch_size} exceeds the {2 * self.error_buffer:g} samples that {self} admits; "
                f"raise error_buffer= to more than {batch_size / 2:g}"
            )
        if cursor.size < self.min_size:
            return f"the writer has to append until {self.min_size} steps can be sampled"
        missing = batch_size - self.error_buffer - self._ahead(cursor)
        if missing <= 0:
            return None
        steps = math.ceil(missing / self.ratio)
        return f"{batch_size} samples more need {steps} more steps: the writer has to append; {self._bounds(cursor)}"

    def append_waits(self, steps: int, cursor: Cursor) -> str | None:
        """Wait while the steps would put writing ahead by more than ``error_buffer`` samples."""
        if steps * self.ratio > 2 * self.error_buffer:
            raise ValueError(
                f"extend: {steps} steps at once exceed the {2 * self.error_buffer:g} samples that {self} admits; "
                f"raise error_buffer= to more than {steps * self.ratio / 2:g}"
            )
        missing = self._ahead(cursor) + steps * self.ratio - self.error_buffer
        if missing <= 0 or cursor.size < self.min_size:
            return None
        samples = math.ceil(missing)
        return f"{steps} steps more need {samples} more samples: the learner has to sample; {self._bounds(cursor)}"

    def _bounds(self, cursor: Cursor) -> str:
        middle = self._ahead(cursor) + cursor.samples
        low, high = middle - self.error_buffer, middle + self.error_buffer
        return f"samples may be {max(0.0, low):g} to {max(0.0, high):g} now"


@dataclass(frozen=True)
class Queue:
    """Limiter that bounds the steps waiting to be sampled to ``size``; sampling waits for a whole batch.

    For views with ``max_times_sampled``: with it and ``Fifo``, in a store whose retention is ``Fifo`` too, every step
    is sampled so many times, in order. No step that can be sampled, or was drawn ahead by a stream, is evicted for the
    ``capacity``: writing waits instead. (For a limit in bytes it is evicted.) For a view of windows ``size`` counts
        windows.

    Steps that cannot be sampled yet do not count, and are evicted like any step: the capacity should exceed ``size``
    (for windows ``size * stride``, and in either case the largest batch), for each lane by the steps that may wait for
    their successors, ``burn_in + length + n_step``, and by three segments. A lane that pauses while others fill the
    capacity loses its waiting steps. Several may become known at once, at an episode's end, so ``size`` may be exceeded
    by up to ``n_step`` steps a lane, or by the windows of ``length + n_step`` steps. If a full queue leaves too few
    uses for a batch, it is exceeded until there are enough; with batches of B and appends of R steps, never if
    ``B + R <= size + 1``. A store on disk that is opened without a checkpoint gives out its steps once more.
    """

    size: int

    def __post_init__(self) -> None:
        _positive(self, "size", self.size)

    def check(self, capacity: int | None, max_times_sampled: int | None) -> None:
        """Require a store that holds ``size`` steps, and a view that retires steps after some uses."""
        _fits(self, "size", self.size, capacity)
        if max_times_sampled is None:
            raise ValueError(
                f"transitions: {self} needs max_times_sampled=; without it the queue would stay full forever"
            )

    def sample_waits(self, batch_size: int, cursor: Cursor) -> str | None:
        """Return None: the view itself waits for a whole batch."""
        return None

    def append_waits(self, steps: int, cursor: Cursor) -> str | None:
        """Wait while the steps do not fit into the queue; of windows, while it is full."""
        if cursor.windows:
            return None if cursor.size < self.size else f"{cursor.size} windows wait: the learner has to sample"
        if steps > self.size:
            raise ValueError(
                f"extend: {steps} steps at once do not fit into {self}; append fewer at a time, or raise size="
            )
        if cursor.size + steps <= self.size:
            return None
        return f"{steps} more steps, room for {max(0, self.size - cursor.size)}: the learner has to sample"


Side = Literal["append", "sample"]


class Gate:
    """Condition on which the threads of one store wait for each other.

    Args:
        lock: the store's; released while waiting.

    Attributes:
        waiting: threads that wait now. ``waits``, ``seconds``: how often, and how long in total, either side waited.
    """

    def __init__(self, lock: Any) -> None:
        self._changed = threading.Condition(lock)
        self.waiting = 0
        self.waits: dict[Side, int] = {"append": 0, "sample": 0}
        self.seconds: dict[Side, float] = {"append": 0.0, "sample": 0.0}

    def notify(self) -> None:
        """Wake the waiting threads, which check again. The caller holds the lock."""
        if self.waiting:
            self._changed.notify_all()

    def wait(self, side: Side, waits: Callable[[], str | None], timeout: float | None) -> None:
        """Wait until ``waits()`` is ``None``; the lock is held from that check on.

        Raises:
            LimiterTimeoutError: naming the condition it still waits for.  ValueError: ``timeout`` is not a number of
            seconds.
        """
        seconds = check_timeout(side, timeout)
        if waits() is None:
            return
        began = time.monotonic()
        self.waits[side] += 1
        self.waiting += 1
        try:
            wait_for(side, waits, seconds, lambda left: self._changed.wait(min(left, LOOK_S)))
        finally:
            self.waiting -= 1
            self.seconds[side] += time.monotonic() - began


def wait_for(side: str, waits: Callable[[], str | None], seconds: float, pause: Callable[[float], object]) -> None:
    """Wait until ``waits()`` has no reason to, by a ``pause`` of no more than the given seconds between two calls.

    Raises: LimiterTimeoutError: naming the condition it still waits for.
    """
    end = time.monotonic() + seconds
    while (reason := waits()) is not None:
        left = end - time.monotonic()
        if left <= 0:
            raise LimiterTimeoutError(f"{side}: timed out after {seconds:g} s; {reason}")
        pause(left)


def batch_waits(
    limiter: Limiter | None,
    batch_size: int,
    cursor: Cursor,
    remedy: Callable[[], str] = lambda: "the writer has to append, or use a smaller batch_size",
) -> str | None:
    """Return the reason why a batch must wait for a limiter, or for uses of steps; ``None`` if it need not.

    Args:
        remedy: called where only uses are lacking; says who has to act.

    Raises: ValueError: it would wait forever.
    """
    if limiter is None:
        return None
    reason = limiter.sample_waits(batch_size, cursor)
    if reason is None and cursor.uses < batch_size:
        uses = "no step" if not cursor.size else f"{cursor.uses:g} uses of steps"
        reason = f"{batch_size} samples find {uses} left: {remedy()}"
    return None if reason is None else f"{reason} ({limiter}; {cursor})"


def check_timeout(side: str, timeout: float | None) -> float:
    """Return ``timeout`` in seconds, by default ``DEFAULT_TIMEOUT_S``.  Raises: ValueError."""
    if timeout is None:
        return DEFAULT_TIMEOUT_S
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float, np.number)) or not 0 <= timeout < math.inf:
        raise ValueError(
            f"{side}: timeout={timeout!r}, expected seconds, finite and at least 0, or None for {DEFAULT_TIMEOUT_S:g}"
        )
    return float(min(timeout, threading.TIMEOUT_MAX))


def _positive(limiter: Limiter, name: str, value: Any, whole: bool = True) -> None:
    if not (is_integer(value) if whole else is_number(value)) or not 0 < value < math.inf:
        what = "an integer of at least 1" if whole else "a positive, finite number"
        raise ValueError(f"{type(limiter).__name__}: {name}={value!r}, expected {what}")


def _fits(limiter: Limiter, name: str, value: int, capacity: int | None) -> None:
    if capacity is not None and value > capacity:
        raise ValueError(
            f"transitions: {limiter} waits for {name}={value} steps, the store's capacity is {capacity}; "
            f"lower {name}= or raise capacity="
        )
