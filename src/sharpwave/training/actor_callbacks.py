"""Hooks where environments are stepped: in each actor's process, or without actors in the learner's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.agents.protocol import Acted, Agent, Obs
from sharpwave.training.scores import EpisodeScore

RAISED = (Exception, SystemExit)
"""Errors of a callback that end the run with a checkpoint. KeyboardInterrupt ends it at once."""


class CallbackError(RuntimeError):
    """Error raised once a run has ended with a checkpoint because a callback raised; it names callback and hook."""

    @classmethod
    def of(cls, callback: object, hook: str, error: BaseException) -> CallbackError:
        """Make the error for ``error``, raised by a hook of ``callback``."""
        name = callback.__qualname__ if isinstance(callback, type) else type(callback).__qualname__
        made = cls(f"callback {name} failed in {hook}: {type(error).__name__}: {error}")
        made.__cause__ = error
        return made


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
    for make in callbacks:
        if not callable(make):
            raise ValueError(
                f"actor_callbacks: got {make!r}, expected a class or a function that makes a callback: every process "
                "that steps environments makes its own"
            )
        if not actors:
            continue
        try:
            pickled = bytes(ForkingPickler.dumps(make))
        except Exception as error:  # objects may refuse by any error
            raise _cannot_be_sent(make, error) from error
        if b"__main__" in pickled and not hasattr(sys.modules["__main__"], "__file__"):
            raise _cannot_be_sent(make, "actors cannot import what a notebook or an interactive session defines")


def _cannot_be_sent(make: MakeActorCallback, reason: object) -> ValueError:
    return ValueError(
        f"actor_callbacks: {make!r} cannot be sent to actor processes: {reason}; expected a class or function "
        "defined at the top level of a module, or functools.partial of one"
    )


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
        """Call ``on_episode_begin`` for each lane."""
        for lane in lanes:
            self._call("on_episode_begin", lane)

    def step_begins(self, obs: Obs) -> None:
        """Call ``on_actor_step_begin``."""
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
        """Call ``on_actor_end``."""
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
