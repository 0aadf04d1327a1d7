"""Hindsight experience replay: transitions relabelled, as they are sampled, with goals that their episodes achieved.

``Future``, ``Final`` and ``Episode`` are the strategies that choose the goals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from sharpwave.arguments import is_number
from sharpwave.arrays import Array, Floats, Int32s, Ints
from sharpwave.log.step_log import StepLog
from sharpwave.native import core
from sharpwave.spec import MAX_REWARD, Spec
from sharpwave.views import gather
from sharpwave.views.batch import Batch
from sharpwave.views.layout import Arrays, BatchTarget, Column
from sharpwave.views.step_views import NStep

GoalFunction = Callable[[Any, Any, Any], Any]
"""``compute_reward`` of a goal environment: achieved_goal [n, *shape], desired_goal [n, *shape] and info to [n]."""


@dataclass(frozen=True, kw_only=True)
class Goals:
    """Strategy of hindsight experience replay (Andrychowicz et al. 2017).

    Relabels ``k`` of ``k + 1`` sampled transitions. A relabelled transition has a goal that was achieved in its own
    episode instead of the desired one, and its reward.

    Args:
        k: relabelled transitions for each one as it was stored, at least 0: a transition is relabelled with
            probability ``k / (k + 1)``, independently of others.
        reward_fn: ``reward_fn(achieved_goal, desired_goal, info)``, rewards [n] of n relabelled transitions at once, as
            ``compute_reward`` of Gymnasium-Robotics: their achieved goals after the step and their new desired ones,
            [n, *shape]; ``info`` is a dict of the spec's further fields, [n, *shape] by name, or ``None`` if there
            are none. It is called while the store's lock is held; if it raises, nothing is drawn.
        terminated_fn: of the same arguments, bool [n], whether a relabelled step terminates its episode;
            ``None``: as it was stored.
        achieved_goal, desired_goal: keys of the observation; of one shape and dtype, without ``stack``.

    Raises:
        ValueError, TypeError: an invalid argument.
    """

    kind: ClassVar[str]
    k: float = 4
    reward_fn: GoalFunction
    terminated_fn: GoalFunction | None = None
    achieved_goal: str = "achieved_goal"
    desired_goal: str = "desired_goal"

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not is_number(self.k) or not 0 <= self.k < math.inf:
            raise ValueError(f"{name}: k={self.k!r}, expected a number of at least 0: relabelled for each real one")
        if not callable(self.reward_fn):
            raise TypeError(
                f"{name}: reward_fn={self.reward_fn!r}, expected a function of achieved_goal, desired_goal and info, "
                "as env.unwrapped.compute_reward"
            )
        if self.terminated_fn is not None and not callable(self.terminated_fn):
            raise TypeError(f"{name}: terminated_fn={self.terminated_fn!r}, expected a function as reward_fn, or None")
        if self.achieved_goal == self.desired_goal:
            raise ValueError(
                f"{name}: achieved_goal and desired_goal are both {self.desired_goal!r}, expected two keys"
            )

    @property
    def share(self) -> float:
        """Probability with which a transition is relabelled."""
        return float(self.k / (self.k + 1))

    def settings(self) -> dict[str, Any]:
        """Return its identity in a checkpoint, as JSON values; functions are not part of it."""
        names = ("k", "achieved_goal", "desired_goal")
        own = {"strategy": self.kind, "terminated_fn": self.terminated_fn is not None}
        return {name: getattr(self, name) for name in names} | own


@dataclass(frozen=True, kw_only=True)
class Future(Goals):
    """Goals achieved by the transition's own step or a later one of its episode, each with the same probability."""

    kind: ClassVar[str] = "future"


@dataclass(frozen=True, kw_only=True)
class Final(Goals):
    """Goals achieved by the last step of the transition's episode."""

    kind: ClassVar[str] = "final"


@dataclass(frozen=True, kw_only=True)
class Episode(Goals):
    """Goals achieved by any step of the transition's episode, each with the same probability."""

    kind: ClassVar[str] = "episode"


STRATEGIES = {"future": core.FUTURE, "final": core.FINAL, "episode": core.EPISODE}


