"""Rescaling of values, so that one network can learn rewards of different sizes without clipping them."""

from __future__ import annotations

import torch
from torch import Tensor

EPS = 1e-3
"""Slope of the linear part in Kapturowski et al. (2019)."""


def signed_hyperbolic(x: Tensor, eps: float = EPS) -> Tensor:
    """Rescale values: h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x. Any shape.

    Source: Pohlen et al. (2018), Observe and look further, section 3.2.
    """
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + eps * x


def signed_parabolic(x: Tensor, eps: float = EPS) -> Tensor:
    """Undo :func:`signed_hyperbolic`. Any shape.

    Source: Pohlen et al. (2018), Observe and look further, proposition A.2: with the root
    z = (sqrt(1 + 4 eps (eps + 1 + |x|)) - 1) / (2 eps) it is sign(x) (z^2 - 1).
    """
    # 4 eps is divided out: as written above, the small difference of two numbers near 1 would be lost in float32.
    root = 2 * (eps + 1 + x.abs()) / ((1 + 4 * eps * (eps + 1 + x.abs())).sqrt() + 1)
    return x.sign() * (root.square() - 1)


def n_step_targets(reward: Tensor, discount: Tensor, value: Tensor, ends: Tensor, n_step: int) -> Tensor:
    """Compute n-step targets within a window: up to ``n_step`` rewards, then the value of the step behind them.

    Args:
        reward, discount: float [B, T], r_{t+1} and gamma_{t+1} = gamma * (1 - terminated) for step t.
        value: float [B, T], v(s_{t+1}): of the observation behind step t.
        ends: bool [B, T], a step behind which the sum is cut and bootstraps: an episode's last one, or the window's.
    Returns:
        float [B, T].
    Source: Sutton and Barto (2018), eq. 7.1, cut at the window's end.
    """
    assert reward.shape == discount.shape == value.shape == ends.shape, (reward.shape, discount.shape, value.shape)
    assert bool(ends[:, -1].all()), "a window's last column ends every sum"
    steps = reward.shape[1]
    target = value.new_zeros(value.shape)
    for k in reversed(range(min(n_step, steps))):  # from the last reward back: target <- r + gamma * target
        behind = value[:, k:] if k == n_step - 1 else torch.where(ends[:, k:], value[:, k:], target[:, : steps - k])
        target[:, : steps - k] = reward[:, k:] + discount[:, k:] * behind
    return target
