"""The mathematics of values, by hand and against plain loops."""

import math

import numpy as np
import pytest
import torch

from sharpwave.agents.dqn import double_q_targets
from sharpwave.agents.losses import (
    action_cross_entropy,
    huber,
    signed_hyperbolic,
    signed_parabolic,
    squared,
)
from sharpwave.agents.networks import dueling_combine
from sharpwave.agents.r2d2 import n_step_targets
from sharpwave.agents.rainbow import greedy_policy, munchausen_bonus, soft_policy


def test_q_targets_take_the_largest_value_of_the_target_network():
    next_q = torch.tensor([[1.0, 5.0], [4.0, 2.0]])
    # 1 + .5 * 5 = 3.5; terminated: the reward alone.
    torch.testing.assert_close(
        double_q_targets(next_q, next_q, torch.tensor([1.0, -1.0]), torch.tensor([0.5, 0.0])), torch.tensor([3.5, -1.0])
    )


def test_double_q_targets_choose_by_the_online_and_value_by_the_target_network():
    next_q = torch.tensor([[1.0, 5.0, 3.0], [4.0, 2.0, 0.0]])
    online = torch.tensor([[0.0, 1.0, 2.0], [0.0, 9.0, 8.0]])
    # Online chooses 2 and 1, so the target network gives 3 and 2: 1 + .5 * 3 = 2.5; 0 + .9 * 2 = 1.8.
    got = double_q_targets(next_q, online, torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.9]))
    torch.testing.assert_close(got, torch.tensor([2.5, 1.8]))


def test_dueling_combine_subtracts_the_mean_advantage():
    # 10 + (1, 2, 6) - 3
    got = dueling_combine(torch.tensor([[10.0]]), torch.tensor([[1.0, 2.0, 6.0]]))
    torch.testing.assert_close(got, torch.tensor([[8.0, 9.0, 13.0]]))


@pytest.mark.parametrize(("baseline", "expected"), [("max", [5.0, 6.0, 10.0]), ("naive", [11.0, 12.0, 16.0])])
def test_dueling_baselines(baseline, expected):
    # 10 + (1, 2, 6) - 6; 10 + (1, 2, 6)
    got = dueling_combine(torch.tensor([[10.0]]), torch.tensor([[1.0, 2.0, 6.0]]), baseline)
    torch.testing.assert_close(got, torch.tensor([expected]))


def test_dueling_combine_takes_the_mean_over_actions_for_each_atom():
    value, advantage = torch.tensor([[[10.0, 20.0]]]), torch.tensor([[[1.0, 2.0], [3.0, 6.0]]])
    # Atom 0: 10 + (1, 3) - 2; atom 1: 20 + (2, 6) - 4.
    torch.testing.assert_close(dueling_combine(value, advantage), torch.tensor([[[9.0, 18.0], [11.0, 22.0]]]))


def test_greedy_policy_chooses_the_first_of_the_largest():
    got = greedy_policy(torch.tensor([[1.0, 3.0, 2.0], [5.0, 0.0, 5.0]]))
    assert got.tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]


def test_action_cross_entropy_of_probabilities_that_are_known():
    # softmax of log(1, 2, 5) is (1, 2, 5) / 8, whatever is added to all.
    scores = torch.tensor([[1.0, 2.0, 5.0], [1.0, 2.0, 5.0]]).log() + torch.tensor([[0.0], [100.0]])
    got = action_cross_entropy(scores, torch.tensor([1, 2]))
    torch.testing.assert_close(got, torch.tensor([math.log(4), math.log(8 / 5)]))


def test_action_cross_entropy_lowers_all_actions_by_their_probability_and_raises_that_of_the_data():
    scores = torch.tensor([[1.0, 2.0, 5.0]]).log().requires_grad_()
    action_cross_entropy(scores, torch.tensor([1])).sum().backward()
    torch.testing.assert_close(scores.grad, torch.tensor([[1 / 8, 2 / 8 - 1, 5 / 8]]))


def test_munchausen_bonus_is_the_clipped_log_probability():
    # temperature 2, Q = 2 log(1), 2 log(3): pi = 1/4, 3/4. 2 log(3/4) = -.5754; 2 log(1/4) = -2.7726, clipped to -1.
    q = torch.tensor([[0.0, 2 * math.log(3)]] * 2)
    got = munchausen_bonus(q, torch.tensor([1, 0]), 2.0, -1.0)
    torch.testing.assert_close(got, torch.tensor([2 * math.log(0.75), -1.0]))


def test_munchausen_bonus_survives_small_temperatures():
    got = munchausen_bonus(torch.tensor([[0.0, 100.0]] * 2), torch.tensor([1, 0]), 1e-3, -1.0)
    assert got.tolist() == [0.0, -1.0]


def test_soft_policy_and_its_entropy():
    # pi = 1/4, 3/4; entropy .25 log 4 + .75 log(4/3) = .5623; times 2.
    policy, entropy = soft_policy(torch.tensor([[0.0, 2 * math.log(3)]]), 2.0)
    torch.testing.assert_close(policy, torch.tensor([[0.25, 0.75]]))
    torch.testing.assert_close(entropy, torch.tensor([2 * (0.25 * math.log(4) + 0.75 * math.log(4 / 3))]))


