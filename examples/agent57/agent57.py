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
import torch
from torch import Tensor, nn

from agent57.ngu import NGU, NOVELTY, NGUSettings, NGUState
from sharpwave.agents.bandits import Bandit, Floats, Ints
from sharpwave.agents.losses import signed_hyperbolic, signed_parabolic
from sharpwave.agents.protocol import Obs
from sharpwave.configuration import expect, setting

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


class Heads(nn.Module):
    """Heads side by side: their predictions, concatenated in the last dimension."""

    def __init__(self, *heads: nn.Module) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)

    def forward(self, features: Tensor) -> Tensor:
        """Map features, float [B, features], to predictions, float32 [B, sum of the heads' outputs]."""
        return torch.cat([head(features) for head in self.heads], dim=-1)


class SlidingUCB(Bandit):
    """Mean + scale sqrt(1 / n_j) over each lane's last ``window`` choices, for rewards that change as an agent learns.

    Each arm is chosen once first, in order, and again when its last choice has left the window. Otherwise the arm is
    random with probability ``epsilon``.

    Args:
        scale: of the bonus, in units of rewards, which may be of any size.
    Source: Badia et al. (2020), Agent57, appendix D; Garivier and Moulines (2011), On upper-confidence bound policies
    for switching bandit problems, section 2.
    """

    def __init__(self, arms: int, lanes: int = 1, window: int = 160, epsilon: float = 0.5, scale: float = 1.0) -> None:
        if arms < 1 or lanes < 1 or window < arms:
            raise ValueError(
                f"SlidingUCB: got {arms} arms, {lanes} lanes and a window of {window}, expected at least 1, 1 and as "
                "many choices as arms"
            )
        self._arms, self._epsilon, self._scale = arms, epsilon, scale
        self.arm = np.full((lanes, window), -1)
        self.reward = np.zeros((lanes, window))
        self.made = np.zeros(lanes, np.int64)

    @property
    def counts(self) -> Floats:
        found: Floats = self._which.sum(axis=1, dtype=np.float64)
        return found

    @property
    def means(self) -> Floats:
        sums = (self._which * self.reward[..., None]).sum(axis=1)
        found: Floats = sums / np.maximum(self.counts, 1)
        return found

    @property
    def _which(self) -> npt.NDArray[np.bool_]:
        """Whether a choice was of an arm, bool [lanes, window, arms]."""
        which: npt.NDArray[np.bool_] = self.arm[..., None] == np.arange(self._arms)
        return which

    def choose(self, rng: np.random.Generator) -> Ints:
        counts = self.counts
        lanes = len(counts)
        drawn, explores = rng.integers(0, self._arms, lanes), rng.random(lanes) < self._epsilon
        bound = self.means + self._scale * np.sqrt(1 / np.maximum(counts, 1))
        best = np.where(counts == 0, np.inf, bound).argmax(axis=1)
        return np.where(explores & (counts.min(axis=1) > 0), drawn, best)

    def count(self, lane: Ints, arm: Ints, reward: Floats) -> None:
        for row, chosen, value in zip(lane, arm, reward, strict=True):
            at = self.made[row] % self.arm.shape[1]
            self.arm[row, at], self.reward[row, at] = chosen, value
            self.made[row] += 1

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return a copy of the choices in the window, by name."""
        return {name: getattr(self, name).copy() for name in ("arm", "reward", "made")}

    def load(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore the choices that ``state`` returned, of a bandit of as many lanes or fewer: the first lanes' are."""
        for name, saved in state.items():
            getattr(self, name)[: len(saved)] = saved


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
