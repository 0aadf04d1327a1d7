"""Value decomposition: a team learns the value of its joint action by a mixture of one value for each agent.

Each agent acts by its own value, which sees only that agent's observation; their mixture is trained by the team's
reward. The agents share one network, which is told their number; it is feed-forward, so an agent's observation must
hold all that it has to remember.

``VDN`` sums the values. ``QMIX`` mixes them by a network that rises with every agent's value. It learns teams that a
sum cannot describe, where one agent's best action depends on the others, as long as a higher value of one agent never
lowers the team's. The mixing network learns with the state of the environment; acting needs only the agents' values.

``TeamAgent`` is the part that multi-agent SAC shares: one network that acts for all agents of a team.

Sources: Sunehag et al. (2018), Value-decomposition networks for cooperative multi-agent learning; Rashid et al. (2018),
QMIX: monotonic value function factorisation for deep multi-agent reinforcement learning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sharpwave.agents.actions import epsilon_greedy
from sharpwave.agents.dqn import QState
from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.learner import NetworkAgent, move_towards
from sharpwave.agents.losses import squared
from sharpwave.agents.protocol import Acted, Bools, Learned, Obs
from sharpwave.agents.replay import LEARNING, NETWORK, TransitionsSettings, UpdateSettings
from sharpwave.configuration import Checked, setting
from sharpwave.extras import Tensor, nn, torch
from sharpwave.teams import ACTION_MASK, legal_actions

if TYPE_CHECKING:
    from sharpwave.agents.team_networks import TeamSeen


@dataclass(frozen=True)
class TeamSettings(Checked, UpdateSettings):
    """Settings that agents for teams share."""

    replay: TransitionsSettings = field(default_factory=lambda: TransitionsSettings(batch_size=128))

    hidden_units: int = setting(64, "units of each hidden layer", NETWORK, at_least=1)
    lr: float = setting(5e-4, "learning rate of Adam", LEARNING, flag="--learning-rate", above=0)
    adam_eps: float = setting(1e-5, "epsilon of Adam", LEARNING, above=0)
    max_grad_norm: float = setting(10.0, "gradients are clipped to this norm; 0: never", LEARNING, at_least=0)
    target_tau: float = setting(
        0.01, "share by which each update moves the target networks", LEARNING, above=0, at_most=1
    )


class TeamAgent(NetworkAgent):
    """Agent for a team. Its agents share one network that acts, on the observation of each.

    Attributes:
        team: sizes of the team.
    """

    def build(self) -> None:
        from sharpwave.agents.team_networks import TeamInputs, team_of

        self.team = team_of(self.spaces, self.Settings.kind)
        self.inputs = TeamInputs(self.spaces, self.team).to(self.device)

    def predicted(self, obs: Any) -> Tensor:
        """Return Q or logits of each agent's actions, float32 [lanes, N, A], illegal ones included."""
        predicted: Tensor = self.acting(True)(self.inputs(obs).agents)
        return predicted

    def best(self, predicted: Tensor, obs: Any) -> Tensor:
        return best_legal(predicted, self.inputs(obs).legal)


@dataclass(frozen=True)
class VDNSettings(TeamSettings):
    kind: ClassVar[str] = "vdn"

    exploration: EpsilonGreedy = field(default_factory=lambda: EpsilonGreedy(end=0.05, steps=50_000))

    double: bool = setting(True, "double Q-learning", LEARNING)
    reward_scale: float = setting(1.0, "factor of the rewards that are learned from", LEARNING, above=0)


