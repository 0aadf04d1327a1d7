"""Settings of the views that agents learn from. They open the view, so that agents need no store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sharpwave as sw
from sharpwave.agents.protocol import ViewSettings
from sharpwave.configuration import Checked, check, expect, setting

MEMORY, LEARNING, NETWORK, EXPLORATION = "Replay memory", "Learning", "Network", "Exploration"
"""Headings of agents' settings."""


@dataclass(frozen=True)
class TransitionsSettings(ViewSettings):
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
        rises = self.prioritized and self.beta_start != self.beta_end
        expect(self, "beta_steps", not rises or self.beta_steps > 0, "at least 1, or --beta-end as --beta-start")

    def unused(self) -> Iterator[tuple[str, str]]:
        if not self.prioritized:
            for name in ("priority_alpha", "beta_start", "beta_end", "beta_steps"):
                yield name, "--prioritized"

    @property
    def horizon(self) -> int:
        return self.n_step

    def open(self, store: sw.Store, name: str | None, seed: int) -> Any:
        sampler = sw.Prioritized(alpha=self.priority_alpha, beta=self.beta_start) if self.prioritized else sw.Uniform()
        return self._opened(store, name=name, n_step=self.n_step, gamma=self.gamma, sampler=sampler, seed=seed)

    def _opened(self, store: sw.Store, **settings: Any) -> Any:
        """Make the view."""
        return store.transitions(**settings)

    def beta(self, step: int) -> float | None:
        return linear(step, self.beta_start, self.beta_end, self.beta_steps) if self.prioritized else None


@dataclass(frozen=True)
class UpdateSettings:
    """Settings of agents that learn off-policy, from a memory that any number of updates may sample."""

    utd: float | None = setting(
        None,
        "updates per environment step, any ratio: .25, 1, 20; empty: one every update-every steps",
        LEARNING,
        above=0,
    )


@dataclass(frozen=True)
class FollowedTransitions(TransitionsSettings):
    """Settings of a view of transitions that come with the steps after them: windows that begin at every step.

    A window's first reward, discount and bootstrap are the transition's, and its priority is that of its largest error,
    so that errors of 0 for the steps after the first leave the priority to that one.

    Attributes:
        following: actions of a window, the transition's own included; one more observation is sure to be there.
    """

    following: int = 1

    @property
    def horizon(self) -> int:
        return self.n_step + self.following - 1

    def _opened(self, store: sw.Store, **settings: Any) -> Any:
        return store.sequences(self.following, stride=1, eta=1.0, **settings)


def standardized(default: bool) -> Any:
    """Declare the field of agents that measure vectors of observations in their data (``MeasuredData``)."""
    about = "vectors of observations: subtract their mean in the data and divide by their deviation"
    return setting(default, about, NETWORK)


@dataclass(frozen=True)
class OfflineSettings(Checked):
    """Settings of an agent that learns offline. A run's steps are its updates, and so are all periods."""

    data: str = setting(
        "",
        "what is learned from: the folder of a store or of a run, a checkpoint's folder or .sharpwave file, or a data "
        "set: npz:FILE, hdf5:FILE, minari:NAME, parquet:FILE, lerobot:FOLDER, rlds:FOLDER",
        "Data",
    )
    best_share: float = setting(
        1.0,
        "share of the data's episodes that is learned from, those of the highest returns",
        "Data",
        above=0,
        at_most=1,
    )


@dataclass(frozen=True)
class OnlineSettings(OfflineSettings):
    """Settings of an agent that learns offline first, and may then go on in the environment."""

    online_after: int | None = setting(
        None,
        "updates from data alone; each later step plays one step in the environment, which is learned from too, and "
        "makes an update; empty: all updates are from data",
        "Data",
        at_least=0,
    )


def linear(step: int, start: float, end: float, over: int) -> float:
    """Interpolate from ``start`` at step 0 to ``end`` at step ``over``; later ``end``.

    Args:
        step: environment steps so far.  over: environment steps of the change; 0: ``end`` at once.
    """
    if step >= over:
        return end
    return start + (end - start) * (step / over)
