"""State of a run: steps, updates, time, scores and held-out evaluations, and their form in a checkpoint.

The first of many evaluations that passes is a lucky one, so a pass is confirmed on as many fresh episodes. Evaluations
do not affect training: they have their own environments and random numbers.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

import sharpwave as sw
from sharpwave.agents.protocol import Agent
from sharpwave.log.boundaries import NOTICED
from sharpwave.serve.link import ShardLostError
from sharpwave.training import setup
from sharpwave.training.folder import as_count, as_mean, as_minutes, checked_evaluation, parsed
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.scores import (
    EPISODES,
    EPSILON,
    LANES,
    EpisodeScore,
    Purpose,
    Scores,
    held_out_seed,
    lanes_for,
    play,
    running_mean,
)

Metrics = dict[str, Any]
"""Figures of a run, by name."""
DISK = (
    "bytes", "resident_segments", "hits", "misses", "stalls", "waited_s", "bytes_read", "bytes_written",
    "dropped_steps",
)  # fmt: skip
"""Figures of the replay memory's disk tier that a report has under ``disk``, as in ``Store.stats``."""
SAVED_PROGRESS = {
    **dict.fromkeys(("steps", "updates", "learn_after", "updates_then"), as_count),
    "avg_loss": as_mean,
    "minutes": as_minutes,
}
SAVED_HELD_OUT = {"count": as_count, "since_best": as_count, "minutes": as_minutes}
"""Forms of ``Progress`` and ``HeldOut`` in a checkpoint."""


class DivergedError(ValueError):
    """Error raised when a loss or a weight is not finite; the run ends without saving it."""

    def __init__(self, what: str, step: int) -> None:
        super().__init__(
            f"{what} at step {step:,}: training has diverged. Look for NaN or huge numbers in observations and "
            "rewards, or lower --learning-rate; checkpoints from before are kept"
        )


def episode_seed(seed: int, steps: int) -> int:
    """Return the seed of the episodes that begin after ``steps`` steps: at a run's start and at each checkpoint.

    Environments cannot be saved in mid-episode, so at a checkpoint all of them begin new episodes, both in the run that
    continues and in one that is resumed from there; from then on the two are identical.
    """
    if steps == 0:
        return seed
    return int(np.random.SeedSequence([seed, steps]).generate_state(1)[0] >> 2)  # seed + lane must fit an int32


def where_raised(name: str, lanes: range, step: int, seed: int) -> str:
    """Return which environments raised an error, and when: in their ``step``-th step after a reset with ``seed``, or
    in that reset (0)."""
    which = f"environment {lanes[0]}" if len(lanes) == 1 else f"environments {lanes[0]} to {lanes[-1]}"
    when = f"in step {step:,} after a reset with seed {seed}" if step else f"in a reset with seed {seed}"
    return f"raised by {name}, {which} of the run, {when}"


