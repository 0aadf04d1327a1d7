"""Value decomposition: a team learns the value of its joint action as a sum of one value for each agent.

Each agent acts by its own value, which sees only what that agent observes; their sum is trained by the team's reward.
``QMIX`` has a mixing network in place of the sum. The agents share one network, which is told their number; it is
feed-forward, so what an agent must remember, its observation must hold.

Source: Sunehag et al. (2018), Value-decomposition networks for cooperative multi-agent learning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.agents.averaging import move_towards
from sharpwave.agents.devices import pick_device
from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.losses import squared
from sharpwave.agents.modules import load_optimizer, load_tensors, optimizer_tensors, tensors_of, to_tensors
from sharpwave.agents.protocol import Acted, Agent, Learned, Obs, Rows, Spaces
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.configuration import check, setting
from sharpwave.teams import ACTION_MASK

if TYPE_CHECKING:
    import torch
    from gymnasium.spaces import Space
    from torch import Tensor, nn

    from sharpwave.agents.teams import Seen

LEARNING, NETWORK = "Learning", "Network"


@dataclass(frozen=True)
class VDNSettings:
    """Settings of value decomposition."""

    kind: ClassVar[str] = "vdn"

    replay: TransitionsSettings = field(default_factory=lambda: TransitionsSettings(batch_size=128))
    exploration: EpsilonGreedy = field(default_factory=lambda: EpsilonGreedy(end=0.05, steps=50_000))

    hidden_units: int = setting(64, "units of each hidden layer", NETWORK, at_least=1)
    double: bool = setting(True, "double Q-learning", LEARNING)
    reward_scale: float = setting(1.0, "factor of the rewards that are learned from", LEARNING, above=0)
    lr: float = setting(5e-4, "learning rate of Adam", LEARNING, flag="--learning-rate", above=0)
    adam_eps: float = setting(1e-5, "epsilon of Adam", LEARNING, above=0)
    max_grad_norm: float = setting(10.0, "gradients are clipped to this norm; 0: never", LEARNING, at_least=0)
    target_tau: float = setting(
        0.01, "share by which each update moves the target networks", LEARNING, above=0, at_most=1
    )

    def __post_init__(self) -> None:
        check(self)


class VDNState(NamedTuple):
    """Acting state: which of the run's ``of`` lanes these are."""

    lanes: slice
    of: int


