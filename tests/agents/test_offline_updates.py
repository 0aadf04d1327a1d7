"""Whole updates of the agents that learn from recorded data against a derivation of their own; their losses by hand."""

import math

import numpy as np
import pytest
import torch

import sharpwave as sw
from sharpwave.agents.bc import gaussian_log_prob, squashed_log_prob
from sharpwave.agents.calql import CalQL, conservative_penalty
from sharpwave.agents.episode_outcomes import OutcomeSettings, following, returns_to_go
from sharpwave.agents.iql import IQL, advantage_weight
from sharpwave.agents.rebrac import ReBRAC, penalized_value_loss
from sharpwave.agents.td3bc import TD3BC, value_and_imitation_loss
from tests.agents.continuous_oracle import ACTIONS, BATCH, SIZE, UNITS
from tests.agents.offline_oracle import CalQLOracle, IQLOracle, ReBRACOracle, TD3BCOracle
from tests.agents.test_continuous_updates import HIGH, LOW, SPACES, batches, networks_of

COUNT = 3
"""Actions of each kind in the penalty of calibrated Q-learning."""


class Items(dict):
    """Batch of tensors; steps of which nothing is known yet have no return."""

    __getattr__ = dict.__getitem__

    def mask_of(self, name):
        return self["known"]


def recorded(count, seed):
    rng = np.random.default_rng(seed + 1)
    for one in batches(count, seed):
        yield one | {
            "return_to_go": (3 * rng.normal(size=BATCH)).astype(np.float32),
            "episode_return": (rng.normal(size=BATCH)).astype(np.float32),
            "known": rng.random(BATCH) < 0.7,
            "next_action": np.where(rng.random((BATCH, 1)) < 0.2, np.nan, one["action"][::-1]).astype(np.float32),
        }


def normal(*shape):
    return torch.randn(*shape).numpy().astype(np.float64)


def of_calql():
    at_loss, here, there = normal(BATCH, ACTIONS), normal(BATCH * COUNT, ACTIONS), normal(BATCH * COUNT, ACTIONS)
    uniform = torch.rand(BATCH, COUNT, ACTIONS).numpy().astype(np.float64)
    here, there = (one.reshape(BATCH, COUNT, ACTIONS) for one in (here, there))
    return [at_loss, here, there, uniform, normal(BATCH, ACTIONS)]


STANDARD = {"standardize": False}
CALQL = STANDARD | {"sampled_actions": COUNT, "target_tau": 0.1, "actor_lr": 3e-3}
CASES = [
    (TD3BC, STANDARD, TD3BCOracle, lambda: [normal(BATCH, ACTIONS)]),
    (TD3BC, STANDARD | {"value_weight": 0.7, "policy_delay": 1}, TD3BCOracle, lambda: [normal(BATCH, ACTIONS)]),
    (ReBRAC, {"actor_imitation": 0.5, "critic_imitation": 2.0}, ReBRACOracle, lambda: [normal(BATCH, ACTIONS)]),
    (IQL, STANDARD | {"inverse_temperature": 0.4, "max_weight": 2.0, "target_tau": 0.1}, IQLOracle, list),
    (CalQL, CALQL, CalQLOracle, of_calql),
    (CalQL, CALQL | {"calibrated": False, "conservatism": 0.5}, CalQLOracle, of_calql),
]


