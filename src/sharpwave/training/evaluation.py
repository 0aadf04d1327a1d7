"""Evaluating policies: one that a run has saved, and a run's own every so many steps, here or in another process."""

from __future__ import annotations

import contextlib
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.torch import load, save
from torch import Tensor

from sharpwave.serve import wire
from sharpwave.serve.supervisor import ProcessDiedError, Supervised, end, follow_parent, spawned
from sharpwave.training import setup
from sharpwave.training.atomic_files import discard_partial
from sharpwave.training.callbacks import Callback, Training
from sharpwave.training.policies import Policy
from sharpwave.training.progress import Evaluation, finite, measure
from sharpwave.training.recipes.recipe import OwnEnvironment, Recipe
from sharpwave.training.scores import EPSILON, EVAL_SEED, EpisodeScores, lanes_for, play
from sharpwave.training.video import film, open_video, video_name

ASKED, ANSWERED = 1, 2
"""Kinds of frames."""
STOP_S = 1.0
"""Time in which the process may end by itself before it is killed."""
WAIT_S = 0.1
"""Period at which a wait for an evaluation asks whether to go on."""
MAX_RESTARTS = 3
"""Restarts of the process in a run; after one more death the run ends."""


def evaluate(
    policy: Policy | Path | str,
    env: Any = None,
    episodes: int = 100,
    seed: int = EVAL_SEED,
    *,
    epsilon: float = EPSILON,
    explore: bool = False,
    video: Path | str | None = None,
) -> EpisodeScores:
    """Play whole episodes with a policy, its weights held fixed, on seeds that training does not use.

    Args:
        policy: a policy, or the path to load it from.
        env: an environment as ``sharpwave.train`` takes it: an id, an object, which stays open, or a function that
            makes one, with the frames, stacks and masks of the policy's training; None: the environment of that.
        seed: of the environments, and of the random actions.
        epsilon: probability of a random action, of discrete ones.
        explore: let the agent explore as when the policy was saved.
        video: an .mp4 or .gif file to write; one environment then plays all episodes in turn.
    Raises:
        ValueError: the policy cannot be loaded or act in the environment, the seed is too large, or the video cannot be
            written.
    """
    policy = policy if isinstance(policy, Policy) else Policy.load(policy)
    if episodes < 1:
        raise ValueError(f"episodes: got {episodes}, expected at least 1")
    video = None if video is None else Path(video)
    lanes = 1 if video is not None else lanes_for(episodes)
    explore_at = policy.steps if explore else None
    settings = policy.env_settings(env)
    if not 0 <= seed <= settings.max_seed:
        raise ValueError(f"seed: got {seed}, expected from 0 to {settings.max_seed} for {settings.kind} environments")
    itself = isinstance(settings, OwnEnvironment) and settings.given is not None and settings.given.object is not None
    made = settings.make(None if itself else lanes, render=video is not None)
    with closing(made), setup.arithmetic(setup.ONE_THREAD):
        policy.check_env(made)
        if video is None:
            scores = play(policy.agent, made, episodes, epsilon, seed, explore_at=explore_at)
        else:
            with open_video(video, int(made.metadata.get("render_fps", 30))) as show:
                scores = play(policy.agent, made, episodes, epsilon, seed, show, explore_at=explore_at)
    return EpisodeScores(scores, seed)


class Measured(NamedTuple):
    """Outcome of an evaluation.

    Attributes:
        weights: the policy that was measured.
        minutes: time that it took.
        video_error: why its video could not be written; "": it was, or none was asked for.
    """

    evaluation: Evaluation
    weights: dict[str, Tensor]
    minutes: float
    video_error: str


def measured(recipe: Recipe, weights: dict[str, Tensor], steps: int, video: Path | None) -> Measured:
    """Measure the policy ``weights``, of step ``steps``, and film an episode of it where ``video`` is a path."""
    begun = time.perf_counter()
    evaluation = measure(recipe, weights, steps)
    error = "" if video is None else film(recipe, weights, steps, video)
    return Measured(evaluation, weights, (time.perf_counter() - begun) / 60, error)


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
                self._take(training, measured(recipe, *self._policy(training)))
            return
        try:
            self._beside(training, self._evaluator)
        except ProcessDiedError as error:
            training.fail(error)

    def close(self) -> None:
        if self._evaluator is not None:
            self._evaluator.close()

    def _beside(self, training: Training, evaluator: Evaluator) -> None:
        """Take the other process's outcome, and begin the evaluation that is due; at the run's end wait for both."""
        ending = training.state.end_reached(training.recipe) is not None
        self._take(training, self._last(evaluator) if ending else evaluator.poll())
        if self._due and evaluator.idle:
            self._due = False
            evaluator.begin(*self._policy(training))
            if ending:
                self._take(training, self._last(evaluator))

    def _last(self, evaluator: Evaluator) -> Measured | None:
        """Wait for an evaluation under way, or until the process has started for the one that is due."""
        if evaluator.measuring:
            self._say("Waiting for the last evaluation; Ctrl-C ends the run without it")
        elif not self._due:
            return None
        return evaluator.wait(lambda: self._interrupted() is not None)

    def _policy(self, training: Training) -> tuple[dict[str, Tensor], int, Path | None]:
        """Return the policy to evaluate, its steps, and the path of its video; None: it is not filmed."""
        steps, every = training.state.progress.steps, training.recipe.evaluation.video_every
        video = None
        if self._videos is not None and every and training.state.held_out.count % every == 0:
            video = self._videos / video_name(steps)
        return finite(training.agent.policy_tensors(), steps), steps, video

    def _take(self, training: Training, outcome: Measured | None) -> None:
        """Count an evaluation, and tell the callbacks."""
        if outcome is None:
            return
        state, evaluation = training.state, outcome.evaluation
        if outcome.video_error and not self._video_failed:
            self._video_failed = True
            name = video_name(evaluation.steps)
            self._say(f"The video {name} could not be written: {outcome.video_error}; training goes on")
        best = state.held_out.add(evaluation, outcome.weights, outcome.minutes)
        training.tell("on_evaluation", {"minutes": state.progress.minutes, **evaluation.figures(), "best": best})


