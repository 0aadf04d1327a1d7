"""Batches drawn from several stores, as from demonstrations and from own experience."""

from __future__ import annotations

import json
import reprlib
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Floats
from sharpwave.sampling.limiters import check_timeout
from sharpwave.showing import table, titled
from sharpwave.views.batch import Arrays
from sharpwave.views.batch_source import BatchSource
from sharpwave.views.ids import tag_of
from sharpwave.views.streams import Stream
from sharpwave.views.view_parts import Choice, Part, Parts, Share
from sharpwave.views.view_replay import check_batch_size, check_beta, check_stream, checked_errors, checked_ids, on_host

B = TypeVar("B", bound=Arrays)

MAY_DIFFER = frozenset({"stride", "eta"})
"""Settings of views that determine the items and their priorities, but not the content of an item."""


class Blend(Generic[B]):
    """Batches of several views, of one store or several: each view provides its share of the items.

    R2D3 learns so from demonstrations and from its own experience (Paine et al. 2019, section 3).

    Args:
        parts: share and view of each part. A share is a number of at least 0, or a schedule: a function from the number
            of items that this blend has drawn so far to such a number. Shares are divided by their sum. Views are
            distinct, of one kind, have the same settings, except ``stride`` and ``eta``, and give arrays of the same
            shapes.
        seed: seed of the choice between views; each view draws by its own.

    Attributes:
        views: in the order of ``parts``.

    Raises:
        ValueError, TypeError: an invalid argument.
    """

    def __init__(self, parts: Sequence[tuple[Share, Part[B]]], *, seed: int = 0) -> None:
        given = parts if isinstance(parts, Sequence) else []
        pairs = [part for part in given if isinstance(part, (tuple, list)) and len(part) == 2]
        if not pairs or len(pairs) < len(given) or not all(hasattr(view, "remote") for _, view in pairs):
            raise TypeError(
                f"Blend: got {parts!r}, expected a list of (share, view), as [(1 / 16, demos.sequences(80)), (15 / 16, "
                "own.sequences(80))]"
            )
        self.views: list[Any] = [view for _, view in pairs]
        twice = [view for k, view in enumerate(self.views) if any(view is other for other in self.views[:k])]
        if twice:
            raise ValueError(
                f"Blend: view {twice[0].name!r} is there twice, expected each view once: give it the sum of its "
                "shares, or make another view of its store, with name=, which has its own priorities and uses"
            )
        described = [_settings(view) | _shapes(view) for view in self.views]
        names = dict.fromkeys(name for one in described for name in one)
        differing = [name for name in names if any(one.get(name) != described[0].get(name) for one in described)]
        if differing:
            values = " and ".join(str(one.get(differing[0])) for one in described)
            raise ValueError(
                f"Blend: batches of its views differ in {', '.join(differing)} ({differing[0]}: {values}); expected "
                "views of one kind, with the same fields, length, burn_in, n_step and gamma"
            )
        self._source = Parts[B](self.views, [share for share, _ in pairs], seed)
        self._streams: list[weakref.ref[Stream[B]]] = []  # in the order of making
        self._resumed: list[list[Choice]] = []  # of streams before a checkpoint, for the next streams made

    def __repr__(self) -> str:
        return f"<Blend of {len(self.views)} views: {self.samples:,} items drawn>"

    def _repr_html_(self) -> str:
        shares = [f"{share:.3g}" for share in self.shares()]
        return titled(repr(self), table(("share", "view"), zip(shares, self.views, strict=True)))

    @property
    def samples(self) -> int:
        """Number of items drawn so far."""
        return self._source.samples

    def shares(self) -> Floats:
        """Return the present share of each view, float64 [views], with sum 1.  Raises: ValueError: none is positive."""
        return self._source.shares().copy()

    def __len__(self) -> int:
        """Items that can be sampled now, from all views; none while one that has a share is empty."""
        counts = [len(view) for view in self.views]
        whole = all(count for count, share in zip(counts, self.shares(), strict=True) if share)
        return sum(counts) if whole else 0

    def sample(self, batch_size: int, *, beta: float | None = None, timeout: float | None = None) -> B:
        """Draw a batch: arguments and errors as ``Replay.sample``, of each view with a share.

        ``batch.source`` int64 [batch_size] gives each item's view. ``probabilities`` are the blend's: the view's times
        its share; ``weights`` are each view's own, relative to its largest. The batch is memory of the store whose view
        has the largest share: it counts in that store's ``stats()`` and against its ``ram``.

        After an error or an interrupt nothing is drawn, except by shards of a cluster: they draw their part first,
        which then counts as sampled. ``batch.shards`` is -1 for items of other views.
        """
        check_batch_size(batch_size)
        check_beta(beta)
        source = self._source
        if timeout is not None:
            check_timeout("sample", timeout)
        batch = source.at_once(int(batch_size), beta)
        if batch is not None:
            return batch
        batch = source.draw(int(batch_size), lambda choice: source.sample(choice, beta), beta, timeout)
        assert batch is not None
        return batch

    def stream(
        self, batch_size: int, *, lookahead: int = 4, beta: float | None = None, timeout: float | None = None
    ) -> Stream[B]:
        """Return an endless iterator over batches, each drawn ``lookahead`` batches ahead.

        Arguments, errors and the rules for each view's items are as in ``Replay.stream``: segments on disk are read
        meanwhile, later priority changes affect the next draw, items evicted since the draw are resampled. No part of a
        batch is drawn before all of it can be, also while other threads sample from the same views. The shares of a
        batch are its shares at the draw. A cluster's view is not drawn ahead.
        """
        check_stream(batch_size, lookahead, beta, timeout)
        self._source.check_limiters(int(batch_size), self.shares())
        self._streams = [ref for ref in self._streams if ref() is not None]
        resumed = self._resumed.pop(0) if self._resumed else []
        ahead = 0 if self._source.remote else int(lookahead)  # shards could not take draws back
        stream = Stream(self._source, int(batch_size), ahead, beta, timeout, resumed)
        self._streams.append(weakref.ref(stream))
        return stream

    def update_priorities(self, batch: B, td_error: npt.ArrayLike) -> int:
        """Set the priorities of a batch's items, each in its own view; returns how many were stale.

        Raises:
            TypeError: not a batch of a blend: ids alone do not name their view.
            ValueError: a batch of another blend, or as ``Replay.update_priorities``; then nothing changed.
        """
        source = getattr(batch, "source", None)
        if source is None:
            raise TypeError("update_priorities: expected a batch that this blend sampled, whose source is known")
        if tag_of(source) not in (None, self._source.tag):
            raise ValueError(
                "update_priorities: this batch is of another blend, whose views are others; pass it to the blend that "
                "sampled it"
            )
        source, ids = on_host(source), on_host(batch.ids)
        known = source.dtype.kind in "iu" and ((source >= 0) & (source < len(self.views))).all()
        if not known or source.ndim != 1 or source.shape != ids.shape:
            raise ValueError(
                f"update_priorities: source of this batch is not {ids.size} integers from 0 to {len(self.views) - 1}, "
                "of this blend's views; pass it to the blend that sampled it"
            )
        ids = checked_ids("update_priorities", ids, None)
        errors = checked_errors(td_error, ids.shape + self.views[0].view.error_shape)
        parts = [(view, part) for k, view in enumerate(self.views) if (part := source == k).any()]
        near: list[tuple[BatchSource, Any]] = [(view.source, part) for view, part in parts if not view.remote]
        stale = len(ids) - sum(int(np.count_nonzero(part)) for view, part in parts if view.remote)
        with self._source.held():  # an interrupt takes effect before all of it, or after
            for one, _ in near:  # calls that may fail
                one.follow()
            stale -= sum(one.update(ids[part], errors[part]) for one, part in near)
        for view, part in parts:
            if view.remote:
                stale += view.update_priorities(ids[part], errors[part], on_host(batch.shards)[part])
        return int(stale)

    def state(self) -> dict[str, Any]:
        """Return the state for ``restore``, as JSON values; views are in their stores' checkpoints.

        Save it with these, while no thread draws from the blend.
        """
        streams = [stream for ref in self._streams if (stream := ref()) is not None]
        ahead = [*([one.choice for one in stream.drawn] for stream in streams), *self._resumed]
        return {
            "rng": dict(self._source.rng.bit_generator.state),
            "samples": self.samples,
            "ahead": [
                [{"source": one.source.tolist(), "shares": one.shares.tolist()} for one in choices] for choices in ahead
            ],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where another of the same parts was; streams made later go on with its streams, in their order.

        Raises:
            ValueError, TypeError: no such state; then nothing changed.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"Blend: got a state of {type(state).__name__}, expected what state() returned")
        views, ahead = len(self.views), state.get("ahead", [])
        if not isinstance(ahead, list) or not all(isinstance(choices, list) for choices in ahead):
            raise ValueError(
                f"Blend: ahead={reprlib.repr(ahead)} of a saved state, expected a list of batches for each stream"
            )
        resumed = [[_choice_of(one, views) for one in choices] for choices in ahead]
        rng, samples = _rng_of(state), state.get("samples")
        if isinstance(samples, bool) or not isinstance(samples, int) or not 0 <= samples < 2**63:
            raise ValueError(
                f"Blend: samples={reprlib.repr(samples)} of a saved state, expected an integer from 0 to 2**63 - 1"
            )
        self._source.rng.bit_generator.state, self._source.samples = rng, samples
        self._resumed = resumed


