"""The mathematics of continuous actions as pure functions: one value an item, nothing reduced, nothing weighted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sharpwave.agents.losses import squared

if TYPE_CHECKING:
    from torch import Tensor

LOG_STD = (-20.0, 2.0)
"""Bounds of a policy's logarithmic standard deviation, those of Haarnoja et al.'s own code."""


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Draw actions of a Gaussian policy squashed by tanh, and compute their logarithmic densities.

    Args:
        mean, log_std: float [B, n], of the Gaussian, log_std within ``LOG_STD``.
        noise: float [B, n], standard normal.
    Returns:
        actions, float [B, n] in -1 ... 1: a = tanh(u) with u = mean + exp(log_std) * noise; and log pi(a), float [B].
    Source: Haarnoja et al. (2018), Soft actor-critic, appendix C, eq. 21. Of log(1 - tanh(u)^2) this is the form
        2 * (log 2 - u - softplus(-2u)), which is exact where tanh(u) rounds to 1.
    """
    from torch.nn.functional import softplus

    assert mean.ndim == 2 and mean.shape == log_std.shape == noise.shape, (mean.shape, log_std.shape, noise.shape)
    u = mean + log_std.exp() * noise
    each = -0.5 * squared(noise) - log_std + 2.0 * (u + softplus(-2.0 * u))
    constant = mean.shape[1] * (0.5 * math.log(2.0 * math.pi) + 2.0 * math.log(2.0))
    return u.tanh(), each.sum(dim=1) - constant


def smoothed(action: Tensor, noise: Tensor, limit: float) -> Tensor:
    """Add noise, clipped to -limit ... limit, to actions, and clip to -1 ... 1: target policy smoothing.

    Args:
        action, noise: float [B, n].
    Source: Fujimoto, van Hoof and Meger (2018), Addressing function approximation error, eq. 14.
    """
    assert action.shape == noise.shape, (action.shape, noise.shape)
    return (action + noise.clamp(-limit, limit)).clamp(-1.0, 1.0)


def twin_targets(next_q: Tensor, entropy_bonus: Tensor | float, reward: Tensor, discount: Tensor) -> Tensor:
    """Compute the targets of clipped double Q-learning: of all critics' values the smallest, plus an entropy bonus.

    Args:
        next_q: float [K, B], Q_k(s_{t+n}, a') for an action a' of the policy.
        entropy_bonus: float [B], -temperature * log pi(a'); 0: none.
        reward, discount: float [B], the n-step return from t and gamma^n * (1 - terminated).
    Returns:
        float [B].
    Source: Fujimoto et al. (2018), eq. 10; with the bonus Haarnoja et al. (2018), Soft actor-critic algorithms and
        applications, eq. 2-3.
    """
    assert next_q.ndim == 2 and reward.shape == discount.shape == next_q.shape[1:], (next_q.shape, reward.shape)
    return reward + discount * (next_q.amin(dim=0) + entropy_bonus)


def dpg_loss(action: Tensor, dq_da: Tensor) -> Tensor:
    """Compute a loss whose gradient by the action is -dq/da: ascent of the action's value through the action alone.

    So the critics' own gradients, which the policy's update does not need, are never computed.

    Args:
        action: float [B, n], of the policy, with gradient.
        dq_da: float [B, n], gradient of the action's value, a constant.
    Returns:
        float [B]: half the squared distance between the action and the action moved by dq_da.
    Source: Silver et al. (2014), Deterministic policy gradient algorithms, eq. 9; the form is rlax's.
    """
    assert action.ndim == 2 and action.shape == dq_da.shape, (action.shape, dq_da.shape)
    return 0.5 * squared((action + dq_da).detach() - action).sum(dim=1)


def temperature_loss(log_temperature: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """Compute the loss that raises the temperature where the policy's entropy is below its target.

    Args:
        log_temperature: float, with gradient.
        log_prob: float [B], log pi(a), a constant.
    Returns:
        float [B]: -log_temperature * (log pi(a) + target_entropy).
    Source: Haarnoja et al. (2018), Soft actor-critic algorithms and applications, eq. 18, with the logarithm in place
        of the temperature as in its authors' code: gradients then do not vanish with it.
    """
    return -log_temperature * (log_prob.detach() + target_entropy)
