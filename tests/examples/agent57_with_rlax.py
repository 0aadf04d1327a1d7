"""Episodic rewards and Retrace targets of the example equal rlax's; run by ``tests/agents/test_with_rlax.py``."""

import numpy as np
import pytest
import torch
from agent57.ngu import retrace_targets
from agent57.novelty import KERNEL_EPS, EpisodicMemory

from sharpwave.agents.losses import signed_hyperbolic, signed_parabolic
from tests.agents.with_rlax.quiet import jax, rlax


def test_episodic_rewards():
    """rlax sums distances with their sign turned, so that what it adds to their mean is taken from it: without it both
    are the paper's."""
    embeddings = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    memory, state = EpisodicMemory.empty(1, 12, 4), None
    for one in embeddings:
        got, memory = memory.add(one[None], 3, constant=0.0)
        expected, state = rlax.episodic_memory_intrinsic_rewards(
            one[None], 3, 1.0, state, constant=0.0, epsilon=KERNEL_EPS, max_memory_size=12
        )
        np.testing.assert_allclose(got, expected, rtol=2e-3)


@pytest.mark.parametrize("pair", ["plain", "rescaled"])
def test_retrace(pair):
    """Within one episode, of which the last step may terminate: rlax knows no truncation."""
    rng, size, steps, actions, share = np.random.default_rng(5), 16, 9, 4, 0.9
    q, target_q = rng.normal(size=(2, size, steps + 1, actions))
    action = rng.integers(0, actions, (size, steps + 1))
    reward, discount = 3 * rng.normal(size=(size, steps)), np.full((size, steps), 0.9)
    discount[: size // 2, -1] = 0
    policy, behaviour = rng.dirichlet(np.ones(actions), (size, steps + 1)), rng.uniform(0.1, 1, (size, steps + 1))
    transforms = {"plain": rlax.IDENTITY_PAIR, "rescaled": rlax.SIGNED_HYPERBOLIC_PAIR}[pair]

    def one(q, target_q, action, reward, discount, policy, behaviour):
        # The value of the last action is not used: no error is added behind the window.
        return rlax.transformed_retrace(
            q[:-1], target_q[1:], action[:-1], action[1:], reward, discount, policy[1:], behaviour[1:], share, 0.0,
            tx_pair=transforms,
        )  # fmt: skip

    with jax.enable_x64(True):
        expected = jax.vmap(one)(q, target_q, action, reward, discount, policy, behaviour)

    def tensor(array):
        return torch.from_numpy(np.ascontiguousarray(array))

    values = tensor(target_q) if pair == "plain" else signed_parabolic(tensor(target_q))
    taken = values.gather(2, tensor(action)[..., None]).squeeze(2)
    ratio = np.take_along_axis(policy, action[..., None], 2)[..., 0] / behaviour
    ends = np.arange(steps) == np.full((size, 1), steps - 1)
    targets = retrace_targets(
        tensor(reward), tensor(discount), (tensor(policy) * values).sum(dim=2)[:, 1:], taken[:, :-1],
        tensor(share * np.minimum(ratio, 1)[:, :-1]), tensor(ends),
    )  # fmt: skip
    targets = targets if pair == "plain" else signed_hyperbolic(targets)
    made = np.take_along_axis(q, action[..., None], 2)[:, :-1, 0]
    np.testing.assert_allclose(targets.numpy() - made, expected, rtol=1e-6, atol=1e-8)
