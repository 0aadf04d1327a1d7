"""Losses and targets of policy gradients by hand."""

import pytest
import torch

from sharpwave.agents.losses import lambda_returns
from sharpwave.agents.policy_gradients import clipped_surrogate, policy_gradient, standardized, vtrace

REWARD, HALF = torch.tensor([[1.0, 2.0, 4.0]]), torch.full((1, 3), 0.5)
VALUE, NEXT, RATIO = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[2.0, 4.0, 8.0]]), torch.tensor([[2.0, 0.5, 1.0]])
LAST = torch.tensor([[False, False, True]])


def test_vtrace():
    # Errors rho (r + gamma v' - v): 1, .5 * 2, 4. Backwards with gamma c: 4; 1 + .5 * .5 * 4 = 2; 1 + .5 * 2 = 2.
    got = vtrace(REWARD, HALF, VALUE, NEXT, LAST, RATIO, 1.0)
    torch.testing.assert_close(got.target, torch.tensor([[3.0, 4.0, 8.0]]))
    # rho (r + gamma v_{s+1} - v): 1 + .5 * 4 - 1; .5 (2 + .5 * 8 - 2); 4 + .5 * 8 - 4.
    torch.testing.assert_close(got.advantage, torch.tensor([[2.0, 2.0, 4.0]]))


def test_vtrace_with_larger_ratios_cuts_its_traces_at_one_all_the_same():
    # Only the first ratio, 2, is no longer clipped in its error: 2 * 1 + .5 * 1 * 2 = 4 would be 5 with a trace of 2.
    got = vtrace(REWARD, HALF, VALUE, NEXT, LAST, RATIO, 2.0)
    torch.testing.assert_close(got.target, torch.tensor([[4.0, 4.0, 8.0]]))
    torch.testing.assert_close(got.advantage, torch.tensor([[4.0, 2.0, 4.0]]))


def test_vtrace_bootstraps_at_an_episode_s_end_unless_it_terminated():
    ends = torch.tensor([[True, False, True]])
    discount = torch.tensor([[0.0, 0.5, 0.5]])  # terminated: 1 * (1 - 1) = 0
    got = vtrace(REWARD, discount, VALUE, NEXT, ends, RATIO, 1.0)
    torch.testing.assert_close(got.target, torch.tensor([[1.0, 4.0, 8.0]]))
    torch.testing.assert_close(got.advantage, torch.tensor([[0.0, 2.0, 4.0]]))
    got = vtrace(REWARD, HALF, VALUE, NEXT, ends, RATIO, 1.0)  # truncated: 1 + .5 * 2
    torch.testing.assert_close(got.target, torch.tensor([[2.0, 4.0, 8.0]]))
    torch.testing.assert_close(got.advantage, torch.tensor([[1.0, 2.0, 4.0]]))


def test_vtrace_of_the_same_policy_is_the_return():
    ones = torch.ones(1, 3)
    got = vtrace(REWARD, HALF, VALUE, NEXT, LAST, ones, 1.0)
    returns = lambda_returns(REWARD, HALF, NEXT, LAST, 1.0)
    torch.testing.assert_close(got.target, returns)
    torch.testing.assert_close(got.advantage, returns - VALUE)


def test_vtrace_gives_no_gradients():
    value, following, ratio = (part.clone().requires_grad_() for part in (VALUE, NEXT, RATIO))
    got = vtrace(REWARD, HALF, value, following, LAST, ratio, 1.0)
    assert not got.target.requires_grad and not got.advantage.requires_grad


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
