"""A run in progress, as callbacks see it, and the base class of callbacks."""

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
    """Base class for training hooks. Every hook does nothing until a subclass overrides it.

    ``training`` is the run (``Training``), which a hook may inspect and end by ``training.stop(reason)``;
    ``metrics`` are plain dicts.
    """

    def on_begin(self, training: Training) -> None:
        """Handle the start of training or of a resumed run."""

    def on_step(self, training: Training) -> None:
        """Handle the end of a turn of the loop: steps have arrived, or waiting for them timed out."""

    def on_update(self, training: Training, learned: Learned) -> None:
        """Handle an update of the agent."""

    def on_episode(self, metrics: Metrics) -> None:
        """Handle the end of an episode: steps, minutes, reward, episode_steps, avg_reward, mean_reward, episodes."""

    def on_report(self, metrics: Metrics) -> None:
        """Handle a report: steps, minutes, avg_fps, loss, epsilon, replay_bytes and the run's other figures."""

    def on_evaluation(self, metrics: Metrics) -> None:
        """Handle a held-out evaluation: steps, minutes, scores, mean, min, lost, best (so far)."""

    def wants_checkpoint(self, training: Training) -> bool:
        """Return whether to write a checkpoint after this turn. Called once a turn, after ``on_step``."""
        return False

    def on_checkpoint(self, training: Training, metrics: Metrics) -> None:
        """Sync what was written so far: a later callback writes a checkpoint of the state reported in ``metrics``."""

    def on_end(self, metrics: Metrics) -> None:
        """Handle the end of training: ``metrics`` is the last report with ``reason``. Not called after an error."""

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
        failed: whether ``reason`` is a failure.
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
        """End training after this turn of the loop."""
        self.reason, self.failed = reason, failed

    def report(self) -> Metrics:
        """Return the run's figures: those of the agent, of the replay memory, of evaluations and of the source."""
        state, schedules = self.state, self.agent.schedules(self.state.progress.steps)
        metrics = state.progress.report(schedules, state.scores, self.store)
        return metrics | state.held_out.report() | self.experience.report()


class StopWhen(Callback):
    """Callback that ends training once ``reason()`` returns a reason."""

    def __init__(self, reason: Callable[[], str | None]) -> None:
        self._reason = reason

    def on_step(self, training: Training) -> None:
        reason = self._reason()
        if reason is not None:
            training.stop(reason)


class Lasting(Callback):
    """Wrapper of a callback whose files or terminal may fail: a failure is reported once, and training goes on.

    Args:
        what: name of the output in messages.
        say: called with a sentence when writing fails and when it works again.
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
            self._say(f"{self._what} is incomplete: {error}")

    def _try(self, call: Callable[[], None], *, writes: bool = True) -> None:
        """Call, and report the first failure; after one, report a successful call that ``writes``."""
        try:
            call()
        except OSError as error:
            if not self._failing:
                self._say(f"{self._what} cannot be written: {error}; training goes on, and the rest is written later")
            self._failing = True
        else:
            if self._failing and writes:
                self._say(f"{self._what} is written again")
                self._failing = False


class HeldOutEvaluations(Callback):
    """Callback that evaluates the policy every ``evaluate_every`` steps, if recent training scores are high enough."""

    def on_step(self, training: Training) -> None:
        state, progress = training.state, training.state.progress
        if not state.evaluation_due(training.recipe):
            return
        best = state.held_out.evaluate(training.agent, progress.steps)
        assert state.held_out.latest is not None
        figures = {"minutes": progress.minutes, **state.held_out.latest.figures(), "best": best}
        for callback in training.callbacks:
            callback.on_evaluation(figures)