@pytest.mark.parametrize(
    ("kind", "changes", "oracle", "draw"), CASES, ids=lambda one: one.__name__ if isinstance(one, type) else None
)
def test_updates_are_those_of_the_equations(kind, changes, oracle, draw):
    torch.manual_seed(1)
    agent = kind(SPACES, kind.Settings(hidden_units=UNITS, lr=1e-2, **changes))
    first = next(recorded(1, seed=9))
    factor = 1.0
    if kind in (IQL, CalQL):
        agent.prepare(Items({name: torch.from_numpy(one) for name, one in first.items()}))
        known = first["episode_return"][first["known"]]
        factor = 1000 / (known.max() - known.min())
        agent.rewards.factor.mul_(1e-3)  # so that values are as large as they begin
        factor *= 1e-3
    begun = networks_of(agent)
    expected = oracle(begun, agent.settings)
    expected.factor = factor
    for update, batch in enumerate(recorded(5, seed=3)):
        torch.manual_seed(100 + update)
        noise = draw()
        torch.manual_seed(100 + update)
        learned = agent.learn(Items({name: torch.from_numpy(one) for name, one in batch.items()}), update)
        wide = {name: one if one.dtype == bool else np.float64(one) for name, one in batch.items()}
        for name in ("action", "next_action"):
            wide[name] = 2 * (wide[name] - LOW) / (HIGH - LOW) - 1
        np.testing.assert_allclose(learned.td_error, expected.learn(wide, noise), rtol=0, atol=5e-5)
        for network, tensors in networks_of(agent).items():
            for name, found in tensors.items():
                if network not in ("inputs", "rewards"):
                    wanted = expected.networks[network][name]
                    np.testing.assert_allclose(found, wanted, rtol=0, atol=5e-5, err_msg=f"{update} {network} {name}")
    for network in {"actor", "critics", "policy", "value"} & begun.keys():
        assert any(np.abs(one - begun[network][name]).max() > 1e-3 for name, one in networks_of(agent)[network].items())


def test_returns_to_go_and_following_actions_by_hand():
    np.testing.assert_allclose(returns_to_go(np.array([1.0, 2.0, 4.0]), 0.5), [3.0, 4.0, 4.0])
    np.testing.assert_array_equal(following(np.array([[1.0], [2.0], [3.0]]), 1), [[2.0], [3.0], [np.nan]])
    np.testing.assert_array_equal(following(np.array([[1.0], [2.0]]), 3), [[np.nan], [np.nan]])


def test_outcomes_are_those_of_the_step_s_own_episode():
    """Of two episodes in turn, and one that goes on; more end later."""

    class Every(OutcomeSettings):
        OUTCOMES = ("return_to_go", "episode_return", "next_action")

    store = sw.Store(sw.Spec(obs=sw.Field((1,), "float32"), action=sw.Field((1,), "float32")), capacity=100)

    def step(number, ends):
        obs = np.zeros(1)
        store.append(obs=obs, action=[number], reward=number, terminated=ends, truncated=False, final_obs=obs)

    for number in range(1, 7):
        step(number, number in (2, 5))
    settings = Every(gamma=0.5)
    view = settings.open(store, "learner", 0)

    def found():
        batch = view.sample(200)
        rows = zip(
            batch.step.tolist(), batch["return_to_go"], batch["episode_return"], batch["next_action"][:, 0], strict=True
        )
        known = batch.mask_of("return_to_go")
        return {row[0] + 1: tuple(map(float, row[1:])) for row, there in zip(rows, known, strict=True) if there}

    expected = {1: (2.0, 3, 2), 2: (2.0, 3, np.nan), 3: (6.25, 12, 4), 4: (6.5, 12, 5), 5: (5.0, 12, np.nan)}
    np.testing.assert_equal(found(), expected)
    step(7, True)
    np.testing.assert_equal(found(), expected)
    settings.complete(store)
    np.testing.assert_equal(found(), expected | {6: (9.5, 13, 7), 7: (7.0, 13, np.nan)})


