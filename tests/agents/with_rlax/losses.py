"""Losses and targets equal rlax's in float64, for many items at once."""

import numpy as np
import pytest
import torch

from sharpwave.agents.distributional import C51, IQN, QR, Expected, project, quantile_huber
from sharpwave.agents.dqn import double_q_targets
from sharpwave.agents.iql import expectile_loss
from sharpwave.agents.losses import action_cross_entropy, greedy_policy, huber, lambda_returns
from sharpwave.agents.sac import dpg_loss

from .quiet import jax, rlax

pytestmark = pytest.mark.filterwarnings("ignore:Rlax categorical_cross_entropy:PendingDeprecationWarning")

ITEMS, ACTIONS, ATOMS = 64, 5, 11
LOW, HIGH = -3.0, 2.0


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def drawn():
    """Rewards, discounts (some zero), actions, and a function that draws predictions."""
    rng = np.random.default_rng(0)
    return {
        "reward": rng.normal(size=ITEMS),
        "discount": 0.9 * (rng.random(ITEMS) < 0.8),
        "action": rng.integers(0, ACTIONS, ITEMS),
        "predicted": lambda *shape: rng.normal(size=(ITEMS, ACTIONS, *shape)),
    }


def tensors(*arrays):
    return [torch.from_numpy(np.array(array)) for array in arrays]


def test_double_q_learning(drawn):
    q, value, selector = (drawn["predicted"]() for _ in range(3))
    expected = jax.vmap(rlax.double_q_learning)(q, drawn["action"], drawn["reward"], drawn["discount"], value, selector)
    reward, discount, action, q, value, selector = tensors(
        drawn["reward"], drawn["discount"], drawn["action"], q, value, selector
    )
    taken = q.gather(1, action.unsqueeze(1)).squeeze(1)
    np.testing.assert_allclose(double_q_targets(value, selector, reward, discount) - taken, expected, rtol=1e-12)
    target = Expected().target(value, greedy_policy(selector), reward, discount)
    np.testing.assert_allclose(Expected().loss(taken, target)[1], expected, rtol=1e-12)


def test_q_learning(drawn):
    q, value = drawn["predicted"](), drawn["predicted"]()
    expected = jax.vmap(rlax.q_learning)(q, drawn["action"], drawn["reward"], drawn["discount"], value)
    reward, discount, action, q, value = tensors(drawn["reward"], drawn["discount"], drawn["action"], q, value)
    taken = q.gather(1, action.unsqueeze(1)).squeeze(1)
    np.testing.assert_allclose(double_q_targets(value, value, reward, discount) - taken, expected, rtol=1e-12)


@pytest.mark.parametrize("delta", [0.3, 1.0])
def test_huber(delta):
    errors = np.random.default_rng(1).normal(size=100)
    np.testing.assert_allclose(huber(torch.from_numpy(errors), delta), rlax.huber_loss(errors, delta), rtol=1e-12)


def test_categorical_projection():
    rng = np.random.default_rng(2)
    returns, probabilities = rng.uniform(-5, 4, (ITEMS, ATOMS)), rng.dirichlet(np.ones(ATOMS), ITEMS)
    atoms = np.linspace(LOW, HIGH, ATOMS)
    expected = jax.vmap(lambda z, p: rlax.categorical_l2_project(z, p, atoms))(returns, probabilities)
    got = project(torch.from_numpy(returns), torch.from_numpy(probabilities), LOW, HIGH)
    np.testing.assert_allclose(got, expected, atol=1e-12)


def test_categorical_double_q_learning(drawn):
    logits, next_logits, selector = drawn["predicted"](ATOMS), drawn["predicted"](ATOMS), drawn["predicted"]()
    atoms = np.linspace(LOW, HIGH, ATOMS, dtype=np.float32).astype(np.float64)
    expected = jax.vmap(rlax.categorical_double_q_learning, in_axes=(None, 0, 0, 0, 0, None, 0, 0))(
        atoms, logits, drawn["action"], drawn["reward"], drawn["discount"], atoms, next_logits, selector
    )
    head = C51(ATOMS, LOW, HIGH)
    reward, discount, action, logits, next_logits, selector = tensors(
        drawn["reward"], drawn["discount"], drawn["action"], logits, next_logits, selector
    )
    target = head.target(next_logits.float(), greedy_policy(selector), reward.float(), discount.float())
    taken = logits[torch.arange(ITEMS), action].float()
    # The head's loss is less by the target's entropy, which has no gradient.
    entropy = -target.xlogy(target).sum(dim=1)
    np.testing.assert_allclose(head.loss(taken, target)[0] + entropy, expected, rtol=1e-5)


