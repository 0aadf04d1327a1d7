"""Behaviour cloning: a policy that is trained to repeat the actions of the data, and the baseline of learning offline.

It needs no rewards and asks for no better actions than the data have. Numbered actions are learned by their
probabilities and the likeliest is made; continuous ones by their mean, or by the likelihood of a Gaussian policy.

Source: Pomerleau (1991), Efficient training of artificial neural networks for autonomous navigation.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box

import sharpwave as sw
from sharpwave.agents.actions import NumberedActions, legal_in, legal_rows, with_legal, within
from sharpwave.agents.architectures import networks
from sharpwave.agents.continuous import BoxActions
from sharpwave.agents.episode_outcomes import MeasuredData
from sharpwave.agents.learner import move_towards
from sharpwave.agents.losses import action_cross_entropy, squared
from sharpwave.agents.protocol import Acted, Learned, Obs, ViewSettings
from sharpwave.agents.replay import LEARNING, NETWORK, OfflineSettings, TransitionsSettings, standardized
from sharpwave.configuration import Checked, setting
from sharpwave.extras import Tensor, nn, torch

LOG_STD = (-5.0, 2.0)
"""Bounds of a cloned policy's logarithmic standard deviation, those of Kostrikov et al.'s own code."""
EDGE = 1e-3
"""Least distance from the bounds, as a share of half their range, of actions whose squashed likelihood is learned."""


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
    standardize: bool = standardized(False)

    lr: float = setting(1e-3, "learning rate of Adam", LEARNING, flag="--learning-rate", above=0)
    likelihood: str = setting(
        "squared",
        "loss of continuous actions: squared errors; the likelihood of a gaussian around a mean between the bounds, "
        "of the same deviation everywhere; or of one of its own deviation that is squashed between the bounds by tanh",
        LEARNING,
        choices=("squared", "gaussian", "tanh"),
    )
    weight_decay: float = setting(0.0, "decay of the weights, as of AdamW", LEARNING, at_least=0)
    average_decay: float = setting(
        0.0,
        "decay of the exponential mean of the policy's weights over updates, which acts; 0: the weights themselves",
        LEARNING,
        at_least=0,
        below=1,
    )


class BC(MeasuredData):
    """Behaviour cloning agent: one network, the mean of its weights that acts, and the optimizer. It never explores.

    Where a small error grows from step to step until the episode ends, policies that are a few updates apart may play
    very differently. The mean of their weights varies less.
    """

    Settings: type[BCSettings] = BCSettings
    EXPLORES = False

    def build(self) -> None:
        self.box = self.spaces.action if isinstance(self.spaces.action, Box) else None
        self.numbered = None if self.box is not None else NumberedActions(self.spaces, self.Settings.kind)
        self.likelihood = "squared" if self.box is None else self.settings.likelihood
        scaled = self.box is not None and (self.likelihood == "tanh" or is_bounded(self.box))
        self.bounds = BoxActions(self.spaces, self.Settings.kind) if scaled else None
        self.inputs = self.make_inputs()
        self.policy = self.network().to(self.device)
        self.average: nn.Module = self.follower("average", copy.deepcopy(self.policy), self.policy)

    # network

    def network(self) -> nn.Module:
        """Make a fresh network: outputs of ``inputs`` -> logits [B, A], or the mean of continuous actions [B, size];
        of a likelihood, means and logarithms of deviations [B, 2 * size]."""
        from sharpwave.agents.actor_networks import GaussianHead

        units, size = self.settings.hidden_units, self.action_size
        torso, gaussian = self.make_torso(units), self.likelihood == "gaussian"
        outputs = size * (1 + (self.likelihood == "tanh"))
        last = GaussianHead(units, size) if gaussian else nn.Linear(units, outputs)
        return nn.Sequential(torso, nn.Linear(torso.features, units), nn.ReLU(), last)

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
        if self.bounds is not None and self.likelihood != "squared":
            return Acted(self.bounds.actions(np.tanh(predicted[:, : self.action_size])), state)
        action = predicted[:, : self.action_size]
        action = action.reshape(len(predicted), *self.box.shape).clip(self.box.low, self.box.high)
        return Acted(action.astype(self.box.dtype, copy=False), state)

    def best(self, predicted: Tensor, obs: Any) -> Tensor:
        if self.numbered is not None:
            numbered: Tensor = self.numbered.actions(with_legal(predicted, legal_in(self.spaces, obs)).argmax(dim=1))
            return numbered
        assert self.box is not None
        mean = predicted[:, : self.action_size]
        if self.bounds is not None and self.likelihood != "squared":
            squashed: Tensor = self.bounds.actions(mean.tanh())
            return squashed
        return within(mean.reshape(-1, *self.box.shape), self.box)

    # learn

    def imitation(self, inputs: Any, batch: Any) -> Tensor:
        """Compute the loss of each item, float [B]: cross entropy of numbered actions, squared error of others or less
        the logarithm of their likelihood.

        Args:
            inputs: of the batch's observations.
        """
        predicted = self.policy(inputs)
        if self.numbered is not None:
            action = self.numbered.numbers(batch.action)
            return action_cross_entropy(with_legal(predicted, legal_in(self.spaces, batch.obs), action), action)
        action = batch.action.reshape(len(predicted), -1).to(predicted.dtype)
        if self.likelihood == "squared":
            # The negative log-likelihood of a Gaussian policy of fixed variance, but for a factor and a constant.
            return squared(predicted - action).mean(dim=1)
        mean, log_std = predicted.chunk(2, dim=1)
        log_std = log_std.clamp(*LOG_STD)
        if self.bounds is None:
            return -gaussian_log_prob(mean, log_std, action)
        action = self.bounds.scaled(batch.action)
        if self.likelihood == "gaussian":
            return -gaussian_log_prob(mean.tanh(), log_std, action)
        return -squashed_log_prob(mean, log_std, action)

    def learn(self, batch: Any, step: int) -> Learned:
        loss = self.imitation(self.inputs(batch.obs), batch).mean()
        self.minimize(loss)
        self.follow(step)
        return Learned(None, {"loss": loss.detach()})

    def follow(self, step: int) -> None:
        """Move the mean that acts: of all updates so far while they are few."""
        move_towards(self.average, self.policy, max(1.0 - self.settings.average_decay, 1.0 / (1.0 + step)))


def is_bounded(box: Box) -> bool:
    """Return whether each number of an action has finite bounds, the lower below the upper."""
    return bool((np.isfinite(box.low) & np.isfinite(box.high) & (box.low < box.high)).all())


def gaussian_log_prob(mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
    """Compute the logarithmic density of actions under Gaussian policies of independent numbers, float [B].

    Args:
        mean, log_std, action: float [B, n].
    """
    assert mean.shape == log_std.shape == action.shape, (mean.shape, log_std.shape, action.shape)
    each = -0.5 * squared((action - mean) * (-log_std).exp()) - log_std
    return each.sum(dim=1) - 0.5 * math.log(2.0 * math.pi) * mean.shape[1]


def squashed_log_prob(mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
    """Compute the logarithmic density of actions under Gaussian policies squashed by tanh, float [B].

    Args:
        mean, log_std: float [B, n], of the Gaussian.
        action: float [B, n] in -1 ... 1, within ``EDGE`` of which actions are moved inside: at the bounds the density
            is infinite or 0.
    Source: Haarnoja et al. (2018), Soft actor-critic, appendix C, eq. 21, for u = atanh(a).
    """
    inside = action.clamp(EDGE - 1.0, 1.0 - EDGE)
    return gaussian_log_prob(mean, log_std, inside.atanh()) - (1.0 - squared(inside)).log().sum(dim=1)
