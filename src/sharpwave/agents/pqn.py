"""PQN: Q-learning without replay and without a target network. Layer norm keeps it stable; lambda-returns and many
environments stand in for the memory. It is the baseline that replay has to beat.

Source: Gallici et al. (2024), Simplifying deep temporal difference learning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.agents.actions import NumberedActions
from sharpwave.agents.architectures import networks
from sharpwave.agents.devices import pick_device
from sharpwave.agents.exploration import EpsilonGreedy, ExplorationSettings
from sharpwave.agents.legal import legal_in, legal_rows, with_legal
from sharpwave.agents.losses import lambda_returns
from sharpwave.agents.modules import load_optimizer, load_tensors, optimizer_tensors, tensors_of, to_tensors
from sharpwave.agents.protocol import Acted, Agent, Learned, Obs, Rows, Spaces, Valued
from sharpwave.agents.replay import RolloutSettings
from sharpwave.agents.schedules import linear
from sharpwave.configuration import check, setting

if TYPE_CHECKING:
    import torch
    from gymnasium.spaces import Space
    from torch import Tensor, nn

LEARNING, NETWORK = "Learning", "Network"


@dataclass(frozen=True)
class PQNSettings(ExplorationSettings):
    """Settings of PQN; the defaults are those of Gallici et al. (2024) for MinAtar where they are given there."""

    kind: ClassVar[str] = "pqn"

    replay: RolloutSettings = field(default_factory=RolloutSettings)
    exploration: EpsilonGreedy = field(default_factory=lambda: EpsilonGreedy(end=0.05))

    network: str = setting("auto", "torso of the Q-network; auto: by the observation", NETWORK, choices=networks)
    hidden_units: int = setting(128, "units of the hidden layer", NETWORK, at_least=1)

    trace: float = setting(
        0.65, "lambda of the returns: 0: of one step, 1: of the whole window", LEARNING, at_least=0, at_most=1
    )
    lr: float = setting(5e-4, "learning rate of RAdam", LEARNING, flag="--learning-rate", above=0)
    lr_end: float = setting(1e-6, "final learning rate", LEARNING, flag="--learning-rate-end", above=0)
    lr_steps: int = setting(
        1_000_000, "steps from learning-rate to learning-rate-end", LEARNING, flag="--learning-rate-steps", at_least=1
    )
    max_grad_norm: float = setting(10.0, "gradients are clipped to this norm; 0: never", LEARNING, at_least=0)

    def __post_init__(self) -> None:
        check(self)


class PQNState(NamedTuple):
    """Acting state: which of the run's ``of`` lanes these are."""

    lanes: slice
    of: int


