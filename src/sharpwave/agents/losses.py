"""The mathematics of Q-learning as pure functions: one value an item, nothing reduced, nothing weighted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def q_targets(next_q: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
    """Compute the targets of Q-learning: the return plus the discounted largest value of the target network.

    Args:
        next_q: float [B, A], Q(s_{t+n}, .) of the target network.
        reward: float [B], the n-step return from t.
        discount: float [B], gamma^n * (1 - terminated).
    Returns:
        float [B].
    Source: Mnih et al. (2015), Human-level control through deep reinforcement learning, eq. 1.
    """
    _check(next_q, reward, discount)
    return reward + discount * next_q.max(dim=1).values


def double_q_targets(next_q: Tensor, next_q_online: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
    """Compute the targets of double Q-learning: the target network's value of the online network's next action.

    Args:
        next_q: float [B, A], Q(s_{t+n}, .) of the target network.
        next_q_online: float [B, A], the same of the online network.
        reward: float [B], the n-step return from t.
        discount: float [B], gamma^n * (1 - terminated).
    Returns:
        float [B].
    Source: van Hasselt, Guez and Silver (2016), Deep reinforcement learning with double Q-learning, eq. 4.
    """
    _check(next_q, reward, discount)
    assert next_q_online.shape == next_q.shape, (next_q_online.shape, next_q.shape)
    chosen = next_q_online.argmax(dim=1, keepdim=True)
    return reward + discount * next_q.gather(1, chosen).squeeze(1)


def huber(error: Tensor, delta: float = 1.0) -> Tensor:
    """Compute the Huber loss of each error: e^2 / 2 up to ``delta``, then delta * (|e| - delta / 2). Any shape.

    Source: Huber (1964); with delta = 1 its gradient is the clipped error of Mnih et al. (2015).
    """
    size = error.abs()
    inner = size.clamp(max=delta)
    return inner * (size - 0.5 * inner)


def squared(error: Tensor) -> Tensor:
    """Compute the squared error e^2 of each error. Any shape."""
    return error * error


def _check(next_q: Tensor, reward: Tensor, discount: Tensor) -> None:
    assert next_q.ndim == 2, f"next_q must be [B, A], got {tuple(next_q.shape)}"
    assert reward.shape == discount.shape == next_q.shape[:1], (reward.shape, discount.shape, next_q.shape)
