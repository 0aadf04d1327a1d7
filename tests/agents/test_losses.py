"""Losses, targets and returns, by hand and against plain loops."""

import math

import numpy as np
import pytest
import torch

from sharpwave.agents.a2c import policy_gradient
from sharpwave.agents.dqn import double_q_targets
from sharpwave.agents.impala import vtrace
from sharpwave.agents.losses import (
    action_cross_entropy,
    greedy_policy,
    huber,
    lambda_returns,
    munchausen_bonus,
    signed_hyperbolic,
    signed_parabolic,
    soft_policy,
    squared,
)
from sharpwave.agents.networks import dueling_combine
from sharpwave.agents.ppo import clipped_surrogate, standardized
from sharpwave.agents.r2d2 import n_step_targets
from sharpwave.agents.sac import LOG_STD, dpg_loss, squash, temperature_loss, twin_targets
from sharpwave.agents.td3 import smoothed


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


REWARD, HALF = torch.tensor([[1.0, 2.0, 4.0]]), torch.full((1, 3), 0.5)
VALUE, NEXT, RATIO = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[2.0, 4.0, 8.0]]), torch.tensor([[2.0, 0.5, 1.0]])
LAST = torch.tensor([[False, False, True]])


def test_vtrace():
    # Errors rho (r + gamma v' - v): 1, .5 * 2, 4. Backwards with gamma c: 4; 1 + .5 * .5 * 4 = 2; 1 + .5 * 2 = 2.
    target, advantage = vtrace(REWARD, HALF, VALUE, NEXT, LAST, RATIO, 1.0)
    torch.testing.assert_close(target, torch.tensor([[3.0, 4.0, 8.0]]))
    # rho (r + gamma v_{s+1} - v): 1 + .5 * 4 - 1; .5 (2 + .5 * 8 - 2); 4 + .5 * 8 - 4.
    torch.testing.assert_close(advantage, torch.tensor([[2.0, 2.0, 4.0]]))


def test_vtrace_with_larger_ratios_cuts_its_traces_at_one_all_the_same():
    # Only the first ratio, 2, is no longer clipped in its error: 2 * 1 + .5 * 1 * 2 = 4 would be 5 with a trace of 2.
    target, advantage = vtrace(REWARD, HALF, VALUE, NEXT, LAST, RATIO, 2.0)
    torch.testing.assert_close(target, torch.tensor([[4.0, 4.0, 8.0]]))
    torch.testing.assert_close(advantage, torch.tensor([[4.0, 2.0, 4.0]]))


def test_vtrace_bootstraps_at_an_episode_s_end_unless_it_terminated():
    ends = torch.tensor([[True, False, True]])
    discount = torch.tensor([[0.0, 0.5, 0.5]])  # terminated: 1 * (1 - 1) = 0
    target, advantage = vtrace(REWARD, discount, VALUE, NEXT, ends, RATIO, 1.0)
    torch.testing.assert_close(target, torch.tensor([[1.0, 4.0, 8.0]]))
    torch.testing.assert_close(advantage, torch.tensor([[0.0, 2.0, 4.0]]))
    target, advantage = vtrace(REWARD, HALF, VALUE, NEXT, ends, RATIO, 1.0)  # truncated: 1 + .5 * 2
    torch.testing.assert_close(target, torch.tensor([[2.0, 4.0, 8.0]]))
    torch.testing.assert_close(advantage, torch.tensor([[1.0, 2.0, 4.0]]))


def test_vtrace_of_the_same_policy_is_the_return():
    ones = torch.ones(1, 3)
    target, advantage = vtrace(REWARD, HALF, VALUE, NEXT, LAST, ones, 1.0)
    returns = lambda_returns(REWARD, HALF, NEXT, LAST, 1.0)
    torch.testing.assert_close(target, returns)
    torch.testing.assert_close(advantage, returns - VALUE)


def test_vtrace_gives_no_gradients():
    value, following, ratio = (part.clone().requires_grad_() for part in (VALUE, NEXT, RATIO))
    target, advantage = vtrace(REWARD, HALF, value, following, LAST, ratio, 1.0)
    assert not target.requires_grad and not advantage.requires_grad


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.1, 2.0, -2.2, -2.0),
        (1.5, 2.0, -2.4, 0.0),  # it has moved beyond 1.2 already
        (0.5, 2.0, -1.0, -2.0),  # it has moved the other way: it is led back
        (0.5, -2.0, 1.6, 0.0),
        (1.5, -2.0, 3.0, 2.0),
    ],
)
def test_clipped_surrogate(ratio, advantage, loss, slope):
    ratios, advantages = torch.tensor([ratio], requires_grad=True), torch.tensor([advantage], requires_grad=True)
    got = clipped_surrogate(ratios, advantages, 0.2)
    got.sum().backward()
    torch.testing.assert_close(got.detach(), torch.tensor([loss]))
    torch.testing.assert_close(ratios.grad, torch.tensor([slope]))
    assert advantages.grad is None


def test_policy_gradient():
    log_probability = torch.tensor([-1.0, -2.0], requires_grad=True)
    advantage = torch.tensor([3.0, -0.5], requires_grad=True)
    got = policy_gradient(log_probability, advantage)
    got.sum().backward()
    torch.testing.assert_close(got.detach(), torch.tensor([3.0, -1.0]))
    torch.testing.assert_close(log_probability.grad, torch.tensor([-3.0, 0.5]))
    assert advantage.grad is None


