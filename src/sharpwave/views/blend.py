"""Batches drawn from several stores, as from demonstrations and from own experience."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.errors import LimiterTimeoutError
from sharpwave.sampling.limiters import check_timeout
from sharpwave.sampling.protocol import Draw
from sharpwave.views.batch import Arrays
from sharpwave.views.ids import tag_of, tagged
from sharpwave.views.layout import Target
from sharpwave.views.replay import MAX_BATCH_SIZE, Replay, checked_errors

B = TypeVar("B", bound=Arrays)
Ints = npt.NDArray[np.int64]
Share = float | Callable[[int], float]

MAY_DIFFER = frozenset({"stride", "eta"})
"""Settings of views that say which items there are and what their priorities are, but not what an item holds."""


class Blend(Generic[B]):
    """Batches of several views, of one store or of several: each item comes from a view with the view's share.

    That is how R2D3 learns from demonstrations and from its own experience (Paine et al. 2019, section 3).

    Args:
        parts: share and view of each part. A share is a number of at least 0, or a schedule: a function from the number
            of items that this blend has drawn so far to such a number. Shares are divided by their sum. Views must be
            of one kind, with the same settings, ``stride`` and ``eta`` apart, and give arrays of the same shapes.
        seed: seed of the choice between views; each view draws by its own.

    Attributes:
        views: in the order of ``parts``. ``samples``: items drawn so far.

    Raises:
        ValueError, TypeError: an invalid argument.
    """

    def __init__(self, parts: Sequence[tuple[Share, Replay[B]]], *, seed: int = 0) -> None:
        given = parts if isinstance(parts, Sequence) else []
        pairs = [part for part in given if isinstance(part, (tuple, list)) and len(part) == 2]
        if not pairs or len(pairs) < len(given) or not all(isinstance(view, Replay) for _, view in pairs):
            raise TypeError(
                f"Blend: got {parts!r}, expected a list of (share, view), as [(1 / 16, demos.sequences(80)), (15 / 16, "
                "own.sequences(80))]"
            )
        self.views: list[Replay[B]] = [view for _, view in pairs]
        described = [_settings(view) | _shapes(view) for view in self.views]
        names = dict.fromkeys(name for one in described for name in one)
        differing = [name for name in names if any(one.get(name) != described[0].get(name) for one in described)]
        if differing:
            values = " and ".join(str(one.get(differing[0])) for one in described)
            raise ValueError(
                f"Blend: batches of its views differ in {', '.join(differing)} ({differing[0]}: {values}); expected "
                "views of one kind, with the same fields, length, burn_in, n_step and gamma"
            )
        self._shares = [share for share, _ in pairs]
        self.samples = 0
        self._rng = np.random.default_rng(seed)
        self._lock = threading.Lock()  # of the generator and ``samples``; taken before any store's
        self._tag = object()  # of ``source`` in its batches
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

    def __len__(self) -> int:
        """Items that can be sampled now, from all views; none while one that has a share is empty."""
        counts = [len(view) for view in self.views]
        whole = all(count for count, share in zip(counts, self.shares(), strict=True) if share)
        return sum(counts) if whole else 0

    def sample(self, batch_size: int, *, beta: float | None = None, timeout: float | None = None) -> B:
        """Draw a batch: arguments and errors as ``Replay.sample``, of each view that has a share.

        ``batch.source`` int64 [batch_size] says which view each item is from. ``probabilities`` are those of the blend,
        the view's times its share; ``weights`` are each view's own, relative to its largest. The batch is memory of the
        store whose view has the largest share: it counts in that store's ``stats()`` and against its ``ram``.

        Nothing is drawn from any view before all can be sampled; only by damage, or for want of memory to read a
        segment, a part may fail after others were drawn.
        """
        if not isinstance(batch_size, (int, np.integer)) or not 1 <= batch_size <= MAX_BATCH_SIZE:
            raise ValueError(f"sample: batch_size={batch_size!r}, expected an integer from 1 to {MAX_BATCH_SIZE:,}")
        with self._held(timeout):
            shares = self.shares()
            before = self._rng.bit_generator.state
            source: Ints = self._rng.choice(len(self.views), size=int(batch_size), p=shares).astype(np.int64)
            counts = {k: int(count) for k, count in enumerate(np.bincount(source)) if count}
            try:
                for k, count in counts.items():
                    self.views[k].wait(count, beta=beta, timeout=timeout)
                target = self.views[int(shares.argmax())].lend(int(batch_size))
                begin = 0
                for k, count in counts.items():
                    part = _part(target, begin, begin + count)
                    self.views[k].sample_into(part, beta=beta, timeout=timeout)
                    part.draw.probabilities *= shares[k]
                    begin += count
            except BaseException:
                self._rng.bit_generator.state = before  # the call is repeated with the same choice
                raise
            self.samples += int(batch_size)
        ordered = any(self.views[k].sampler.keeps_order for k in counts)
        _arrange(target, *(_order(source) if ordered else _moves(source)))
        batch: B = target.batch
        batch.ids = np.asarray(batch.ids)  # of several stores
        batch.source = tagged(source, self._tag)
        return batch

    @contextmanager
    def _held(self, timeout: float | None) -> Iterator[None]:
        """Hold the lock, which another thread may keep while it waits for steps.  Raises: LimiterTimeoutError."""
        seconds = check_timeout("sample", timeout)
        if not self._lock.acquire(timeout=seconds):
            raise LimiterTimeoutError(
                f"sample: timed out after {seconds:g} s; another thread samples from this blend, and waits for steps"
            )
        try:
            yield
        finally:
            self._lock.release()

    def stream(self, batch_size: int, *, beta: float | None = None, timeout: float | None = None) -> Iterator[B]:
        """Return batches without end, each drawn when it is asked for."""
        while True:
            yield self.sample(batch_size, beta=beta, timeout=timeout)

    def update_priorities(self, batch: B, td_error: npt.ArrayLike) -> int:
        """Set the priorities of a batch's items, each in its own view; returns how many were stale.

        Raises:
            TypeError: not a batch of a blend: ids alone do not say which view they are from.
            ValueError: a batch of another blend, or as ``Replay.update_priorities``; then nothing changed.
        """
        source = getattr(batch, "source", None)
        if source is None:
            raise TypeError("update_priorities: expected a batch that this blend sampled, whose source is known")
        if tag_of(source) not in (None, self._tag):
            raise ValueError(
                "update_priorities: this batch is of another blend, whose views are others; pass it to the blend that "
                "sampled it"
            )
        source, ids = np.asarray(source), np.asarray(batch.ids)
        errors = checked_errors(td_error, ids.shape + self.views[0].view.error_shape)
        return sum(
            view.update_priorities(ids[source == k], errors[source == k])
            for k, view in enumerate(self.views)
            if (source == k).any()
        )

    def state(self) -> dict[str, Any]:
        """Return what ``restore`` needs, as JSON has it; views are in their stores' checkpoints."""
        return {"rng": self._rng.bit_generator.state, "samples": self.samples}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where another of the same parts was.  Raises: ValueError, KeyError, TypeError: no such state."""
        self._rng.bit_generator.state = state["rng"]
        self.samples = int(state["samples"])


def _settings(view: Replay[Any]) -> dict[str, Any]:
    """Return the kind of a view, and those of its settings that say what an item holds."""
    settings = view.view.settings().items()
    return {"kind": view.view.kind} | {name: value for name, value in settings if name not in MAY_DIFFER}


def _shapes(view: Replay[Any]) -> dict[str, Any]:
    """Return what the arrays of a view's items look like, by name."""
    return {name: column.parts or (column.dtype, column.shape) for name, column in view.view.columns().items()}


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
