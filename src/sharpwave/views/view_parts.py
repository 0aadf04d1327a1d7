"""Batches of several views, of one or of several stores: which view each item is from, and one batch of all parts.

A view's own stream consists of the same parts, of which it has one.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from sharpwave.arguments import is_integer, is_number
from sharpwave.arrays import Floats, Ints
from sharpwave.errors import LimiterTimeoutError
from sharpwave.native import core
from sharpwave.native.forks import path
from sharpwave.native.interrupts import InterruptLock
from sharpwave.sampling.limiters import LOOK_S, Limiter, check_timeout
from sharpwave.sampling.sampler_protocol import Draw, Sampler
from sharpwave.views.batch_source import BatchSource
from sharpwave.views.draws_ahead import Drawn
from sharpwave.views.ids import tagged
from sharpwave.views.items import Undo, own_generator
from sharpwave.views.layout import BatchTarget

B = TypeVar("B")
B_co = TypeVar("B_co", covariant=True)
T = TypeVar("T")
Share = float | Callable[[int], float]

POLL_S = 0.01
"""Seconds between checks of a thread that keeps its turn for longer than another would wait for steps."""

_made: weakref.WeakSet[InterruptLock] = weakref.WeakSet()
_NO_TURN = nullcontext()


class Part(Protocol[B_co]):
    """View that gives items to a batch: ``view_replay.Replay``, or a cluster's view.

    Attributes:
        remote: shards draw its items, before any lock is taken (``sample_target``), and nothing undoes that; ``source``
            and ``lock`` then belong to an empty store of the same spec, which lends memory.
    """

    @property
    def name(self) -> str: ...
    @property
    def remote(self) -> bool: ...
    @property
    def source(self) -> BatchSource: ...
    @property
    def view(self) -> Any: ...
    @property
    def lock(self) -> InterruptLock: ...
    @property
    def sampler(self) -> Sampler: ...
    @property
    def limiter(self) -> Limiter | None: ...

    def __len__(self) -> int: ...

    def check_admitted(self, batch_size: int) -> None:
        """Refuse a batch that the limiter can never admit.  Raises: ValueError."""

    def sample(self, batch_size: int, *, beta: float | None = None, timeout: float | None = None) -> B_co:
        """Draw a batch of its items alone."""


@dataclass(frozen=True, eq=False)
class Choice:
    """Choice of the view of each item of a batch.

    Attributes:
        source: int64 [B], the view of each item.
        shares: float64 [views], with which the views were chosen.
        sent: the batch of each view of a cluster, which its shards have drawn.
    """

    source: Ints
    shares: Floats
    sent: dict[int, BatchTarget] = field(default_factory=dict)

    @cached_property
    def counts(self) -> dict[int, int]:
        """Number of items of each view that has any."""
        return {k: int(count) for k, count in enumerate(np.bincount(self.source)) if count}

    @property
    def near(self) -> dict[int, int]:
        """``counts`` of the views of this process's stores."""
        return {k: count for k, count in self.counts.items() if k not in self.sent} if self.sent else self.counts

    @classmethod
    def alone(cls, batch_size: int) -> Choice:
        """Return the choice of the one view there is."""
        return cls(np.zeros(batch_size, np.int64), np.ones(1))


