"""Settings of the views that agents learn from. They open the view, so that no agent holds a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sharpwave as sw
from sharpwave.agents.schedules import linear
from sharpwave.configuration import check, setting

MEMORY, LEARNING = "Replay memory", "Learning"


@dataclass(frozen=True)
class TransitionsSettings:
    """Settings of n-step transitions, drawn uniformly or by priority."""

    batch_size: int = setting(32, "transitions an update", LEARNING, at_least=1)
    n_step: int = setting(1, "rewards summed before the bootstrap", LEARNING, at_least=1)
    gamma: float = setting(0.99, "discount of a step", LEARNING, at_least=0, at_most=1)
    prioritized: bool = setting(False, "draw by temporal-difference error instead of uniformly", MEMORY)
    priority_alpha: float = setting(0.6, "prioritized: exponent of the priorities", MEMORY, at_least=0, at_most=1)
    beta_start: float = setting(
        0.4, "prioritized: first exponent of the importance weights", MEMORY, at_least=0, at_most=1
    )
    beta_end: float = setting(1.0, "prioritized: its final value", MEMORY, at_least=0, at_most=1)
    beta_steps: int = setting(1_000_000, "prioritized: steps from beta-start to beta-end", MEMORY, at_least=0)

    def __post_init__(self) -> None:
        check(self)

    @property
    def horizon(self) -> int:
        """Later steps that a step waits for before it can be sampled."""
        return self.n_step

    def open(self, store: sw.Store, name: str | None, seed: int) -> Any:
        """Make the view of ``store``."""
        sampler = sw.Prioritized(alpha=self.priority_alpha, beta=self.beta_start) if self.prioritized else sw.Uniform()
        return store.transitions(name=name, n_step=self.n_step, gamma=self.gamma, sampler=sampler, seed=seed)

    def beta(self, step: int) -> float | None:
        """Exponent of the importance weights after ``step`` environment steps; None without priorities."""
        return linear(step, self.beta_start, self.beta_end, self.beta_steps) if self.prioritized else None
