"""Which goals transitions are relabelled with when they are sampled: hindsight experience replay's strategies."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

GoalFunction = Callable[[Any, Any, Any], Any]
"""``compute_reward`` of a goal environment: achieved_goal [n, *shape], desired_goal [n, *shape] and info to [n]."""


@dataclass(frozen=True, kw_only=True)
class Goals:
    """Strategy of hindsight experience replay (Andrychowicz et al. 2017): ``k`` of ``k + 1`` sampled transitions get
    a goal that was achieved in their own episode in place of the desired one, and the reward for that.

    Args:
        k: relabelled transitions for each one as it was stored, at least 0: a transition is relabelled with
            probability ``k / (k + 1)``, independently of others.
        reward_fn: ``reward_fn(achieved_goal, desired_goal, info)``, rewards [n] of n relabelled transitions at once, as
            ``compute_reward`` of Gymnasium-Robotics: their achieved goals after the step and their new desired ones,
            [n, *shape]; ``info`` is a dict of the spec's further fields, [n, *shape] by name, or ``None`` if there
            are none. It is called while the store's lock is held; an error of it leaves everything undrawn.
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
        name, number = type(self).__name__, isinstance(self.k, (int, float, np.integer, np.floating))
        if not number or isinstance(self.k, bool) or not (self.k >= 0 and math.isfinite(self.k)):
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
        """Return what identifies it in a checkpoint, as JSON values; functions are not part of it."""
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
