"""PQN: Q-learning without replay and without a target network. Layer norm keeps it stable; lambda-returns and many
environments stand in for the memory. It is the baseline that replay has to beat.

Source: Gallici et al. (2024), Simplifying deep temporal difference learning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from sharpwave.agents.actions import legal_in, with_legal
from sharpwave.agents.architectures import networks
from sharpwave.agents.dqn import QAgent
from sharpwave.agents.exploration import EpsilonGreedy, ExplorationSettings
from sharpwave.agents.learner import LearningRateSettings
from sharpwave.agents.losses import lambda_returns, window_ends
from sharpwave.agents.replay import LEARNING, NETWORK
from sharpwave.agents.rollouts import RolloutSettings
from sharpwave.configuration import setting
from sharpwave.extras import Tensor, nn, torch
from sharpwave.nesting import map_leaves


@dataclass(frozen=True)
class PQNSettings(ExplorationSettings, LearningRateSettings):
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


class PQN(QAgent):
    """PQN agent: one network, and the optimizer."""

    Settings = PQNSettings

    def network(self) -> nn.Module:
        units = self.settings.hidden_units
        torso = self.make_torso(units, normalized=True)
        hidden = (nn.Linear(torso.features, units), nn.LayerNorm(units), nn.ReLU())
        return nn.Sequential(torso, *hidden, nn.Linear(units, self.actions.count))

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.RAdam(parameters, lr=self.settings.lr)

    def loss(self, batch: Any) -> tuple[Tensor, None]:
        """Compute the mean over real steps of half the squared error of Q(s, a) against its lambda-return."""
        mask = batch.mask
        obs = map_leaves(lambda one: one.flatten(0, 1), batch.obs)  # [B, T + 1, ...]: the step after the last, too
        q = self.online(self.inputs(obs)).unflatten(0, (len(mask), -1))
        value = with_legal(q.detach(), legal_in(self.spaces, batch.obs))[:, 1:].amax(dim=2)
        target = lambda_returns(batch.step_reward, batch.discount, value, window_ends(mask), self.settings.trace)
        action = self.actions.numbers(batch.action)
        error = target - q[:, :-1].gather(2, action.unsqueeze(2)).squeeze(2)
        return 0.5 * (error.square() * mask).sum() / mask.sum(), None
