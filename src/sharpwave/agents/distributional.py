"""Distributional Q-learning: predictions of each action's return, their losses, and Rainbow's layers.

A head gives a network's predictions their meaning: the mean of the return, probabilities of atoms (C51), or quantiles
(QR, IQN). Losses are pure functions, one value an item. Noisy layers explore by learned noise on their weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sharpwave.agents.losses import huber, squared
from sharpwave.agents.networks import QHead, QNetwork

ACTING_FRACTIONS = 32
"""Quantile fractions by which an implicit quantile network acts; K of Dabney et al. (2018)."""
FORMED_ROWS, FORMED_WEIGHTS = 16, 1 << 19
"""From how many items, and up to how many weights, the noisy weights are computed as a matrix."""


class Head(Protocol):
    """Meaning of a network's predictions [B, A, *outputs]. Heads are stateless; the layers are the network's.

    Attributes:
        outputs: shape of the predictions for one action.
    """

    @property
    def outputs(self) -> tuple[int, ...]: ...

    def draw(self, items: int, rng: np.random.Generator) -> Tensor | None:
        """Draw the quantile fractions, float32 [B, N], that the network is asked for; None: it takes none."""
        return None

    def values(self, predicted: Tensor) -> Tensor:
        """Return Q [B, A] of predictions [B, A, *outputs]."""

    def target(self, predicted: Tensor, policy: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Return the targets of the predictions for the taken actions, [B, *outputs].

        Args:
            predicted: float [B, A, *outputs], in s_{t+n}, by the target network.
            policy: float [B, A], probabilities of the next actions.
            reward, discount: float [B], the n-step return and gamma^n * (1 - terminated).
        """

    def loss(self, predicted: Tensor, target: Tensor, fractions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compare predictions of the taken actions with their targets, both [B, *outputs].

        Args:
            fractions: those of :meth:`draw`, by which ``predicted`` was made.
        Returns:
            losses, with gradient, and temporal-difference errors for priorities; both float32 [B], unweighted.
        """


@dataclass(frozen=True)
class Expected(Head):
    """Mean of the return, by the Huber or the squared loss of its error."""

    delta: float = 1.0
    mse: bool = False

    @property
    def outputs(self) -> tuple[int, ...]:
        return ()

    def values(self, predicted: Tensor) -> Tensor:
        return predicted

    def target(self, predicted: Tensor, policy: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        return reward + discount * _mixed(predicted, policy)

    def loss(self, predicted: Tensor, target: Tensor, fractions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        error = target - predicted
        return squared(error) if self.mse else huber(error, self.delta), error.detach()


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

    def values(self, predicted: Tensor) -> Tensor:
        # A product of matrices would be rounded to bfloat16 under autocast, and values of actions become equal.
        return (predicted.softmax(dim=2) * self._support(predicted)).sum(dim=2)

    def target(self, predicted: Tensor, policy: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        returns = reward.unsqueeze(1) + discount.unsqueeze(1) * self._support(predicted)
        return project(returns, _mixed(predicted.softmax(dim=2), policy), self.low, self.high)

    def loss(self, predicted: Tensor, target: Tensor, fractions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        losses = kl_divergence(predicted, target)
        return losses, losses.detach()

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

    def values(self, predicted: Tensor) -> Tensor:
        return predicted.mean(dim=2)

    def target(self, predicted: Tensor, policy: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        return reward.unsqueeze(1) + discount.unsqueeze(1) * _mixed(predicted, policy)

    def loss(self, predicted: Tensor, target: Tensor, fractions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if fractions is None:
            fractions = midpoints(predicted.shape[1], predicted.device)
        errors = target.mean(dim=1) - predicted.detach().mean(dim=1)
        return quantile_huber(predicted, fractions, target, self.delta), errors


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


def project(returns: Tensor, probabilities: Tensor, low: float, high: float) -> Tensor:
    """Project distributions onto equally spaced atoms: each return's probability goes to its two neighbours, the
    nearer one gets the larger share. The mean is preserved unless a return lies outside the atoms.

    Args:
        returns: float [B, K], any values; those outside ``low`` to ``high`` count as the nearest bound.
        probabilities: float [B, K], of each return.
        low, high: first and last of the K atoms.
    Returns:
        float [B, K], the atoms' probabilities.
    Source: Bellemare, Dabney and Munos (2017), A distributional perspective on reinforcement learning, eq. 7.
    """
    assert returns.ndim == 2 and returns.shape == probabilities.shape, (returns.shape, probabilities.shape)
    last = returns.shape[1] - 1
    position = ((returns.clamp(low, high) - low) * (last / (high - low))).clamp_(0, last)
    lower = position.floor().clamp_(max=last - 1)
    share = position - lower  # of the upper neighbour
    index = lower.long()
    projected = (probabilities * (1 - share)).new_zeros(returns.shape)
    projected.scatter_add_(1, index, probabilities * (1 - share))
    return projected.scatter_add_(1, index + 1, probabilities * share)


def kl_divergence(logits: Tensor, target: Tensor) -> Tensor:
    """Compute the Kullback-Leibler divergence of predicted distributions from their targets: the cross-entropy less
    the target's own entropy, so that it is zero where they agree.

    Args:
        logits: float [B, K], predicted.  target: float [B, K], probabilities.
    Returns:
        float [B].
    Source: Hessel et al. (2018), Rainbow, section 4: the loss, and the priority.
    """
    assert logits.ndim == 2 and logits.shape == target.shape, (logits.shape, target.shape)
    return -(target * logits.log_softmax(dim=1)).sum(dim=1) + target.xlogy(target).sum(dim=1)


def midpoints(count: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the middles of ``count`` equal intervals of probability, float32 [1, count]: (i + 1/2) / count.

    Source: Dabney et al. (2018), Distributional reinforcement learning with quantile regression, lemma 2.
    """
    return ((torch.arange(count, device=device) + 0.5) / count).unsqueeze(0)


def quantile_huber(quantiles: Tensor, fractions: Tensor, target: Tensor, delta: float = 1.0) -> Tensor:
    """Compute the quantile regression loss with Huber's errors: the sum over quantiles of the mean over targets.

    Args:
        quantiles: float [B, N], predicted.
        fractions: float [B, N] or [1, N], probability below each quantile.
        target: float [B, M], samples of the target distribution.
        delta: error above which the Huber loss is linear; 0: the absolute error.
    Returns:
        float [B].
    Source: Dabney et al. (2018), Implicit quantile networks, eq. 3.
    """
    assert quantiles.ndim == target.ndim == fractions.ndim == 2 and len(quantiles) == len(target)
    assert fractions.shape[1] == quantiles.shape[1] and len(fractions) in (1, len(quantiles)), fractions.shape
    error = target.unsqueeze(1) - quantiles.unsqueeze(2)  # [B, N, M]
    size = huber(error, delta) / delta if delta > 0 else error.abs()
    tilt = (fractions.unsqueeze(2) - (error.detach() < 0).to(error.dtype)).abs()
    return (tilt * size).mean(dim=2).sum(dim=1)


class ImplicitQNetwork(QNetwork):
    """Implicit quantile network: a torso, a Q-head, and between them a product with embedded quantile fractions.

    Args:
        size: of the layer that the embedded fractions are multiplied with.
        behind_hidden: that is the head's hidden layer, which is then computed once for all fractions of an item; else
            it is the torso's features.
    Source: Dabney et al. (2018), Implicit quantile networks, eq. 4: 64 cosines, a linear layer, a ReLU.
    """

    COSINES = 64

    def __init__(self, torso: nn.Module, size: int, head: QHead, behind_hidden: bool = False) -> None:
        super().__init__(torso, head)
        self._behind_hidden = behind_hidden
        self.embedding = nn.Linear(self.COSINES, size)

    def forward(self, inputs: Tensor | dict[str, Tensor], fractions: Tensor | None = None) -> Tensor:
        """Map inputs to quantiles.

        Args:
            fractions: float32 [B, N] in 0 ... 1; None: midpoints of equal intervals, the same for every item.
        Returns:
            float32 [B, A, N].
        """
        return self.predict(self.torso(inputs), fractions)

    def predict(self, features: Tensor, fractions: Tensor | None = None) -> Tensor:
        if fractions is None:
            fractions = midpoints(ACTING_FRACTIONS, features.device)
        angles = math.pi * torch.arange(self.COSINES, device=features.device)
        embedded: Tensor = self.embedding((fractions.unsqueeze(2) * angles).cos()).relu_()  # [B or 1, N, size]
        product = (self.head.hide(features) if self._behind_hidden else features).unsqueeze(1) * embedded
        to_values = self.head.predict if self._behind_hidden else self.head
        quantiles: Tensor = to_values(product.flatten(0, 1)).unflatten(0, product.shape[:2])
        return quantiles.transpose(1, 2)


class NoisyLinear(nn.Module):
    """Linear layer with factorised Gaussian noise: y = (W + S * f(e_out) f(e_in)') x + b + s * f(e_out).

    It is silent, with the means W and b alone, until :func:`resample` draws noise, and again after :func:`silence`.
    Noise is no part of its state: whoever needs noise draws it.

    Args:
        sigma: initial S and s times the root of ``inputs``.
    Source: Fortunato et al. (2018), Noisy networks for exploration, eq. 10, 11 and section 3.2.
    """

    def __init__(self, inputs: int, outputs: int, sigma: float = 0.5) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma * bound))
        self.noise: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Map float [B, inputs] to [B, outputs]; the noise is the same for every item."""
        if self.noise is None:
            return nn.functional.linear(x, self.weight, self.bias)
        noise_in, noise_out = self.noise
        if len(x) >= FORMED_ROWS and self.weight.numel() <= FORMED_WEIGHTS:
            # 64 x 1024 -> 256 on a CPU, forward and backward: 1.9 ms, with two products 3.6 ms.
            weight = torch.addcmul(self.weight, self.weight_sigma, torch.outer(noise_out, noise_in))
            return nn.functional.linear(x, weight, torch.addcmul(self.bias, self.bias_sigma, noise_out))
        # Large matrices leave the cache, and for few items forming one takes longer than a second product.
        y = nn.functional.linear(x, self.weight, self.bias)
        return y + noise_out * nn.functional.linear(x * noise_in, self.weight_sigma, self.bias_sigma)


def factor(noise: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Compute f(e) = sign(e) sqrt(|e|), the factor of a weight's noise."""
    return np.copysign(np.sqrt(np.abs(noise)), noise)


def resample(network: nn.Module, rng: np.random.Generator) -> None:
    """Draw fresh noise for every noisy layer of ``network``."""
    layers = _noisy(network)
    if not layers:
        return
    sizes = [size for layer in layers for size in reversed(layer.weight.shape)]  # inputs, outputs of each
    drawn = torch.from_numpy(factor(rng.standard_normal(sum(sizes), np.float32))).to(layers[0].weight.device)
    parts = drawn.split(sizes)
    for layer, noise_in, noise_out in zip(layers, parts[::2], parts[1::2], strict=True):
        layer.noise = (noise_in, noise_out)


def silence(network: nn.Module) -> None:
    """Let every noisy layer of ``network`` use its means."""
    for layer in _noisy(network):
        layer.noise = None


_LAYERS: WeakKeyDictionary[nn.Module, list[NoisyLinear]] = WeakKeyDictionary()
"""Noisy layers by network: a walk through the modules takes as long as a small network's pass."""


def _noisy(network: nn.Module) -> list[NoisyLinear]:
    layers = _LAYERS.get(network)
    if layers is None:
        layers = [module for module in network.modules() if isinstance(module, NoisyLinear)]
        _LAYERS[network] = layers
    return layers
