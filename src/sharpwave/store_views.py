"""How a store is sampled: views of its steps as transitions, as sequences, or as items of a kind of your own."""

from __future__ import annotations

from typing import TypeVar

from sharpwave.native.interrupts import Lock
from sharpwave.sampling.limiters import Limiter
from sharpwave.sampling.protocol import Sampler
from sharpwave.views.goals import Goals
from sharpwave.views.hindsight import Hindsight
from sharpwave.views.registry import Views
from sharpwave.views.replay import Replay
from sharpwave.views.sequences import Sequences, Windows
from sharpwave.views.transitions import NStep, Transitions
from sharpwave.views.view import View

B = TypeVar("B")


class StoreViews:
    """The part of a store that makes views."""

    _views: Views
    _lock: Lock

    def transitions(
        self,
        *,
        name: str | None = None,
        n_step: int = 1,
        gamma: float = 0.99,
        relabel: Goals | None = None,
        sampler: Sampler | None = None,
        max_times_sampled: int | None = None,
        limiter: Limiter | None = None,
        seed: int | None = None,
    ) -> Transitions:
        """Make a view that samples n-step transitions. A store may have several views.

        Args:
            name: name of the view in checkpoints; default "transitions". A newer view replaces one of the same name.
            n_step: rewards summed; fewer at an episode's end.
            gamma: discount factor.
            relabel: ``Future(k=4, reward_fn=...)``, ``Final`` or ``Episode``: hindsight experience replay, for
                ``n_step=1``. Of ``k + 1`` transitions ``k`` get a goal that their episode achieved later (at its end;
                anywhere), and its reward. A step can then be sampled once its episode has ended.
            sampler: ``Uniform()`` (default), ``Prioritized(...)``, ``RankPrioritized(...)``, ``Fifo()``, ``Lifo()``, a
                ``Mixture([...])`` of them, or your own (``sharpwave.sampling.protocol.Sampler``); one instance per
                view.
            max_times_sampled: limit on how often this view samples a step, also within a batch.
            limiter: rate limiter: ``MinSize``, ``SamplesPerInsert`` or ``Queue``. It makes this view's ``sample`` and
                the store's ``append`` and ``extend`` wait for each other.
            seed: seed of the view; default: derived from the store's seed and the number of views made before.

        In a store opened from a checkpoint this restores the view of that name, and ``seed`` is ignored; steps evicted
        since are missing from it, those appended since are new. A warning names what is lost if the settings differ or
        the view was restored before. Views that are not restored yet are listed in ``recovery.views`` and remain in the
        next checkpoint. A store on disk that is opened without a checkpoint restores its views likewise, without a
        warning: after a clean exit and a ``flush`` exactly, after a crash as they were some seconds before.

        Raises:
            ValueError, TypeError: an invalid argument.
        """
        with self._lock:
            step = NStep(n_step, gamma) if relabel is None else Hindsight(relabel, n_step, gamma)
            name = NStep.kind if name is None else name
            return self._views.make(Transitions, step, name, sampler, max_times_sampled, limiter, seed)

    def sequences(
        self,
        length: int,
        *,
        burn_in: int = 0,
        stride: int | None = None,
        n_step: int = 1,
        gamma: float = 0.99,
        eta: float = 0.9,
        name: str | None = None,
        sampler: Sampler | None = None,
        max_times_sampled: int | None = None,
        limiter: Limiter | None = None,
        seed: int | None = None,
    ) -> Sequences:
        """Make a view that samples windows of consecutive steps of an episode, as recurrent agents learn from.

        Windows begin with the steps whose number in their episode is a multiple of ``stride``. One can be sampled once
        the n-step returns of all its steps are known, and until a step of it is evicted, its burn-in included.

        Args:
            length: steps that are trained; fewer at an episode's end.
            burn_in: steps before them, from which a recurrent state is computed; fewer at an episode's start.
            stride: default ``length``: windows don't overlap; at most that, so that every step is trained.
            n_step: rewards that each step's return sums, at most.
            eta: a window's priority is ``eta max |td_error| + (1 - eta) mean |td_error|`` over its trained steps
                (Kapturowski et al. 2019): ``update_priorities(ids, td_error)`` takes float [B, length], and ignores
                what is beyond an episode's end.
            name: default "sequences". ``gamma`` and all else is as for ``transitions``; ``max_times_sampled=1`` with
                ``Fifo()`` makes a queue of windows.

        Batches are a ``SequenceBatch``. Where observations have a stack, each frame is in a batch
        ``stack`` times. Cost: as ``sample`` of as many frames.

        Raises:
            ValueError, TypeError: naming the argument.
        """
        with self._lock:
            windows = Windows(length, burn_in, stride, n_step, gamma, eta)
            return self._views.make(Sequences, windows, name, sampler, max_times_sampled, limiter, seed)

    def view(
        self,
        view: View[B],
        *,
        name: str | None = None,
        sampler: Sampler | None = None,
        max_times_sampled: int | None = None,
        limiter: Limiter | None = None,
        seed: int | None = None,
    ) -> Replay[B]:
        """Make a view of items of your own kind.

        Args:
            view: definition of the items and of their batches (``sharpwave.views.view.View``); one instance per call.
            name: name of the view in checkpoints; default ``view.kind``. Other arguments are as for ``transitions``.

        Raises:
            ValueError, TypeError: an invalid argument.
        """
        with self._lock:
            return self._views.make(Replay[B], view, name, sampler, max_times_sampled, limiter, seed)