class Hindsight(NStep):
    """View of one-step transitions, of which some are relabelled with goals achieved in their own episode.

    An item is a step of an episode that has ended, as its achieved goals are known then. If retention evicted steps in
    mid-episode, an episode ends before them for this purpose, and begins after them; an episode whose beginning was
    evicted still has all its later steps' goals.

    Args:
        goals: strategy. ``n_step``: must be 1. ``gamma``: discount factor.

    Raises:
        ValueError, TypeError: naming the argument.
    """

    kind = "hindsight"
    draws_uniforms = places_arrays = True

    def __init__(self, goals: Goals, n_step: int = 1, gamma: float = 0.99) -> None:
        super().__init__(n_step, gamma)
        if not isinstance(goals, Goals) or goals.kind not in STRATEGIES:
            raise TypeError(
                f"transitions: relabel={goals!r}, expected sharpwave.Future(k=4, reward_fn=...), Final or Episode"
            )
        if self.n_step != 1:
            raise ValueError(
                f"transitions: n_step={n_step} with relabel={type(goals).__name__}, expected n_step=1: under another "
                "goal the steps that a return sums have other rewards, and the episode may end before the last of them"
            )
        self.goals = goals

    @property
    def waits_for(self) -> str:
        return "a step can be sampled with relabel= once its episode has ended"

    def settings(self) -> dict[str, Any]:
        """Return ``n_step``, ``gamma``, and the strategy's settings."""
        return super().settings() | {"relabel": self.goals.settings()}

    def bind(self, log: StepLog) -> None:
        """Begin to serve ``log``.  Raises: ValueError: its spec has no such goals."""
        _check_goals(self.goals, log.spec)
        super().bind(log)
        self.known = core.EndedSteps()
        self._achieved, self._desired = (f"obs.{key}" for key in (self.goals.achieved_goal, self.goals.desired_goal))
        self._achieved_number = list(log.spec.fields).index(self._achieved)
        joined = log.spec.join_obs({name: name for name in log.spec.obs_names})
        self._nested = any(joined.get(name[4:]) != name for name in (self._achieved, self._desired))

    def only(self, names: frozenset[str]) -> Self:
        """Return a view of the same items whose batches have these fields only.

        Raises: ValueError: without the goals, which rewards need.
        """
        missing = [name for name in (self._achieved, self._desired) if name not in names]
        if missing:
            raise ValueError(f"fields=: relabelled transitions need {missing[0]!r}; add it, or 'obs'")
        return super().only(names)

    def drawn_segments(self, items: Ints, uniforms: Floats) -> Ints:
        """Return the segments of each step and of its new goal."""
        slots = self.segments(items)
        goal, _ = self._chosen(items, uniforms)
        return np.concatenate([slots, np.where(goal < 0, slots[:, 0], goal)[:, None]], axis=1)

    def _chosen(self, items: Ints, uniforms: Floats) -> Ints:
        """Return the segments of new goals, -1 for none, and their rows there: int64 [2, n]."""
        chosen = np.empty((2, len(items)), np.int64)
        log, goals = self._arrays.current(), self.goals
        core.choose_goals(log, items, uniforms, goals.share, STRATEGIES[goals.kind], self._spans, *chosen)
        return chosen

    def columns(self) -> Mapping[str, Column]:
        """Return the arrays of transitions, and which of them are relabelled."""
        return {**super().columns(), ".relabelled": Column(np.bool_)}

    def fill(self, target: BatchTarget) -> None:
        """Fill them like transitions, then relabel them by their random numbers, without their rewards."""
        super().fill(target)
        columns, (slot, frame) = target.columns, self._chosen(target.draw.items, target.draw.uniforms)
        np.greater_equal(slot, 0, out=columns[".relabelled"])
        rows = np.flatnonzero(slot >= 0)
        if not rows.size:
            return
        window = columns[self._desired]  # the same goal before and after the step
        pieces = np.stack([slot[rows], frame[rows], frame[rows], np.ones_like(rows), rows])
        reader = self._arrays.readers()[self._achieved_number]
        reader.read_pieces(pieces, window[:, 0])
        window[rows, 1] = window[rows, 0]

    def finish(self, target: BatchTarget) -> None:
        """Reward the transitions that have new goals."""
        self.complete(target.own_batch())

    def info(self, lane: Array, step: Array, fields: dict[str, Array]) -> Any:
        """Return ``reward_fn``'s ``info`` of some steps: by default their further ``fields`` [n], by name.

        Each is in its ``lane`` [n] the ``step`` [n].
        """
        return fields or None

    @property
    def filled_at_once(self) -> list[str] | None:
        """Columns of a batch in the core's order; ``None`` where the core does not fill them at once."""
        names = super().filled_at_once
        return None if names is None or self._nested else [*names, ".relabelled"]

    def filler(self, spans: Int32s) -> tuple[core.Filler, Ints, list[tuple[object, str]]]:
        """Return the filler of whole batches, without rewards of new goals (``complete``), as for transitions."""
        names = [name for name, _, _ in self._windows]
        filler = core.HindsightFiller(
            *self.windows(), self.known, spans, self.runs, names.index(self._achieved), names.index(self._desired),
            self.goals.share, STRATEGIES[self.goals.kind], self.gamma, self.stacks, *gather.limits(),
        )  # fmt: skip
        return filler, self.runs, []

    def complete(self, batch: Batch) -> None:
        """Reward the transitions of a batch that have new goals."""
        (rows,) = batch.relabelled.nonzero()
        if not rows.size:
            return
        fields = {name: values[rows] for name, values in batch.fields.items()}
        info = self.info(batch.lane[rows], batch.step[rows], fields)
        given = self._of(batch.next_obs, self._achieved)[rows], self._of(batch.obs, self._desired)[rows], info
        batch.reward[rows] = _called("reward_fn", self.goals.reward_fn, *given)
        if self.goals.terminated_fn is not None:
            ended = _called("terminated_fn", self.goals.terminated_fn, *given) != 0
            batch.terminated[rows] = ended
            batch.discount[rows] = np.where(ended, 0, self.gamma)

    def _of(self, obs: Any, name: str) -> Any:
        """Return a field of observations."""
        return self._spec.split_obs(obs)[name] if self._nested else obs[name[4:]]

    def batch(self, arrays: Arrays) -> Batch:
        """Return a ``Batch`` with ``relabelled``."""
        batch = super().batch(arrays)
        batch.relabelled = arrays[".relabelled"]
        return batch


