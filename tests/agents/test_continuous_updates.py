"""Whole updates of SAC, TD3 and CrossQ against a derivation of their own; their networks' parts; how they explore."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from sharpwave.agents.bc import BC
from sharpwave.agents.crossq import CrossQ
from sharpwave.agents.hidden_layers import BatchRenorm
from sharpwave.agents.iql import IQL
from sharpwave.agents.ppo import PPO
from sharpwave.agents.protocol import Spaces
from sharpwave.agents.sac import SAC
from sharpwave.agents.td3 import TD3
from tests.agents.continuous_oracle import ACTIONS, BATCH, SIZE, UNITS, CrossQOracle, SACOracle, TD3Oracle

LOW, HIGH = np.array([-2.0, 0.5]), np.array([2.0, 3.0])
SPACES = Spaces(
    Box(-np.inf, np.inf, (SIZE,), np.float32), Box(LOW.astype(np.float32), HIGH.astype(np.float32)), "the toy"
)


def batches(count, seed):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield {
            "obs": rng.normal(size=(BATCH, SIZE)).astype(np.float32),
            "next_obs": rng.normal(size=(BATCH, SIZE)).astype(np.float32),
            "action": rng.uniform(LOW, HIGH, (BATCH, ACTIONS)).astype(np.float32),
            "reward": (3 * rng.normal(size=BATCH)).astype(np.float32),
            "discount": (0.9 ** rng.integers(1, 4, BATCH) * (rng.random(BATCH) < 0.8)).astype(np.float32),
            "weights": rng.uniform(0.1, 1.0, BATCH).astype(np.float32),
        }


def networks_of(agent):
    """Tensors of the agent's networks, by network and name."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, value in agent.state()["weights"].items():
        network, _, own = name.partition(".")
        found.setdefault(network, {})[own] = value.detach().numpy().copy()
    return found


CASES = [
    (SAC, {}, SACOracle, 0.9, 2),
    (SAC, {"target_entropy": 1.5}, SACOracle, 0.9, 2),
    (SAC, {"temperature": 0.3, "target_tau": 0.5}, SACOracle, 0.9, 2),
    (TD3, {}, TD3Oracle, 0.9, 1),
    (TD3, {"policy_delay": 1, "target_noise": 1.0, "target_noise_limit": 0.7}, TD3Oracle, 0.9, 1),
    (TD3, {"critics": 3}, TD3Oracle, 0.9, 1),
    (CrossQ, {"critic_units": 6, "policy_delay": 2}, CrossQOracle, 0.5, 2),
    (CrossQ, {"critic_units": 6, "policy_delay": 2, "critics": 3}, CrossQOracle, 0.5, 2),
]


@pytest.mark.parametrize(("kind", "changes", "oracle", "decay", "draws"), CASES, ids=lambda value: str(value))
def test_updates_are_those_of_the_equations(kind, changes, oracle, decay, draws):
    torch.manual_seed(1)
    base = {"hidden_units": UNITS, "lr": 1e-2} | ({"target_tau": 0.1} if kind is not CrossQ else {})
    agent = kind(SPACES, kind.Settings(**base | changes))
    begun = networks_of(agent)
    expected = oracle(begun, agent.settings, decay)
    for update, batch in enumerate(batches(6, seed=3)):
        torch.manual_seed(100 + update)
        noise = [np.float64(torch.randn(BATCH, ACTIONS).numpy()) for _ in range(draws)]
        torch.manual_seed(100 + update)
        learned = agent.learn(SimpleNamespace(**{name: torch.from_numpy(one) for name, one in batch.items()}), update)
        wide = {name: np.float64(one) for name, one in batch.items()}
        wide["action"] = 2 * (wide["action"] - LOW) / (HIGH - LOW) - 1
        np.testing.assert_allclose(learned.td_error, expected.learn(wide, noise), rtol=0, atol=2e-5)
        for network, tensors in networks_of(agent).items():
            for name, found in tensors.items():
                if not name.endswith("batches"):
                    wanted = expected.networks[network][name]
                    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5, err_msg=f"{update} {network} {name}")
    moved = {"critics", "actor"} | ({"log_temperature"} if "temperature" not in changes and kind is not TD3 else set())
    for network in moved:
        assert all(
            np.abs(found - begun[network][name]).max() > 1e-3 for name, found in networks_of(agent)[network].items()
        )


@pytest.mark.parametrize("kind", [SAC, TD3, BC, IQL, PPO])
def test_an_action_without_axes_is_that_of_one_number(kind):
    made = []
    for shape in ((1,), ()):
        torch.manual_seed(2)
        agent = kind(Spaces(SPACES.observation, Box(-1, 3, shape, np.float32)), kind.Settings(hidden_units=UNITS))
        if kind is not PPO:
            (batch,) = batches(1, seed=3)
            batch["action"] = batch["action"][:, 0].reshape(BATCH, *shape)
            agent.learn(SimpleNamespace(**{name: torch.from_numpy(one) for name, one in batch.items()}), 0)
        obs = np.random.default_rng(0).normal(size=(7, SIZE)).astype(np.float32)
        action = agent.act(obs, agent.begin(7), 0, explore=False).action
        with torch.no_grad():
            decided = agent.decide(torch.from_numpy(obs), {})[0].numpy()
        assert action.shape == decided.shape == (7, *shape)
        np.testing.assert_allclose(decided, action, rtol=0, atol=1e-6)
        made.append(action.reshape(-1))
    np.testing.assert_array_equal(*made)


