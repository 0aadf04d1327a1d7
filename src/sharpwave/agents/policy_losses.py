"""The mathematics of policies as pure functions: policy gradients, V-trace, and policies of continuous actions.

One value a step or an item, nothing reduced, nothing weighted. Advantages are constants: no gradient flows to the
values that they were made of. Those of generalized advantage estimation (Schulman et al. 2016) are
``sharpwave.agents.losses.lambda_returns`` minus the values.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from sharpwave.agents.lazy_torch import nn, torch

if TYPE_CHECKING:
    from torch import Tensor

LOG_STD = (-20.0, 2.0)
"""Bounds of a policy's logarithmic standard deviation, those of Haarnoja et al.'s own code."""


class VTrace(NamedTuple):
    """Outcome of :func:`vtrace`, without gradients.

    Attributes:
        target: float [B, T], v_s: target of the value of step t.
        advantage: float [B, T], of the action that was taken, times its clipped ratio.
    """

    target: Tensor
    advantage: Tensor


def vtrace(
    reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, ends: Tensor, ratio: Tensor, clip: float
) -> VTrace:
    """Compute the targets of V-trace: n-step returns of the learner's policy from steps of another one.

    With ratios of 1 the targets are the n-step returns up to the end.

    Args:
        reward, discount: float [B, T], r_{t+1} and gamma_{t+1} = gamma * (1 - terminated) for step t.
        value, next_value: float [B, T], v(s_t) and v(s_{t+1}).
        ends: bool [B, T], a step behind which the trace is cut and bootstraps: an episode's last one, or the window's.
        ratio: float [B, T], probability of the action by the learner's policy over that by the actor's.
        clip: largest ratio of the targets and advantages, rho-bar; traces are cut at 1, c-bar.
    Returns:
        targets and advantages.
    Source: Espeholt et al. (2018), IMPALA, eqs. 1 and 4 and remark 1.
    """

    assert reward.shape == discount.shape == value.shape == next_value.shape == ends.shape == ratio.shape, ratio.shape
    value, next_value, ratio = value.detach(), next_value.detach(), ratio.detach()
    rho, cut = ratio.clamp(max=clip), ratio.clamp(max=1.0)
    error = rho * (reward + discount * next_value - value)
    moved = torch.empty_like(value)  # v_s - v(s_t): the trace's part of a step's target
    behind = torch.empty_like(value)  # the same of the next step; 0 where the trace is cut
    later = torch.zeros_like(value[:, 0])
    for t in reversed(range(reward.shape[1])):
        behind[:, t] = later.masked_fill(ends[:, t], 0.0)
        later = error[:, t] + discount[:, t] * cut[:, t] * behind[:, t]
        moved[:, t] = later
    return VTrace(value + moved, rho * (reward + discount * (next_value + behind) - value))


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Compute PPO's loss of each step: -min(ratio * A, clip(ratio, 1 - epsilon, 1 + epsilon) * A). Any shape.

    Its gradient is zero where the policy has moved by more than epsilon in the advantage's direction.

    Args:
        ratio: probability of the action by the policy over that by the policy that acted, with gradient.
        advantage: of the action that was taken.
        clip: epsilon.
    Source: Schulman et al. (2017), Proximal policy optimization algorithms, eq. 7.
    """

    assert ratio.shape == advantage.shape, (ratio.shape, advantage.shape)
    advantage = advantage.detach()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def policy_gradient(log_probability: Tensor, advantage: Tensor) -> Tensor:
    """Compute the loss -A log pi(a_t | s_t) of each step, whose gradient is the policy gradient. Any shape.

    Source: Williams (1992), Simple statistical gradient-following algorithms, with an advantage in place of the return.
    """
    assert log_probability.shape == advantage.shape, (log_probability.shape, advantage.shape)
    return -advantage.detach() * log_probability


def standardized(advantage: Tensor, mask: Tensor) -> Tensor:
    """Subtract the mean of the advantages where ``mask`` holds, and divide by their standard deviation.

    Args:
        advantage: float [B, T].  mask: bool [B, T].
    Returns:
        float [B, T], 0 where ``mask`` does not hold; of a single step, or of equal ones, zeros.
    """
    assert advantage.shape == mask.shape, (advantage.shape, mask.shape)
    real = advantage[mask]
    scaled = (advantage - real.mean()) / (real.std(correction=0) + 1e-8)
    return scaled.masked_fill(~mask, 0.0)


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
    assert mean.ndim == 2 and mean.shape == log_std.shape == noise.shape, (mean.shape, log_std.shape, noise.shape)
    u = mean + log_std.exp() * noise
    each = -0.5 * noise.square() - log_std + 2.0 * (u + nn.functional.softplus(-2.0 * u))
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
    return 0.5 * ((action + dq_da).detach() - action).square().sum(dim=1)


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
