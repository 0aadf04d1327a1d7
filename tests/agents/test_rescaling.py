"""Rescaled values and n-step targets: numbers worked out by hand, and a plain loop."""

import numpy as np
import pytest
import torch

from sharpwave.agents.rescaling import n_step_targets, signed_hyperbolic, signed_parabolic


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
