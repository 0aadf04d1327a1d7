"""Rescaled values and n-step targets equal rlax's in float64."""

import numpy as np
import pytest
import torch

from sharpwave.agents.losses import signed_hyperbolic, signed_parabolic
from tests.agents.test_losses import by_arrays

from .quiet import jax, rlax


@pytest.mark.parametrize("n_step", [1, 5])
def test_rlax_agrees(n_step):
    """Within one episode, of which the last step may terminate: rlax knows no truncation."""
    rng, size, steps, actions = np.random.default_rng(5), 16, 9, 4
    q, target_q = rng.normal(size=(2, size, steps, actions))
    action, chosen = rng.integers(0, actions, (2, size, steps))
    reward, discount = 10 * rng.normal(size=(size, steps)), np.full((size, steps), 0.9)
    discount[: size // 2, -1] = 0
    x = np.linspace(-300, 300, 1001)

    def by_rlax(pair):
        def one(*values):
            return rlax.transformed_n_step_q_learning(*values, n_step, tx_pair=pair)

        return jax.vmap(one)(q, action, target_q, chosen, reward, discount)

    with jax.enable_x64(True):
        expected_h, expected_inverse = rlax.signed_hyperbolic(x), rlax.signed_parabolic(x)
        expected_plain, expected_rescaled = by_rlax(rlax.IDENTITY_PAIR), by_rlax(rlax.SIGNED_HYPERBOLIC_PAIR)
    h, inverse = (function(torch.from_numpy(x)) for function in (signed_hyperbolic, signed_parabolic))
    np.testing.assert_allclose(h, expected_h, rtol=1e-12)
    np.testing.assert_allclose(inverse, expected_inverse, rtol=1e-7, atol=1e-9)
    value, ends = np.take_along_axis(target_q, chosen[..., None], 2)[..., 0], np.zeros((size, steps), bool)
    ends[:, -1] = True
    taken = np.take_along_axis(q, action[..., None], 2)[..., 0]
    plain = by_arrays(reward, discount, value, ends, n_step)
    np.testing.assert_allclose(plain - taken, expected_plain, rtol=1e-10)
    values = signed_parabolic(torch.from_numpy(value)).numpy()
    rescaled = signed_hyperbolic(torch.from_numpy(by_arrays(reward, discount, values, ends, n_step)))
    np.testing.assert_allclose(rescaled.numpy() - taken, expected_rescaled, rtol=1e-7, atol=1e-9)
