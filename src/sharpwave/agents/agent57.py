"""Agent57: NGU whose values of reward and of novelty have a head each, and whose lanes choose policies by bandits.

Reward and novelty differ in size and in how fast they change; learned apart, neither hides the other. Which of the
family's policies plays an episode is chosen by a bandit, by the returns of each policy's last episodes.

Source: Badia et al. (2020), Agent57: outperforming the Atari human benchmark. There both values have networks of their
own; heads on one core are those of Kapturowski et al. (2022), Human-level Atari 200x faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sharpwave.agents.bandits import SlidingUCB
from sharpwave.agents.losses import signed_hyperbolic, signed_parabolic
from sharpwave.agents.ngu import NGU, NOVELTY, NGUSettings, NGUState
from sharpwave.agents.protocol import Obs
from sharpwave.configuration import expect, setting
from sharpwave.extras import Tensor, nn, torch

UNDECIDED = -1
"""Policy of a lane whose episode has not begun."""


@dataclass(frozen=True)
class Agent57Settings(NGUSettings):
    """Settings of Agent57; the defaults are those of Badia et al. (2020), appendix G, where they are given there."""

    kind: ClassVar[str] = "agent57"

    bandit_window: int = setting(
        160, "episodes by which each environment's bandit chooses the next one's policy", NOVELTY, at_least=1
    )
    bandit_epsilon: float = setting(0.5, "probability of a random policy", NOVELTY, at_least=0, at_most=1)
    bandit_scale: float = setting(
        1.0, "bonus of policies that were seldom chosen, in units of an episode's return", NOVELTY, at_least=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.bandit_window >= self.policies
        expect(self, "bandit_window", fits, f"at least --policies {self.policies}")


@dataclass(frozen=True, eq=False, kw_only=True)
class Agent57State(NGUState):
    """Acting state of Agent57.

    Attributes:
        total: float64 [lanes], sum of the episode's rewards.
    """

    total: npt.NDArray[np.float64]


class Agent57(NGU):
    """Agent57: NGU with a head for each kind of value, and a bandit for each lane."""

    Settings = Agent57Settings
    settings: Agent57Settings

    def build(self) -> None:
        super().build()
        self.bandit = self._bandit(1)

    def _bandit(self, lanes: int) -> SlidingUCB:
        settings = self.settings
        return SlidingUCB(
            settings.policies, lanes, settings.bandit_window, settings.bandit_epsilon, settings.bandit_scale
        )

    # network

    def head(self) -> nn.Module:
        from sharpwave.agents.recurrent import Heads

        return Heads(super().head(), super().head())

    def combined(self, q: Tensor, beta: Tensor) -> Tensor:
        """Return h(h^-1(Q of rewards) + beta h^-1(Q of novelty)), without ``rescale`` Q of rewards + beta Q of novelty.

        Source: Badia et al. (2020), appendix B.
        """
        of_reward, of_novelty = q.chunk(2, dim=-1)
        if not self.settings.rescale:
            return of_reward + beta * of_novelty
        return signed_hyperbolic(signed_parabolic(of_reward) + beta * signed_parabolic(of_novelty))

    # act

    def begin(self, lanes: int, first_lane: int = 0, of_lanes: int | None = None) -> Agent57State:
        state = super().begin(lanes, first_lane, of_lanes)
        if state.of > len(self.bandit.made):
            grown = self._bandit(state.of)
            grown.load(self.bandit.state())
            self.bandit = grown
        return Agent57State(**vars(state) | {"policy": np.full(lanes, UNDECIDED)}, total=np.zeros(lanes))

    def scored_lanes(self, lanes: int) -> npt.NDArray[np.bool_]:
        return self.settings.strategy.scored(lanes)

    def enter(self, obs: Obs, state: Any, explore: bool) -> NGUState:
        undecided = state.policy == UNDECIDED
        if explore and undecided.any():
            policy = np.where(undecided, self.bandit.choose(self._rng)[state.lanes], state.policy)
            state = replace(state, policy=policy)
        return super().enter(obs, state, explore)

    def observe(self, state: Any, reward: npt.NDArray[Any], ended: npt.NDArray[np.bool_]) -> Any:
        total, counts = state.total + reward, ended & (state.policy != UNDECIDED)
        lanes = np.arange(state.lanes.start, state.lanes.stop)
        self.bandit.update(state.policy[counts], total[counts], lanes[counts])
        policy, total = np.where(ended, UNDECIDED, state.policy), np.where(ended, 0.0, total)
        return replace(super().observe(state, reward, ended), policy=policy, total=total)

    # learn

    def streams(
        self, q: Tensor, target_q: Tensor, reward: Tensor, intrinsic: Tensor, beta: Tensor
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        return [*zip(q.chunk(2, dim=-1), target_q.chunk(2, dim=-1), (reward, intrinsic), strict=True)]

    # save

    def state(self) -> dict[str, Any]:
        return {**super().state(), "bandit": {name: torch.from_numpy(one) for name, one in self.bandit.state().items()}}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        saved = {name: one.numpy() for name, one in state["bandit"].items()}
        self.bandit = self._bandit(len(saved["made"]))
        self.bandit.load(saved)
