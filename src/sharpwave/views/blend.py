"""Batches drawn from several stores, as from demonstrations and from own experience."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.views.batch import Arrays
from sharpwave.views.replay import MAX_BATCH_SIZE, Replay, checked_errors

B = TypeVar("B", bound=Arrays)
Ints = npt.NDArray[np.int64]
Share = float | Callable[[int], float]


class Blend(Generic[B]):
    """Batches of several views, of one store or of several: each item comes from a view with the view's share.

    That is how R2D3 learns from demonstrations and from its own experience (Paine et al. 2019, section 3).

    Args:
        parts: share and view of each part. A share is a number of at least 0, or a schedule: a function from the number
            of items that this blend has drawn so far to such a number. Shares are divided by their sum. Views must be
            of one kind, and give arrays of the same shapes.
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
        shapes = [_shapes(view) for view in self.views]
        differing = {name for one in shapes for name in one if any(one[name] != two.get(name) for two in shapes)}
        if differing:
            name = min(differing)
            raise ValueError(
                f"Blend: batches of its views differ in {', '.join(sorted(differing))} ({name}: "
                f"{' and '.join(str(one.get(name)) for one in shapes)}); expected views of one kind, with the same "
                "fields, lengths, burn_in and n_step"
            )
        self._shares = [share for share, _ in pairs]
        self.samples = 0
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

    def __len__(self) -> int:
        """Items that can be sampled now, from all views; none while one that has a share is empty."""
        counts = [len(view) for view in self.views]
        whole = all(count for count, share in zip(counts, self.shares(), strict=True) if share)
        return sum(counts) if whole else 0

    def sample(self, batch_size: int, *, beta: float | None = None, timeout: float | None = None) -> B:
        """Draw a batch: arguments and errors as ``Replay.sample``, of each view that has a share.

        ``batch.source`` int64 [batch_size] says which view each item is from. ``probabilities`` are those of the blend,
        the view's times its share; ``weights`` are each view's own, relative to its largest. Arrays are copies in
        memory that no store counts.

        Nothing is drawn from any view before all can be sampled; only for want of memory, or by damage, a part may fail
        after others were drawn.
        """
        if not isinstance(batch_size, (int, np.integer)) or not 1 <= batch_size <= MAX_BATCH_SIZE:
            raise ValueError(f"sample: batch_size={batch_size!r}, expected an integer from 1 to {MAX_BATCH_SIZE:,}")
        shares = self.shares()
        before = self._rng.bit_generator.state
        source = self._rng.choice(len(self.views), size=int(batch_size), p=shares)
        counts = {k: int(count) for k, count in enumerate(np.bincount(source)) if count}
        try:
            for k, count in counts.items():
                self.views[k].wait(count, beta=beta, timeout=timeout)
            drawn = {k: self.views[k].sample(count, beta=beta, timeout=timeout) for k, count in counts.items()}
        except BaseException:
            self._rng.bit_generator.state = before  # the call is repeated with the same choice
            raise
        self.samples += int(batch_size)
        places = {k: np.flatnonzero(source == k) for k in drawn}
        batch = _joined(list(drawn.values()), list(places.values()), int(batch_size))
        for k, where in places.items():
            batch.probabilities[where] *= shares[k]
        batch.source = source.astype(np.int64)
        return batch

    def stream(self, batch_size: int, *, beta: float | None = None, timeout: float | None = None) -> Iterator[B]:
        """Return batches without end, each drawn when it is asked for."""
        while True:
            yield self.sample(batch_size, beta=beta, timeout=timeout)

    def update_priorities(self, batch: B, td_error: npt.ArrayLike) -> int:
        """Set the priorities of a batch's items, each in its own view; returns how many were stale.

        Raises:
            TypeError: not a batch of a blend: ids alone do not say which view they are from.
            ValueError: as ``Replay.update_priorities``; then nothing changed.
        """
        source = getattr(batch, "source", None)
        if source is None:
            raise TypeError("update_priorities: expected a batch that this blend sampled, whose source is known")
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


def _shapes(view: Replay[Any]) -> dict[str, Any]:
    """Return the kind of a view, and what the arrays of its items look like, by name."""
    about = {"kind": view.view.kind, "burn_in": getattr(view.view, "burn_in", None)}
    columns = view.view.columns()
    return about | {name: column.parts or (column.dtype, column.shape) for name, column in columns.items()}


def _joined(batches: list[B], places: list[Ints], size: int) -> B:
    """Put the items of several batches where ``places`` say."""

    def join(values: list[Any]) -> Any:
        if isinstance(values[0], dict):
            return {name: join([value[name] for value in values]) for name in values[0]}
        if values[0] is None or isinstance(values[0], int):
            return values[0]
        whole = np.empty((size, *values[0].shape[1:]), values[0].dtype)
        for value, where in zip(values, places, strict=True):
            whole[where] = value
        return whole

    first = batches[0]
    return type(first)(*(join([getattr(batch, field.name) for batch in batches]) for field in fields(first)))
