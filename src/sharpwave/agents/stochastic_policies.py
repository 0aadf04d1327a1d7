"""Stochastic policies: what a network's predictions say about actions, for actors and for learners."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from sharpwave.agents.actions import NumberedActions
from sharpwave.agents.exploration import softmax_actions
from sharpwave.agents.protocol import Spaces
from sharpwave.spec import Field

SMALL = 0.01
"""Factor of a policy's last weights, so that at first all actions are alike (Andrychowicz et al. 2021, section 3.2)."""
RAW = "raw_action"
"""Step field of the actions that a Gaussian policy drew, before they were clipped to the environment's bounds."""


class Chosen(NamedTuple):
    """Actions of a policy.

    Attributes:
        action: [N, *shape], for the environment.
        log_probability: float32 [N], the logarithm of their probability or density.
        fields: values of ``Policy.step_fields`` by name, [N, ...].
    """

    action: npt.NDArray[Any]
    log_probability: npt.NDArray[np.float32]
    fields: Mapping[str, npt.NDArray[Any]]


class Policy(Protocol):
    """Distribution of actions given a network's predictions. Policies have no state; the layers are the network's."""

    def head(self, features: int) -> nn.Module:
        """Make the last layer: features [..., n] -> predictions [..., k]."""

    def step_fields(self) -> dict[str, Field]:
        """Return what of an action has to be stored beside the action itself."""

    def choose(self, predicted: Tensor, rng: np.random.Generator | None) -> Chosen:
        """Draw an action for each of predictions [N, k]; None: take the likeliest."""

    def log_probability(self, predicted: Tensor, batch: Any) -> Tensor:
        """Return the logarithm of the probability of a batch's actions, [B, T], given predictions [B, T, k]."""

    def entropy(self, predicted: Tensor) -> Tensor:
        """Return the entropy, [...], of predictions [..., k]."""


class Categorical(Policy):
    """Softmax of a logit for each of numbered actions; of an illegal one it is -infinity."""

    def __init__(self, actions: NumberedActions) -> None:
        self.actions = actions

    def head(self, features: int) -> nn.Module:
        return _small_layer(features, self.actions.count)

    def step_fields(self) -> dict[str, Field]:
        return {}

    def choose(self, predicted: Tensor, rng: np.random.Generator | None) -> Chosen:
        log_policy: npt.NDArray[np.float32] = predicted.log_softmax(dim=-1).cpu().numpy()
        if rng is None:
            number = log_policy.argmax(axis=1)
        else:
            number = softmax_actions(log_policy, np.ones(len(log_policy)), rng)
        taken = np.take_along_axis(log_policy, number[:, None], axis=1)[:, 0]
        return Chosen(self.actions.actions(number), taken, {})

    def log_probability(self, predicted: Tensor, batch: Any) -> Tensor:
        number: Tensor = self.actions.numbers(batch.action)
        return predicted.log_softmax(dim=-1).gather(-1, number.unsqueeze(-1)).squeeze(-1)

    def entropy(self, predicted: Tensor) -> Tensor:
        log_policy = predicted.log_softmax(dim=-1)
        return -(log_policy.exp() * log_policy.masked_fill(log_policy == -math.inf, 0.0)).sum(dim=-1)


class Gaussian(Policy):
    """Independent normal distributions, whose deviations are parameters and do not depend on the observation.

    It is over raw numbers of which -1 ... 1 are the range of actions between finite bounds; elsewhere they are the
    actions. The environment gets them within its bounds, but the density is that of the numbers before, so these are
    stored too.
    """

    def __init__(self, box: Box) -> None:
        self.box, self.size = box, math.prod(box.shape)
        low, high = box.low.astype(np.float32), box.high.astype(np.float32)
        bounded = np.isfinite(low) & np.isfinite(high)
        self._middle, self._half = np.zeros_like(low), np.ones_like(low)
        self._middle[bounded] = (low[bounded] + high[bounded]) / 2
        self._half[bounded] = (high[bounded] - low[bounded]) / 2

    def head(self, features: int) -> nn.Module:
        return _GaussianHead(features, self.size)

    def step_fields(self) -> dict[str, Field]:
        return {RAW: Field((self.size,), "float32")}

    def choose(self, predicted: Tensor, rng: np.random.Generator | None) -> Chosen:
        mean, log_std = (part.cpu().numpy() for part in predicted.chunk(2, dim=-1))
        noise = 0.0 if rng is None else rng.standard_normal(mean.shape, np.float32)
        raw = (mean + np.exp(log_std) * noise).astype(np.float32, copy=False)
        density = normal_log_density(predicted, torch.from_numpy(raw).to(predicted.device)).cpu().numpy()
        wide = self._middle + self._half * raw.reshape(-1, *self.box.shape)
        action = wide.clip(self.box.low, self.box.high).astype(self.box.dtype, copy=False)
        return Chosen(action, density, {RAW: raw})

    def log_probability(self, predicted: Tensor, batch: Any) -> Tensor:
        return normal_log_density(predicted, batch[RAW])

    def entropy(self, predicted: Tensor) -> Tensor:
        _, log_std = predicted.chunk(2, dim=-1)
        return (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(dim=-1)


def policy_for(spaces: Spaces, kind: str) -> Policy:
    """Return the policy for a space of actions: Gaussian for Box, categorical for what can be numbered.

    Raises:
        ValueError: a space of another kind; ``kind`` is the agent's name in it.
    """
    return Gaussian(spaces.action) if isinstance(spaces.action, Box) else Categorical(NumberedActions(spaces, kind))


def normal_log_density(predicted: Tensor, numbers: Tensor) -> Tensor:
    """Return the log density [...] of numbers [..., n] by normal distributions of (mean, log deviation) [..., 2n]."""
    mean, log_std = predicted.chunk(2, dim=-1)
    assert mean.shape == numbers.shape, (mean.shape, numbers.shape)
    distance = (numbers - mean) * (-log_std).exp()
    return (-0.5 * distance * distance - log_std - 0.5 * math.log(2 * math.pi)).sum(dim=-1)


class _GaussianHead(nn.Module):
    """Means of a layer, and logarithms of deviations that are parameters: features [..., n] -> [..., 2 * size]."""

    def __init__(self, features: int, size: int) -> None:
        super().__init__()
        self.mean, self.log_std = _small_layer(features, size), nn.Parameter(torch.zeros(size))

    def forward(self, features: Tensor) -> Tensor:
        mean = self.mean(features)
        return torch.cat([mean, self.log_std.expand_as(mean)], dim=-1)


def _small_layer(features: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(features, outputs)
    with torch.no_grad():
        layer.weight.mul_(SMALL)
        layer.bias.zero_()
    return layer
