"""Held-out evaluations of a run: when the policy is measured, which was the best, and whether the run has solved it.

Evaluations do not affect training: they have their own environments and random numbers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from torch import Tensor

from sharpwave.agents.protocol import Agent
from sharpwave.training import figures, setup
from sharpwave.training.failures import DivergedError
from sharpwave.training.measuring import EPISODES, EPSILON, LANES, held_out_seed, lanes_for, play
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.scores import Scores

RECENT = 20
"""Training episodes whose mean decides whether an evaluation is made."""


@dataclass(frozen=True)
class Evaluation:
    """Scores of whole episodes, played after ``steps`` steps of training with the weights of that moment."""

    steps: int
    scores: list[float]

    @property
    def mean(self) -> float:
        return fmean(self.scores)

    def solves(self, recipe: Recipe) -> bool:
        """Return whether it is complete, with a mean of at least ``stop_reward`` and no score below ``stop_worst``."""
        return (
            len(self.scores) == EPISODES
            and not falls_short(recipe, self.scores)
            and recipe.evaluation.stop_reward is not None
        )

    def figures(self) -> dict[str, Any]:
        """Return the evaluation as plain values for reports and files."""
        lost = sum(score < 0 for score in self.scores)
        return {**asdict(self), "mean": self.mean, "min": min(self.scores), "lost": lost}


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


def measure(recipe: Recipe, weights: Mapping[str, Tensor], steps: int, *, final: bool = False) -> Evaluation:
    """Measure the policy ``weights``, of step ``steps``; not ``final``, abandon it once its first episodes fall short.

    Args:
        final: play on seeds that no decision has used.
    """
    env = setup.environments(recipe, lanes_for(EPISODES))
    try:
        scores = play(
            setup.player(recipe, env, weights),
            env,
            EPISODES,
            EPSILON,
            held_out_seed(recipe.training.seed, steps, final),
            hopeless=lambda scores: not final and len(scores) >= LANES and falls_short(recipe, scores),
        )
    finally:
        env.close()
    return Evaluation(steps, scores)


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
        """Measure the agent's policy; return whether it is the best so far.

        The evaluation is abandoned once its first episodes fall short of what the recipe asks for.
        """
        weights = finite(agent.policy_tensors(), steps)
        return self.add(self._play(weights, steps, final=False), weights)

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
        """Measure the best weights again, on seeds that no decision has used; None: there are no best weights."""
        if self.best is None:
            return None
        return self._play(self.best_weights, self.best.steps, final=True).figures()

    def _play(self, weights: dict[str, Tensor], steps: int, final: bool) -> Evaluation:
        begun = time.perf_counter()
        evaluation = measure(self.recipe, weights, steps, final=final)
        self.minutes += (time.perf_counter() - begun) / 60
        return evaluation

    def _rank(self, evaluation: Evaluation) -> tuple[bool, float]:
        return evaluation.solves(self.recipe), evaluation.mean

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
        if "since_best" in values:  # earlier releases did not count them
            held_out.since_best = figures.count(values, "since_best")
        return held_out
