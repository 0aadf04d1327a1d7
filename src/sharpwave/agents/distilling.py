"""Rewards for novelty as an option of agents that are made without it: random network distillation.

The reward of an observation is computed when a step is learned from, not when it is made: what was new then no longer
draws the agent once its predictor knows it.

Source: Burda et al. (2019), Exploration by random network distillation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from sharpwave.agents.learner import NetworkAgent, load_optimizer, optimizer_tensors
from sharpwave.agents.replay import EXPLORATION
from sharpwave.configuration import setting
from sharpwave.extras import Tensor, nn, torch


@dataclass(frozen=True)
class NoveltySettings:
    """Settings of rewards for novel observations."""

    novelty: str = setting(
        "none",
        "rnd: reward observations that a predictor of random features does not know yet",
        EXPLORATION,
        choices=("none", "rnd"),
    )
    novelty_weight: float = setting(
        0.5, "weight of rewards for novelty, whose deviation is 1, beside rewards", EXPLORATION, above=0
    )
    novelty_size: int = setting(64, "number of random features", EXPLORATION, at_least=1)
    novelty_lr: float = setting(
        1e-4, "their predictor's learning rate", EXPLORATION, flag="--novelty-learning-rate", above=0
    )

    def unused_novelty(self) -> Iterator[tuple[str, str]]:
        if self.novelty == "none":
            for name in ("novelty_weight", "novelty_size", "novelty_lr"):
                yield name, "--novelty rnd"


class DistillingAgent(NetworkAgent):
    """Agent that may be rewarded for novelty.

    Attributes:
        distillation: random features and their predictor; None: it is not rewarded.
    """

    distillation: Any = None

    def build(self) -> None:
        super().build()
        if self.settings.novelty == "rnd":
            from sharpwave.agents.inputs import inputs_for
            from sharpwave.agents.novelty import RandomDistillation

            settings, space = self.settings, self.spaces.seen
            inputs = partial(inputs_for, space, settings.network != "mlp", True)
            torso = partial(self.make_torso, settings.hidden_units)
            self.distillation = RandomDistillation(inputs, torso, settings.novelty_size).to(self.device)

    @cached_property
    def novelty_optimizer(self) -> torch.optim.Optimizer:
        """Adam for the predictor."""
        return torch.optim.Adam(self.distillation.predictor.parameters(), lr=self.settings.novelty_lr, fused=True)

    def learn_novelty(self, obs: Any) -> Tensor:
        """Make one step of the predictor's optimizer from observations [N, ...]; return the mean error before."""
        loss: Tensor = self.distillation.errors(obs).mean()
        self.novelty_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.novelty_optimizer.step()
        return loss.detach()

    # save

    def modules(self) -> dict[str, nn.Module]:
        return super().modules() | ({} if self.distillation is None else {"novelty": self.distillation})

    def state(self) -> dict[str, Any]:
        own = {} if self.distillation is None else {"novelty_optimizer": optimizer_tensors(self.novelty_optimizer)}
        return super().state() | own

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        if self.distillation is not None:
            load_optimizer(self.novelty_optimizer, state["novelty_optimizer"])
