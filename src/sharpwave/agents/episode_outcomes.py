"""Outcomes of recorded steps: the data's columns that agents need beside a transition, and scales measured by them.

An outcome is known once the step's episode has ended. It is a column of the store that is added when the view is
opened; ``batch.mask_of(NAME)`` is false for steps of an episode that goes on. Returns of an episode that was broken off
(``BROKEN_OFF``) never get known: they are NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

import sharpwave as sw
from sharpwave.agents.learner import NetworkAgent
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.extras import nn
from sharpwave.format.annotations import BROKEN_OFF

RETURN_TO_GO, EPISODE_RETURN, NEXT_ACTION = "return_to_go", "episode_return", "next_action"
"""Names of the columns."""
Rows = npt.NDArray[Any]


@dataclass(frozen=True)
class OutcomeSettings(TransitionsSettings):
    """Settings of a view of transitions whose batches have outcomes, those that a subclass names."""

    OUTCOMES: ClassVar[tuple[str, ...]] = ()

    def open(self, store: sw.Store, name: str | None, seed: int) -> Any:
        for outcome in self.OUTCOMES:
            number = sw.Field((), "float32")
            like = store.spec.fields["action"] if outcome == NEXT_ACTION else number
            if outcome not in store.columns:
                store.add_column(outcome, sw.Field(like.shape, like.dtype))
        self.complete(store)
        return super().open(store, name, seed)

    def complete(self, store: sw.Store) -> None:
        """Compute the outcomes of episodes that have ended since the last call."""
        ways: dict[str, Callable[[Any], Rows]] = {
            RETURN_TO_GO: lambda one: _unless_broken_off(one, returns_to_go(one.reward, self.gamma)),
            EPISODE_RETURN: lambda one: _unless_broken_off(one, np.full(one.length, one.total_reward, np.float32)),
            NEXT_ACTION: lambda one: following(one.action, self.n_step),
        }
        for outcome in self.OUTCOMES:
            store.derive(outcome, ways[outcome])


def _unless_broken_off(one: Any, returns: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.full_like(returns, np.nan) if one.info.get(BROKEN_OFF) else returns


def complete(replay: Any, store: sw.Store) -> None:
    """Compute the outcomes that the settings ``replay`` of a view ask for, if they ask for any."""
    if isinstance(replay, OutcomeSettings):
        replay.complete(store)


def returns_to_go(reward: Rows, gamma: float) -> npt.NDArray[np.float32]:
    """Compute Monte-Carlo returns of an episode: G_t = r_{t+1} + gamma G_{t+1}, nothing after its last step.

    Args:
        reward: float [T], r_{t+1} for step t.
    Returns:
        float32 [T].
    Source: Sutton and Barto (2018), eq. 3.9. Of a truncated episode, too, the sum ends with the data, as in the code of
        Nakamoto et al. (2023).
    """
    assert reward.ndim == 1, reward.shape
    returns, behind = np.empty(len(reward)), 0.0
    for t in reversed(range(len(reward))):
        behind = float(reward[t]) + gamma * behind
        returns[t] = behind
    return returns.astype(np.float32)


def following(action: Rows, steps: int) -> Rows:
    """Return the actions made ``steps`` later in an episode, [T, *shape]: NaN where it ends before.

    Args:
        action: float [T, *shape].
    """
    later = np.full_like(action, np.nan)
    later[:-steps] = action[steps:]
    return later


class MeasuredData(NetworkAgent):
    """Base of agents that measure their data before the first update, as far as their settings say so:
    ``standardize`` vectors of observations, ``normalize_rewards``."""

    FIRST_LOOK = 4096
    """Items of the data that are measured."""

    def make_inputs(self, standardize: bool = False) -> nn.Module:
        from sharpwave.agents.inputs import RewardScale

        self.rewards = RewardScale().to(self.device)
        return super().make_inputs(standardize or self.settings.standardize)

    @property
    def _normalizes(self) -> bool:
        return getattr(self.settings, "normalize_rewards", False)

    def modules(self) -> dict[str, nn.Module]:
        return super().modules() | ({"rewards": self.rewards} if self._normalizes else {})

    @property
    def first_look(self) -> int:
        from sharpwave.agents.inputs import MeasuredInputs, has

        return self.FIRST_LOOK if self._normalizes or has(self.inputs, MeasuredInputs) else 0

    def prepare(self, batch: Any) -> None:
        from sharpwave.agents.inputs import MeasuredInputs, standardize

        standardize(self.inputs, batch.obs, MeasuredInputs)
        if self._normalizes:
            returns = batch[EPISODE_RETURN][batch.mask_of(EPISODE_RETURN)]
            self.rewards.measure(returns[~returns.isnan()])
