"""Behaviour cloning: a policy that is trained to repeat the actions of the data, and the baseline of learning offline.

It needs no rewards and asks for no better actions than the data have. Numbered actions are learned by their
probabilities and the likeliest is made; continuous ones by their mean.

Source: Pomerleau (1991), Efficient training of artificial neural networks for autonomous navigation.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gymnasium.spaces import Box

import sharpwave as sw
from sharpwave.agents.actions import NumberedActions, legal_in, legal_rows, with_legal, within
from sharpwave.agents.architectures import networks
from sharpwave.agents.learner import NetworkAgent, move_towards
from sharpwave.agents.losses import action_cross_entropy, squared
from sharpwave.agents.protocol import Acted, Learned, Obs, ViewSettings
from sharpwave.agents.replay import LEARNING, NETWORK, OfflineSettings, TransitionsSettings
from sharpwave.configuration import Checked, setting
from sharpwave.extras import Tensor, nn, torch


@dataclass(frozen=True)
class PairsSettings(Checked, ViewSettings):
    """Settings of a view of observations and the actions made there, sampled uniformly: for imitation."""

    batch_size: int = setting(64, "pairs of observation and action per update", LEARNING, at_least=1)

    def open(self, store: sw.Store, name: str | None, seed: int) -> Any:
        return store.transitions(name=name, seed=seed)


@dataclass(frozen=True)
class BCSettings(OfflineSettings):
    kind: ClassVar[str] = "bc"

    replay: PairsSettings | TransitionsSettings = field(default_factory=PairsSettings)

    network: str = setting("auto", "torso of the policy; auto: by the observation", NETWORK, choices=networks)
    hidden_units: int = setting(128, "units of each hidden layer", NETWORK, at_least=1)
    standardize: bool = setting(
        False, "vectors of observations: subtract their mean in the data and divide by their deviation", NETWORK
    )

    lr: float = setting(1e-3, "learning rate of Adam", LEARNING, flag="--learning-rate", above=0)
    weight_decay: float = setting(0.0, "decay of the weights, as of AdamW", LEARNING, at_least=0)
    average_decay: float = setting(
        0.0,
        "decay of the exponential mean of the policy's weights over updates, which acts; 0: the weights themselves",
        LEARNING,
        at_least=0,
        below=1,
    )


class BC(NetworkAgent):
    """Behaviour cloning agent: one network, the mean of its weights that acts, and the optimizer. It never explores.

    Where a small error grows from step to step until the episode ends, policies that are a few updates apart may play
    very differently. The mean of their weights varies less.
    """

    Settings: type[BCSettings] = BCSettings
    FIRST_LOOK = 4096
    """Items of the data by which vectors are standardized."""

    EXPLORES = False

    def build(self) -> None:
        self.box = self.spaces.action if isinstance(self.spaces.action, Box) else None
        self.numbered = None if self.box is not None else NumberedActions(self.spaces, self.Settings.kind)
        self.inputs = self.make_inputs(self.settings.standardize)
        self.policy = self.network().to(self.device)
        self.average: nn.Module = self.follower("average", copy.deepcopy(self.policy), self.policy)

    # network

    def network(self) -> nn.Module:
        """Make a fresh network: outputs of ``inputs`` -> logits [B, A], or the mean of continuous actions [B, size]."""
        units = self.settings.hidden_units
        torso = self.make_torso(units)
        return nn.Sequential(torso, nn.Linear(torso.features, units), nn.ReLU(), nn.Linear(units, self.action_size))

    @property
    def action_size(self) -> int:
        """Outputs of the policy: numbered actions, or the numbers of a continuous one."""
        return math.prod(self.box.shape) if self.numbered is None else self.numbered.count  # type: ignore[union-attr]

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=self.settings.lr, weight_decay=self.settings.weight_decay, fused=True)

    def trained(self) -> dict[str, nn.Module]:
        return {"policy": self.policy}

    def acting(self, explore: bool) -> nn.Module:
        return self.average

    # act

    def act(self, obs: Obs, state: None, step: int, explore: bool = True) -> Acted:
        predicted = self.infer(obs)[0]
        if self.numbered is not None:
            predicted = legal_rows(predicted, legal_in(self.spaces, obs))
            return Acted(self.numbered.actions(predicted.argmax(axis=1)), state)
        assert self.box is not None
        action = predicted.reshape(len(predicted), *self.box.shape).clip(self.box.low, self.box.high)
        return Acted(action.astype(self.box.dtype, copy=False), state)

    def best(self, predicted: Tensor, obs: Any) -> Tensor:
        if self.numbered is not None:
            numbered: Tensor = self.numbered.actions(with_legal(predicted, legal_in(self.spaces, obs)).argmax(dim=1))
            return numbered
        assert self.box is not None
        return within(predicted.unflatten(1, self.box.shape), self.box)

    # learn

    @property
    def first_look(self) -> int:
        from sharpwave.agents.inputs import MeasuredInputs, has

        return self.FIRST_LOOK if has(self.inputs, MeasuredInputs) else 0

    def prepare(self, batch: Any) -> None:
        from sharpwave.agents.inputs import MeasuredInputs, standardize

        standardize(self.inputs, batch.obs, MeasuredInputs)

    def imitation(self, inputs: Any, batch: Any) -> Tensor:
        """Compute the loss of each item, float [B]: cross entropy of numbered actions, squared error of others.

        Args:
            inputs: of the batch's observations.
        """
        predicted = self.policy(inputs)
        if self.numbered is not None:
            action = self.numbered.numbers(batch.action)
            return action_cross_entropy(with_legal(predicted, legal_in(self.spaces, batch.obs), action), action)
        # The negative log-likelihood of a Gaussian policy of fixed variance, but for a factor and a constant.
        return squared(predicted - batch.action.flatten(1).to(predicted.dtype)).mean(dim=1)

    def learn(self, batch: Any, step: int) -> Learned:
        loss = self.imitation(self.inputs(batch.obs), batch).mean()
        self.minimize(loss)
        self.follow(step)
        return Learned(None, {"loss": loss.detach()})

    def follow(self, step: int) -> None:
        """Move the mean that acts: of all updates so far while they are few."""
        move_towards(self.average, self.policy, max(1.0 - self.settings.average_decay, 1.0 / (1.0 + step)))