def _settings(view: Part[Any]) -> dict[str, Any]:
    """Return the kind of a view, and its settings that determine the content of an item."""
    settings = view.view.settings().items()
    return {"kind": view.view.kind} | {name: value for name, value in settings if name not in MAY_DIFFER}


def _shapes(view: Part[Any]) -> dict[str, Any]:
    """Return the layout of a view's arrays by name, and which of their names are tuples."""
    spec = view.source.log.spec
    late = view.source.log.late.spec.fields.keys() - spec.fields.keys()  # which may change; batches are compared
    shapes: dict[str, Any] = {
        name: column.parts or (column.dtype, column.shape)
        for name, column in view.view.columns().items()
        if name not in late
    }
    shapes |= {name: (spec.fields[name].dtype, spec.fields[name].shape) for name in getattr(view.view, "ragged", ())}
    return shapes | {"tuples": spec.tuples}


def _choice_of(state: dict[str, Any], views: int) -> Choice:
    """Return the choice in a saved state.  Raises: ValueError: invalid state."""
    try:
        source, shares = np.array(state["source"]), np.array(state["shares"], np.float64)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"Blend: ahead of a saved state: {reprlib.repr(state)} lacks source and shares") from error
    whole = source.ndim == 1 and len(source) and source.dtype == np.int64
    if not whole or not ((source >= 0) & (source < views)).all():
        raise ValueError(f"Blend: source of a batch drawn ahead is not one of integers from 0 to {views - 1}")
    given = shares.shape == (views,) and all(type(share) in (int, float) for share in state["shares"])
    if not given or not ((shares >= 0) & (shares <= 1)).all() or not shares.any():
        raise ValueError(f"Blend: shares of a batch drawn ahead are not {views} numbers from 0 to 1")
    return Choice(source, shares)


def _rng_of(state: Mapping[str, Any]) -> Any:
    """Return the generator's state in a saved one.  Raises: ValueError: invalid state."""
    rng = np.random.default_rng(0).bit_generator
    try:
        rng.state = state["rng"]
        same = json.dumps(rng.state, sort_keys=True) == json.dumps(state["rng"], sort_keys=True)
    except (OverflowError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"Blend: rng of a saved state is none of a generator ({error!r})") from error
    if not same:  # numpy converts other values to integers
        raise ValueError(f"Blend: rng of a saved state, {reprlib.repr(state['rng'])}, has other numbers than integers")
    return rng.state