class VDN(Agent):
    """Agent for a team: online and target network, each of the agents' values and their mixture, and the optimizer."""

    Settings: type[VDNSettings] = VDNSettings

    def __init__(
        self, spaces: Spaces, settings: VDNSettings | None = None, device: torch.device | str = "cpu", seed: Any = 0
    ) -> None:
        from sharpwave.agents.teams import TeamInputs, team_of

        self.spaces, self.settings = spaces, settings or self.Settings()
        self.device = pick_device(device)
        self.team = team_of(spaces, self.Settings.kind)
        self._rng = np.random.default_rng(seed)
        self.inputs = TeamInputs(spaces, self.team).to(self.device)
        self.online, self.target = self.networks().to(self.device), self.networks().to(self.device)
        self.target.requires_grad_(False)
        move_towards(self.target, self.online, 1.0)

    # network

    def networks(self) -> nn.ModuleDict:
        """Make fresh networks: "agent" maps what an agent observes to Q [..., A]; "mixer" those of the actions taken,
        [B, N], and the state to the team's value [B]."""
        from torch import nn

        from sharpwave.agents.teams import layers

        agent = layers(self.inputs.features, self.settings.hidden_units, self.team.actions)
        return nn.ModuleDict({"agent": agent, "mixer": self.mixer()})

    def mixer(self) -> nn.Module:
        """Make what turns the agents' values [B, N] and the state [B, S] into the team's value [B]."""
        from sharpwave.agents.mixing import Sum

        return Sum()

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """Adam for the online networks; made on first use, because torch takes a second to import it."""
        import torch

        return torch.optim.Adam(self.online.parameters(), lr=self.settings.lr, eps=self.settings.adam_eps, fused=True)

    # act

    def begin(self, lanes: int, first_lane: int = 0, of_lanes: int | None = None) -> VDNState:
        return VDNState(slice(first_lane, first_lane + lanes), of_lanes or first_lane + lanes)

    def act(self, obs: Obs, state: VDNState, step: int, explore: bool = True) -> Acted:
        from sharpwave.agents.teams import legal_epsilon_greedy
        from sharpwave.teams import legal_actions

        (values,), mask = self.infer(obs), np.asarray(obs[ACTION_MASK])
        if not explore:
            return Acted(np.where(legal_actions(mask), values, -np.inf).argmax(axis=2), state)
        epsilons = self.settings.exploration.epsilons(step, state.of)[state.lanes]
        return Acted(legal_epsilon_greedy(values, mask, epsilons, self._rng), state)

    @property
    def inference_space(self) -> Space[Any] | None:
        return self.spaces.observation

    def infer(self, obs: Obs, *memory: Rows) -> tuple[Rows, ...]:
        """Return each agent's Q, float32 [lanes, N, A], illegal actions included."""
        import torch

        with torch.inference_mode():
            return (self.online["agent"](self.inputs(to_tensors(obs, self.device)).agents).cpu().numpy(),)

    def scored_lanes(self, lanes: int) -> npt.NDArray[np.bool_]:
        return self.settings.exploration.scored(lanes)

    # learn

    def replay(self) -> TransitionsSettings:
        return self.settings.replay

    def targets(self, seen: Seen, reward: Tensor, discount: Tensor) -> Tensor:
        """Compute the team's targets, float32 [B]: the return plus the mixture of each agent's best legal value.

        A mixture that rises with every agent's value is highest at each agent's own best action, so that the best of
        all joint actions needs no search.

        Args:
            seen: what is observed after n steps.  reward, discount: float32 [B].
        """
        from sharpwave.agents.teams import best_legal, taken

        values = self.target["agent"](seen.agents)
        chosen = best_legal(self.online["agent"](seen.agents) if self.settings.double else values, seen.legal)
        mixed: Tensor = self.target["mixer"](taken(values, chosen), seen.state)
        return reward + discount * mixed

    def loss(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Compute the weighted mean of the items' squared errors, and the errors, unweighted, float32 [B]."""
        import torch

        from sharpwave.agents.teams import taken

        with torch.no_grad():
            reward = self.settings.reward_scale * batch.reward
            targets = self.targets(self.inputs(batch.next_obs), reward, batch.discount)
        seen = self.inputs(batch.obs)
        value = self.online["mixer"](taken(self.online["agent"](seen.agents), batch.action), seen.state)
        td_error = targets - value
        return (batch.weights * squared(td_error)).mean(), td_error.detach()

    def learn(self, batch: Any, step: int) -> Learned:
        from torch.nn.utils import clip_grad_norm_

        loss, td_error = self.loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.settings.max_grad_norm > 0:
            clip_grad_norm_(self.online.parameters(), self.settings.max_grad_norm)
        self.optimizer.step()
        move_towards(self.target, self.online, self.settings.target_tau)
        return Learned(td_error, {"loss": loss.detach()})

    def schedules(self, step: int) -> dict[str, float]:
        beta = self.settings.replay.beta(step)
        return self.settings.exploration.schedules(step) | ({} if beta is None else {"beta": beta})

    # save

    def policy_tensors(self, explore: bool = False) -> dict[str, Tensor]:
        tensors = tensors_of({"inputs": self.inputs, "policy": self.online["agent"]})
        return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}

    def load_policy(self, tensors: Mapping[str, Tensor]) -> None:
        load_tensors({"inputs": self.inputs, "policy": self.online["agent"]}, tensors)

    def state(self) -> dict[str, Any]:
        return {
            "weights": tensors_of(self._modules()),
            "optimizer": optimizer_tensors(self.optimizer),
            "exploration": self._rng.bit_generator.state,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        load_tensors(self._modules(), state["weights"])
        load_optimizer(self.optimizer, state["optimizer"])
        self._rng.bit_generator.state = state["exploration"]

    def _modules(self) -> dict[str, nn.Module]:
        return {"inputs": self.inputs, "online": self.online, "target": self.target}
