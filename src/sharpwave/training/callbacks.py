"""A run in progress, as callbacks see it, and the base class of callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sharpwave as sw
from sharpwave.agents.protocol import Agent, Learned
from sharpwave.serve.supervisor import ProcessDiedError
from sharpwave.training.evaluator import Evaluator, Measured
from sharpwave.training.experience import Experience
from sharpwave.training.failures import RAISED, CallbackError
from sharpwave.training.held_out import finite
from sharpwave.training.progress import Metrics, TrainingState
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.video import film


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
        """Sync what was written so far: a later callback writes a checkpoint of the state reported in ``metrics``."""

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
    callbacks: Sequence[Callback] = ()
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


class Wrapping(Callback):
    """Base class of wrappers of a callback: every hook goes through ``_call``."""

    def __init__(self, callback: Callback) -> None:
        self._callback = callback

    def _call(self, hook: str, *arguments: Any) -> Any:
        """Call a hook of the callback by its name."""
        raise NotImplementedError

    def on_begin(self, training: Training) -> None:
        self._call("on_begin", training)

    def on_step_begin(self, training: Training) -> None:
        self._call("on_step_begin", training)

    def on_step(self, training: Training) -> None:
        self._call("on_step", training)

    def on_learner_begin(self, training: Training) -> None:
        self._call("on_learner_begin", training)

    def on_learner_end(self, training: Training) -> None:
        self._call("on_learner_end", training)

    def on_update_begin(self, training: Training) -> None:
        self._call("on_update_begin", training)

    def on_update(self, training: Training, learned: Learned) -> None:
        self._call("on_update", training, learned)

    def on_episode(self, metrics: Metrics) -> None:
        self._call("on_episode", metrics)

    def on_report(self, metrics: Metrics) -> None:
        self._call("on_report", metrics)

    def on_evaluation(self, metrics: Metrics) -> None:
        self._call("on_evaluation", metrics)

    def wants_checkpoint(self, training: Training) -> bool:
        return bool(self._call("wants_checkpoint", training))

    def on_checkpoint(self, training: Training, metrics: Metrics) -> None:
        self._call("on_checkpoint", training, metrics)

    def on_end(self, metrics: Metrics) -> None:
        self._call("on_end", metrics)

    def close(self) -> None:
        self._call("close")


class Guarded(Wrapping):
    """Wrapper of a callback that may raise anything: the error ends the run with a checkpoint, and names the callback.

    Its hooks are not called again; ``close`` is. Ctrl-C pressed twice ends the run at once, in a hook as elsewhere.
    """

    def __init__(self, callback: Callback) -> None:
        super().__init__(callback)
        self._training: Training | None = None
        self._failed = False

    def on_begin(self, training: Training) -> None:
        self._training = training
        super().on_begin(training)

    def close(self) -> None:
        try:
            self._callback.close()
        except RAISED as error:
            if self._training is None:
                raise CallbackError.of(self._callback, "close", error) from error
            self._training.fail(CallbackError.of(self._callback, "close", error))

    def _call(self, hook: str, *arguments: Any) -> Any:
        if self._failed:
            return None
        try:
            return getattr(self._callback, hook)(*arguments)
        except RAISED as error:
            self._failed = True
            assert self._training is not None
            self._training.fail(CallbackError.of(self._callback, hook, error))
            return None


class Lasting(Wrapping):
    """Wrapper of a callback whose files or terminal may fail: a failure is reported once, and training goes on.

    Args:
        what: name of the output in messages.
        say: called with a sentence when writing fails and when it works again.
    """

    WRITES = ("on_episode", "on_report", "on_evaluation", "on_checkpoint")
    """Hooks whose success shows that the output works again."""

    def __init__(self, callback: Callback, what: str, say: Callable[[str], None]) -> None:
        super().__init__(callback)
        self._what, self._say = what, say
        self._failing = False

    def close(self) -> None:
        try:
            self._callback.close()
        except OSError as error:
            self._say(f"{self._what} is incomplete: {error}")

    def _call(self, hook: str, *arguments: Any) -> Any:
        try:
            returned = getattr(self._callback, hook)(*arguments)
        except OSError as error:
            if not self._failing:
                self._say(f"{self._what} cannot be written: {error}; training goes on, and the rest is written later")
            self._failing = True
            return None
        if self._failing and hook in self.WRITES:
            self._say(f"{self._what} is written again")
            self._failing = False
        return returned


class HeldOutEvaluations(Callback):
    """Callback that evaluates the policy every ``evaluate_every`` steps, if recent training scores are high enough.

    With ``evaluate_beside`` another process plays, one evaluation at a time: one that is due while another is played
    takes the weights of when that has ended. A run that reaches its end waits for the last ones.

    Args:
        videos: folder for a video of every ``video_every``-th evaluation; None: no videos.
        say: called with a sentence when a video cannot be written, the first time, and when the other process is
            restarted or waited for.
        interrupted: function that returns a reason once a run that waits for its last evaluations is to end at once.
    """

    def __init__(
        self,
        videos: Path | None = None,
        say: Callable[[str], None] = lambda text: None,
        interrupted: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._videos, self._say, self._interrupted = videos, say, interrupted
        self._evaluator: Evaluator | None = None
        self._due = self._video_failed = False

    def on_begin(self, training: Training) -> None:
        settings = training.recipe.evaluation
        if settings.evaluate_beside and settings.evaluate_every:
            self._evaluator = Evaluator(training.recipe, self._say)

    def on_step(self, training: Training) -> None:
        state, recipe = training.state, training.recipe
        self._due |= state.evaluation_due(recipe)
        if self._evaluator is None:
            if self._due:
                self._due = False
                self._here(training)
            return
        try:
            self._beside(training, self._evaluator)
        except ProcessDiedError as error:
            training.fail(error)

    def close(self) -> None:
        if self._evaluator is not None:
            self._evaluator.close()

    def _beside(self, training: Training, evaluator: Evaluator) -> None:
        """Count what the other process has measured, and begin the evaluation that is due; at the run's end wait."""
        ending = training.state.end_reached(training.recipe) is not None
        self._take(training, self._last(evaluator) if ending else evaluator.poll())
        if self._due and evaluator.idle:
            self._due = False
            steps = training.state.progress.steps
            evaluator.begin(finite(training.agent.policy_tensors(), steps), steps, self._video(training, steps))
            if ending:
                self._take(training, self._last(evaluator))

    def _last(self, evaluator: Evaluator) -> Measured | None:
        """Wait for an evaluation under way, or until the process has started for the one that is due."""
        if evaluator.measuring:
            self._say("Waiting for the last evaluation; Ctrl-C ends the run without it")
        elif not self._due:
            return None
        return evaluator.wait(lambda: self._interrupted() is not None)

    def _here(self, training: Training) -> None:
        """Evaluate, and film, in this process."""
        state, steps = training.state, training.state.progress.steps
        path = self._video(training, steps)
        best = state.held_out.evaluate(training.agent, steps)
        if path is not None:
            self._filmed(path, film(training.recipe, training.agent.policy_tensors(), steps, path))
        self._tell(training, best)

    def _take(self, training: Training, measured: Measured | None) -> None:
        """Count what the other process has measured."""
        if measured is None:
            return
        held_out = training.state.held_out
        held_out.minutes += measured.minutes
        if self._videos is not None:
            self._filmed(self._videos / video_name(measured.evaluation.steps), measured.video_error)
        self._tell(training, held_out.add(measured.evaluation, measured.weights))

    def _tell(self, training: Training, best: bool) -> None:
        state = training.state
        assert state.held_out.latest is not None
        figures = {"minutes": state.progress.minutes, **state.held_out.latest.figures(), "best": best}
        for callback in training.callbacks:
            callback.on_evaluation(figures)

    def _video(self, training: Training, steps: int) -> Path | None:
        """Return the path of the next evaluation's video; None: it is not filmed."""
        every = training.recipe.evaluation.video_every
        if self._videos is None or not every or training.state.held_out.count % every:
            return None
        return self._videos / video_name(steps)

    def _filmed(self, path: Path, error: str) -> None:
        if error and not self._video_failed:
            self._say(f"The video {path.name} could not be written: {error}; training goes on")
        self._video_failed = bool(error)


def video_name(steps: int) -> str:
    """Return the file name of the video of the policy after ``steps`` steps."""
    return f"{steps:012d}.mp4"
