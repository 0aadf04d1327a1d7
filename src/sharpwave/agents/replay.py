"""Settings of the views that agents learn from. They open the view, so that agents need no store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sharpwave as sw
from sharpwave.agents.schedules import linear
from sharpwave.configuration import check, setting

MEMORY, LEARNING = "Replay memory", "Learning"


@dataclass(frozen=True)
class TransitionsSettings:
    """Settings of a view of n-step transitions, sampled uniformly or by priority."""

    batch_size: int = setting(32, "transitions per update", LEARNING, at_least=1)
    n_step: int = setting(1, "rewards summed before the bootstrap", LEARNING, at_least=1)
    gamma: float = setting(0.99, "discount factor per step", LEARNING, at_least=0, at_most=1)
    prioritized: bool = setting(False, "sample by temporal-difference error instead of uniformly", MEMORY)
    priority_alpha: float = setting(0.6, "prioritized: exponent of the priorities", MEMORY, at_least=0, at_most=1)
    beta_start: float = setting(
        0.4, "prioritized: initial exponent of the importance weights", MEMORY, at_least=0, at_most=1
    )
    beta_end: float = setting(1.0, "prioritized: final exponent of the weights", MEMORY, at_least=0, at_most=1)
    beta_steps: int = setting(1_000_000, "prioritized: steps from beta-start to beta-end", MEMORY, at_least=0)

    def __post_init__(self) -> None:
        check(self)

    @property
    def horizon(self) -> int:
        """Later steps that must arrive before a step can be sampled."""
        return self.n_step

    def open(self, store: sw.Store, name: str | None, seed: int) -> Any:
        """Make the view of ``store``."""
        sampler = sw.Prioritized(alpha=self.priority_alpha, beta=self.beta_start) if self.prioritized else sw.Uniform()
        return store.transitions(name=name, n_step=self.n_step, gamma=self.gamma, sampler=sampler, seed=seed)

    def beta(self, step: int) -> float | None:
        """Return the exponent of importance weights after ``step`` environment steps; None without priorities."""
        return linear(step, self.beta_start, self.beta_end, self.beta_steps) if self.prioritized else None
