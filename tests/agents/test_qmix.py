"""VDN and QMIX: whole updates against their equations in numpy, float64; and no illegal action, anywhere."""

import numpy as np
import pytest
import torch

from sharpwave.agents.protocol import Spaces
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.agents.vdn import QMIX, VDN
from sharpwave.envs.team_games import two_step
from tests.agents.optimizers import Adam, clipped
from tests.agents.team_batches import (
    AGENTS,
    BATCH,
    SPACES,
    batches,
    float64,
    gradients,
    layered,
    legal,
    seen,
    tensors,
)
from tests.agents.test_updates import weights_of

UNITS = 4


class Oracle:
    """The same agent from the papers' equations."""

    def __init__(self, weights, settings):
        self.online, self.settings = float64(weights), settings
        self.target, self.adam = dict(self.online), Adam(settings.adam_eps)

    def mixed(self, weights, values, state):
        if "mixer.first_weights.weight" not in weights:
            return values.sum(axis=1)

        state = state / (1 + np.abs(state))

        def made(name):
            return state @ weights[f"mixer.{name}.weight"].T + weights[f"mixer.{name}.bias"]

        first = np.abs(made("first_weights")).reshape(len(values), AGENTS, UNITS)
        hidden = np.array([values[b] @ first[b] for b in range(len(values))]) + made("first_bias")
        hidden = np.where(hidden > 0, hidden, np.expm1(np.minimum(hidden, 0)))
        last = np.maximum(made("last_bias.0"), 0) @ weights["mixer.last_bias.2.weight"].T
        bias = last + weights["mixer.last_bias.2.bias"]
        return (hidden * np.abs(made("last_weights"))).sum(axis=1) + bias[:, 0]

    def targets(self, batch):
        each, state = seen(batch["next_obs"])
        values = layered(self.target, "agent.", each)
        chooser = layered(self.online, "agent.", each) if self.settings.double else values
        allowed, best = legal(batch["next_obs"]["action_mask"]), np.zeros((BATCH, AGENTS))
        for b in range(BATCH):
            for n in range(AGENTS):
                action = max(np.flatnonzero(allowed[b, n]), key=lambda a: chooser[b, n, a])
                best[b, n] = values[b, n, action]
        return self.settings.reward_scale * batch["reward"] + batch["discount"] * self.mixed(self.target, best, state)

    def errors(self, weights, batch, targets):
        each, state = seen(batch["obs"])
        values = layered(weights, "agent.", each)
        made = np.take_along_axis(values, batch["action"][:, :, None], axis=2)[:, :, 0]
        return targets - self.mixed(weights, made, state)

    def learn(self, batch):
        targets = self.targets(batch)
        errors = self.errors(self.online, batch, targets)
        grads = gradients(
            self.online, lambda weights: np.mean(batch["weights"] * self.errors(weights, batch, targets) ** 2)
        )
        grads = clipped(grads, self.settings.max_grad_norm)
        self.online = self.adam.step(self.online, grads, self.settings.lr)
        tau = self.settings.target_tau
        self.target = {name: (1 - tau) * self.target[name] + tau * value for name, value in self.online.items()}
        return errors


