"""A run in progress, as callbacks see it, with its source of steps; and the base classes of hooks.

Hooks are called in the learner's process, or where environments are stepped: in each actor's process, without actors
in the learner's.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.reduction import ForkingPickler
from types import FrameType
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np
import numpy.typing as npt

import sharpwave as sw
from sharpwave.agents.protocol import Acted, Agent, Learned, Obs
from sharpwave.serve.supervisor import ProcessDiedError
from sharpwave.training.progress import Metrics, TrainingState
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.scores import EpisodeScore

RAISED = (Exception, SystemExit)
"""Errors of a callback that end the run with a checkpoint. KeyboardInterrupt ends it at once."""


class AtOnce(KeyboardInterrupt):
    """Second Ctrl-C, which ends a run where it stands; an environment's own KeyboardInterrupt is another error."""


class CallbackError(RuntimeError):
    """Error raised once a run has ended with a checkpoint because a callback raised; it names callback and hook."""

    @classmethod
    def of(cls, callback: object, hook: str, error: BaseException) -> CallbackError:
        name = callback.__qualname__ if isinstance(callback, type) else type(callback).__qualname__
        made = cls(f"callback {name} failed in {hook}: {type(error).__name__}: {error}")
        made.__cause__ = error
        return made


class Callback:
    """Base class for training hooks in the learner's process. Every hook does nothing until a subclass overrides it.

    ``training`` is the run (``Training``), which a hook may inspect and end by ``training.stop(reason)``;
    ``metrics`` are plain dicts. Hooks where environments are stepped: ``ActorCallback``.
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

        Not called after an error, except one of a callback, or of an environment after updates, which end training as
        ``training.stop`` does.
        """

    def close(self) -> None:
        """Release resources. Called in any case, also after an error."""


class Arrived(NamedTuple):
    """Steps that arrived from a source since it was last polled.

    Attributes:
        steps: environment steps that were added to the store.
        episodes: episodes that ended.
    """

    steps: int
    episodes: list[EpisodeScore]


class Experience:
    """Source of steps, which it writes into the store. A context manager: on exit it stops its processes.

    A turn of the training loop is ``request``, then updates, then ``receive``: so a source that steps
    in other threads or processes does it while the agent learns.

    Attributes:
        max_updates: updates in a turn at most; None: as many as are due.
    """

    max_updates: int | None = None

    @property
    def failure(self) -> BaseException | None:
        """Error by which the source has failed for good, or with which it stopped; None: none."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the source."""

    def request(self) -> None:
        """Begin the next steps without waiting for them."""

    def receive(self, timeout_s: float) -> Arrived:
        """Write finished steps into the store; a source of its own pace waits up to ``timeout_s`` for the first."""
        raise NotImplementedError

    def break_off(self) -> None:
        """Prepare for a checkpoint: from here on, steps may depend only on the content of the checkpoint.

        A source that is not repeatable does nothing.
        """

    def report(self) -> dict[str, Any]:
        """Return figures about the source, for reports."""
        return {}


@dataclass
class Training:
    """Run in progress, as callbacks see it.

    Attributes:
        view: the view of ``store`` that the agent learns from.
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
    error: BaseException | None = field(default=None, init=False)
    learning: bool = field(default=False, init=False)

    def stop(self, reason: str) -> None:
        """End training, with a checkpoint, after this turn of the loop; from a hook that follows it, after the next."""
        self.reason = reason

    def fail(self, error: BaseException) -> None:
        """End training as ``stop`` does, and then raise ``error``; of several errors, the first."""
        self.error = self.error or error
        if isinstance(self.error, (CallbackError, ProcessDiedError)):
            self.reason = (str(self.error).splitlines() or [""])[0]  # a traceback of another process may follow
        else:
            self.reason = " ".join(f"{type(self.error).__name__}: {self.error}".split())

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
    _check_listed("callbacks", callbacks)
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ValueError(f"callbacks: got {callback!r}, expected an object of a class derived from Callback")


def _check_listed(what: str, callbacks: Any) -> None:
    if not isinstance(callbacks, Sequence):
        raise ValueError(f"{what}: got {callbacks!r}, expected a list")


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


# Where environments are stepped


class Actor(NamedTuple):
    """Process that steps environments: an actor's, or without actors the learner's.

    Attributes:
        number: the actor's number; 0 without actors.
        lanes: the run's lanes that it plays.
        agent: the agent that chooses its actions.
    """

    number: int
    lanes: range
    agent: Agent


class Stepped(NamedTuple):
    """One step of all of an actor's lanes. Its arrays are valid until the next one.

    Attributes:
        obs: observations after the step; of a new episode where one has ended.
        acted: actions and the fields stored with them.
        reward: float [lanes], as the agent learns from it.
        terminated, truncated: bool [lanes].
        infos: the environments' further values.
    """

    obs: Obs
    acted: Acted
    reward: npt.NDArray[np.floating]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    infos: Mapping[str, Any]


class ActorCallback:
    """Base class for hooks where environments are stepped. Every hook does nothing until a subclass overrides it.

    Each process that steps environments makes one of its own. The learner's callbacks and the run's files get only the
    figures that ``on_episode`` returns. An actor that is killed calls no further hook; its successor makes
    a new callback.
    """

    def on_actor_begin(self, actor: Actor) -> None:
        """Handle the start of an actor."""

    def on_episode_begin(self, lane: int) -> None:
        """Handle the start of an episode of a lane. The lane's previous episode may have been broken off."""

    def on_actor_step_begin(self, obs: Obs) -> None:
        """Handle the start of a step of all lanes, before actions are chosen for the observations ``obs``."""

    def on_actor_step(self, stepped: Stepped) -> None:
        """Handle a step of all lanes, after it was recorded."""

    def on_episode(self, episode: EpisodeScore) -> Mapping[str, float] | None:
        """Handle the end of an episode, after the ``on_actor_step`` of its last step.

        Returns:
            figures about it, by name, which the learner logs; None: none.
        """
        return None

    def on_actor_end(self) -> None:
        """Handle the end of an actor that the learner stops."""


