"""A run under way, and the hooks into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sharpwave as sw
from sharpwave.agents.protocol import Agent, Learned
from sharpwave.training.experience import Experience
from sharpwave.training.progress import Metrics, TrainingState
from sharpwave.training.recipes.recipe import Recipe


class Callback:
    """Base class for training hooks. Each does nothing, or what a subclass makes of it.

    ``training`` is the run under way (:class:`Training`), to be looked at, and to be ended by
    ``training.stop(reason)``; ``metrics`` are plain dicts.
    """

    def on_begin(self, training: Training) -> None:
        """Training begins, or goes on from a checkpoint."""

    def on_step(self, training: Training) -> None:
        """A turn is over: steps have arrived, or none came in a while."""

    def on_update(self, training: Training, learned: Learned) -> None:
        """The agent has made an update."""

    def on_episode(self, metrics: Metrics) -> None:
        """An episode has ended: steps, minutes, reward, episode_steps, avg_reward, mean_reward, episodes."""

    def on_report(self, metrics: Metrics) -> None:
        """A report is due: steps, minutes, avg_fps, loss, epsilon, replay_bytes and the rest of the run's figures."""

    def on_evaluation(self, metrics: Metrics) -> None:
        """A held-out evaluation was made: steps, minutes, scores, mean, min, lost, best (so far)."""

    def wants_checkpoint(self, training: Training) -> bool:
        """Return whether a checkpoint is to be made after this turn. Asked once a turn, after :meth:`on_step`."""
        return False

    def on_checkpoint(self, training: Training, metrics: Metrics) -> None:
        """A checkpoint is made, of the state that the last report, ``metrics``, told of. What was written so far must
        be kept as surely as the checkpoint, which a later callback writes."""

    def on_end(self, metrics: Metrics) -> None:
        """Training has ended: the last report, with ``reason``. Not called after an error."""

    def close(self) -> None:
        """Release what is held; called however the run ended."""


@dataclass
class Training:
    """A run under way, as callbacks see it.

    Attributes:
        view: what is learned from.  experience: where steps come from.
        state: steps, updates, scores, evaluations.
        reason: why it ends; None as long as it does not.  failed: whether that is a failure.
    """

    recipe: Recipe
    agent: Agent
    store: sw.Store
    view: Any
    experience: Experience
    state: TrainingState
    callbacks: Sequence[Callback] = ()
    reason: str | None = field(default=None, init=False)
    failed: bool = field(default=False, init=False)

    def stop(self, reason: str, *, failed: bool = False) -> None:
        """End after this turn."""
        self.reason, self.failed = reason, failed

    def report(self) -> Metrics:
        """Return the run's figures: those of the agent, of its source of experience, and of evaluations."""
        state, schedules = self.state, self.agent.schedules(self.state.progress.steps)
        metrics = state.progress.report(schedules, state.scores, self.store)
        return metrics | state.held_out.report() | self.experience.report()


class StopWhen(Callback):
    """Ends training once ``reason`` returns one."""

    def __init__(self, reason: Callable[[], str | None]) -> None:
        self._reason = reason

    def on_step(self, training: Training) -> None:
        reason = self._reason()
        if reason is not None:
            training.stop(reason)


class Lasting(Callback):
    """Wrapper of a callback whose files or terminal may fail: that is said once, and the run goes on.

    Args:
        what: its name for people.  say: told when it fails, and when it works again.
    """

    def __init__(self, callback: Callback, what: str, say: Callable[[str], None]) -> None:
        self._callback, self._what, self._say = callback, what, say
        self._failing = False

    def on_begin(self, training: Training) -> None:
        self._try(lambda: self._callback.on_begin(training), writes=False)

    def on_step(self, training: Training) -> None:
        self._try(lambda: self._callback.on_step(training), writes=False)

    def on_update(self, training: Training, learned: Learned) -> None:
        self._try(lambda: self._callback.on_update(training, learned), writes=False)

    def on_episode(self, metrics: Metrics) -> None:
        self._try(lambda: self._callback.on_episode(metrics))

    def on_report(self, metrics: Metrics) -> None:
        self._try(lambda: self._callback.on_report(metrics))

    def on_evaluation(self, metrics: Metrics) -> None:
        self._try(lambda: self._callback.on_evaluation(metrics))

    def wants_checkpoint(self, training: Training) -> bool:
        return self._callback.wants_checkpoint(training)

    def on_checkpoint(self, training: Training, metrics: Metrics) -> None:
        self._try(lambda: self._callback.on_checkpoint(training, metrics))

    def on_end(self, metrics: Metrics) -> None:
        self._try(lambda: self._callback.on_end(metrics), writes=False)

    def close(self) -> None:
        try:
            self._callback.close()
        except OSError as error:
            self._say(f"{self._what} is not complete: {error}")

    def _try(self, call: Callable[[], None], *, writes: bool = True) -> None:
        """Call, and note whether that failed; a success shows that files can be written again if it ``writes``."""
        try:
            call()
        except OSError as error:
            if not self._failing:
                self._say(f"{self._what} cannot be written: {error}; training goes on, and what waits is written later")
            self._failing = True
        else:
            if self._failing and writes:
                self._say(f"{self._what} is written again")
                self._failing = False


class HeldOutEvaluations(Callback):
    """Evaluates the policy every ``evaluate_every`` steps, where recent training episodes suggest that it is worth
    it."""

    def on_step(self, training: Training) -> None:
        state, progress = training.state, training.state.progress
        if not state.evaluation_due(training.recipe):
            return
        best = state.held_out.evaluate(training.agent, progress.steps)
        assert state.held_out.latest is not None
        figures = {"minutes": progress.minutes, **state.held_out.latest.figures(), "best": best}
        for callback in training.callbacks:
            callback.on_evaluation(figures)
