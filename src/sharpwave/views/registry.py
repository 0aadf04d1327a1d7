"""The views of one store: made, handed back after a checkpoint, told of what changes, asked what they need."""

from __future__ import annotations

import itertools
import re
import warnings
import weakref
from collections import deque
from collections.abc import Container, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sharpwave.sampling.limiters import Gate
from sharpwave.sampling.samplers import Sampler
from sharpwave.views.saved import claim, restored, saved
from sharpwave.views.transitions import Transitions

if TYPE_CHECKING:
    from sharpwave.log.step_log import StepLog


DEFAULT_NAME = "transitions"
DEFAULT_NAMES = re.compile(rf"{DEFAULT_NAME}(-[1-9][0-9]*)?")
MAX_NAME_CHARACTERS = 100


class Views:
    """Those that are in use, in the order of their making; the store keeps none alive. Its lock is held throughout.

    A checkpoint knows views by name. Of two that are in use with one name, as where a notebook's cell is run again, it
    keeps the one made last. Those that were given no name are called "transitions", "transitions-2", ... in the order
    of their making, as many as are in use when it is written: one that was dropped does not count.

    Args:
        log: the store's log; ``lock`` guards it; at ``gate`` batches wait for steps.
        seed: the store's.

    Attributes:
        unclaimed: names of the views that were restored and not asked for yet.
    """

    def __init__(self, log: StepLog, lock: Any, gate: Gate, seed: int) -> None:
        self._log, self._lock, self._gate, self._seed = log, lock, gate, seed
        self._made = 0
        self.unclaimed: list[str] = []
        self._claimed: set[str] = set()  # names of restored views that were given out and remember something
        self._views: dict[int, weakref.KeyedRef[int, Transitions]] = {}  # by the number of their making, restored < 0
        self._waiting: dict[str, tuple[int, Transitions]] = {}  # restored, and not asked for yet, with their numbers
        self._dropped: deque[Any] = deque()  # references to those that are gone, from whatever thread dropped them
        log.watchers.append(self._forget)
        log.space.growing.append(self.grow)

    def __iter__(self) -> Iterator[Transitions]:
        return (view for _, view in self._numbered())

    def _numbered(self) -> list[tuple[int, Transitions]]:
        while self._dropped:
            gone = self._dropped.popleft()
            number = gone.key
            if self._views.get(number) is gone:
                del self._views[number]
        return [(number, view) for number, ref in self._views.items() if (view := ref()) is not None]

    def _keep(self, number: int, view: Transitions) -> None:
        self._views[number] = weakref.KeyedRef(view, self._dropped.append, number)

    def restore(self, number: int, state: dict[str, Any]) -> None:
        """Make a view go on from ``state``, until it is asked for by its name, or, as in checkpoints that know no
        names, by the default one for that ``number``.

        Raises:
            KeyError, TypeError, ValueError, IndexError, OverflowError: not what :meth:`states` gives.
        """
        name = checked_name(state.get("name", _default_name(number)))
        if name is None or name in self._waiting:
            raise ValueError(f"view {number} is named {name!r}, expected a name that no other has")
        view = restored(self._log, self._lock, self._gate, state)
        key = -1 - len(self._waiting)
        self._waiting[name] = key, view
        self._keep(key, view)
        self.unclaimed.append(name)

    def make(self, name: str | None, sampler: Sampler, seed: Any, **settings: Any) -> Transitions:
        """Make a view, or hand out the restored one of that name if its settings are the same.

        Args:
            name: ``None``: that of the first restored one with a default name, or else the first default name that no
                view in use has.
            seed: ``None``: from the store's and the view's number. ``settings``: as for :class:`Transitions`.

        Raises:
            ValueError, TypeError: naming the argument.
        """
        if seed is not None and (not isinstance(seed, (int, np.integer)) or seed < 0):
            raise ValueError(f"transitions: seed={seed!r}, expected an integer of at least 0, or None")
        called = checked_name(name) or self._next_name()
        key, view = self._waiting.get(called, (0, None))
        if view is not None:
            wrong = claim(view, sampler, **settings)
            if wrong:
                warnings.warn(
                    f"transitions: view {called!r} of the checkpoint is another: {'; '.join(wrong)}. This one begins "
                    "anew and takes its place: priorities and random state of the checkpoint's are lost. Give it "
                    "another name= to keep both",
                    RuntimeWarning,
                    stacklevel=3,
                )
            del self._waiting[called]
            self.unclaimed.remove(called)
            if wrong:
                del self._views[key]
                view = None
            elif _remembers(view):
                self._claimed.add(called)
        elif called in self._claimed:
            self._claimed.discard(called)
            warnings.warn(
                f"transitions: view {called!r} of the checkpoint was asked for before; this one begins anew and takes "
                "its place, with new priorities and a new random state. Keep the first, or give this one another name=",
                RuntimeWarning,
                stacklevel=3,
            )
        if view is None:
            seed = [self._seed, self._made] if seed is None else seed
            view = Transitions(self._log, self._lock, self._gate, sampler=sampler, seed=seed, **settings)
            self._keep(self._made, view)
        view.name = name
        self._made += 1
        view._steps.follow()  # what it takes beside batches is known from here on
        self._log.space.limit_arena()
        return view

    def states(self) -> dict[str, Any]:
        """What :meth:`restore` needs, by number; a warning for a view that cannot be kept."""
        found: dict[str, Any] = {}
        named = {**{name: view for name, (_, view) in self._waiting.items()}, **self._named()}
        lost = [
            f"two views in use are named {view.name!r}; the one made last is kept"
            for view in self._given_out()
            if view.name is not None and named[view.name] is not view
        ]
        order = {id(view): place for place, view in enumerate(self)}
        for name, view in sorted(named.items(), key=lambda one: order[id(one[1])]):
            state = saved(view)
            if state is not None:
                found[str(len(found))] = state | {"name": name}
            else:
                lost.append(f"view {name!r} has a sampler of another kind, {view.sampler!r}; it is not kept")
        for what in lost:
            warnings.warn(f"checkpoint: {what}", RuntimeWarning, stacklevel=4)
        return found

    def _next_name(self) -> str:
        defaults = [name for name in self.unclaimed if DEFAULT_NAMES.fullmatch(name)]
        if defaults:
            return min(defaults, key=lambda name: (len(name), name))
        return next(_free_names(self._named()))

    def _given_out(self) -> list[Transitions]:
        """The views in use, without those that were restored and not asked for."""
        waiting = {key for key, _ in self._waiting.values()}
        return [view for number, view in self._numbered() if number not in waiting]

    def _named(self) -> dict[str, Transitions]:
        """The views in use by the names that a checkpoint knows them by."""
        views = self._given_out()
        found = {view.name: view for view in views if view.name is not None}
        free = _free_names(set(found))
        return found | {next(free): view for view in views if view.name is None}

    def append_waits(self, steps: int) -> str | None:
        """What so many steps must wait for."""
        reasons = (view.append_waits(steps) for view in self)
        return next((reason for reason in reasons if reason is not None), None)

    def check_capacity(self, capacity: int | None) -> None:
        """Raises: ValueError: a limiter could never be satisfied by a store of that size."""
        for view in self:
            if view.limiter is not None:
                view.limiter.check(capacity, view.max_times_sampled)

    def written(self) -> None:
        """Steps were appended, or are sampleable now."""
        for view in self:
            view._steps.written()
        self._gate.notify()

    def grow(self, slots: int) -> None:
        """Make room for so many of the log's slots.  Raises: MemoryError."""
        for view in self:
            view._steps.grow(slots)

    def expect(self, slot: int, td_error: npt.NDArray[np.float32]) -> None:
        """Steps of the segment in ``slot`` get priorities by ``td_error`` [rows] when they can be sampled."""
        for view in self:
            view._steps.expect(slot, td_error)

    def priorities(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.float64] | None:
        """Mean priorities of the steps in ``slots`` by the first view that has any."""
        return next((p for view in self if (p := view._steps.priorities(slots)) is not None), None)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that they take, beside their batches."""
        return sum(view.nbytes for view in self)

    @property
    def work_bytes(self) -> int:
        """Bytes of memory that making batches takes."""
        return sum(view.work_bytes for view in self)

    @property
    def batch_bytes(self) -> int:
        """Bytes of the largest batch that any of them drew lately."""
        return max((view.batch_bytes for view in self), default=0)

    def _forget(self, slot: int) -> None:
        for view in self:
            view._steps.forget(slot)


def checked_name(name: Any) -> str | None:
    """Return a view's name, or ``None`` for none.  Raises: ValueError."""
    if name is None or (isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARACTERS and name.isprintable()):
        return name
    raise ValueError(f"transitions: name={name!r}, expected 1 to {MAX_NAME_CHARACTERS} printable characters")


def _default_name(number: int) -> str:
    return DEFAULT_NAME if number == 0 else f"{DEFAULT_NAME}-{number + 1}"


def _free_names(taken: Container[str]) -> Iterator[str]:
    """Return the default names that aren't ``taken``, without end."""
    return (name for name in map(_default_name, itertools.count()) if name not in taken)


def _remembers(view: Transitions) -> bool:
    """Whether a view knows more than what can be sampled: priorities, an order, or how often steps were given out."""
    return view.max_times_sampled is not None or bool(view.sampler.state())
