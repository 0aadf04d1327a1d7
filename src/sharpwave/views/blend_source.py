"""Source of a blend's batches: which view each item is from, and one batch made of the parts of all views."""

from __future__ import annotations

import json
import math
import os
import reprlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.arguments import is_integer
from sharpwave.errors import LimiterTimeoutError
from sharpwave.native import core
from sharpwave.native.forks import path
from sharpwave.sampling.limiters import check_timeout
from sharpwave.sampling.protocol import Draw
from sharpwave.views.batch import Arrays, Drawn
from sharpwave.views.batch_source import Undo
from sharpwave.views.forked_draws import own_generator
from sharpwave.views.ids import tagged
from sharpwave.views.layout import Target
from sharpwave.views.replay import Replay
from sharpwave.views.turns import all_held, held, in_order, turn

B = TypeVar("B", bound=Arrays)
T = TypeVar("T")
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
        """Return the choice of a state.  Raises: ValueError: it is something else."""
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
        return cls(source, shares)


class BlendSource(Generic[B]):
    """Batches of several views, of which one batch is chosen, then drawn and made.

    It is changed under the locks of all stores.

    Args:
        shares: of each view, by number or schedule.
        seed: seed of the choice between views.

    Attributes:
        samples: items drawn so far.
        tag: of ``source`` in the batches.
    """

    def __init__(self, views: Sequence[Replay[B]], shares: Sequence[Share], seed: int) -> None:
        self.views, self._shares = views, shares
        self.samples = 0
        self._fixed: npt.NDArray[np.float64] | None = None
        self._turn = turn()  # of the next choice
        self._waits = 0  # the process, while the thread whose turn it is waits for steps; a fork has another
        self._locks = in_order([view.lock for view in views])
        self.tag = object()
        if not is_integer(seed) or seed < 0:
            raise ValueError(f"Blend: seed={seed!r}, expected an integer of at least 0")
        self._rng, self._process = np.random.default_rng(seed), path()
        self._chosen = False  # a thread has chosen a batch, and draws it or waits
        self._limited = any(view.source.limiter is not None for view in views)
        columns = [getattr(view.view, "filled_at_once", None) for view in views]
        alike = columns[0] is not None and all(one == columns[0] for one in columns) and len(self._locks) <= 2
        self._at_once = alike and all(view.source.complete is None for view in views)
        present = self.shares()
        self._fixed = None if any(callable(share) for share in shares) else present

    def shares(self) -> npt.NDArray[np.float64]:
        """Return the present share of each view, float64 [views], with sum 1.  Raises: ValueError: none is positive."""
        return shares_of(self._shares, self.samples) if self._fixed is None else self._fixed

    def held(self) -> AbstractContextManager[None]:
        """Hold the locks of all stores."""
        return all_held(self._locks)

    def waits(self) -> bool:
        """Whether a thread waits for steps that a limiter demands, and keeps others waiting."""
        return self._waits == os.getpid()

    def draw(
        self,
        batch_size: int,
        make: Callable[[Choice], T | None],
        *,
        beta: float | None,
        timeout: float | None,
        wait: bool = True,
    ) -> T | None:
        """Choose a batch, and return what ``make`` makes of the choice once each view can draw its part.

        Args:
            make: called while all locks are held, so that nothing is drawn from any view if it raises and undoes what
                it drew; ``None`` if steps had to be evicted first.
            wait: for steps, and for another thread that does.

        Returns ``None`` if it would have to wait, but may not.

        Raises:
            EmptyError, LimiterTimeoutError, ValueError: as ``Replay.sample``; and what ``make`` does. Then it was not
                drawn, and the same is chosen again.
        """
        seconds = check_timeout("sample", timeout)
        end = time.monotonic() + seconds
        try:
            with held(self._turn, seconds if wait else 0.0, "blend", self.waits if wait else lambda: True):
                try:
                    choice, rng = self._choose(batch_size)
                    self.check_limiters(batch_size, choice.shares)
                    while True:
                        with self.held():
                            waiting = self._waiting(choice)
                            if waiting is None and (made := make(choice)) is not None:
                                self._rng.bit_generator.state = rng
                                self.samples += len(choice.source)
                                return made
                        if waiting is not None:
                            if not wait:
                                return None
                            left = max(0.0, end - time.monotonic())
                            self._waits = 0 if self.views[waiting].source.limiter is None else os.getpid()
                            try:
                                self.views[waiting].wait(choice.counts[waiting], beta=beta, timeout=left)
                            finally:
                                self._waits = 0
                finally:
                    self._chosen = False
        except LimiterTimeoutError:
            if wait:
                raise
            return None  # another thread waits for steps

    def _choose(self, batch_size: int) -> tuple[Choice, Mapping[str, Any]]:
        """Choose the view of each item of a batch; return the choice, and the generator's state after it."""
        self._chosen = True  # first: no other thread begins to draw at once from here on, only one may end
        while True:
            samples, shares = self.samples, self.shares()
            with self.held():
                if samples != self.samples:
                    continue
                if self._process is not path():
                    self._rng, self._process = own_generator(self._rng), path()
                bits = self._rng.bit_generator
                before = bits.state
                try:
                    source = self._rng.choice(len(self.views), size=batch_size, p=shares).astype(np.int64)
                    return Choice(source, shares), bits.state
                finally:
                    bits.state = before

    def at_once(self, batch_size: int, beta: float | None) -> B | None:
        """Return a new batch, as ``Replay.sample`` does at first: by one call of the core, under plain locks.

        Returns ``None``, and nothing was drawn, where it takes more: then ``draw`` returns the same batch.
        """
        if not self._at_once:
            return None
        samples, shares = self.samples, self.shares()
        lender = int(shares.argmax())
        layout, source = self.views[lender].source.layouts.get(batch_size), np.empty(batch_size, np.int64)
        if layout is None or layout.filling is None:
            return None
        samplings: list[Any] = []
        items, betas = [], np.empty(len(self.views))
        with self._locks[0].interruptible, self._locks[-1].interruptible:
            if self._chosen or self._process is not path() or self.samples != samples:
                return None
            for k, view in enumerate(self.views):
                if shares[k] and not view.source.draws_at_once():
                    return None
                items.append(view.source.items)
                samplings.append(items[k].sampling)
                betas[k] = items[k].sampler.beta if beta is None else float(beta)
            bits = self._rng.bit_generator
            batch = core.sample_blend(self, bits, samplings, items, betas, shares, lender, layout.filling, source)
        return None if batch is None else self._of_several(batch, source)

    def _of_several(self, batch: B, source: Ints) -> B:
        """Say where the items of a batch are from; ids of several stores have no tag."""
        batch.ids, batch.source = np.asarray(batch.ids), tagged(source, self.tag)
        return batch

    def check_limiters(self, batch_size: int, shares: npt.NDArray[np.float64]) -> None:
        """Refuse a batch all of whose items may be from one view, where its limiter admits no part as large.

        Parts are of random size: it would be refused some time, and then always.  Raises: ValueError.
        """
        if not self._limited:
            return
        for view, share in zip(self.views, shares, strict=True):
            if share and view.source.limiter is not None:
                with view.lock:
                    try:
                        view.source.check_admitted(batch_size)
                    except ValueError as error:
                        raise ValueError(f"{error} (all of a batch may be from view {view.name!r})") from error

    def _waiting(self, choice: Choice) -> int | None:
        """Return a view that has to wait for its part; ``None`` if there is none."""
        return next((k for k, count in choice.counts.items() if not self.views[k].source.can_draw(count)), None)

    def sample(self, choice: Choice, beta: float | None) -> B | None:
        """Return a new batch, all parts of it drawn now; ``None`` if steps were evicted for its memory, too many."""
        target = self._lend(choice)
        if self._waiting(choice) is not None:
            return None
        for k in choice.counts:
            self.views[k].streams.forget_dropped()
        batch = self._batch(choice, target, lambda k, part: self.views[k].source.draw_into(part, beta))
        for k in choice.counts:
            self.views[k].source.bind()
        return batch

    def fill_drawn(self, choice: Choice, parts: Mapping[int, Drawn], beta: float | None) -> B:
        """Return the batch of earlier draws of its parts, while all locks are held."""

        def fill(k: int, part: Target) -> Undo:
            source, drawn = self.views[k].source, parts[k]
            source.log.check_open()
            return source.fill_drawn(part, drawn, beta)

        return self._batch(choice, self._lend(choice), fill)

    def _lend(self, choice: Choice) -> Target:
        """Lend memory for a batch, of the store whose view has the largest share."""
        source = self.views[int(choice.shares.argmax())].source
        source.log.check_open()
        return source.lend(len(choice.source))

    def _batch(self, choice: Choice, target: Target, fill: Callable[[int, Target], Undo]) -> B:
        """Return the batch in ``target``. An error of one part undoes the others.

        Args:
            fill: fills the part of the batch that is from a view, of which it gets the number.
        """
        undos: list[Undo] = []
        begin = 0
        try:
            for k, count in choice.counts.items():
                part = _part(target, begin, begin + count)
                undos.append(fill(k, part))
                part.draw.probabilities *= choice.shares[k]
                begin += count
        except BaseException:
            for undo in reversed(undos):
                undo()
            raise
        ordered = any(self.views[k].sampler.keeps_order for k in choice.counts)
        _arrange(target, *(_order(choice.source) if ordered else _moves(choice.source)))
        return self._of_several(target.batch, choice.source)

    def state(self) -> dict[str, Any]:
        """Return what ``restore`` needs, as JSON has it."""
        return {"rng": dict(self._rng.bit_generator.state), "samples": self.samples}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where another was.  Raises: ValueError: no such state; then nothing changed."""
        samples = state.get("samples")
        if isinstance(samples, bool) or not isinstance(samples, int) or not 0 <= samples < 2**63:
            raise ValueError(
                f"Blend: samples={reprlib.repr(samples)} of a saved state, expected an integer from 0 to 2**63 - 1"
            )
        rng = np.random.default_rng(0).bit_generator
        try:
            rng.state = state["rng"]
            same = json.dumps(rng.state, sort_keys=True) == json.dumps(state["rng"], sort_keys=True)
        except (OverflowError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"Blend: rng of a saved state is none of a generator ({error!r})") from error
        if not same:  # numpy makes integers of what are none
            raise ValueError(
                f"Blend: rng of a saved state, {reprlib.repr(state['rng'])}, has other numbers than integers"
            )
        self._rng.bit_generator.state, self.samples = rng.state, samples


def shares_of(given_shares: Sequence[Share], samples: int) -> npt.NDArray[np.float64]:
    """Return shares after ``samples`` items, float64 [n], with sum 1.  Raises: ValueError: none is positive."""
    given = [share(samples) if callable(share) else share for share in given_shares]
    for value in given:
        number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
        if not number or not 0 <= _float(value) < math.inf:
            raise ValueError(f"Blend: share={value!r}, expected a finite number of at least 0")
    values = np.array([_float(value) for value in given])
    total = sum(values.tolist())
    if not 0 < total < math.inf:
        raise ValueError(f"Blend: shares {given} sum to {total:g}, expected a positive one that is finite")
    shares: npt.NDArray[np.float64] = values / total
    return shares


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


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
