"""Held-out evaluations of a run: when the policy is measured, which was the best, and whether the run has solved it.

The first of many evaluations that passes is a lucky one, so a pass is confirmed on as many fresh episodes. Evaluations
do not affect training: they have their own environments and random numbers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from torch import Tensor

from sharpwave.agents.protocol import Agent
from sharpwave.training import figures, setup
from sharpwave.training.failures import DivergedError
from sharpwave.training.measuring import EPISODES, EPSILON, LANES, Purpose, held_out_seed, lanes_for, play
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.scores import Scores

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
    env = setup.environments(recipe, lanes_for(EPISODES))
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

    def evaluate(self, agent: Agent, steps: int) -> bool:
        """Measure the agent's policy; return whether it is the best so far."""
        weights = finite(agent.policy_tensors(), steps)
        begun = time.perf_counter()
        evaluation = measure(self.recipe, weights, steps)
        self.minutes += (time.perf_counter() - begun) / 60
        return self.add(evaluation, weights)

    def add(self, evaluation: Evaluation, weights: dict[str, Tensor]) -> bool:
        """Count an evaluation of ``weights``; return whether it is the best so far."""
        self.latest = evaluation
        self.count += 1
        if self.best is not None and self._rank(self.latest) <= self._rank(self.best):
            self.since_best += 1
            return False
        self.best, self.best_weights, self.since_best = self.latest, weights, 0
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

    def _rank(self, evaluation: Evaluation) -> tuple[bool, float]:
        return evaluation.solves(self.recipe), fmean(evaluation.scores + evaluation.fresh)

    def report(self) -> dict[str, Any]:
        """Return the figures for the run's reports."""
        return {
            "held_out": None if self.best is None else self.best.figures(),
            "evaluations": self.count,
            "evaluation_minutes": self.minutes,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without ``best_weights``."""
        kept = {"latest": self.latest, "best": self.best}
        return {
            **{name: None if one is None else asdict(one) for name, one in kept.items()},
            "count": self.count,
            "since_best": self.since_best,
            "minutes": self.minutes,
        }

    @classmethod
    def from_dict(cls, recipe: Recipe, values: dict[str, Any]) -> HeldOut:
        """Restore what ``to_dict`` returned; ``best_weights`` stay empty."""
        held_out = cls(recipe)
        for name in ("latest", "best"):
            if values[name] is not None:
                setattr(held_out, name, Evaluation(*figures.evaluation(values[name])))
        held_out.count, held_out.minutes = figures.count(values, "count"), figures.minutes(values)
        held_out.since_best = figures.count(values, "since_best")
        return held_out
