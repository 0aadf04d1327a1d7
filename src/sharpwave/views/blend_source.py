"""Source of a blend's batches: which view each item is from, and one batch made of the parts of all views."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.errors import LimiterTimeoutError
from sharpwave.sampling.limiters import check_timeout
from sharpwave.sampling.protocol import Draw
from sharpwave.views.batch import Arrays
from sharpwave.views.ids import tagged
from sharpwave.views.layout import Target
from sharpwave.views.replay import Replay

B = TypeVar("B", bound=Arrays)
Ints = npt.NDArray[np.int64]
Share = float | Callable[[int], float]


@dataclass(frozen=True, eq=False)
class Choice:
    """Which view each item of a batch is from.

    Attributes:
        source: int64 [B], the view of each item.
        shares: float64 [views], with which the views were chosen.
    """

    source: Ints
    shares: npt.NDArray[np.float64]

    @cached_property
    def counts(self) -> dict[int, int]:
        """Number of items of each view that has any."""
        return {k: int(count) for k, count in enumerate(np.bincount(self.source)) if count}

    def state(self) -> dict[str, Any]:
        """Return what ``from_state`` needs, as JSON has it."""
        return {"source": self.source.tolist(), "shares": self.shares.tolist()}

    @classmethod
    def from_state(cls, state: dict[str, Any], views: int) -> Choice:
        """Return the choice of a state.  Raises: ValueError, KeyError, TypeError: it is something else."""
        source, shares = np.array(state["source"]), np.array(state["shares"], np.float64)
        whole = source.ndim == 1 and len(source) and source.dtype == np.int64
        if not whole or not ((source >= 0) & (source < views)).all():
            raise ValueError(f"Blend: source of a batch drawn ahead is not one of integers from 0 to {views - 1}")
        if shares.shape != (views,) or not ((shares >= 0) & (shares <= 1)).all():
            raise ValueError(f"Blend: shares of a batch drawn ahead are not {views} numbers from 0 to 1")
        return cls(source, shares)


class BlendSource(Generic[B]):
    """Batches of several views, of which one batch is chosen, then drawn and made.

    Args:
        shares: of each view, by number or schedule.
        seed: seed of the choice between views.

    Attributes:
        lock: of ``choose`` and ``took``; taken before any store's.
        samples: items drawn so far.
        tag: of ``source`` in the batches.
    """

    def __init__(self, views: Sequence[Replay[B]], shares: Sequence[Share], seed: int) -> None:
        self.views, self._shares = views, shares
        self.samples = 0
        self.lock = threading.Lock()
        self.tag = object()
        self._rng = np.random.default_rng(seed)
        self.shares()

    def shares(self) -> npt.NDArray[np.float64]:
        """Return the present share of each view, float64 [views], with sum 1.  Raises: ValueError: none is positive."""
        values: list[float] = [share(self.samples) if callable(share) else share for share in self._shares]
        for value in values:
            number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
            if not number or not 0 <= value < math.inf:
                raise ValueError(f"Blend: share={value!r}, expected a finite number of at least 0")
        total = sum(values)
        if not 0 < total < math.inf:
            raise ValueError(f"Blend: shares {values} sum to {total:g}, expected a positive one that is finite")
        return np.array(values, np.float64) / total

    def choose(self, batch_size: int) -> tuple[Choice, Mapping[str, Any]]:
        """Choose the view of each item of a batch; the same again, until ``took``. The lock is held.

        Returns the choice, and the generator's state after it.
        """
        shares, bits = self.shares(), self._rng.bit_generator
        before = bits.state
        try:
            source = self._rng.choice(len(self.views), size=batch_size, p=shares).astype(np.int64)
            return Choice(source, shares), bits.state
        finally:
            bits.state = before

    def took(self, choice: Choice, rng: Mapping[str, Any]) -> None:
        """Note that a batch of ``choice`` was drawn."""
        self._rng.bit_generator.state = rng
        self.samples += len(choice.source)

    def batch(self, choice: Choice, fill: Callable[[int, Target], None]) -> B:
        """Return a new batch.

        Args:
            fill: fills the part of the batch that is from a view, of which it gets the number.
        """
        target, begin = self.views[int(choice.shares.argmax())].lend(len(choice.source)), 0
        for k, count in choice.counts.items():
            part = _part(target, begin, begin + count)
            fill(k, part)
            part.draw.probabilities *= choice.shares[k]
            begin += count
        ordered = any(self.views[k].sampler.keeps_order for k in choice.counts)
        _arrange(target, *(_order(choice.source) if ordered else _moves(choice.source)))
        batch: B = target.batch
        batch.ids = np.asarray(batch.ids)  # of several stores
        batch.source = tagged(choice.source, self.tag)
        return batch

    def state(self) -> dict[str, Any]:
        """Return what ``restore`` needs, as JSON has it."""
        return {"rng": self._rng.bit_generator.state, "samples": self.samples}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where another was.  Raises: ValueError, KeyError, TypeError: no such state; then nothing changed."""
        samples = int(state["samples"])
        self._rng.bit_generator.state = state["rng"]
        self.samples = samples


@contextmanager
def held(lock: threading.Lock, timeout: float | None, what: str) -> Iterator[None]:
    """Hold a lock, which another thread may keep while it waits for steps.  Raises: LimiterTimeoutError."""
    seconds = check_timeout("sample", timeout)
    if not lock.acquire(timeout=seconds):
        raise LimiterTimeoutError(
            f"sample: timed out after {seconds:g} s; another thread samples from this {what}, and waits for steps"
        )
    try:
        yield
    finally:
        lock.release()


def _part(target: Target, begin: int, end: int) -> Target:
    """Return the items ``begin <= i < end`` of a batch, with working memory of their own: that of ``target`` belongs to
    the store that lent it, and is used under its lock."""
    part, own = target.part(begin, end), Draw.of(end - begin)
    part.draw = Draw(own.items, part.draw.probabilities, part.draw.weights, own.rest, own.uniforms)
    return part


def _moves(source: Ints) -> tuple[Ints, Ints]:
    """Return the items to move, and where to, so that items grouped by view lie as ``source`` says: as few as can be.

    Both int64 [n], permutations of each other. With shares of 1/4 and 3/4, three items of eight are moved.
    """
    wrong = np.flatnonzero(np.sort(source) != source)
    return wrong, wrong[np.argsort(source[wrong], kind="stable")]


def _order(source: Ints) -> tuple[Ints, Ints]:
    """Return such moves of all items that those of each view keep their order."""
    return np.arange(len(source)), np.argsort(source, kind="stable")


def _arrange(target: Target, items: Ints, places: Ints) -> None:
    """Move ``items`` to ``places``, in all arrays of a batch."""
    if len(items):
        draw = target.draw
        for array in (*target.columns.values(), draw.probabilities, draw.weights, target.ids):
            array[places] = array[items]
