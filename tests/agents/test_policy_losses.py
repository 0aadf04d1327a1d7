"""The mathematics of policies, by hand and against plain loops."""

import math

import numpy as np
import pytest
import torch

from sharpwave.agents.a2c import policy_gradient
from sharpwave.agents.impala import vtrace
from sharpwave.agents.losses import lambda_returns
from sharpwave.agents.ppo import clipped_surrogate, standardized
from sharpwave.agents.sac import LOG_STD, dpg_loss, squash, temperature_loss, twin_targets
from sharpwave.agents.td3 import smoothed

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