def test_categorical_values(drawn):
    logits = drawn["predicted"](ATOMS)
    atoms = np.linspace(LOW, HIGH, ATOMS)
    expected = np.asarray(jax.nn.softmax(logits, axis=-1)) @ atoms
    values = C51(ATOMS, LOW, HIGH).values(torch.from_numpy(logits).float())
    np.testing.assert_allclose(values, expected, atol=1e-5)


@pytest.mark.parametrize("delta", [0.0, 1.0, 0.4])
def test_quantile_regression(delta):
    rng = np.random.default_rng(3)
    quantiles, target, fractions = rng.normal(size=(ITEMS, 7)), rng.normal(size=(ITEMS, 9)), rng.random((ITEMS, 7))
    expected = jax.vmap(lambda q, f, t: rlax.quantile_regression_loss(q, f, t, delta))(quantiles, fractions, target)
    expected = expected / (delta or 1.0)  # rlax does not divide by kappa, as eq. 3 of Dabney et al. (2018b) does
    predicted, at, targets = tensors(quantiles, fractions, target)
    got = quantile_huber(predicted, at, targets, delta)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("head", [QR(quantiles=7), IQN(quantiles=7)])
def test_quantile_q_learning(drawn, head):
    quantiles, next_quantiles, selector = (drawn["predicted"](7) for _ in range(3))
    drawn_fractions = head.draw(ITEMS, np.random.default_rng(4))
    fractions = (np.arange(7) + 0.5) / 7 + np.zeros((ITEMS, 1)) if drawn_fractions is None else drawn_fractions.numpy()

    def expected_of(quantiles, fractions, action, reward, discount, selector, next_quantiles):
        return rlax.quantile_q_learning(
            quantiles.T, fractions, action, reward, discount, selector.T, next_quantiles.T, huber_param=1.0
        )

    expected = jax.vmap(expected_of)(
        quantiles, fractions.astype(np.float64), drawn["action"], drawn["reward"], drawn["discount"], selector,
        next_quantiles,
    )  # fmt: skip
    reward, discount, action, quantiles, next_quantiles, selector = tensors(
        drawn["reward"], drawn["discount"], drawn["action"], quantiles, next_quantiles, selector
    )
    target = head.target(next_quantiles, greedy_policy(head.values(selector)), reward, discount)
    taken = quantiles[torch.arange(ITEMS), action]
    np.testing.assert_allclose(head.loss(taken, target, drawn_fractions)[0], expected, rtol=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.65, 1.0])
def test_lambda_returns(share):
    rng = np.random.default_rng(5)
    reward, value = rng.normal(size=(ITEMS, 9)), rng.normal(size=(ITEMS, 9))
    discount = 0.9 * (rng.random((ITEMS, 9)) < 0.8)
    expected = jax.vmap(lambda r, d, v: rlax.lambda_returns(r, d, v, share))(reward, discount, value)
    r, d, v = tensors(reward, discount, value)
    ends = torch.arange(9).expand(ITEMS, 9) == 8
    np.testing.assert_allclose(lambda_returns(r, d, v, ends, share), expected, rtol=1e-10, atol=1e-12)


def test_action_cross_entropy(drawn):
    scores = drawn["predicted"]()
    expected = jax.vmap(rlax.categorical_cross_entropy)(np.eye(ACTIONS)[drawn["action"]], scores)
    np.testing.assert_allclose(action_cross_entropy(*tensors(scores, drawn["action"])), expected, rtol=1e-12)


def test_dpg_loss():
    """Of actions of three numbers: the loss, and its gradient by the action."""
    rng = np.random.default_rng(1)
    action, dq_da = rng.normal(size=(ITEMS, 3)), rng.normal(size=(ITEMS, 3))

    def whole(action):
        return jax.vmap(rlax.dpg_loss)(action, dq_da).sum(axis=1)

    own, moved = tensors(action, dq_da)
    own.requires_grad_()
    found = dpg_loss(own, moved)
    np.testing.assert_allclose(found.detach(), whole(action), rtol=1e-12)
    found.sum().backward()
    np.testing.assert_allclose(own.grad, jax.grad(lambda a: whole(a).sum())(action), rtol=1e-12)


@pytest.mark.parametrize("expectile", [0.1, 0.5, 0.9])
def test_expectile_loss(expectile):
    predicted, target = np.random.default_rng(6).normal(size=(2, 100))
    expected = rlax.expectile_loss(predicted, target, expectile)
    np.testing.assert_allclose(expectile_loss(torch.from_numpy(target - predicted), expectile), expected, rtol=1e-12)
