"""CrossQ: soft actor-critic without target networks. Critics see both sides of a transition in one batch, over which
their layers' inputs are normalized: so values of next actions, which the replay memory lacks, have the same statistics.

Source: Bhatt et al. (2024), CrossQ: batch normalization in deep reinforcement learning for greater sample efficiency
and simplicity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from sharpwave.agents.protocol import Learned
from sharpwave.agents.replay import LEARNING, NETWORK
from sharpwave.agents.sac import SAC, SACSettings, twin_targets
from sharpwave.configuration import setting
from sharpwave.extras import Tensor, torch


@dataclass(frozen=True)
class CrossQSettings(SACSettings):
    """Settings of CrossQ; the defaults are those of Bhatt et al. (2024)."""

    kind: ClassVar[str] = "crossq"

    critic_units: int = setting(2048, "units of each of the critics' two hidden layers", NETWORK, at_least=1)
    lr: float = setting(1e-3, "learning rate of Adam", LEARNING, flag="--learning-rate", above=0)
    policy_delay: int = setting(
        3, "updates of the critics for each of the policy and its temperature", LEARNING, at_least=1
    )

    def unused(self) -> Iterator[tuple[str, str]]:
        yield from super().unused()
        yield "target_tau", "an agent with target networks"


class CrossQ(SAC):
    """CrossQ agent: soft actor-critic with normalized networks, and nothing that follows them."""

    Settings = CrossQSettings
    COUNTS = ("updates",)
    BETAS = (0.5, 0.999)
    NORMALIZED = True

    def build(self) -> None:
        super().build()
        self.updates = 0

    def target_network(self) -> None:
        return None

    # learn

    def joint_values(self, batch: Any, inputs: Any) -> tuple[Tensor, Tensor]:
        """Compute the critics' values of a batch in one pass with those of the next actions.

        Args:
            inputs: those of the batch's observations.
        Returns:
            values with gradient, float32 [2, B], and their targets, float32 [B].
        """
        from sharpwave.agents.actor_networks import learning

        critics = self.critics
        with torch.no_grad():
            next_inputs = self.inputs(batch.next_obs)
            next_action, log_prob = self.draw(next_inputs)
        features = torch.cat([critics.torso(inputs), critics.torso(next_inputs)])
        with learning(critics):
            values = critics(features, torch.cat([self.actions.scaled(batch.action), next_action]))
        q, next_q = values.chunk(2, dim=1)
        bonus = -self.temperature() * log_prob
        return q, twin_targets(next_q.detach(), bonus, batch.reward, batch.discount)

    def learn(self, batch: Any, step: int) -> Learned:
        from sharpwave.agents.actor_networks import learning

        inputs = self.inputs(batch.obs)
        with self.autocast():
            q, targets = self.joint_values(batch, inputs)
        loss, td_error = self.critic_loss(q, targets, batch.weights)
        metrics = {"loss": loss.detach()}
        self.updates += 1
        if self.updates % self.settings.policy_delay == 0:
            with self.autocast():
                with learning(self.actor):
                    action, log_prob = self.draw(inputs)
                gradient = self.value_gradient(inputs, action)
            metrics |= self.policy_metrics(log_prob)
            loss = loss + self.policy_loss(action, log_prob, gradient)
        self.minimize(loss)
        return Learned(td_error, metrics)
