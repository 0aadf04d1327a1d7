"""Heads: what is predicted of each action's return - its mean, or its distribution - and how that is learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from sharpwave.agents.distributions import kl_divergence, midpoints, project, quantile_huber
from sharpwave.agents.losses import huber, squared


class Losses(NamedTuple):
    """Outcome of :meth:`Head.loss`, unweighted.

    Attributes:
        losses: float32 [B], with gradient.
        errors: float32 [B], temporal-difference errors, for priorities.
    """

    losses: Tensor
    errors: Tensor


class Head(Protocol):
    """Meaning of a network's predictions [B, A, *outputs]. Heads are stateless; the layers are the network's.

    Attributes:
        outputs: shape of what the network predicts of one action.
    """

    @property
    def outputs(self) -> tuple[int, ...]: ...

    def draw(self, items: int, rng: np.random.Generator) -> Tensor | None:
        """Draw the quantile fractions, float32 [B, N], that the network is asked for; None: it takes none."""

    def values(self, predicted: Tensor) -> Tensor:
        """Return Q [B, A] of predictions [B, A, *outputs]."""

    def target(self, predicted: Tensor, policy: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Return what should have been predicted of the taken actions, [B, *outputs].

        Args:
            predicted: float [B, A, *outputs], in s_{t+n}, by the target network.
            policy: float [B, A], probabilities of the next actions.
            reward, discount: float [B], the n-step return and gamma^n * (1 - terminated).
        """

    def loss(self, predicted: Tensor, target: Tensor, fractions: Tensor | None = None) -> Losses:
        """Compare predictions of the taken actions with their targets, both [B, *outputs].

        Args:
            fractions: those of :meth:`draw`, by which ``predicted`` was made.
        """


@dataclass(frozen=True)
class Expected(Head):
    """Mean of the return, by the Huber or the squared loss of its error."""

    delta: float = 1.0
    mse: bool = False

    @property
    def outputs(self) -> tuple[int, ...]:
        return ()

    def draw(self, items: int, rng: np.random.Generator) -> None:
        return None

    def values(self, predicted: Tensor) -> Tensor:
        return predicted

    def target(self, predicted: Tensor, policy: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        return reward + discount * _mixed(predicted, policy)

    def loss(self, predicted: Tensor, target: Tensor, fractions: Tensor | None = None) -> Losses:
        error = target - predicted
        return Losses(squared(error) if self.mse else huber(error, self.delta), error.detach())


@dataclass(frozen=True)
class C51(Head):
    """Probabilities of ``atoms`` equally spaced returns. Errors are the losses, as Rainbow prioritizes them.

    Source: Bellemare, Dabney and Munos (2017), A distributional perspective on reinforcement learning, algorithm 1.
    """

    atoms: int = 51
    low: float = -10.0
    high: float = 10.0

    @property
    def outputs(self) -> tuple[int, ...]:
        return (self.atoms,)

    def draw(self, items: int, rng: np.random.Generator) -> None:
        return None

    def values(self, predicted: Tensor) -> Tensor:
        # A product of matrices would be rounded to bfloat16 under autocast, and values of actions become equal.
        return (predicted.softmax(dim=2) * self._support(predicted)).sum(dim=2)

    def target(self, predicted: Tensor, policy: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        returns = reward.unsqueeze(1) + discount.unsqueeze(1) * self._support(predicted)
        return project(returns, _mixed(predicted.softmax(dim=2), policy), self.low, self.high)

    def loss(self, predicted: Tensor, target: Tensor, fractions: Tensor | None = None) -> Losses:
        losses = kl_divergence(predicted, target)
        return Losses(losses, losses.detach())

    def _support(self, like: Tensor) -> Tensor:
        return torch.linspace(self.low, self.high, self.atoms, device=like.device)


@dataclass(frozen=True)
class QR(Head):
    """Quantiles of the return at fixed fractions, by quantile regression.

    Source: Dabney et al. (2018), Distributional reinforcement learning with quantile regression, algorithm 1.
    """

    quantiles: int = 200
    delta: float = 1.0

    @property
    def outputs(self) -> tuple[int, ...]:
        return (self.quantiles,)

    def draw(self, items: int, rng: np.random.Generator) -> Tensor | None:
        return None

    def values(self, predicted: Tensor) -> Tensor:
        return predicted.mean(dim=2)

    def target(self, predicted: Tensor, policy: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        return reward.unsqueeze(1) + discount.unsqueeze(1) * _mixed(predicted, policy)

    def loss(self, predicted: Tensor, target: Tensor, fractions: Tensor | None = None) -> Losses:
        if fractions is None:
            fractions = midpoints(predicted.shape[1], predicted.device)
        errors = target.mean(dim=1) - predicted.detach().mean(dim=1)
        return Losses(quantile_huber(predicted, fractions, target, self.delta), errors)


@dataclass(frozen=True)
class IQN(QR):
    """Quantiles of the return at fractions that are drawn for every item: the network maps fractions to quantiles.

    Source: Dabney et al. (2018), Implicit quantile networks for distributional reinforcement learning.
    """

    quantiles: int = 64

    @property
    def outputs(self) -> tuple[int, ...]:
        return ()

    def draw(self, items: int, rng: np.random.Generator) -> Tensor:
        return torch.from_numpy(rng.random((items, self.quantiles), np.float32))


def _mixed(predicted: Tensor, policy: Tensor) -> Tensor:
    """Return the mean over actions, weighted by ``policy`` [B, A], of predictions [B, A, ...]."""
    weights = policy.reshape(policy.shape + (1,) * (predicted.ndim - 2))
    return (weights * predicted).sum(dim=1)
