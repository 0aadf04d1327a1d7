"""Losses and targets of policy gradients equal rlax's in float64, for many windows at once."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from sharpwave.agents.a2c import policy_gradient
from sharpwave.agents.action_distributions import Categorical
from sharpwave.agents.actions import NumberedActions
from sharpwave.agents.impala import vtrace
from sharpwave.agents.losses import lambda_returns
from sharpwave.agents.ppo import clipped_surrogate
from sharpwave.agents.protocol import Spaces

from .quiet import jax, jnp, rlax

pytestmark = pytest.mark.filterwarnings("ignore:Rlax softmax:PendingDeprecationWarning")

WINDOWS, STEPS, ACTIONS = 32, 9, 5


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def drawn():
    """Rewards, discounts (some zero), values of T + 1 observations, and ratios on both sides of 1."""
    rng = np.random.default_rng(0)
    return {
        "reward": rng.normal(size=(WINDOWS, STEPS)),
        "discount": 0.9 * (rng.random((WINDOWS, STEPS)) < 0.8),
        "values": rng.normal(size=(WINDOWS, STEPS + 1)),
        "ratio": np.exp(rng.normal(size=(WINDOWS, STEPS))),
    }


ENDS = torch.arange(STEPS).expand(WINDOWS, STEPS) == STEPS - 1


@pytest.mark.parametrize("clip", [1.0, 2.5])
def test_vtrace(drawn, clip):
    reward, discount, values, ratio = drawn.values()
    expected = jax.vmap(
        lambda v, after, r, d, rho: rlax.vtrace_td_error_and_advantage(v, after, r, d, rho, 1.0, clip, clip)
    )(values[:, :-1], values[:, 1:], reward, discount, ratio)
    reward, discount, values, ratio = (torch.from_numpy(one) for one in drawn.values())
    target, advantage = vtrace(reward, discount, values[:, :-1], values[:, 1:], ENDS, ratio, clip)
    np.testing.assert_allclose(target - values[:, :-1], expected.errors, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(advantage, expected.pg_advantage, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.95, 1.0])
def test_generalized_advantage_estimation(drawn, share):
    reward, discount, values, _ = drawn.values()
    expected = jax.vmap(lambda r, d, v: rlax.truncated_generalized_advantage_estimation(r, d, share, v))(
        reward, discount, values
    )
    reward, discount, values, _ = (torch.from_numpy(one) for one in drawn.values())
    got = lambda_returns(reward, discount, values[:, 1:], ENDS, share) - values[:, :-1]
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)


def test_clipped_surrogate(drawn):
    ratio, advantage = drawn["ratio"].ravel(), drawn["reward"].ravel()
    expected, slope = jax.value_and_grad(lambda one: rlax.clipped_surrogate_pg_loss(one, advantage, 0.2))(
        jnp.asarray(ratio)
    )
    ratios = torch.from_numpy(ratio).requires_grad_()
    loss = clipped_surrogate(ratios, torch.from_numpy(advantage), 0.2).mean()
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-12)
    np.testing.assert_allclose(torch.autograd.grad(loss, ratios)[0], slope, rtol=1e-12)


def test_policy_gradient(drawn):
    rng = np.random.default_rng(1)
    logits, action, advantage = rng.normal(size=(STEPS, ACTIONS)), rng.integers(0, ACTIONS, STEPS), drawn["reward"][0]
    expected, slope = jax.value_and_grad(
        lambda one: rlax.policy_gradient_loss(one, action, advantage, np.ones(STEPS))
    )(jnp.asarray(logits))  # fmt: skip
    predicted = torch.from_numpy(logits).requires_grad_()
    taken = predicted.log_softmax(dim=1).gather(1, torch.from_numpy(action)[:, None])[:, 0]
    loss = policy_gradient(taken, torch.from_numpy(advantage)).mean()
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-12)
    np.testing.assert_allclose(torch.autograd.grad(loss, predicted)[0], slope, rtol=1e-10, atol=1e-14)


def test_entropy():
    logits = np.random.default_rng(2).normal(size=(STEPS, ACTIONS))
    policy = Categorical(NumberedActions(Spaces(Box(-1, 1, (1,), np.float32), Discrete(ACTIONS)), "test"))
    expected = rlax.entropy_loss(jnp.asarray(logits), np.ones(STEPS))  # minus the mean
    np.testing.assert_allclose(-policy.entropy(torch.from_numpy(logits)).mean(), expected, rtol=1e-10)