class PQN(Agent):
    """PQN agent: one network, and the optimizer."""

    Settings = PQNSettings

    def __init__(
        self, spaces: Spaces, settings: PQNSettings | None = None, device: torch.device | str = "cpu", seed: Any = 0
    ) -> None:
        from sharpwave.agents.inputs import inputs_for

        self.spaces, self.settings = spaces, settings or PQNSettings()
        self.device = pick_device(device)
        self.actions = NumberedActions(spaces, self.Settings.kind)
        self._rng = np.random.default_rng(seed)
        self.inputs = inputs_for(spaces.seen, images=self.settings.network != "mlp").to(self.device)
        self.online = self.network().to(self.device)

    # network

    def network(self) -> nn.Module:
        """Make a fresh network: what ``inputs`` give -> Q [B, A]."""
        from torch import nn

        from sharpwave.agents.torsos import torso_for

        units = self.settings.hidden_units
        torso = torso_for(self.spaces.seen, self.settings.network, units, normalized=True)
        hidden = (nn.Linear(torso.features, units), nn.LayerNorm(units), nn.ReLU())
        return nn.Sequential(torso, *hidden, nn.Linear(units, self.actions.count))

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """RAdam for the network; made on first use, because torch takes a second to import it."""
        import torch

        return torch.optim.RAdam(self.online.parameters(), lr=self.settings.lr)

    # act

    def begin(self, lanes: int, first_lane: int = 0, of_lanes: int | None = None) -> PQNState:
        return PQNState(slice(first_lane, first_lane + lanes), of_lanes or first_lane + lanes)

    def act(self, obs: Obs, state: PQNState, step: int, explore: bool = True) -> Acted:
        q = self.values(obs)
        strategy = self.settings.strategy
        chosen = strategy.choose(q, step, state.lanes, state.of, self._rng) if explore else q.argmax(axis=1)
        return Acted(self.actions.actions(chosen), state)

    @property
    def inference_space(self) -> Space[Any] | None:
        return self.spaces.observation

    def infer(self, obs: Obs, *memory: Rows) -> tuple[Rows, ...]:
        """Return Q, float32 [N, A]."""
        import torch

        with torch.inference_mode():
            return (self.online(self.inputs(to_tensors(obs, self.device))).cpu().numpy(),)

    def values(self, obs: Obs) -> npt.NDArray[np.float32]:
        """Return Q, float32 [N, A], for observations [N, ...]; -infinity for illegal actions."""
        return legal_rows(self.infer(obs)[0], legal_in(self.spaces, obs))

    def values_along(self, obs: Obs, action: npt.NDArray[Any], reward: npt.NDArray[Any], state: PQNState) -> Valued:
        return Valued(self.values(obs), self.actions.numbers(action), state)

    def differentiable_q(self, inputs: Any, state: PQNState) -> Tensor:
        """Return Q [B, A] of the output of ``inputs``, for gradients."""
        q: Tensor = self.online(inputs)
        return q

    def scored_lanes(self, lanes: int) -> npt.NDArray[np.bool_]:
        return self.settings.strategy.scored(lanes)

    # learn

    def replay(self) -> RolloutSettings:
        return self.settings.replay

    def loss(self, batch: Any) -> Tensor:
        """Compute the mean over real steps of half the squared error of Q(s, a) against its lambda-return."""
        import torch

        mask = batch.mask
        obs = batch.obs if isinstance(batch.obs, dict) else {"": batch.obs}
        flat = {name: one.flatten(0, 1) for name, one in obs.items()}  # [B, T + 1, ...]: the step behind the last, too
        q = self.online(self.inputs(flat if isinstance(batch.obs, dict) else flat[""])).unflatten(0, (len(mask), -1))
        ends = torch.cat([~mask[:, 1:], mask.new_ones(len(mask), 1)], dim=1)
        value = with_legal(q.detach(), legal_in(self.spaces, batch.obs))[:, 1:].amax(dim=2)
        target = lambda_returns(batch.step_reward, batch.discount, value, ends, self.settings.trace)
        action = self.actions.numbers(batch.action)
        error = target - q[:, :-1].gather(2, action.unsqueeze(2)).squeeze(2)
        loss: Tensor = 0.5 * (error.square() * mask).sum() / mask.sum()
        return loss

    def learn(self, batch: Any, step: int) -> Learned:
        from torch.nn.utils import clip_grad_norm_

        self.optimizer.param_groups[0]["lr"] = self._learning_rate(step)
        loss = self.loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.settings.max_grad_norm > 0:
            clip_grad_norm_(self.online.parameters(), self.settings.max_grad_norm)
        self.optimizer.step()
        return Learned(None, {"loss": loss.detach()})

    def schedules(self, step: int) -> dict[str, float]:
        return self.settings.strategy.schedules(step) | {"learning_rate": self._learning_rate(step)}

    def _learning_rate(self, step: int) -> float:
        return linear(step, self.settings.lr, self.settings.lr_end, self.settings.lr_steps)

    # save

    def policy_tensors(self, explore: bool = False) -> dict[str, Tensor]:
        tensors = tensors_of({"inputs": self.inputs, "policy": self.online})
        return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}

    def load_policy(self, tensors: Mapping[str, Tensor]) -> None:
        load_tensors({"inputs": self.inputs, "policy": self.online}, tensors)

    def state(self) -> dict[str, Any]:
        return {
            "weights": tensors_of({"inputs": self.inputs, "online": self.online}),
            "optimizer": optimizer_tensors(self.optimizer),
            "exploration": self._rng.bit_generator.state,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        load_tensors({"inputs": self.inputs, "online": self.online}, state["weights"])
        load_optimizer(self.optimizer, state["optimizer"])
        self._rng.bit_generator.state = state["exploration"]