def test_targets_begin_as_copies():
    agent = networks_of(TD3(SPACES, TD3.Settings(hidden_units=UNITS)))
    for name in ("actor", "critics"):
        assert all(np.array_equal(agent[f"target_{name}"][key], one) for key, one in agent[name].items())


def test_both_critics_begin_differently():
    critics = networks_of(SAC(SPACES, SAC.Settings(hidden_units=UNITS)))["critics"]
    assert not any(np.array_equal(one[0], one[1]) for one in critics.values())


def test_first_actions_are_uniform_then_the_policy_s():
    """Over the whole space, a fifth of the draws in each fifth; later near what it makes without noise."""
    agent = TD3(SPACES, TD3.Settings(hidden_units=UNITS, random_steps=100, action_noise=0.01), seed=3)
    obs = np.random.default_rng(0).normal(size=(2_000, SIZE)).astype(np.float32)
    early = agent.act(obs, None, 99).action
    for number in range(ACTIONS):
        counts = np.histogram(early[:, number], bins=5, range=(LOW[number], HIGH[number]))[0]
        assert counts.sum() == len(obs) and np.abs(counts - 400).max() < 100
    late, best = agent.act(obs, None, 100).action, agent.act(obs, None, 100, explore=False).action
    noise = (late - best) / ((HIGH - LOW) / 2)
    assert noise.std() == pytest.approx(0.01, rel=0.05)


def test_the_policy_draws_what_it_learns_by():
    """Actions come from numpy, updates draw by torch: the same distribution."""
    torch.manual_seed(0)
    agent = SAC(SPACES, SAC.Settings(hidden_units=UNITS, random_steps=0), seed=3)
    obs = np.tile(np.random.default_rng(0).normal(size=(1, SIZE)).astype(np.float32), (20_000, 1))
    made = agent.actions.scaled(torch.from_numpy(agent.act(obs, None, 0).action)).numpy()
    with torch.no_grad():
        drawn = agent.draw(agent.inputs(torch.from_numpy(obs)))[0].numpy()
    for quantile in (0.05, 0.25, 0.5, 0.75, 0.95):
        np.testing.assert_allclose(np.quantile(made, quantile, axis=0), np.quantile(drawn, quantile, axis=0), atol=0.03)


def test_batches_are_renormalized_by_running_statistics():
    """After the warm-up, within bounds, training and evaluation compute the same; beyond them they do not."""
    torch.manual_seed(0)
    layer = BatchRenorm(2, 1, 3).double()
    with torch.no_grad():
        layer.scale.uniform_(0.5, 2.0)
        layer.shift.normal_()
        layer.mean.normal_()
        layer.variance.uniform_(0.5, 2.0)
    x = torch.randn(2, 40, 3, dtype=torch.float64)
    expected = layer.eval()(x)
    normal = layer.train()(x)
    assert not torch.allclose(normal, expected)
    layer.batches.fill_(layer.WARMUP)
    expected = layer.eval()(x)
    torch.testing.assert_close(layer.train()(x), expected)
    expected = layer.eval()(x + 100)
    assert not torch.allclose(layer.train()(x + 100), expected)


def test_statistics_are_learned_only_from_batches():
    agent = CrossQ(SPACES, CrossQ.Settings(hidden_units=UNITS, critic_units=UNITS, random_steps=0))
    before = networks_of(agent)
    agent.act(np.ones((7, SIZE), np.float32), None, 0)
    assert all(
        np.array_equal(one, before[network][name])
        for network, tensors in networks_of(agent).items()
        for name, one in tensors.items()
    )
    assert not any(module.training for module in (agent.actor, agent.critics))


@pytest.mark.parametrize("kind", [SAC, TD3, CrossQ])
def test_updates_in_bfloat16_stay_close(kind):
    """Updates of the same batches in either precision; weights move by a hundredth at most in each."""
    found = {}
    for precision in ("float32", "bfloat16"):
        torch.manual_seed(1)
        agent = kind(SPACES, kind.Settings(hidden_units=UNITS, lr=1e-2, precision=precision))
        for step, batch in enumerate(batches(4, seed=3)):
            agent.learn(SimpleNamespace(**{name: torch.from_numpy(one) for name, one in batch.items()}), step)
        found[precision] = agent.policy_tensors()
    for name, exact in found["float32"].items():
        assert found["bfloat16"][name].dtype == exact.dtype
        torch.testing.assert_close(found["bfloat16"][name], exact, rtol=0, atol=0.05)
