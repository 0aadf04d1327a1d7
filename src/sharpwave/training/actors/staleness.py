"""Pace of actors: how far they may run ahead of the learner, and how old the weights are that they play with."""

from __future__ import annotations

import math
from collections import OrderedDict

from sharpwave.agents.protocol import ViewSettings
from sharpwave.sampling.limiters import SamplesPerInsert
from sharpwave.training.progress import Metrics, Progress
from sharpwave.training.recipes.recipe import Recipe

MAX_VERSIONS = 4096
"""Number of versions whose steps are remembered; older weights count as the oldest of these."""


def used_up(recipe: Recipe, replay: ViewSettings) -> bool:
    """Return whether the learner uses up each step, so that waiting steps form a queue."""
    return replay.most_samples <= replay.batch_size / recipe.training.update_every


def ratio_limiter(recipe: Recipe, replay: ViewSettings) -> SamplesPerInsert:
    """Make the rate limiter that bounds the actors' lead over the learner.

    They may be ahead by twice the steps that they may hold unsealed; with less both sides could wait for each other.
    The
    learner is never ahead: it makes only the updates due for the arrived steps and, if items are used up, only with
        enough
    items. One batch and the unsealed steps may wait (``ActorExperience`` computes the number).
    """
    ratio = min(replay.batch_size / recipe.training.update_every, replay.most_samples)
    lanes, unsealed = recipe.env.num_envs, recipe.actors.segment_steps + 2
    under_way = lanes * unsealed if used_up(recipe, replay) else 2 * lanes * (unsealed + replay.horizon)
    return SamplesPerInsert(
        ratio, max(1, recipe.training.warmup_steps), max(1.0, ratio, under_way * ratio + replay.batch_size)
    )


def most_steps(limiter: SamplesPerInsert, samples: int) -> int:
    """Return how many steps actors may have made in all after so many samples."""
    return math.floor(limiter.min_size + (samples + limiter.error_buffer) / limiter.ratio)


class Staleness:
    """Mean age of actors' weights since the last report, measured when steps arrive in the replay memory."""

    def __init__(self, progress: Progress, batch_size: int) -> None:
        self._progress, self._batch_size = progress, batch_size
        self._published: OrderedDict[int, int] = OrderedDict()  # version -> the run's steps at that time
        self._latest = 0
        self._last: Metrics = dict.fromkeys(("stale_versions", "stale_steps", "replay_ratio"))
        self._start_again()

    def _start_again(self) -> None:
        self._count = self._versions = self._steps = 0
        self._steps_then, self._updates_then = self._progress.steps, self._progress.updates

    def published(self, version: int) -> None:
        """Note that weights of ``version`` are the newest from now on."""
        self._latest = version
        self._published[version] = self._progress.steps
        if len(self._published) > MAX_VERSIONS:
            self._published.popitem(last=False)

    def arrived(self, steps: int, version: int) -> None:
        """Count the steps of a segment that has arrived, which weights of ``version`` made."""
        then = self._published.get(version, next(iter(self._published.values())))
        self._count += steps
        self._versions += steps * (self._latest - version)
        self._steps += steps * (self._progress.steps - then)

    def report(self) -> Metrics:
        """Return means since the last report; if no steps arrived since, the last report's means, at first ``None``.

        ``stale_versions``, ``stale_steps``: age of the weights that made a step, in versions and in steps of the run.
        ``replay_ratio``: transitions sampled for each step that arrived.
        """
        progress = self._progress
        steps = progress.steps - self._steps_then
        if self._count and steps:
            self._last = {
                "stale_versions": self._versions / self._count,
                "stale_steps": self._steps / self._count,
                "replay_ratio": (progress.updates - self._updates_then) * self._batch_size / steps,
            }
            self._start_again()
        return self._last
