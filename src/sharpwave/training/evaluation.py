"""Evaluating policies: one that a run has saved, and a run's own every so many steps; with videos."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from sharpwave.serve.supervisor import ProcessDiedError
from sharpwave.training import setup
from sharpwave.training.callbacks import Callback, Training
from sharpwave.training.checkpoints import with_policy
from sharpwave.training.evaluator import Evaluator, Measured
from sharpwave.training.folder import chosen_checkpoint, read_config
from sharpwave.training.held_out import finite
from sharpwave.training.measuring import lanes_for, play
from sharpwave.training.video import film, open_video, video_name

__all__ = ["evaluate", "play"]


def evaluate(
    run: Path,
    episodes: int,
    epsilon: float,
    seed: int,
    device: str = "auto",
    video: Path | None = None,
    checkpoint: str | None = None,
    *,
    trust: bool = False,
) -> tuple[dict[str, Any], list[float]]:
    """Play whole episodes with a policy that a run has saved.

    Args:
        epsilon: probability of a random action.
        video: an .mp4 or .gif file to write; one environment then plays all episodes in turn.
        checkpoint: "best", the policy with the best held-out evaluation, "last", that of the newest checkpoint, or
            the steps of a checkpoint; None: the best if there is one, else the last.
        trust: allow importing the module that the environment's name refers to.
    Returns:
        figures about the weights and how they were played, including ``steps``, ``checkpoint``, ``device`` and
        ``precision``; the scores.
    Raises:
        ValueError: the folder holds no run or no policy, the seed is too large, or the video cannot be written.
    """
    checkpoint = chosen_checkpoint(run, checkpoint)
    # Batches are small: further threads would only wait.
    recipe = read_config(run, trust=trust).recipe.override(device=device, threads=1)
    if seed > recipe.env.max_seed:
        raise ValueError(
            f"--seed: got {seed}, expected at most {recipe.env.max_seed} for {recipe.env.kind} environments"
        )
    env = setup.environments(recipe, 1 if video is not None else lanes_for(episodes), render=video is not None)
    with closing(env), setup.arithmetic(recipe):
        state, agent = with_policy(setup.agent(recipe, env), run, checkpoint)
        state = {**state, "checkpoint": checkpoint, "device": str(agent.device), "precision": agent.precision}
        if video is None:
            return state, play(agent, env, episodes, epsilon, seed)
        with open_video(video, int(env.metadata.get("render_fps", 30))) as show:
            return state, play(agent, env, episodes, epsilon, seed, show)


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
        """Take the other process's outcome, and begin the evaluation that is due; at the run's end wait for both."""
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
        """Take an outcome of the other process."""
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
        training.tell("on_evaluation", figures)

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