class Progress:
    """Steps, updates and time of a run.

    Attributes:
        steps: environment steps.  updates: gradient steps.
        retry_at: steps of the next attempt at a checkpoint after one that could not be written; None: it was.
        minutes_then: minutes at the last ``advance``, by which runs end; constant until the next.
        avg_loss: running mean of the loss; None before the first.
        learn_after, updates_then: the steps after which updates are due, and the updates made before.
        ratio_since: the steps and updates from which the replay ratio is counted, the warm-up included.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._ratio = recipe.update_ratio
        self.steps = self.updates = 0
        self._steps_before = 0
        self.retry_at: int | None = None
        self._failures = 0  # attempts in a row to write a checkpoint
        self._metrics: dict[str, list[Tensor]] = {}  # of the updates since the last report
        self.avg_loss: float | None = None
        self.learn_after = recipe.training.warmup_steps
        self.updates_then = 0
        self._process = psutil.Process()
        self._stats: dict[str, Any] | None = None  # of the replay memory, at the last report
        self._start_clock(0.0)

    def _start_clock(self, minutes: float) -> None:
        now = time.perf_counter()
        self._started = now - minutes * 60
        self.minutes_then = minutes
        # Time and steps of the last reports: the reported speed is the mean of the last ten periods.
        self._marks: deque[tuple[float, int]] = deque([(now, self.steps)], maxlen=11)

    @property
    def minutes(self) -> float:
        """Minutes of training, including those before a resume."""
        return (time.perf_counter() - self._started) / 60

    @property
    def updates_due(self) -> int:
        """Updates due for the steps so far."""
        return self._due_after(self.steps)

    def _due_after(self, steps: int) -> int:
        learning = max(0, steps - self.learn_after)
        return self.updates_then + learning * self._ratio.numerator // self._ratio.denominator

    @property
    def will_learn(self) -> bool:
        """Whether an update is due before the run reaches its limit of steps."""
        return self._due_after(self.recipe.training.steps) > self.updates

    @property
    def ratio_since(self) -> tuple[int, int]:
        return self.learn_after - self.recipe.training.warmup_steps, self.updates_then

    def advance(self, steps: int) -> None:
        self._steps_before = self.steps
        self.steps += steps
        self.minutes_then = self.minutes

    def passed(self, period: int) -> bool:
        """Return whether the last ``advance`` reached or passed a multiple of ``period`` steps."""
        return self.steps // period > self._steps_before // period

    def saved(self, written: bool) -> int:
        """Count an attempt to write a checkpoint; return the steps at which the next is due.

        A failed one is tried again after a tenth of the period, then after twice as long each time, up to the period.
        """
        every = self.recipe.training.checkpoint_every
        if written:
            self.retry_at, self._failures = None, 0
            return (self.steps // every + 1) * every
        wait = min(every, max(1, every // 10) << min(self._failures, 30))
        self._failures += 1
        self.retry_at = self.steps + wait
        return self.retry_at

    @property
    def checkpoint_due(self) -> bool:
        """Whether the last ``advance`` reached the steps of a checkpoint or of another attempt at a failed one."""
        if self.retry_at is not None:
            return self.steps >= self.retry_at
        return self.passed(self.recipe.training.checkpoint_every)

    def warm_up_again(self) -> None:
        """Delay updates until the replay memory, empty after a resume or a loss, has ``warmup_steps`` new steps."""
        self.learn_after, self.updates_then = self.steps + self.recipe.training.warmup_steps, self.updates

    def learned(self, metrics: Mapping[str, Tensor]) -> None:
        """Count an update, and keep its metrics for the next report."""
        self.updates += 1
        for name, value in metrics.items():
            self._metrics.setdefault(name, []).append(value)

    def of_episode(self, episode: EpisodeScore, scores: Scores) -> Metrics:
        """Describe an episode that has ended: ``episode_steps`` is its length, ``steps`` the run's steps so far."""
        return {
            "steps": self.steps,
            "minutes": self.minutes,
            "reward": episode.reward,
            "episode_steps": episode.steps,
            "avg_reward": scores.avg_reward,
            "mean_reward": scores.mean_reward,
            "episodes": scores.count,
            **({"figures": dict(episode.figures)} if episode.figures else {}),
        }

    def report(self, schedules: Mapping[str, float], scores: Scores, store: sw.Store | sw.Cluster) -> Metrics:
        """Describe the run, and reset the metrics that are averaged over updates.

        ``loss`` is the last update's, ``avg_loss`` a running mean; ``learner`` has the means of the agent's other
        metrics since the last report, and its schedules except epsilon.

        The replay memory's figures are those of the last report while none of its shards can be reached.

        Raises:
            DivergedError: a loss was not finite.
        """
        now = time.perf_counter()
        # One transfer from the device for all updates.
        learned = {name: torch.stack(values).tolist() for name, values in self._metrics.items()}
        self._metrics.clear()
        losses = learned.pop("loss", [])
        wrong = next((loss for loss in losses if not math.isfinite(loss)), None)
        if wrong is not None:
            raise DivergedError(f"loss: got {wrong}", self.steps)
        for loss in losses:
            self.avg_loss = running_mean(self.avg_loss, loss)
        then, steps_then = self._marks[0]
        self._marks.append((now, self.steps))
        avg_fps = (self.steps - steps_then) / max(now - then, 1e-9)
        try:
            stats = self._stats = store.stats()
        except ShardLostError:  # all shards are being started again
            if self._stats is None:
                raise
            stats = self._stats
        means = {name: float(np.mean(values)) for name, values in learned.items()}
        return {
            "steps": self.steps,
            "minutes": (now - self._started) / 60,
            "episodes": scores.count,
            "updates": self.updates,
            "mean_reward": scores.mean_reward,
            "avg_reward": scores.avg_reward,
            "loss": losses[-1] if losses else None,
            "avg_loss": self.avg_loss,
            "epsilon": schedules.get("epsilon"),
            "learner": means | {name: value for name, value in schedules.items() if name != "epsilon"},
            "avg_fps": avg_fps,
            "seconds_left": (self.recipe.training.steps - self.steps) / max(avg_fps, 1e-9),
            "replay_steps": stats["steps"],
            "replay_bytes": stats["total_bytes"],
            **{name: stats[name] for name in ("bytes_per_step", "encoded_bytes_per_step", "fixed_bytes")},
            "process_bytes": self._process.memory_info().rss,
            **({"noticed": noticed} if (noticed := {name: stats[name] for name in NOTICED if stats[name]}) else {}),
            **({"disk": {name: stats["disk"][name] for name in DISK}} if "disk" in stats else {}),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON. Call it after ``report``, which takes the pending metrics."""
        assert not self._metrics
        return {name: getattr(self, name) for name in SAVED_PROGRESS}

    @classmethod
    def from_dict(cls, recipe: Recipe, values: dict[str, Any]) -> Progress:
        """Restore what ``to_dict`` returned; the clock continues from there."""
        found, progress = parsed(values, SAVED_PROGRESS), cls(recipe)
        minutes = found.pop("minutes")
        vars(progress).update(found, _steps_before=found["steps"])
        progress._start_clock(minutes)
        return progress


# Held-out evaluations

RECENT = 20
"""Training episodes whose mean decides whether an evaluation is made."""


@dataclass(frozen=True)
class Evaluation:
    """Scores of whole episodes, played after ``steps`` steps of training with the weights of that moment.

    Attributes:
        scores: of ``EPISODES`` episodes, or of the first ``LANES`` where these fall short of the recipe.
        fresh: of as many others, played to confirm ``scores`` that pass; empty: they do not pass.
    """

    steps: int
    scores: list[float]
    fresh: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return fmean(self.scores)

    def solves(self, recipe: Recipe) -> bool:
        """Return whether its scores pass, and the fresh ones pass too."""
        return passes(recipe, self.scores) and passes(recipe, self.fresh)

    def figures(self) -> dict[str, Any]:
        """Return the evaluation as plain values for reports and files."""
        lost = sum(score < 0 for score in self.scores)
        return {**asdict(self), "mean": self.mean, "min": min(self.scores), "lost": lost}


def passes(recipe: Recipe, scores: list[float]) -> bool:
    """Return whether scores are complete, with a mean of at least ``stop_reward`` and none below ``stop_worst``."""
    return len(scores) == EPISODES and not falls_short(recipe, scores)


def falls_short(recipe: Recipe, scores: list[float]) -> bool:
    """Return whether scores are too low to solve the recipe; always true for one without ``stop_reward``."""
    if recipe.evaluation.stop_reward is None or fmean(scores) < recipe.evaluation.stop_reward:
        return True
    return recipe.evaluation.stop_worst is not None and min(scores) < recipe.evaluation.stop_worst


def finite(weights: dict[str, Tensor], steps: int) -> dict[str, Tensor]:
    """Return a policy's weights.  Raises: DivergedError: one of them is not finite."""
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise DivergedError(f"policy: {name} has NaN or infinite weights", steps)
    return weights


def measure(recipe: Recipe, weights: Mapping[str, Tensor], steps: int) -> Evaluation:
    """Measure the policy ``weights``, of step ``steps``, and confirm a pass on as many fresh episodes.

    Both are abandoned once their first episodes fall short.
    """
    scores = played(recipe, weights, steps, Purpose.CHOOSING)
    confirmed = played(recipe, weights, steps, Purpose.CONFIRMING) if passes(recipe, scores) else []
    return Evaluation(steps, scores, confirmed)


def played(recipe: Recipe, weights: Mapping[str, Tensor], steps: int, purpose: Purpose) -> list[float]:
    """Play ``EPISODES`` held-out episodes and return their scores.

    Unless they are for a report, they are abandoned once their first ones fall short.
    """
    env = recipe.env.make(lanes_for(EPISODES))
    try:
        return play(
            setup.player(recipe, env, weights),
            env,
            EPISODES,
            EPSILON,
            held_out_seed(recipe.training.seed, steps, purpose),
            hopeless=lambda scores: (
                purpose is not Purpose.REPORTING and len(scores) >= LANES and falls_short(recipe, scores)
            ),
        )
    finally:
        env.close()


class HeldOut:
    """Held-out evaluations of a run: the latest, and the best with its weights.

    Attributes:
        latest, best: evaluations during training; None before the first.
        best_weights: weights of the policy that ``best`` measured.
        count: evaluations made.
        since_best: those made after the best.
        minutes: time that they took.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.latest: Evaluation | None = None
        self.best: Evaluation | None = None
        self.best_weights: dict[str, Tensor] = {}
        self.count = self.since_best = 0
        self.minutes = 0.0

    @property
    def solved(self) -> bool:
        """Whether the latest evaluation solves the recipe."""
        return self.latest is not None and self.latest.solves(self.recipe)

    def worth_it(self, scores: Scores) -> bool:
        """Return whether recent training scores reach ``evaluate_from``, so that an evaluation may solve the recipe.

        Offline there are none, and every evaluation is made.
        """
        if self.recipe.offline:
            return True
        recent = list(scores.last)[-RECENT:]
        threshold = self.recipe.evaluation.evaluate_from
        return len(recent) == RECENT and (threshold is None or fmean(recent) >= threshold)

    def add(self, evaluation: Evaluation, weights: dict[str, Tensor], minutes: float) -> bool:
        """Count an evaluation of ``weights``, which took ``minutes``; return whether it is the best so far."""
        self.latest = evaluation
        self.count += 1
        self.minutes += minutes
        if self.best is not None and self._rank(evaluation) <= self._rank(self.best):
            self.since_best += 1
            return False
        self.best, self.best_weights, self.since_best = evaluation, weights, 0
        return True

    def final(self) -> dict[str, Any] | None:
        """Return the best policy's scores in episodes that did not choose it; None: no policy was measured.

        Of a policy that solves the recipe they are the confirming ones; others play episodes by which nothing is
        decided.
        """
        best = self.best
        if best is None:
            return None
        if best.solves(self.recipe):
            return Evaluation(best.steps, best.fresh).figures()
        begun = time.perf_counter()
        scores = played(self.recipe, self.best_weights, best.steps, Purpose.REPORTING)
        self.minutes += (time.perf_counter() - begun) / 60
        return Evaluation(best.steps, scores).figures()

    def last_scores(self, weights: Mapping[str, Tensor], steps: int, final: Mapping[str, Any] | None) -> list[float]:
        """Return scores of the policy ``weights`` of step ``steps``, of episodes that chose nothing.

        Args:
            final: figures of ``final``, whose scores they are if that policy is the last.
        """
        if final is not None and final["steps"] == steps:
            return list(final["scores"])
        begun = time.perf_counter()
        scores = played(self.recipe, weights, steps, Purpose.REPORTING)
        self.minutes += (time.perf_counter() - begun) / 60
        return scores

    def _rank(self, evaluation: Evaluation) -> tuple[bool, float]:
        return evaluation.solves(self.recipe), fmean(evaluation.scores + evaluation.fresh)

    def report(self) -> dict[str, Any]:
        return {
            "held_out": None if self.best is None else self.best.figures(),
            "evaluations": self.count,
            "evaluation_minutes": self.minutes,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without ``best_weights``."""
        kept = {"latest": self.latest, "best": self.best}
        evaluations = {name: None if one is None else asdict(one) for name, one in kept.items()}
        return evaluations | {name: getattr(self, name) for name in SAVED_HELD_OUT}

    @classmethod
    def from_dict(cls, recipe: Recipe, values: dict[str, Any]) -> HeldOut:
        """Restore what ``to_dict`` returned; ``best_weights`` stay empty."""
        held_out = cls(recipe)
        for name in ("latest", "best"):
            if values[name] is not None:
                setattr(held_out, name, Evaluation(**checked_evaluation(values[name])))
        vars(held_out).update(parsed(values, SAVED_HELD_OUT))
        return held_out


# All of it


@dataclass(frozen=True)
class TrainingState:
    """State of a run beside the agent and the replay memory."""

    scores: Scores
    progress: Progress
    held_out: HeldOut

    @classmethod
    def fresh(cls, recipe: Recipe, agent: Agent) -> TrainingState:
        return cls(Scores(agent.scored_lanes(recipe.env.num_envs)), Progress(recipe), HeldOut(recipe))

    def evaluation_due(self, recipe: Recipe) -> bool:
        """Return whether a held-out evaluation is due and recent training scores are high enough for it."""
        due = recipe.evaluation.evaluate_every > 0 and self.progress.passed(recipe.evaluation.evaluate_every)
        return due and self.held_out.worth_it(self.scores)

    def end_reached(self, recipe: Recipe) -> str | None:
        """Return why the run has ended: solved, no longer better, at its limit of steps or time. None: no."""
        if self.held_out.solved:
            return f"a held-out mean of {recipe.evaluation.stop_reward:g} or more, confirmed"
        if self.progress.steps >= recipe.training.steps:
            return f"the limit of {recipe.training.steps:,} {'updates' if recipe.offline else 'steps'}"
        patience, limit = recipe.evaluation.patience, recipe.training.max_minutes
        if patience and self.held_out.since_best >= patience:
            return f"{patience} evaluations in a row that were no better than the best before them"
        if limit is not None and self.progress.minutes_then >= limit:
            return f"the limit of {limit:g} minutes"
        return None

    def to_dict(self) -> dict[str, Any]:
        return {
            "progress": self.progress.to_dict(),
            "episodes": self.scores.to_dict(),
            "held_out": self.held_out.to_dict(),
        }

    @classmethod
    def from_dict(cls, recipe: Recipe, agent: Agent, values: dict[str, Any]) -> TrainingState:
        """Restore what ``to_dict`` returned.  Raises: KeyError, TypeError, ValueError."""
        state = cls.fresh(recipe, agent)
        state.scores.load(values["episodes"])
        held_out = HeldOut.from_dict(recipe, values["held_out"])
        return cls(state.scores, Progress.from_dict(recipe, values["progress"]), held_out)