@pytest.mark.parametrize(
    ("error", "delta", "expected"),
    [
        (0.5, 1.0, 0.125),  # .5^2 / 2
        (-0.5, 1.0, 0.125),
        (1.0, 1.0, 0.5),
        (3.0, 1.0, 2.5),  # 1 * (3 - .5)
        (-3.0, 2.0, 4.0),  # 2 * (3 - 1)
        (0.0, 1.0, 0.0),
    ],
)
def test_huber(error, delta, expected):
    assert huber(torch.tensor(error), delta).item() == pytest.approx(expected)


def test_huber_gradient_is_the_clipped_error():
    error = torch.tensor([-3.0, -0.25, 0.0, 0.5, 7.0], requires_grad=True)
    huber(error).sum().backward()
    torch.testing.assert_close(error.grad, torch.tensor([-1.0, -0.25, 0.0, 0.5, 1.0]))


def test_squared():
    torch.testing.assert_close(squared(torch.tensor([-3.0, 0.5])), torch.tensor([9.0, 0.25]))


def test_losses_stay_per_item():
    assert huber(torch.zeros(7)).shape == squared(torch.zeros(7)).shape == (7,)


def test_shapes_are_checked():
    with pytest.raises(AssertionError):
        double_q_targets(torch.zeros(3, 2), torch.zeros(3, 2), torch.zeros(3, 1), torch.zeros(3))
    with pytest.raises(AssertionError):
        dueling_combine(torch.zeros(3), torch.zeros(3, 2))
    one, zeros = torch.ones(1), torch.zeros(1, 2)
    assert math.isclose(double_q_targets(zeros, zeros, one, one).item(), 1.0)


@pytest.mark.parametrize(
    ("x", "expected"),
    [(0.0, 0.0), (3.0, 1.003), (-3.0, -1.003), (99.0, 9.099), (-8.0, -2.008)],  # sqrt(3 + 1) - 1 + .003 = 1.003
)
def test_signed_hyperbolic(x, expected):
    assert signed_hyperbolic(torch.tensor(x)).item() == pytest.approx(expected)
    assert signed_parabolic(torch.tensor(expected)).item() == pytest.approx(x, abs=1e-5)


@pytest.mark.parametrize("eps", [1e-3, 0.5])
def test_rescaling_and_its_inverse(eps):
    x = torch.linspace(-500, 500, 2001)
    torch.testing.assert_close(signed_parabolic(signed_hyperbolic(x, eps), eps), x, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(signed_hyperbolic(signed_parabolic(x, eps), eps), x, rtol=1e-5, atol=1e-5)


def test_small_values_keep_their_precision_in_float32():
    x = torch.tensor([1e-4, -1e-4, 1e-2])
    torch.testing.assert_close(signed_parabolic(x), signed_parabolic(x.double()).float(), rtol=2e-3, atol=0)


def test_n_step_targets_by_hand():
    # Three steps, the second ends its episode by truncation: it bootstraps, and no sum goes beyond it.
    reward, discount, value = torch.tensor([[1.0, 2.0, 4.0]]), torch.full((1, 3), 0.5), torch.tensor([[10.0, 20, 30]])
    ends = torch.tensor([[False, True, True]])
    # 1 + .5 (2 + .5 * 20) = 7; 2 + .5 * 20 = 12; 4 + .5 * 30 = 19.
    assert n_step_targets(reward, discount, value, ends, 5).tolist() == [[7.0, 12.0, 19.0]]
    # 1 + .5 * 10 = 6.
    assert n_step_targets(reward, discount, value, ends, 1).tolist() == [[6.0, 12.0, 19.0]]


def by_arrays(reward, discount, value, ends, n_step):
    tensors = [torch.from_numpy(np.ascontiguousarray(one)) for one in (reward, discount, value, ends)]
    return n_step_targets(tensors[0], tensors[1], tensors[2], tensors[3], n_step).numpy()


def plain_targets(reward, discount, value, ends, n_step):
    """The sum step by step, as one would write it down."""
    targets = np.zeros_like(reward)
    for row in range(reward.shape[0]):
        for t in range(reward.shape[1]):
            factor, at = 1.0, t
            while True:
                targets[row, t] += factor * reward[row, at]
                factor *= discount[row, at]
                if ends[row, at] or at - t == n_step - 1:
                    break
                at += 1
            targets[row, t] += factor * value[row, at]
    return targets


@pytest.mark.parametrize("n_step", [1, 2, 3, 5, 7, 20])
def test_n_step_targets_are_those_of_a_plain_loop(n_step):
    """Every pattern of ends in six steps, each end by termination and by truncation."""
    steps = 6
    patterns = np.array(np.meshgrid(*[[0, 1, 2]] * steps)).reshape(steps, -1).T  # 1: terminated, 2: truncated
    rng = np.random.default_rng(n_step)
    reward, value = rng.normal(size=(2, *patterns.shape))
    discount, ends = 0.9 * (patterns != 1), patterns > 0
    ends[:, -1] = True
    found = by_arrays(reward, discount, value, ends, n_step)
    expected = plain_targets(reward, discount, value, ends, n_step)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_a_window_must_end():
    zeros = np.zeros((1, 4))
    with pytest.raises(AssertionError, match="last column"):
        by_arrays(zeros, zeros, zeros, zeros > 0, 2)
