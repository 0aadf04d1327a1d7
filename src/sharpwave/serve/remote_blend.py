"""Blend of views of which some are a cluster's: each part is sampled from its view, and put in its places."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.native.forks import path
from sharpwave.views.batch import Arrays
from sharpwave.views.blend_source import Share, shares_of
from sharpwave.views.forked_draws import own_generator
from sharpwave.views.replay import check_stream, on_host

B = TypeVar("B", bound=Arrays)
Ints = npt.NDArray[np.int64]


class RemoteBlend(Generic[B]):
    """Batches of several views, of clusters or of stores in this process: as ``sharpwave.Blend``, which makes it.

    Parts are copied into the batch, and drawn one after another: where a later one fails, the earlier ones count as
    sampled.

    Args:
        parts: share and view of each part. ``seed``: of the choice between views.

    Raises:
        ValueError, TypeError: an invalid argument.
    """

    def __init__(self, parts: Sequence[tuple[Share, Any]], *, seed: int = 0) -> None:
        self.views = [view for _, view in parts]
        self._shares = [share for share, _ in parts]
        kinds = {(view.view.kind, repr(_compared(view.view.settings()))) for view in self.views}
        if len(kinds) > 1:
            raise ValueError(f"Blend: its views differ: {' and '.join(sorted(str(kind) for kind in kinds))}")
        if len({id(view) for view in self.views}) < len(self.views):
            raise ValueError("Blend: a view is there twice, expected each once: give it the sum of its shares")
        self._rng, self._process = np.random.default_rng(seed), path()
        self.samples = 0
        self.shares()

    def shares(self) -> npt.NDArray[np.float64]:
        """Return the present share of each view, float64 [views], with sum 1.  Raises: ValueError: none is positive."""
        return shares_of(self._shares, self.samples)

    def __len__(self) -> int:
        """Items that can be sampled now, from all views; none while one that has a share is empty."""
        counts = [len(view) for view in self.views]
        whole = all(count for count, share in zip(counts, self.shares(), strict=True) if share)
        return sum(counts) if whole else 0

    def sample(self, batch_size: int, *, beta: float | None = None, timeout: float | None = None) -> B:
        """Draw a batch: as ``Blend.sample``. ``batch.source`` says which view each item is from."""
        check_stream(batch_size, 0, beta, timeout)
        shares = self.shares()
        if self._process is not path():
            self._rng, self._process = own_generator(self._rng), path()
        source = self._rng.choice(len(self.views), size=batch_size, p=shares).astype(np.int64)
        places = {k: np.flatnonzero(source == k) for k in np.unique(source).tolist()}
        parts = {k: self.views[k].sample(len(at), beta=beta, timeout=timeout) for k, at in places.items()}
        for k, part in parts.items():
            part.probabilities *= shares[k]
            if part.shards is None:
                part.shards = np.full(len(part), -1, np.int64)
        batch: B = _joined(list(parts.values()), list(places.values()), batch_size)
        batch.source = source
        self.samples += batch_size
        return batch

    def stream(
        self, batch_size: int, *, lookahead: int = 0, beta: float | None = None, timeout: float | None = None
    ) -> Iterator[B]:
        """Iterate over batches without end, each drawn when it is asked for: ``lookahead`` has no effect."""
        check_stream(batch_size, lookahead, beta, timeout)
        while True:
            yield self.sample(batch_size, beta=beta, timeout=timeout)

    def update_priorities(self, batch: B, td_error: npt.ArrayLike) -> int:
        """Set the priorities of a batch's items, each in its own view; returns how many were stale."""
        if getattr(batch, "source", None) is None:
            raise TypeError("update_priorities: expected a batch that this blend sampled, whose source is known")
        source, ids, shards = (on_host(one) for one in (batch.source, batch.ids, batch.shards))
        errors = np.asarray(td_error)
        if len(errors) != len(source):
            raise ValueError(f"update_priorities: {len(errors)} td_errors for {len(source)} items")
        stale = 0
        for k in np.unique(source).tolist():
            mine = source == k
            more = {"shards": shards[mine]} if hasattr(self.views[k], "blended") else {}
            stale += self.views[k].update_priorities(np.asarray(ids[mine]), errors[mine], **more)
        return stale


def _compared(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sorted(settings.items()) if name not in ("stride", "eta")}


def _joined(parts: Sequence[Any], places: Sequence[Ints], count: int) -> Any:
    """Return one batch of the parts' items, each at its place."""

    def join(values: Sequence[Any]) -> Any:
        first = values[0]
        if first is None or isinstance(first, int):
            return first
        if isinstance(first, dict):
            return {name: join([value[name] for value in values]) for name in first}
        if isinstance(first, tuple):
            return tuple(join(some) for some in zip(*values, strict=True))
        whole = np.empty((count, *first.shape[1:]), first.dtype)
        for value, at in zip(values, places, strict=True):
            whole[at] = value
        return whole

    get: Callable[[Any, str], Any] = getattr
    return type(parts[0])(*(join([get(part, one.name) for part in parts]) for one in fields(parts[0])))