MakeActorCallback = Callable[[], ActorCallback]
"""Class of an actor callback, or another function that makes one."""


def check_actor_callbacks(callbacks: Sequence[MakeActorCallback], actors: int) -> None:
    """Check that ``actors`` processes, if there are any, can be given ``callbacks``.  Raises: ValueError."""
    _check_listed("actor_callbacks", callbacks)
    for make in callbacks:
        if not callable(make):
            raise ValueError(
                f"actor_callbacks: got {make!r}, expected a class or a function that makes a callback: every process "
                "that steps environments makes its own"
            )
        if actors:
            check_sendable("actor_callbacks", make)


def check_sendable(what: str, make: Any) -> None:
    """Check that processes that are spawned can be given a class or a function.  Raises: ValueError."""
    reason: object = "actors cannot import what a notebook or an interactive session defines"
    try:
        pickled = bytes(ForkingPickler.dumps(make))
        if b"__main__" not in pickled or hasattr(sys.modules["__main__"], "__file__"):
            return
    except Exception as error:  # objects may refuse by any error
        reason = error
    raise ValueError(
        f"{what}: {make!r} cannot be sent to actor processes: {reason}; expected a class or function "
        "defined at the top level of a module, or functools.partial of one"
    ) from (reason if isinstance(reason, Exception) else None)


class ActorHooks:
    """Actor callbacks of this process. After one has raised, none is called any more.

    Attributes:
        failure: the error of the callback that raised; None: none did.
    """

    def __init__(self, callbacks: Iterable[MakeActorCallback]) -> None:
        self._make = tuple(callbacks)
        self._callbacks: list[ActorCallback] = []
        self.failure: CallbackError | None = None

    def __bool__(self) -> bool:
        return bool(self._make)

    def begin(self, actor: Actor) -> None:
        """Make the callbacks and call ``on_actor_begin``."""
        for make in self._make:
            try:
                self._callbacks.append(make())
            except RAISED as error:
                self.failure = CallbackError.of(make, "__init__", error)
                return
        self._call("on_actor_begin", actor)

    def episodes_begin(self, lanes: Iterable[int]) -> None:
        for lane in lanes:
            self._call("on_episode_begin", lane)

    def step_begins(self, obs: Obs) -> None:
        self._call("on_actor_step_begin", obs)

    def stepped(self, stepped: Stepped, episodes: Iterable[EpisodeScore]) -> list[EpisodeScore]:
        """Call the hooks of a step and of the episodes that ended with it; return the episodes with their figures."""
        self._call("on_actor_step", stepped)
        ended = []
        for episode in episodes:
            figures: dict[str, float] = {}
            for said in self._call("on_episode", episode):
                figures |= said
            ended.append(replace(episode, figures=figures) if figures else episode)
            self._call("on_episode_begin", episode.lane)
        return ended

    def end(self) -> None:
        self._call("on_actor_end")

    def _call(self, hook: str, *arguments: Any) -> list[Any]:
        """Call a hook of all callbacks; return their answers, without None."""
        returned: list[Any] = []
        for callback in self._callbacks:
            if self.failure is not None:
                break
            try:
                found = getattr(callback, hook)(*arguments)
                if hook == "on_episode" and found is not None:  # checked here, where the callback can be named
                    found = {str(name): float(value) for name, value in found.items()}
                returned.append(found)
            except RAISED as error:
                self.failure = CallbackError.of(callback, hook, error)
        return [value for value in returned if value is not None]


# Signals


@contextmanager
def caught_signals() -> Iterator[Callable[[], str | None]]:
    """Catch SIGINT, SIGTERM and SIGHUP instead of ending the process; a second SIGINT raises KeyboardInterrupt.

    A SIGHUP that is already ignored, as under nohup, stays ignored. Python handles signals in its main thread only:
    in another one, nothing is caught.

    Yields:
        a function that returns which signal interrupted the run; None: none did.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    came: list[str] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(signal.Signals(number).name)
        signal.signal(signal.SIGINT, at_once)

    def at_once(number: int, _: FrameType | None) -> NoReturn:
        raise AtOnce

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


def end_by_signal(reason: str | None) -> None:
    """Send this process again the SIGTERM or SIGHUP that interrupted a run, now that its checkpoint is written.

    By default that ends the program, which otherwise would go on with what follows the run. SIGINT is not sent again.
    """
    interrupted, _, name = (reason or "").partition("interrupted by ")
    if not interrupted and name in ("SIGTERM", "SIGHUP"):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none
                stream.flush()
        signal.raise_signal(signal.Signals[name])