class VDN(TeamAgent):
    """Agent for a team: online and target network, each of the agents' values and their mixture, and the optimizer."""

    Settings: type[VDNSettings] = VDNSettings
    settings: VDNSettings

    def build(self) -> None:
        super().build()
        self.online = self.networks().to(self.device)
        self.target = self.follower("target", self.networks(), self.online)

    # network

    def networks(self) -> nn.ModuleDict:
        """Make fresh networks: "agent" maps an agent's observation to Q [..., A]; "mixer" those of the actions taken,
        [B, N], and the state to the team's value [B]."""
        from sharpwave.agents.team_networks import layers

        agent = layers(self.inputs.features, self.settings.hidden_units, self.team.actions)
        return nn.ModuleDict({"agent": agent, "mixer": self.mixer()})

    def mixer(self) -> nn.Module:
        """Make the mixture of the agents' values: these [B, N] and the state [B, S] -> the team's value [B]."""
        from sharpwave.agents.team_networks import Sum

        return Sum()

    def trained(self) -> dict[str, nn.Module]:
        return {"online": self.online}

    def acting(self, explore: bool) -> nn.Module:
        return self.online["agent"]

    # act

    def begin(self, lanes: int, first_lane: int = 0, of_lanes: int | None = None) -> QState:
        return QState(lanes=slice(first_lane, first_lane + lanes), of=of_lanes or first_lane + lanes)

    def act(self, obs: Obs, state: QState, step: int, explore: bool = True) -> Acted:
        (values,), mask = self.infer(obs), np.asarray(obs[ACTION_MASK])
        greedy = np.where(legal_actions(mask), values, -np.inf).argmax(axis=2)
        if not explore:
            return Acted(greedy, state)
        epsilons = self.settings.exploration.epsilons(step, state.of)[state.lanes, None]
        return Acted(epsilon_greedy(greedy, self.team.actions, epsilons, self._rng, mask), state)

    def scored_lanes(self, lanes: int) -> Bools:
        return self.settings.exploration.scored(lanes)

    # learn

    def targets(self, seen: TeamSeen, reward: Tensor, discount: Tensor) -> Tensor:
        """Compute the team's targets, float32 [B]: the return plus the mixture of each agent's best legal value.

        A mixture that rises with every agent's value is highest at each agent's own best action, so that the best of
        all joint actions needs no search.

        Args:
            seen: observations after n steps.  reward, discount: float32 [B].
        """
        values = self.target["agent"](seen.agents)
        chosen = best_legal(self.online["agent"](seen.agents) if self.settings.double else values, seen.legal)
        mixed: Tensor = self.target["mixer"](taken(values, chosen), seen.state)
        return reward + discount * mixed

    def loss(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Compute the weighted mean of the items' squared errors, and the errors, unweighted, float32 [B]."""
        with torch.no_grad():
            reward = self.settings.reward_scale * batch.reward
            targets = self.targets(self.inputs(batch.next_obs), reward, batch.discount)
        seen = self.inputs(batch.obs)
        value = self.online["mixer"](taken(self.online["agent"](seen.agents), batch.action), seen.state)
        td_error = targets - value
        return (batch.weights * squared(td_error)).mean(), td_error.detach()

    def learn(self, batch: Any, step: int) -> Learned:
        loss, td_error = self.loss(batch)
        self.minimize(loss, self.online)
        move_towards(self.target, self.online, self.settings.target_tau)
        return Learned(td_error, {"loss": loss.detach()})

    def schedules(self, step: int) -> dict[str, float]:
        return self.settings.exploration.schedules(step) | super().schedules(step)


@dataclass(frozen=True)
class QMIXSettings(VDNSettings):
    """Settings of QMIX: those of value decomposition, and the size of the mixing network."""

    kind: ClassVar[str] = "qmix"

    mixing_units: int = setting(32, "units of the mixing network's hidden layer", NETWORK, at_least=1)


class QMIX(VDN):
    """Agent for a team: value decomposition with a mixing network."""

    Settings = QMIXSettings
    settings: QMIXSettings

    def mixer(self) -> nn.Module:
        from sharpwave.agents.team_networks import Mixer

        return Mixer(self.team.agents, self.inputs.state_size, self.settings.mixing_units)


def best_legal(values: Tensor, legal: Tensor) -> Tensor:
    """Return the legal action of the highest value, int64 [..., N]; the first of equal ones."""
    return values.masked_fill(~legal, -math.inf).argmax(dim=-1)


def taken(values: Tensor, action: Tensor) -> Tensor:
    """Return the values of actions, [..., N] of [..., N, A]."""
    return values.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)
