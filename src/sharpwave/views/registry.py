"""The views of one store: made, handed back after a checkpoint, told of what changes, asked what they need."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..sampling.limiters import Gate
from ..sampling.samplers import Sampler
from .saved import claim, restored, saved
from .transitions import Transitions

if TYPE_CHECKING:
    from ..tiers.log import StepLog


class Views:
    """Those that are in use, in the order of their making; the store keeps none alive. Its lock is held throughout.

    Args:
        log: the store's log; ``lock`` guards it; at ``gate`` batches wait for steps.
        seed: the store's.
    """

    def __init__(self, log: StepLog, lock: Any, gate: Gate, seed: int) -> None:
        self._log, self._lock, self._gate, self._seed = log, lock, gate, seed
        self._made = 0
        self._views: dict[int, weakref.ref[Transitions]] = {}  # by the number of their making
        self._waiting: dict[int, Transitions] = {}  # restored, and not asked for yet
        log.watchers.append(self._forget)
        log.grown.append(self.resized)

    def __iter__(self) -> Iterator[Transitions]:
        return (view for _, view in self._numbered())

    def _numbered(self) -> list[tuple[int, Transitions]]:
        return [(number, view) for number, ref in self._views.items() if (view := ref()) is not None]

    def restore(self, number: int, state: dict[str, Any]) -> None:
        """Make the view of that number go on from ``state``, until it is asked for.

        Raises:
            KeyError, TypeError, ValueError, IndexError, OverflowError: not what :meth:`states` gives.
        """
        view = restored(self._log, self._lock, self._gate, state)
        self._waiting[number], self._views[number] = view, weakref.ref(view)

    def make(self, sampler: Sampler, seed: Any, **settings: Any) -> Transitions:
        """The next view: one that was restored, if it is the same, else a new one.

        Args:
            seed: ``None``: from the store's and the view's number. ``settings``: as for :class:`Transitions`.

        Raises:
            ValueError, TypeError: naming the argument.
        """
        number = self._made
        view = self._waiting.pop(number, None)
        if view is not None:
            wrong = claim(view, sampler, **settings)
            if wrong:
                warnings.warn(
                    f"transitions: view {number} of the checkpoint is another: {'; '.join(wrong)}. This one begins "
                    "anew, with new priorities and a new random state",
                    RuntimeWarning,
                    stacklevel=3,
                )
                view = None
        if view is None:
            seed = [self._seed, number] if seed is None else seed
            view = Transitions(self._log, self._lock, self._gate, sampler=sampler, seed=seed, **settings)
        self._views[number] = weakref.ref(view)
        self._made += 1
        self._log.space.limit_arena()
        return view

    def states(self) -> dict[str, Any]:
        """What :meth:`restore` needs, by number; a warning for a view that cannot be kept."""
        found = {}
        for number, view in self._numbered():
            state = saved(view)
            if state is not None:
                found[str(number)] = state
            else:
                warnings.warn(
                    f"checkpoint: view {number} has a sampler of another kind, {view.sampler!r}; it is not kept",
                    RuntimeWarning,
                    stacklevel=4,
                )
        return found

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

    def resized(self) -> None:
        """The log may have more slots than before."""
        for view in self:
            view._steps.resized()

    def expect(self, slot: int, td_error: npt.NDArray[np.float32]) -> None:
        """Steps of the segment in ``slot`` get priorities by ``td_error`` [rows] when they can be sampled."""
        for view in self:
            view._steps.expect(slot, td_error)

    def priorities(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.float64] | None:
        """Mean priorities of the steps in ``slots`` by the first view that has any."""
        return next((p for view in self if (p := view._steps.priorities(slots)) is not None), None)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that they take."""
        return sum(view.nbytes for view in self)

    def _forget(self, slot: int) -> None:
        for view in self:
            view._steps.forget(slot)