# The process of --evaluate-beside


class Asked(NamedTuple):
    """Evaluation that was asked for: of ``weights`` after ``steps`` steps, and filmed to ``video``; None: it is not."""

    weights: dict[str, Tensor]
    steps: int
    video: Path | None


class Evaluator:
    """Process that measures one policy at a time, on the CPU. It ends with the learner.

    A process that has died is replaced, and its successor measures the same policy from the first episode. ``begin``,
    ``poll`` and ``wait`` raise ProcessDiedError once it has died too often.

    Args:
        say: called with a sentence each time that the process is replaced.

    Attributes:
        child: the process, under its supervisor.
    """

    def __init__(self, recipe: Recipe, say: Callable[[str], None] = lambda text: None) -> None:
        self._recipe, self._own = recipe, setup.own_parts(recipe)
        self._asked: Asked | None = None
        self._started = False
        self._socket: socket.socket
        self.child = Supervised(
            "the process of --evaluate-beside",
            self._begun,
            MAX_RESTARTS,
            ". Without --evaluate-beside the learner evaluates by itself",
            say,
        )
        self.child.start()

    @property
    def idle(self) -> bool:
        return self._started and self._asked is None

    @property
    def measuring(self) -> bool:
        return self._asked is not None

    def begin(self, weights: dict[str, Tensor], steps: int, video: Path | None) -> None:
        """Begin to measure a policy, and then to film an episode of it where ``video`` is a path; it must be idle."""
        assert self.idle
        self._asked = Asked(weights, steps, video)
        self._send()

    def poll(self, timeout_s: float = 0.0) -> Measured | None:
        """Return the outcome of the evaluation under way; None: it has not ended, or there is none."""
        try:
            if self.idle or not wait([self._socket], timeout_s):
                return None
            frame = wire.receive(self._socket)
        except OSError:
            frame = None
        if frame is None:
            self._start_again()
            return None
        said = frame.head
        if "failure" in frame.parts:
            self._start_again(bytes(frame.parts["failure"]).decode())
            return None
        if not self._started:
            self._started = True
            if self._asked is not None:
                self._send()
            return None
        assert self._asked is not None
        weights, self._asked = self._asked.weights, None
        scores, fresh = (frame.parts[name].tolist() for name in ("scores", "fresh"))
        evaluation = Evaluation(said["steps"], scores, fresh)
        return Measured(evaluation, weights, said["minutes"], said["video_error"])

    def wait(self, give_up: Callable[[], bool] = lambda: False) -> Measured | None:
        """Wait for the outcome of the evaluation under way, however long it takes.

        Args:
            give_up: asked several times a second; if it returns True, the wait ends.
        Returns:
            the outcome; None: there is no evaluation, or the wait was given up.
        """
        while not self.idle and not give_up():
            outcome = self.poll(WAIT_S)
            if outcome is not None:
                return outcome
        return None

    def close(self) -> None:
        """End the process; an evaluation under way is abandoned."""
        self._socket.close()
        if not self.idle and self.child.alive:
            self.child.process.kill()
        end([self.child], STOP_S)
        if self._asked is not None and self._asked.video is not None:
            discard_partial(self._asked.video)

    def _begun(self) -> Any:
        self._started = False
        process, self._socket = spawned(serve, "evaluator", self._recipe, self._own)
        return process

    def _send(self) -> None:
        assert self._asked is not None
        weights, steps, video = self._asked
        head = {"steps": steps, "video": None if video is None else str(video)}
        parts = {"weights": save({name: tensor.contiguous() for name, tensor in weights.items()})}
        try:
            wire.send(self._socket, ASKED, 0, head, parts)
        except OSError:
            self._start_again()

    def _start_again(self, failure: str = "") -> None:
        """Replace the process, which has died or sent the text of its ``failure``."""
        self.child.failure = failure
        self.child.bury(STOP_S)
        self._socket.close()
        self.child.restart(
            "" if self._asked is None else f" and measures the policy of step {self._asked.steps:,} from the start"
        )


def serve(learner: socket.socket, recipe: Recipe, own: setup.OwnParts) -> None:
    """Measure the policies that arrive until the socket is closed. The target of the process."""
    follow_parent()
    try:
        own.register()
        recipe = recipe.override(device="cpu", threads=1)
        with setup.arithmetic(recipe):
            wire.send(learner, ANSWERED, 0, {})
            while (asked := wire.receive(learner)) is not None:
                wire.send(learner, ANSWERED, 0, *_answer(recipe, load(bytes(asked.parts["weights"])), **asked.head))
    except Exception:
        with contextlib.suppress(OSError):  # the learner has ended
            failure = traceback.format_exc(limit=-8).encode(errors="replace")
            wire.send(learner, ANSWERED, 0, {}, {"failure": failure})


def _answer(
    recipe: Recipe, weights: dict[str, Tensor], steps: int, video: str | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    evaluation, _, minutes, error = measured(recipe, weights, steps, None if video is None else Path(video))
    parts = {"scores": np.array(evaluation.scores), "fresh": np.array(evaluation.fresh)}  # JSON has no NaN
    return {"steps": evaluation.steps, "minutes": minutes, "video_error": error}, parts