def test_densities_by_hand():
    mean, log_std, action = (
        torch.tensor([[0.0, 1.0]]),
        torch.log(torch.tensor([[1.0, 2.0]])),
        torch.tensor([[1.0, 1.0]]),
    )
    by_hand = math.log(math.exp(-0.5) / math.sqrt(2 * math.pi)) + math.log(1 / (2 * math.sqrt(2 * math.pi)))
    assert float(gaussian_log_prob(mean, log_std, action)) == pytest.approx(by_hand, abs=1e-6)
    made = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean, log_std.exp()), torch.distributions.transforms.TanhTransform()
    )
    inside = torch.tensor([[0.9, -0.3]])
    assert float(squashed_log_prob(mean, log_std, inside)) == pytest.approx(
        float(made.log_prob(inside).sum()), abs=1e-5
    )
    assert torch.isfinite(squashed_log_prob(mean, log_std, torch.tensor([[1.0, -1.0]]))).all()


def test_weights_of_advantages_by_hand():
    found = advantage_weight(torch.tensor([-1.0, 0.0, 0.5, 9.0]), 2.0, 5.0)
    np.testing.assert_allclose(found, [math.exp(-2), 1.0, math.e, 5.0], rtol=1e-6)


def test_the_gradient_of_values_and_imitation_by_hand():
    """Values of mean size 2 weigh 4 / 2; the squared error is the mean of two numbers."""
    action = torch.tensor([[0.5, 0.0], [0.0, 0.0]], requires_grad=True)
    value_and_imitation_loss(
        action, torch.zeros(2, 2), torch.tensor([3.0, -1.0]), torch.tensor([[1.0, -1.0], [0.0, 2.0]]), 4.0
    ).sum().backward()
    assert action.grad is not None
    np.testing.assert_allclose(action.grad.numpy(), [[-2.0 + 0.5, 2.0], [0.0, -4.0]])


def test_the_gradient_of_penalized_values_by_hand():
    """Values of mean size 2 weigh 1 / 2; the distance is the sum of two numbers' squares."""
    action = torch.tensor([[0.5, 0.0], [0.0, 0.0]], requires_grad=True)
    value, gradient = torch.tensor([3.0, -1.0]), torch.tensor([[1.0, -1.0], [0.0, 2.0]])
    penalized_value_loss(action, torch.zeros(2, 2), value, gradient, 1.0, 0.2).sum().backward()
    assert action.grad is not None
    np.testing.assert_allclose(action.grad.numpy(), [[-0.5 + 0.2, 0.5], [0.0, -1.0]])


def test_the_penalty_by_hand():
    """One random action of density 1/2, one of the policy of density 1 below the reference; then above it."""
    log_density, q = torch.log(torch.tensor([[0.5, 1.0]])), torch.tensor([[0.25]])
    for value, counted in ((-3.0, 1.0), (2.0, 2.0)):
        values = torch.tensor([[[0.0, value]]], requires_grad=True)
        found = conservative_penalty(values, log_density, q, torch.tensor([1.0]), uncalibrated=1)
        assert found.item() == pytest.approx(math.log(2 + math.exp(counted)) - 0.25)
        found.sum().backward()
        assert values.grad is not None
        assert values.grad[0, 0, 0] > 0 and (float(values.grad[0, 0, 1]) > 0) == (value > 1)


@pytest.mark.parametrize("kind", [TD3BC, CalQL])
def test_observations_and_rewards_are_measured(kind):
    torch.manual_seed(0)
    agent = kind(SPACES, kind.Settings(hidden_units=UNITS))
    batch = {name: torch.from_numpy(one) for name, one in next(recorded(1, seed=2)).items()}
    assert agent.first_look
    agent.prepare(Items(batch))
    seen = agent.inputs(batch["obs"])
    torch.testing.assert_close(seen.mean(dim=0), torch.zeros(SIZE), atol=1e-5, rtol=0)
    known = batch["episode_return"][batch["known"]]
    span = 1.0 if kind is TD3BC else 1000 / float(known.max() - known.min())
    assert float(agent.rewards(torch.ones(1))) == pytest.approx(span, rel=1e-5)
    other = kind(SPACES, agent.settings)
    other.load(agent.state())
    torch.testing.assert_close(other.inputs(batch["obs"]), seen)
    assert torch.equal(other.rewards.factor, agent.rewards.factor)
