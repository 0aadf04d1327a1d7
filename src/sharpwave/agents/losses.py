"""The mathematics of values as pure functions: targets, returns and losses, one an item, unreduced and unweighted."""

from __future__ import annotations

from sharpwave.extras import Tensor, torch

RESCALING_EPS = 1e-3
"""Slope of the linear part in Kapturowski et al. (2019)."""


def action_cross_entropy(scores: Tensor, action: Tensor) -> Tensor:
    """Compute the cross entropy of softmax(scores) and the data's actions: log sum_a exp(scores_a) - scores_action.

    Of a policy's logits it is the loss of behaviour cloning. Of values it is the penalty of conservative Q-learning: it
    lowers all actions by their softmax probabilities and raises that of the data.

    Args:
        scores: float [B, A]; -infinity for actions that have no part in it.  action: int64 [B], indices of the data's.
    Returns:
        float [B], at least 0.
    Source: Kumar et al. (2020), Conservative Q-learning for offline reinforcement learning, eq. 4, CQL(H).
    """
    assert scores.ndim == 2 and action.shape == scores.shape[:1], (scores.shape, action.shape)
    return scores.logsumexp(dim=1) - scores.gather(1, action.unsqueeze(1)).squeeze(1)


def window_ends(mask: Tensor) -> Tensor:
    """Return where returns within windows end, bool [B, T]: an episode's last step, or the window's.

    Args:
        mask: bool [B, T], real steps.
    """
    return torch.cat([~mask[:, 1:], mask.new_ones(len(mask), 1)], dim=1)


def lambda_returns(reward: Tensor, discount: Tensor, value: Tensor, ends: Tensor, share: float) -> Tensor:
    """Compute lambda-returns: G_t = r_{t+1} + gamma_{t+1} ((1 - lambda) v(s_{t+1}) + lambda G_{t+1}).

    Args:
        reward, discount: float [B, T], r_{t+1} and gamma_{t+1} = gamma * (1 - terminated) for step t.
        value: float [B, T], v(s_{t+1}): of the observation after step t.
        ends: bool [B, T], a step after which the sum is cut and bootstraps: an episode's last one, or the window's.
        share: lambda, from 0 (one step) to 1 (all of them).
    Returns:
        float [B, T].
    Source: Sutton and Barto (2018), eq. 12.18; with v = max_a Q(s, a) Peng's Q(lambda).
    """

    assert reward.shape == discount.shape == value.shape == ends.shape, (reward.shape, discount.shape, value.shape)
    returns, behind = torch.empty_like(value), value[:, -1]
    for t in reversed(range(reward.shape[1])):
        behind = torch.where(ends[:, t], value[:, t], torch.lerp(value[:, t], behind, share))
        behind = reward[:, t] + discount[:, t] * behind
        returns[:, t] = behind
    return returns


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


def signed_hyperbolic(x: Tensor, eps: float = RESCALING_EPS) -> Tensor:
    """Rescale values: h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x. Any shape.

    Source: Pohlen et al. (2018), Observe and look further, section 3.2.
    """
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + eps * x


def signed_parabolic(x: Tensor, eps: float = RESCALING_EPS) -> Tensor:
    """Undo :func:`signed_hyperbolic`. Any shape.

    Source: Pohlen et al. (2018), Observe and look further, proposition A.2: with the root
    z = (sqrt(1 + 4 eps (eps + 1 + |x|)) - 1) / (2 eps) it is sign(x) (z^2 - 1).
    """
    # 4 eps is divided out: as written above, the small difference of two numbers near 1 would be lost in float32.
    root = 2 * (eps + 1 + x.abs()) / ((1 + 4 * eps * (eps + 1 + x.abs())).sqrt() + 1)
    return x.sign() * (root.square() - 1)


def greedy_policy(q: Tensor) -> Tensor:
    """Return the greedy policy of values [B, A] as probabilities, float [B, A]: 1 for the first largest, else 0."""
    return torch.zeros_like(q).scatter_(1, q.argmax(dim=1, keepdim=True), 1.0)


def munchausen_bonus(q: Tensor, action: Tensor, temperature: float, lowest: float) -> Tensor:
    """Compute the scaled log-probability of the taken actions, which Munchausen learning adds to their rewards.

    Args:
        q: float [B, A], Q(s_t, .) of the target network; -infinity for illegal actions.
        action: int64 [B], indices of the taken actions.
        temperature: that of the softmax policy.
        lowest: lower bound of the result, at most 0.
    Returns:
        float [B]: max(lowest, temperature * log pi(a_t | s_t)), where pi = softmax(q / temperature).
    Source: Vieillard, Pietquin and Geist (2020), Munchausen reinforcement learning, eq. 2 and section 3 (clipping).
    """
    assert q.ndim == 2 and action.shape == q.shape[:1], (q.shape, action.shape)
    scaled = temperature * (q / temperature).log_softmax(dim=1)
    return scaled.gather(1, action.unsqueeze(1)).squeeze(1).clamp(min=lowest, max=0.0)


def soft_policy(q: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the softmax policy of values, float [B, A], and its entropy times the temperature, float [B].

    With both, sum_a pi(a) (Q(a) - temperature * log pi(a)) is the policy's mean of Q plus that entropy. An action of
    value -infinity, an illegal one, has probability 0 and no part in either.
    """
    log_policy = (q / temperature).log_softmax(dim=1)
    policy = log_policy.exp()
    return policy, -temperature * (policy * log_policy.masked_fill(policy == 0, 0.0)).sum(dim=1)