def test_advantages_are_standardized_over_real_steps():
    advantage = torch.tensor([[1.0, 3.0, 100.0], [5.0, 100.0, 100.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    # Mean 3, variance 8 / 3.
    size = (8 / 3) ** 0.5
    torch.testing.assert_close(standardized(advantage, mask), torch.tensor([[-2 / size, 0, 0], [2 / size, 0, 0]]))
    torch.testing.assert_close(
        standardized(torch.full((1, 1), 7.0), torch.ones(1, 1, dtype=torch.bool)), torch.zeros(1, 1)
    )


HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_log_probability_by_hand():
    """u = 1 + 2/2 = 2: log N(2; 1, 1/2) = -2 + log 2 - log(2 pi)/2, and log(1 - tanh(2)^2) = -2 log cosh 2."""
    action, log_prob = squash(double([1.0]), double([math.log(0.5)]), double([2.0]))
    assert action.item() == pytest.approx(0.9640275800758169, rel=1e-15)
    assert log_prob.item() == pytest.approx(-2 + math.log(2) - HALF_LOG_TAU + 2 * math.log(math.cosh(2)), rel=1e-14)
    assert log_prob.item() == pytest.approx(0.424214, abs=1e-6)


def test_log_probabilities_of_several_numbers_add_up():
    mean, log_std, noise = double([0.3, -2.0]), double([-1.0, 0.5]), double([0.1, 1.4])
    _, both = squash(mean, log_std, noise)
    each = [squash(mean[:, i : i + 1], log_std[:, i : i + 1], noise[:, i : i + 1])[1] for i in range(2)]
    torch.testing.assert_close(both, each[0] + each[1])


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.7, -1.0), (-1.5, 0.3)])
def test_density_is_that_of_the_actions(mean, log_std):
    """It integrates to 1 over -1 ... 1, and its mean is that of drawn actions."""
    edge = np.tanh(np.linspace(-9, 9, 400_001))
    grid = torch.from_numpy(edge).unsqueeze(1)
    noise = (torch.atanh(grid) - mean) / math.exp(log_std)
    action, log_prob = squash(torch.full_like(grid, mean), torch.full_like(grid, log_std), noise)
    np.testing.assert_allclose(action, grid, rtol=0, atol=1e-9)
    density = log_prob.exp().numpy()
    assert np.trapezoid(density, edge) == pytest.approx(1.0, abs=1e-6)
    drawn = np.tanh(mean + math.exp(log_std) * np.random.default_rng(0).normal(size=1_000_000))
    assert np.trapezoid(density * edge, edge) == pytest.approx(drawn.mean(), abs=4 * drawn.std() / 1_000)


def test_log_probability_far_out_is_exact():
    """Where tanh(u) is 1 in floats, log(1 - tanh(u)^2) is 2 log 2 - 2u to all digits; in float32, too."""
    for dtype in (torch.float32, torch.float64):
        for u in (30.0, -30.0):
            action, log_prob = squash(*(torch.tensor([[value]], dtype=dtype) for value in (u, 0.0, 0.0)))
            assert action.abs().item() == 1.0
            assert log_prob.item() == pytest.approx(-HALF_LOG_TAU - 2 * math.log(2) + 60.0, rel=1e-6)


def test_gradients_of_log_probability_are_differences():
    """By mean and deviation with the noise held fixed: what the policy's loss needs."""
    rng = np.random.default_rng(2)
    values = [torch.from_numpy(rng.normal(size=(4, 3))).requires_grad_(i < 2) for i in range(3)]
    assert torch.autograd.gradcheck(squash, values)


def test_bounds_of_the_deviation_are_finite():
    low, high = (squash(double([0.0]), double([bound]), double([1.0]))[1] for bound in LOG_STD)
    assert low.isfinite() and high.isfinite()


def test_smoothing_clips_noise_and_actions():
    action, noise = double([0.0, 0.0, 0.9, -0.8]), double([0.3, -0.9, 0.4, -0.1])
    torch.testing.assert_close(smoothed(action, noise, 0.5), double([0.3, -0.5, 1.0, -0.9]))


def test_twin_targets_by_hand():
    """1 + .9 (2 + .5) = 3.25; ended: its reward; 2 + .5 (-1 - .25) = 1.375."""
    next_q = torch.tensor([[2.0, 7.0, 4.0], [3.0, 5.0, -1.0]])
    reward, discount, bonus = (
        torch.tensor([1.0, 3.0, 2.0]),
        torch.tensor([0.9, 0.0, 0.5]),
        torch.tensor([0.5, 1, -0.25]),
    )
    torch.testing.assert_close(twin_targets(next_q, bonus, reward, discount), torch.tensor([3.25, 3.0, 1.375]))
    torch.testing.assert_close(twin_targets(next_q, 0.0, reward, discount), torch.tensor([2.8, 3.0, 1.5]))


def test_dpg_loss_moves_actions_up_the_gradient():
    action = double([0.5, -0.2]).requires_grad_()
    loss = dpg_loss(action, double([3.0, -4.0]))
    assert loss.tolist() == [12.5]
    loss.sum().backward()
    assert action.grad is not None
    torch.testing.assert_close(action.grad, double([-3.0, 4.0]))


@pytest.mark.parametrize(("log_prob", "rises"), [(3.0, True), (1.0, False)])
def test_temperature_rises_where_entropy_is_short(log_prob, rises):
    """The target is an entropy of -2: below it log pi is above 2."""
    log_temperature = torch.zeros(1, requires_grad=True)
    temperature_loss(log_temperature, torch.full((5,), log_prob), -2.0).mean().backward()
    assert log_temperature.grad is not None and (log_temperature.grad.item() < 0) == rises