@pytest.mark.parametrize(
    "changes", [{}, {"double": False, "reward_scale": 0.3}, {"max_grad_norm": 0.0, "target_tau": 1.0}], ids=str
)
@pytest.mark.parametrize("algorithm", [VDN, QMIX])
def test_updates_are_those_of_the_equations(algorithm, changes):
    torch.manual_seed(2)
    base = {"hidden_units": UNITS, "lr": 1e-2, "target_tau": 0.2, "max_grad_norm": 2.0}
    own = {"mixing_units": UNITS} if algorithm is QMIX else {}
    agent = algorithm(SPACES, algorithm.Settings(**base | changes | own))
    begun = {name: value.copy() for name, value in weights_of(agent, "online.").items()}
    oracle = Oracle(begun, agent.settings)
    for update, batch in enumerate(batches(6, seed=4)):
        expected = oracle.learn(batch)
        learned = agent.learn(tensors(batch), update)
        np.testing.assert_allclose(learned.td_error, expected, rtol=1e-4, atol=1e-5)
        for network, weights in (("online.", oracle.online), ("target.", oracle.target)):
            for name, found in weights_of(agent, network).items():
                np.testing.assert_allclose(found, weights[name], rtol=0, atol=2e-5, err_msg=f"{update} {name}")
    assert all(np.abs(found - begun[name]).max() > 1e-3 for name, found in weights_of(agent, "online.").items())


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("algorithm", [VDN, QMIX])
def test_the_value_of_an_illegal_action_is_in_no_target(algorithm, double):
    """Action 0 seems the best by far wherever it is legal; where it is not, targets are those of a team whose networks
    give it a value of nothing at all."""
    torch.manual_seed(3)
    agent = algorithm(SPACES, algorithm.Settings(hidden_units=UNITS, double=double))
    batch = tensors(next(iter(batches(1, seed=6))))
    batch.next_obs["action_mask"][:, :, 0] = 0
    batch.next_obs["action_mask"][:, :, 1] = 1
    inputs = agent.inputs(batch.next_obs)
    assert not inputs.legal[:, :, 0].any()
    with torch.no_grad():
        found = []
        for value in (-1e3, 1e3, float("inf")):
            for network in (agent.online, agent.target):
                network["agent"][4].bias[0] = value
            found.append(agent.targets(inputs, batch.reward, batch.discount))
    assert found[0].isfinite().all() and torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_a_qmix_of_n_steps_bootstraps_with_the_batch_s_discount():
    """The target of an item that terminated is its reward alone."""
    agent = QMIX(SPACES, QMIX.Settings(hidden_units=UNITS, replay=TransitionsSettings(n_step=3)))
    batch = tensors(next(iter(batches(1, seed=6))))
    with torch.no_grad():
        got = agent.targets(agent.inputs(batch.next_obs), batch.reward, torch.zeros(BATCH))
    assert torch.equal(got, batch.reward)


@pytest.mark.parametrize(("algorithm", "best"), [(QMIX, 8.0), (VDN, 7.0)])
def test_of_the_two_step_game_qmix_learns_the_eight_and_vdn_the_seven(algorithm, best):
    """From all that can happen in it, equally often: Rashid et al. (2018), table 1. A sum of two values that fits the
    matrix 0, 1, 1, 8 has -1.5, 2.5, 2.5 and 6.5, so that 7 seems better."""
    env = two_step()
    steps, spaces = [], Spaces(env.observation_space, env.action_space)
    joint = [np.array(pair) for pair in np.ndindex(2, 2)]
    for first in joint:
        for second in joint:
            begun, _ = env.reset()
            middle, pay, *_ = env.step(first)
            final, pay_then, terminated, *_ = env.step(second)
            assert terminated
            steps += [(begun, first, pay, 0.99, middle), (middle, second, pay_then, 0.0, final)]
    obs, action, reward, discount, next_obs = zip(*steps, strict=True)
    batch = tensors(
        {
            "obs": {part: np.stack([one[part] for one in obs]) for part in obs[0]},
            "next_obs": {part: np.stack([one[part] for one in next_obs]) for part in obs[0]},
            "action": np.stack(action),
            "reward": np.float32(reward),
            "discount": np.float32(discount),
            "weights": np.ones(len(steps), np.float32),
        }
    )
    torch.manual_seed(1)
    agent = algorithm(spaces, algorithm.Settings(hidden_units=32, lr=3e-3, target_tau=0.05))
    for update in range(600):
        agent.learn(batch, update)
    seen, _ = env.reset()
    total = 0.0
    for _ in range(2):
        one = {part: value[None] for part, value in seen.items()}
        seen, pay, *_ = env.step(agent.act(one, agent.begin(1), 0, explore=False).action[0])
        total += pay
    assert total == best
    if algorithm is QMIX:  # and its values are those of the game
        with torch.no_grad():
            values = agent.targets(agent.inputs(batch.next_obs), batch.reward, batch.discount)
        torch.testing.assert_close(values[1::2][-4:], torch.tensor([0.0, 1.0, 1.0, 8.0]))
        assert abs(values[-2] - 0.99 * 8) < 0.3
