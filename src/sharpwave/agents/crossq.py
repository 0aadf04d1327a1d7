"""CrossQ: soft actor-critic without target networks. Critics see both sides of a transition in one batch, over which
their layers' inputs are normalized: so values of next actions, which the replay memory lacks, have the same statistics.

Source: Bhatt et al. (2024), CrossQ: batch normalization in deep reinforcement learning for greater sample efficiency
and simplicity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from sharpwave.agents.protocol import Learned
from sharpwave.agents.replay import NETWORK
from sharpwave.agents.sac import SAC, SACSettings
from sharpwave.configuration import again, expect, setting
from sharpwave.extras import Tensor, torch

if TYPE_CHECKING:
    from sharpwave.agents.hidden_layers import LayerStyle


@dataclass(frozen=True)
class CrossQSettings(SACSettings):
    """Settings of CrossQ; the defaults are those of Bhatt et al. (2024)."""

    kind: ClassVar[str] = "crossq"

    critic_units: int | None = setting(2048, "units of the critics' hidden layers", NETWORK, at_least=1)
    lr: float = again(SACSettings, lr=1e-3)
    policy_delay: int = again(SACSettings, policy_delay=3)

    def unused(self) -> Iterator[tuple[str, str]]:
        yield from super().unused()
        yield "target_tau", "an agent with target networks"

    def __post_init__(self) -> None:
        super().__post_init__()
        expect(self, "blocks", self.blocks == "plain", "plain: CrossQ's layers are normalized over the batch")
        expect(self, "layer_norm", not self.layer_norm, "False: CrossQ's layers are normalized over the batch")


class CrossQ(SAC):
    """CrossQ agent: soft actor-critic with normalized networks, and nothing that follows them."""

    Settings = CrossQSettings
    BETAS = (0.5, 0.999)

    def target_network(self) -> None:
        return None

    def actor_style(self) -> LayerStyle:
        return replace(super().actor_style(), normalized="batch")

    def critic_style(self) -> LayerStyle:
        return replace(super().critic_style(), normalized="batch")

    # learn

    def joint_values(self, batch: Any, inputs: Any) -> tuple[Tensor, Tensor]:
        """Compute the critics' values of a batch in one pass with those of the next actions.

        Args:
            inputs: those of the batch's observations.
        Returns:
            values with gradient and their targets, as of ``bootstrapped``.
        """
        from sharpwave.agents.hidden_layers import learning

        critics = self.critics
        with torch.no_grad():
            next_inputs = self.inputs(batch.next_obs)
            next_action, log_prob = self.draw(next_inputs)
        features = torch.cat([critics.torso(inputs), critics.torso(next_inputs)])
        with learning(critics):
            values = critics(features, torch.cat([self.actions.scaled(batch.action), next_action]))
        q, next_q = values.chunk(2, dim=1)
        chosen = self.chosen_critics()
        next_q = next_q.detach() if chosen is None else next_q.detach()[chosen]
        return q, self.bootstrapped(next_q, log_prob, batch)

    def update(self, batch: Any, moves: bool) -> Learned:
        from sharpwave.agents.hidden_layers import learning

        inputs = self.inputs(batch.obs)
        with self.autocast():
            q, targets = self.joint_values(batch, inputs)
        loss, td_error = self.critic_loss(q, targets, batch.weights)
        metrics = {"loss": loss.detach()}
        if moves:
            with self.autocast():
                with learning(self.actor):
                    action, log_prob = self.draw(inputs)
                gradient = self.value_gradient(inputs, action)
            metrics |= self.policy_metrics(log_prob)
            loss = loss + self.policy_loss(action, log_prob, gradient)
        self.minimize(loss)
        return Learned(td_error, metrics)
