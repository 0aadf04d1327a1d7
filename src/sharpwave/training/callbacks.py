"""A run in progress, as callbacks see it, and the base class of callbacks."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import sharpwave as sw
from sharpwave.agents.protocol import Agent, Learned
from sharpwave.training.actor_callbacks import RAISED, CallbackError
from sharpwave.training.experience import Experience
from sharpwave.training.progress import Metrics, TrainingState
from sharpwave.training.recipes.recipe import Recipe


class Callback:
    """Base class for training hooks in the learner's process. Every hook does nothing until a subclass overrides it.

    ``training`` is the run (``Training``), which a hook may inspect and end by ``training.stop(reason)``;
    ``metrics`` are plain dicts. Hooks where environments are stepped: ``sharpwave.training.actor_callbacks``.
    """

    def on_begin(self, training: Training) -> None:
        """Handle the start of training or of a resumed run."""

    def on_step_begin(self, training: Training) -> None:
        """Handle the start of a turn of the loop, before steps are requested."""

    def on_step(self, training: Training) -> None:
        """Handle the end of a turn of the loop: steps have arrived, or waiting for them timed out."""

    def on_learner_begin(self, training: Training) -> None:
        """Handle the end of the warm-up: the first update of this process follows."""

    def on_learner_end(self, training: Training) -> None:
        """Handle the end of learning, after the last update. Called if ``on_learner_begin`` was, not after an error."""

    def on_update_begin(self, training: Training) -> None:
        """Handle the start of an update, before its batch is taken."""

    def on_update(self, training: Training, learned: Learned) -> None:
        """Handle the end of an update of the agent."""

    def on_episode(self, metrics: Metrics) -> None:
        """Handle the end of an episode: steps, minutes, reward, episode_steps, avg_reward, mean_reward, episodes.

        ``figures`` has the values that actor callbacks returned about it, if there are any.
        """

    def on_report(self, metrics: Metrics) -> None:
        """Handle a report: steps, minutes, avg_fps, loss, epsilon, replay_bytes and the run's other figures."""

    def on_evaluation(self, metrics: Metrics) -> None:
        """Handle a held-out evaluation: steps, minutes, scores, mean, min, lost, best (so far)."""

    def wants_checkpoint(self, training: Training) -> bool:
        """Return whether to write a checkpoint after this turn. Called once a turn, after ``on_step``."""
        return False

    def on_checkpoint(self, training: Training, metrics: Metrics) -> None:
        """Sync written files: a later callback writes a checkpoint of the state reported in ``metrics``."""

    def on_end(self, metrics: Metrics) -> None:
        """Handle the end of training: ``metrics`` is the last report with ``reason``.

        Not called after an error, except one of a callback, which ends training as ``training.stop`` does.
        """

    def close(self) -> None:
        """Release resources. Called in any case, also after an error."""


