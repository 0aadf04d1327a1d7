"""Progress of a run: steps, updates, time, scores and evaluations, and their form in a checkpoint."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import torch

import sharpwave as sw
from sharpwave.agents.protocol import Agent
from sharpwave.log.boundaries import NOTICED
from sharpwave.serve.link import ShardLostError
from sharpwave.training import figures
from sharpwave.training.failures import DivergedError
from sharpwave.training.held_out import HeldOut
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.scores import EpisodeScore, Scores, running_mean

Metrics = dict[str, Any]
"""Figures of a run, by name."""
DISK = (
    "bytes", "resident_segments", "hits", "misses", "stalls", "waited_s", "bytes_read", "bytes_written",
    "dropped_steps",
)  # fmt: skip
"""Figures of the replay memory's disk tier that a report has under ``disk``, as in ``Store.stats``."""


def episode_seed(seed: int, steps: int) -> int:
    """Return the seed of the episodes that begin after ``steps`` steps: at a run's start and at each checkpoint.

    Environments cannot be saved in mid-episode, so at a checkpoint all of them begin new episodes, both in the run that
    continues and in one that is resumed from there; from then on the two are identical.
    """
    if steps == 0:
        return seed
    return int(np.random.SeedSequence([seed, steps]).generate_state(1)[0] >> 2)  # seed + lane must fit an int32


class Progress:
    """Steps, updates and time of a run.

    Attributes:
        steps: environment steps.  updates: gradient steps.
        retry_at: steps of the next attempt at a checkpoint after one that could not be written; None: it was.
        minutes_then: minutes at the last ``advance``, by which runs end; constant until the next.
        ratio_since: the steps and updates from which the replay ratio is counted, the warm-up included.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.steps = self.updates = 0
        self._steps_before = 0
        self.retry_at: int | None = None
        self._failures = 0  # attempts in a row to write a checkpoint
        self._metrics: dict[str, list[torch.Tensor]] = {}  # of the updates since the last report
        self._avg_loss: float | None = None
        self._learn_after = recipe.training.warmup_steps
        self._updates_then = 0  # updates made before step ``_learn_after``
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
        return self._updates_then + max(0, self.steps - self._learn_after) // self.recipe.training.update_every

    @property
    def will_learn(self) -> bool:
        """Whether an update is due before the run reaches its limit of steps."""
        training = self.recipe.training
        return self._updates_then + max(0, training.steps - self._learn_after) // training.update_every > self.updates

    @property
    def ratio_since(self) -> tuple[int, int]:
        return self._learn_after - self.recipe.training.warmup_steps, self._updates_then

    def advance(self, steps: int) -> None:
        """Count steps added to the store since the last call."""
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
        self._learn_after, self._updates_then = self.steps + self.recipe.training.warmup_steps, self.updates

    def learned(self, metrics: Mapping[str, torch.Tensor]) -> None:
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
            self._avg_loss = running_mean(self._avg_loss, loss)
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
            "avg_loss": self._avg_loss,
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
        return {
            "steps": self.steps,
            "updates": self.updates,
            "avg_loss": self._avg_loss,
            "learn_after": self._learn_after,
            "updates_then": self._updates_then,
            "minutes": self.minutes,
        }

    @classmethod
    def from_dict(cls, recipe: Recipe, values: dict[str, Any]) -> Progress:
        """Restore what ``to_dict`` returned; the clock continues from there."""
        progress = cls(recipe)
        progress.steps, progress.updates = figures.count(values, "steps"), figures.count(values, "updates")
        progress._steps_before = progress.steps
        progress._avg_loss = figures.mean(values, "avg_loss")
        progress._learn_after = figures.count(values, "learn_after")
        progress._updates_then = figures.count(values, "updates_then")
        progress._start_clock(figures.minutes(values))
        return progress


@dataclass(frozen=True)
class TrainingState:
    """State of a run beside the agent and the replay memory.

    Attributes:
        scores: scores of training episodes.
        progress: steps, updates and time.
        held_out: evaluations.
    """

    scores: Scores
    progress: Progress
    held_out: HeldOut

    @classmethod
    def fresh(cls, recipe: Recipe, agent: Agent) -> TrainingState:
        """Make the state of a new run."""
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
        """Return plain values for JSON."""
        return {
            "progress": self.progress.to_dict(),
            "episodes": self.scores.to_dict(),
            "held_out": self.held_out.to_dict(),
        }

    @classmethod
    def from_dict(cls, recipe: Recipe, agent: Agent, values: dict[str, Any]) -> TrainingState:
        """Restore what ``to_dict`` returned.

        Raises:
            KeyError, TypeError, ValueError: the values have another form.
        """
        state = cls.fresh(recipe, agent)
        state.scores.load(values["episodes"])
        held_out = HeldOut.from_dict(recipe, values["held_out"])
        return cls(state.scores, Progress.from_dict(recipe, values["progress"]), held_out)