class Parts(Generic[B]):
    """Batches of several views, of which one batch is chosen, then drawn and made.

    It is changed under the locks of all stores.

    Args:
        shares: of each view, by number or schedule.
        seed: seed of the choice between views.
        alone: its one view is no blend's: its batches are the view's own, without a choice; its stream has a turn.

    Attributes:
        samples: items drawn so far. ``rng``: of the choice.
        tag: of ``source`` in the batches.
    """

    def __init__(self, views: Sequence[Any], shares: Sequence[Share], seed: int, *, alone: bool = False) -> None:
        self.views, self._shares, self.alone = views, shares, alone
        self.samples = 0
        self._fixed: Floats | None = None
        self._turn = turn()  # of the next choice
        self._waits = 0  # process id while the thread that has the turn waits for steps; a fork has another
        self._locks = sorted({view.lock for view in views}, key=lambda lock: lock.number)  # as forks take them
        self.tag = object()
        if not is_integer(seed) or seed < 0:
            raise ValueError(f"Blend: seed={seed!r}, expected an integer of at least 0")
        self.rng, self._process = np.random.default_rng(seed), path()
        self._whole: Choice | None = None  # the last one, where there is one view
        self._chosen = False  # a thread has chosen a batch, and draws it or waits
        self._limited = any(view.limiter is not None for view in views)
        self.remote = any(view.remote for view in views)
        self._logs = [] if alone else [view.source.log for view in views if not view.remote]
        self._versions: list[int] = []
        self._take_columns()
        present = self.shares()
        self._fixed = None if any(callable(share) for share in shares) else present

    def _take_columns(self) -> None:
        """Note the columns that views have, and whether all in one order.  Raises: ValueError: they differ."""
        late = [{name: column.field for name, column in log.late.columns.items()} for log in self._logs]
        for one in late:
            if one != late[0]:
                differing = ", ".join(sorted(map(repr, one.keys() ^ late[0].keys()))) or "columns of one name"
                raise ValueError(
                    f"Blend: {differing} added to some of its stores, expected the same columns in each: add them to "
                    "the others, or drop them"
                )
        columns = [getattr(view.view, "filled_at_once", None) for view in self.views]
        self._alike = columns[0] is not None and all(one == columns[0] for one in columns)
        plain = not self.remote and all(view.source.complete is None for view in self.views)
        self._at_once = self._alike and len(self._locks) <= 2 and plain
        self._versions = [log.late.version for log in self._logs]

    def shares(self) -> Floats:
        """Return the present share of each view, float64 [views], with sum 1.  Raises: ValueError: none is positive."""
        return shares_of(self._shares, self.samples) if self._fixed is None else self._fixed

    def held(self) -> AbstractContextManager[None]:
        """Hold the locks of all stores. Any two callers take them in one order, as forks do."""
        return self._locks[0] if len(self._locks) == 1 else _all_held(self._locks)

    def waits(self) -> bool:
        """Whether a thread waits for steps that a limiter demands, and keeps others waiting."""
        return self._waits == os.getpid()

    def draw(
        self,
        batch_size: int,
        make: Callable[[Choice], T | None],
        beta: float | None,
        timeout: float | None,
        *,
        wait: bool = True,
    ) -> T | None:
        """Choose a batch, and return the result of ``make`` for the choice, once each view can draw its part.

        Shards draw their parts first, which count as sampled even if another view fails; where uses are limited, they
        are kept for the next batch.

        Args:
            make: called while all locks are held, so that no view has drawn if it raises and undoes its draws; ``None``
                if steps had to be evicted first.
            wait: whether to wait for steps, and for another thread that does.

        Returns ``None`` if it would have to wait, but may not.

        Raises:
            EmptyError, LimiterTimeoutError, ValueError: as ``Replay.sample``; and errors of ``make``. Then the batch
                was not drawn, and the next call repeats the choice.
        """
        left = seconds = check_timeout("sample", timeout)
        end = time.monotonic() + seconds
        try:
            waits = self.waits if wait else lambda: True
            with _NO_TURN if self.alone else held(self._turn, seconds if wait else 0.0, "blend", waits):
                sent: dict[int, BatchTarget] = {}
                try:
                    choice, rng = self._choose(batch_size)
                    sent = choice.sent
                    self.check_limiters(batch_size, choice.shares)
                    if self.remote:
                        for k, count in choice.counts.items():
                            if self.views[k].remote:
                                choice.sent[k] = self.views[k].sample_target(count, beta=beta, timeout=timeout)
                    while True:
                        with self.held():
                            waiting = self._waiting(choice)
                            if waiting is None and (made := make(choice)) is not None:
                                if rng is not None:
                                    self.rng.bit_generator.state = rng
                                self.samples += len(choice.source)
                                sent = {}
                                return made
                        if waiting is not None:
                            if not wait:
                                return None
                            view = self.views[waiting]
                            self._waits = 0 if view.limiter is None else os.getpid()
                            try:
                                view.wait(choice.counts[waiting], beta=beta, timeout=left)
                            finally:
                                self._waits = 0
                            left = max(0.0, end - time.monotonic())
                finally:
                    self._chosen = False
                    for k, target in sent.items():
                        self.views[k].keep(target)
        except LimiterTimeoutError:
            if wait:
                raise
            return None  # another thread waits for steps

    def _choose(self, batch_size: int) -> tuple[Choice, Mapping[str, Any] | None]:
        """Choose the view of each item of a batch; return it, and the generator's state after it, if it drew."""
        self._chosen = True  # first: no other thread begins to draw at once from here on, only one may end
        if self.alone:
            if self._whole is None or len(self._whole.source) != batch_size:
                self._whole = Choice.alone(batch_size)
            return self._whole, None
        while True:
            samples, shares = self.samples, self.shares()
            with self.held():
                if samples != self.samples:
                    continue
                if self._process is not path():
                    self.rng, self._process = own_generator(self.rng), path()
                bits = self.rng.bit_generator
                before = bits.state
                try:
                    source = self.rng.choice(len(self.views), size=batch_size, p=shares).astype(np.int64)
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
            if [log.late.version for log in self._logs] != self._versions:
                return None
            if self._chosen or self._process is not path() or self.samples != samples:
                return None
            for k, view in enumerate(self.views):
                if shares[k] and not view.source.draws_at_once():
                    return None
                items.append(view.source.items)
                samplings.append(items[k].sampling)
                betas[k] = items[k].sampler.beta if beta is None else float(beta)
            bits = self.rng.bit_generator
            batch = core.sample_blend(self, bits, samplings, items, betas, shares, lender, layout.filling, source)
        return None if batch is None else self._of_several(batch, source)

    def _of_several(self, batch: Any, source: Ints) -> Any:
        """Record the views of a batch's items; ids of several stores have no tag."""
        batch.ids, batch.source = np.asarray(batch.ids), tagged(source, self.tag)
        return batch

    def check_limiters(self, batch_size: int, shares: Floats) -> None:
        """Refuse a batch whose items may all be from one view, if that view's limiter never admits as large a part.

        Parts are of random size: such a batch would be refused eventually, and then always.  Raises: ValueError.
        """
        if not self._limited:
            return
        for view, share in zip(self.views, shares, strict=True):
            if share:
                try:
                    view.check_admitted(batch_size)
                except ValueError as error:
                    all_of_it = "" if self.alone else f" (all of a batch may be from view {view.name!r})"
                    raise ValueError(f"{error}{all_of_it}") from error

    def _waiting(self, choice: Choice) -> int | None:
        """Return a view that has to wait for its part; ``None`` if there is none."""
        for k, count in choice.near.items():
            if not self.views[k].source.pace.can_draw(count):
                return k
        return None

    def sample(self, choice: Choice, beta: float | None) -> B | None:
        """Return a new batch, all parts of it drawn now; ``None`` if making room for it evicted too many steps."""
        target = self._lend(choice)
        if self._waiting(choice) is not None:
            return None
        batch = self._batch(choice, target, lambda k, part: self.views[k].source.draw_into(part, beta))
        for k in choice.near:
            self.views[k].source.bind()
        return batch

    def fill_drawn(self, choice: Choice, parts: Mapping[int, Drawn], beta: float | None) -> B:
        """Return the batch of earlier draws of its parts, while all locks are held."""

        def fill(k: int, part: BatchTarget) -> Undo:
            source: BatchSource = self.views[k].source
            source.log.check_open()
            return source.fill_drawn(part, parts[k], beta)

        return self._batch(choice, self._lend(choice), fill)

    def _lend(self, choice: Choice) -> BatchTarget:
        """Lend memory for a batch, of the store whose view has the largest share."""
        source: BatchSource = self._lender(choice).source
        source.log.check_open()
        if [log.late.version for log in self._logs] != self._versions:
            self._take_columns()
        return source.lend(len(choice.source))

    def _batch(self, choice: Choice, target: BatchTarget, fill: Callable[[int, BatchTarget], Undo]) -> B:
        """Return the batch in ``target``. An error of one part undoes the others.

        Args:
            fill: fills the part of the batch that is from a view, of which it gets the number.
        """
        undos: list[Undo] = []
        begin = 0
        shards = np.full(len(choice.source), -1, np.int64) if self.remote else choice.source
        try:
            for k, count in choice.counts.items():
                part = target if self.alone else _part(target, begin, begin + count)
                if not self._alike:
                    part.filling = None  # its columns are in the order of another view's
                if k in choice.sent:
                    part.copy_from(choice.sent[k])
                    self._take_apart(choice, part, choice.sent[k])
                    shards[begin : begin + count] = choice.sent[k].batch.shards
                else:
                    undos.append(fill(k, part))
                if not self.alone:
                    part.draw.probabilities *= choice.shares[k]
                begin += count
        except BaseException:
            for undo in reversed(undos):
                undo()
            raise
        if self.alone:
            batch: B = target.batch
            return batch
        ordered = self.remote or any(self.views[k].sampler.keeps_order for k in choice.counts)
        items, places = _order(choice.source) if ordered else _moves(choice.source)
        if len(items):
            draw = target.draw
            for array in (*target.columns.values(), draw.probabilities, draw.weights, target.ids):
                array[places] = array[items]
            self._reorder_apart(choice, target, items, places)
        if self.remote:
            shards[places] = shards[items]
            target.batch.shards = shards
        made: B = self._of_several(target.batch, choice.source)
        return made

    def _lender(self, choice: Choice) -> Any:
        """Return the view whose store lends memory for a batch: the one with the largest share; of this process, if it
        has columns added later, for which memory of a cluster's view has no room."""
        shares = choice.shares
        if self.remote and self._logs and self._logs[0].late.columns:
            shares = np.array([-1.0 if view.remote else share for view, share in zip(self.views, shares, strict=True)])
        return self.views[0 if self.alone else int(shares.argmax())]

    def _take_apart(self, choice: Choice, part: BatchTarget, sent: BatchTarget) -> None:
        """Take over the rows of any length, and the columns added later, of a cluster's batch.

        Raises: ValueError: other parts have other columns.
        """
        lender, here, there = self._lender(choice), part.batch.fields, sent.batch.fields
        fixed = lender.source.log.spec.fields.keys()
        if part.begin == 0 and not self._logs:
            for name in there.keys() - fixed:  # in the order of a dict, as the first part's
                here[name] = np.zeros((len(choice.source), *there[name].shape[1:]), there[name].dtype)
        if differing := (here.keys() ^ there.keys()) - fixed:
            raise ValueError(
                f"Blend: {', '.join(sorted(map(repr, differing)))} added to some of its stores, expected the same "
                "columns in each: add them to the others, or drop them"
            )
        for name in there.keys() - fixed:
            rows = here[name][part.begin : part.begin + len(part.ids)]
            if rows.shape != there[name].shape or rows.dtype != there[name].dtype:
                raise ValueError(
                    f"Blend: column {name!r} is {there[name].dtype} {list(there[name].shape[1:])} in one of its "
                    f"batches, {rows.dtype} {list(rows.shape[1:])} in another; expected the same in each"
                )
            rows[...] = there[name]
        for name, one in part.ragged.items():
            values, lengths = sent.ragged[name].taken()
            first = part.begin * (len(lengths) // max(1, len(sent.ids)))
            one.take_part(first, values, lengths, lender.source.log.batches.lend_more)

    def _reorder_apart(self, choice: Choice, target: BatchTarget, items: Ints, places: Ints) -> None:
        """Move rows of any length, and columns that only clusters have, as the arrays of a batch."""
        lender = self._lender(choice)
        if not self._logs:
            for name in target.batch.fields.keys() - lender.source.log.spec.fields.keys():
                target.batch.fields[name][places] = target.batch.fields[name][items]
        order = np.arange(len(choice.source))
        order[places] = items
        for rows in target.ragged.values():
            rows.reorder(order, lender.source.log.batches.lend_more)


def shares_of(given_shares: Sequence[Share], samples: int) -> Floats:
    """Return shares after ``samples`` items, float64 [n], with sum 1.  Raises: ValueError: none is positive."""
    given = [share(samples) if callable(share) else share for share in given_shares]
    for value in given:
        if not is_number(value) or not 0 <= _float(value) < math.inf:
            raise ValueError(f"Blend: share={value!r}, expected a finite number of at least 0")
    values = np.array([_float(value) for value in given])
    total = sum(values.tolist())
    if not 0 < total < math.inf:
        raise ValueError(f"Blend: shares {given} sum to {total:g}, expected a positive one that is finite")
    shares: Floats = values / total
    return shares


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _part(target: BatchTarget, begin: int, end: int) -> BatchTarget:
    """Return the items ``begin <= i < end`` of a batch, with their own working memory.

    ``target``'s working memory belongs to the store that lent it, and is used under that store's lock.
    """
    part, own = target.part(begin, end), Draw.of(end - begin)
    part.draw = Draw(own.items, part.draw.probabilities, part.draw.weights, own.rest, own.uniforms)
    return part


def _moves(source: Ints) -> tuple[Ints, Ints]:
    """Return the items to move, and their destinations, to order items grouped by view as in ``source``.

    As few as possible. Both int64 [n], permutations of each other. With shares of 1/4 and 3/4, three items of eight are
    moved.
    """
    wrong = np.flatnonzero(np.sort(source) != source)
    return wrong, wrong[np.argsort(source[wrong], kind="stable")]


def _order(source: Ints) -> tuple[Ints, Ints]:
    """Return such moves of all items, which keep the order of each view's items."""
    return np.arange(len(source)), np.argsort(source, kind="stable")


@contextmanager
def _all_held(locks: Sequence[InterruptLock]) -> Iterator[None]:
    with ExitStack() as stack:
        for lock in locks:
            stack.enter_context(lock)
        yield


def turn() -> InterruptLock:
    """Return a lock for ``held``, taken before any store's. In a forked child it is free.

    The guarded state changes under the stores' locks: a fork waits for those, and not for this one, which a thread may
    hold while it waits for steps.
    """
    made = InterruptLock()
    _made.add(made)
    return made


class held:
    """Hold a lock, which another thread may keep while it waits for steps.

    Args:
        waits: returns whether the lock's holder waits for steps; ``seconds`` limits that time only, not another's
            draws.

    Raises:
        LimiterTimeoutError: the holder waits for steps, and ``seconds`` are over.
    """

    __slots__ = ("_lock", "_seconds", "_waits", "_what")

    def __init__(self, lock: InterruptLock, seconds: float, what: str, waits: Callable[[], bool]) -> None:
        self._lock, self._seconds, self._what, self._waits = lock, seconds, what, waits

    def __enter__(self) -> None:
        left = self._seconds
        part = min(left, LOOK_S)
        if self._lock.take(timeout=part):
            return
        end = time.monotonic() + left - part
        while True:  # in parts: an interrupt is deferred during each
            left = max(0.0, end - time.monotonic())
            if not left and not self._waits():
                left = POLL_S
            elif not left:
                raise LimiterTimeoutError(
                    f"sample: timed out after {self._seconds:g} s; another thread samples from this {self._what}, and "
                    "waits for steps"
                )
            if self._lock.take(timeout=min(left, LOOK_S)):
                return

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def _in_child() -> None:
    for lock in list(_made):
        if not lock._is_owned():  # by a thread that the child does not have
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