def _check_goals(goals: Goals, spec: Spec) -> None:
    """Refuse a spec without the goals' fields.  Raises: ValueError."""
    keys = [name[4:] for name in spec.obs_names] if not spec.array_obs else []
    missing = [key for key in (goals.achieved_goal, goals.desired_goal) if key not in keys]
    if missing:
        there = f"has the keys {keys}" if keys else "is no dict"
        raise ValueError(
            f"transitions: relabel needs the observation's {missing[0]!r}, but it {there}; name the keys with "
            "achieved_goal= and desired_goal="
        )
    achieved, desired = (spec.fields[f"obs.{key}"] for key in (goals.achieved_goal, goals.desired_goal))
    if (achieved.shape, achieved.dtype) != (desired.shape, desired.dtype):
        raise ValueError(
            f"transitions: relabel with {goals.achieved_goal} of {achieved.shape} {achieved.dtype} and "
            f"{goals.desired_goal} of {desired.shape} {desired.dtype}, expected the same: one takes the other's place"
        )
    if achieved.ragged:
        raise ValueError(
            f"transitions: relabel with {goals.achieved_goal} of rows of any length, {achieved.shape} "
            f"{achieved.dtype}, expected goals of one shape"
        )
    if achieved.stack is not None or desired.stack is not None:
        raise ValueError(
            f"transitions: relabel with stacks of {goals.achieved_goal} or {goals.desired_goal}, expected fields "
            "without stack=: a goal is one value"
        )


def _called(name: str, function: GoalFunction, achieved: Array, desired: Array, info: Any) -> Array:
    """Return a function's values [n].  Raises: ValueError: it returned other values."""
    count, values = len(achieved), np.asarray(function(achieved, desired, info))
    if values.shape != (count,) or values.dtype.kind not in "buif":
        raise ValueError(
            f"{name}: returned shape {values.shape} {values.dtype} for {count} transitions, expected numbers "
            f"({count},): it is called for all of them at once"
        )
    if not core.all_within(values.astype(np.float64).reshape(-1), MAX_REWARD):
        raise ValueError(
            f"{name}: returned {values[~(np.abs(values) <= MAX_REWARD)][0]}, expected finite float32 values"
        )
    return values