@dataclass
class Training:
    """Run in progress, as callbacks see it.

    Attributes:
        view: the view of ``store`` that the agent learns from.
        experience: the source of steps.
        state: steps, updates, scores and evaluations.
        reason: why training ends after this turn; None: it goes on.
        error: the error that ends it, which is raised once the last checkpoint is written; None: none.
        learning: whether this process has made an update, or is about to.
    """

    recipe: Recipe
    agent: Agent
    store: sw.Store | sw.Cluster
    view: Any
    experience: Experience
    state: TrainingState
    callbacks: Sequence[Callback | Guarded | Lasting] = ()
    reason: str | None = field(default=None, init=False)
    error: RuntimeError | None = field(default=None, init=False)
    learning: bool = field(default=False, init=False)

    def stop(self, reason: str) -> None:
        """End training, with a checkpoint, after this turn of the loop; from a hook that follows it, after the next."""
        self.reason = reason

    def fail(self, error: RuntimeError) -> None:
        """End training as ``stop`` does, and then raise ``error``; of several errors, the first."""
        self.error = self.error or error
        self.reason = str(self.error)

    def tell(self, hook: str, *arguments: Any) -> list[Any]:
        """Call a hook of all callbacks, in order; return their answers."""
        return [getattr(callback, hook)(*arguments) for callback in self.callbacks]

    def report(self) -> Metrics:
        """Return the run's figures: those of the agent, of the replay memory, of evaluations and of the source."""
        state, schedules = self.state, self.agent.schedules(self.state.progress.steps)
        metrics = state.progress.report(schedules, state.scores, self.store)
        return metrics | state.held_out.report() | self.experience.report()


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Check before a run begins that callbacks are objects of a ``Callback`` class.  Raises: ValueError."""
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ValueError(f"callbacks: got {callback!r}, expected an object of a class derived from Callback")


class StopWhen(Callback):
    """Callback that ends training once ``reason()`` returns a reason."""

    def __init__(self, reason: Callable[[], str | None]) -> None:
        self._reason = reason

    def on_step(self, training: Training) -> None:
        reason = self._reason()
        if reason is not None:
            training.stop(reason)


class Guarded:
    """Wrapper of a callback that may raise anything: the error ends the run with a checkpoint, and names the callback.

    Its hooks are not called again; ``close`` is. Ctrl-C pressed twice ends the run at once, in a hook as elsewhere.
    """

    def __init__(self, callback: Callback) -> None:
        self._callback = callback
        self._training: Training | None = None
        self._failed = False

    def __getattr__(self, hook: str) -> Callable[..., Any]:
        return functools.partial(self._call, hook)

    def _call(self, hook: str, *arguments: Any) -> Any:
        if hook == "on_begin":
            (self._training,) = arguments
        if self._failed and hook != "close":
            return None
        try:
            return getattr(self._callback, hook)(*arguments)
        except RAISED as error:
            self._failed = True
            failure = CallbackError.of(self._callback, hook, error)
            if self._training is None:  # it was closed before training began
                raise failure from error
            self._training.fail(failure)
            return None


class Lasting:
    """Wrapper of a callback whose files or terminal may fail: a failure is reported once, and training goes on.

    Args:
        what: name of the output in messages.
        say: called with a sentence when writing fails and when it works again.
    """

    WRITES = ("on_episode", "on_report", "on_evaluation", "on_checkpoint")
    """Hooks whose success shows that the output works again."""

    def __init__(self, callback: Callback, what: str, say: Callable[[str], None]) -> None:
        self._callback, self._what, self._say = callback, what, say
        self._failing = False

    def __getattr__(self, hook: str) -> Callable[..., Any]:
        return functools.partial(self._call, hook)

    def _call(self, hook: str, *arguments: Any) -> Any:
        try:
            answer = getattr(self._callback, hook)(*arguments)
        except OSError as error:
            if hook == "close":
                self._say(f"{self._what} is incomplete: {error}")
            elif not self._failing:
                self._say(f"{self._what} cannot be written: {error}; training goes on, and the rest is written later")
            self._failing = True
            return None
        if self._failing and hook in self.WRITES:
            self._say(f"{self._what} is written again")
            self._failing = False
        return answer


# Signals


@contextmanager
def caught_signals() -> Iterator[Callable[[], str | None]]:
    """Catch SIGINT, SIGTERM and SIGHUP instead of ending the process; a second SIGINT raises KeyboardInterrupt.

    A SIGHUP that is already ignored, as under nohup, stays ignored.

    Yields:
        a function that returns which signal interrupted the run; None: none did.
    """
    came: list[str] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(signal.Signals(number).name)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    caught = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        caught.append(signal.SIGHUP)
    before: dict[int, Any] = {number: signal.signal(number, note) for number in caught}
    try:
        yield lambda: f"interrupted by {came[0]}" if came else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_by_signal(reason: str | None) -> None:
    """Exit as shells expect of an interrupted command, 130 after SIGINT, if ``reason`` is from ``caught_signals``."""
    interrupted, _, name = (reason or "").partition("interrupted by ")
    if not interrupted and name in signal.Signals.__members__:
        sys.exit(128 + signal.Signals[name])
