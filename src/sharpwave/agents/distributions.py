"""The mathematics of distributional Q-learning: one value an item, nothing reduced, nothing weighted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


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


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Compute the cross-entropy of predicted distributions with their targets.

    Args:
        logits: float [B, K], predicted.  target: float [B, K], probabilities.
    Returns:
        float [B].
    """
    assert logits.ndim == 2 and logits.shape == target.shape, (logits.shape, target.shape)
    return -(target * logits.log_softmax(dim=1)).sum(dim=1)


def kl_divergence(logits: Tensor, target: Tensor) -> Tensor:
    """Compute the Kullback-Leibler divergence of predicted distributions from their targets: the cross-entropy less
    the target's own entropy, so that it is zero where they agree. Arguments as for :func:`cross_entropy`.

    Source: Hessel et al. (2018), Rainbow, section 4: the loss, and the priority.
    """
    return cross_entropy(logits, target) + target.xlogy(target).sum(dim=1)


def midpoints(count: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the middles of ``count`` equal intervals of probability, float32 [1, count]: (i + 1/2) / count.

    Source: Dabney et al. (2018), Distributional reinforcement learning with quantile regression, lemma 2.
    """
    import torch

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
    from sharpwave.agents.losses import huber

    assert quantiles.ndim == target.ndim == fractions.ndim == 2 and len(quantiles) == len(target)
    assert fractions.shape[1] == quantiles.shape[1] and len(fractions) in (1, len(quantiles)), fractions.shape
    error = target.unsqueeze(1) - quantiles.unsqueeze(2)  # [B, N, M]
    size = huber(error, delta) / delta if delta > 0 else error.abs()
    tilt = (fractions.unsqueeze(2) - (error.detach() < 0).to(error.dtype)).abs()
    return (tilt * size).mean(dim=2).sum(dim=1)
