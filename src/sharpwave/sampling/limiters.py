"""How far writing and sampling may run ahead of each other, and where the one that is ahead waits."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from sharpwave.errors import LimiterTimeoutError

DEFAULT_TIMEOUT_S = 60.0
"""How long ``sample``, ``append`` and ``extend`` wait where they are not told."""
LOOK_S = 0.5
"""A wait looks again after so long even if nobody called, because a view that nobody holds any more limits nothing."""


@dataclass(frozen=True)
class Cursor:
    """Where a view stands.

    Attributes:
        inserts: steps held when the view was made, and appended since.
        samples: transitions given out.
        size: steps that can be sampled now.
        uses: how often they can be sampled in all; infinite without ``max_times_sampled``.
    """

    inserts: int
    samples: int
    size: int
    uses: float

    def __str__(self) -> str:
        return f"{self.inserts} inserts, {self.samples} samples, {self.size} steps to sample"


class Limiter(Protocol):
    """Says whether a view's next batch, or the store's next steps, must wait. Keeps no state: that is the cursor."""

    def check(self, capacity: int | None, max_times_sampled: int | None) -> None:
        """Raises: ValueError where that store and view can never satisfy it."""

    def sample_waits(self, batch_size: int, cursor: Cursor) -> str | None:
        """What a batch waits for, and who has to move; ``None`` if it need not.  Raises: ValueError if it never may."""

    def append_waits(self, steps: int, cursor: Cursor) -> str | None:
        """What an append of so many steps waits for, as above."""


@dataclass(frozen=True)
class MinSize:
    """No sampling below ``size`` steps that can be sampled. Writing never waits."""

    size: int

    def __post_init__(self) -> None:
        _positive(self, "size", self.size)

    def check(self, capacity: int | None, max_times_sampled: int | None) -> None:
        """The store must hold so many."""
        _fits(self, "size", self.size, capacity)

    def sample_waits(self, batch_size: int, cursor: Cursor) -> str | None:
        """Until ``size`` is reached."""
        if cursor.size >= self.size:
            return None
        return f"the writer has to append until {self.size} steps can be sampled"

    def append_waits(self, steps: int, cursor: Cursor) -> str | None:
        """Never."""
        return None


@dataclass(frozen=True)
class SamplesPerInsert:
    """Holds ``samples - ratio * (inserts - min_size)`` within ``error_buffer`` of 0, as Reverb's SampleToInsertRatio.

    No sampling below ``min_size`` steps that can be sampled; until then writing does not wait. Each step of a batch is
    a sample, each step appended an insert. Batches of B and appends of R rows never wait for each other as long as
    ``B + ratio * R <= 2 * error_buffer``.

    Args:
        ratio: samples for each step appended, positive.
        min_size: steps that can be sampled before sampling begins.
        error_buffer: how many samples either side may be ahead, at least ``max(1, ratio)``.

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
        """The store must hold ``min_size``; steps must have as many uses as ``ratio`` asks for."""
        _fits(self, "min_size", self.min_size, capacity)
        if max_times_sampled is not None and max_times_sampled < self.ratio:
            raise ValueError(
                f"transitions: {self} asks for more samples of a step than max_times_sampled={max_times_sampled}"
            )

    def _ahead(self, cursor: Cursor) -> float:
        """How many samples the writer is ahead."""
        return self.ratio * (cursor.inserts - self.min_size) - cursor.samples

    def sample_waits(self, batch_size: int, cursor: Cursor) -> str | None:
        """While it would be ahead by more than ``error_buffer``."""
        if batch_size > 2 * self.error_buffer:
            raise ValueError(
                f"sample: batch_size={batch_size} exceeds the room of {self}, {2 * self.error_buffer:g} samples; "
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
        """While it would be ahead by more than ``error_buffer``."""
        if steps * self.ratio > 2 * self.error_buffer:
            raise ValueError(
                f"extend: {steps} steps at once exceed the room of {self}, {2 * self.error_buffer:g} samples; "
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
    """Writing waits while ``size`` steps wait to be sampled; sampling waits for a whole batch.

    For views with ``max_times_sampled``: with that and ``Fifo`` each step is learned from so often, in order, and
    none is dropped, if the store's capacity exceeds ``size`` by a few segments a lane. Steps whose successor is not
    known yet do not count; an episode's end may make several known at once, so ``size`` may be exceeded by up to
    ``n_step`` for each lane.
    """

    size: int

    def __post_init__(self) -> None:
        _positive(self, "size", self.size)

    def check(self, capacity: int | None, max_times_sampled: int | None) -> None:
        """The store must hold so many, and the view take them away."""
        _fits(self, "size", self.size, capacity)
        if max_times_sampled is None:
            raise ValueError(f"transitions: {self} needs max_times_sampled=, else it would stay full for ever")

    def sample_waits(self, batch_size: int, cursor: Cursor) -> str | None:
        """Never by itself: the view waits until it has the steps."""
        return None

    def append_waits(self, steps: int, cursor: Cursor) -> str | None:
        """While there is no room."""
        if steps > self.size:
            raise ValueError(f"extend: {steps} steps at once do not fit into {self}; raise size=")
        if cursor.size + steps <= self.size:
            return None
        return f"{steps} steps more find room for {max(0, self.size - cursor.size)}: the learner has to sample"


Side = Literal["append", "sample"]


class Gate:
    """Where the threads of one store wait for each other.

    Args:
        lock: the store's; a wait lets it go.

    Attributes:
        waits, seconds: how often, and how long in all, either side waited.
    """

    def __init__(self, lock: Any) -> None:
        self._changed = threading.Condition(lock)
        self._waiting = 0
        self.waits: dict[Side, int] = {"append": 0, "sample": 0}
        self.seconds: dict[Side, float] = {"append": 0.0, "sample": 0.0}

    def notify(self) -> None:
        """Something changed: whoever waits looks again. The lock is held."""
        if self._waiting:
            self._changed.notify_all()

    def wait(self, side: Side, waits: Callable[[], str | None], timeout: float | None) -> None:
        """Return once ``waits`` gives ``None``, with the lock held throughout since.

        Raises:
            LimiterTimeoutError: saying what it still waits for.  ValueError: ``timeout`` is no number of seconds.
        """
        seconds = check_timeout(side, timeout)
        reason = waits()
        if reason is None:
            return
        began = time.monotonic()
        self.waits[side] += 1
        self._waiting += 1
        try:
            while reason is not None:
                left = began + seconds - time.monotonic()
                if left <= 0:
                    raise LimiterTimeoutError(f"{side}: timed out after {seconds:g} s; {reason}")
                self._changed.wait(min(left, LOOK_S))
                reason = waits()
        finally:
            self._waiting -= 1
            self.seconds[side] += time.monotonic() - began


def check_timeout(side: str, timeout: float | None) -> float:
    """Seconds to wait.  Raises: ValueError."""
    if timeout is None:
        return DEFAULT_TIMEOUT_S
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float, np.number)) or not 0 <= timeout < math.inf:
        raise ValueError(
            f"{side}: timeout={timeout!r}, expected seconds, finite and at least 0, or None for {DEFAULT_TIMEOUT_S:g}"
        )
    return float(min(timeout, threading.TIMEOUT_MAX))


def _positive(limiter: Limiter, name: str, value: Any, whole: bool = True) -> None:
    kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:
        what = "an integer of at least 1" if whole else "a positive, finite number"
        raise ValueError(f"{type(limiter).__name__}: {name}={value!r}, expected {what}")


def _fits(limiter: Limiter, name: str, value: int, capacity: int | None) -> None:
    if capacity is not None and value > capacity:
        raise ValueError(f"transitions: {limiter} waits for {name}={value} steps, the store's capacity is {capacity}")
