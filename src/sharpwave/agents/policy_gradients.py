"""The mathematics of policy gradients as pure functions: one value a step, nothing reduced, nothing weighted.

Advantages are constants in all of them: no gradient flows to the values that they were made of. Those of generalized
advantage estimation (Schulman et al. 2016) are ``sharpwave.agents.losses.lambda_returns`` minus the values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class VTrace(NamedTuple):
    """Outcome of :func:`vtrace`, without gradients.

    Attributes:
        target: float [B, T], v_s: what the value of step t should be.
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
    import torch

    assert reward.shape == discount.shape == value.shape == next_value.shape == ends.shape == ratio.shape, ratio.shape
    value, next_value, ratio = value.detach(), next_value.detach(), ratio.detach()
    rho, cut = ratio.clamp(max=clip), ratio.clamp(max=1.0)
    error = rho * (reward + discount * next_value - value)
    moved = torch.empty_like(value)  # v_s - v(s_t): what the trace adds to a step's value
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
    import torch

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
