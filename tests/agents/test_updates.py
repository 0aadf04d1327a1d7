"""Whole updates of DQN against a derivation of their own: numpy, float64, gradients by hand, Adam included."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from sharpwave.agents.dqn import DQN
from sharpwave.agents.protocol import Spaces
from tests.agents.optimizers import Adam, clipped, rate

SIZE, UNITS, ACTIONS, BATCH = 5, 7, 3, 16


class Oracle:
    """The same agent from the papers' equations: a layer, a hidden layer, and one or two output layers.

    Args:
        weights: by name, of the online network when it begins; the target network is a copy.
    """

    def __init__(self, weights, settings):
        self.online = {name: np.array(value, np.float64) for name, value in weights.items()}
        self.target, self.mean = dict(self.online), dict(self.online)
        self.adam = Adam(settings.adam_eps)
        self.settings, self.copied = settings, 0

    def forward(self, weights, obs):
        """Q [B, A], and what the backward pass needs."""
        z1 = obs @ weights["torso.0.weight"].T + weights["torso.0.bias"]
        h1 = np.maximum(z1, 0)
        z2 = h1 @ weights["head.hidden.weight"].T + weights["head.hidden.bias"]
        h2 = np.maximum(z2, 0)
        for_advantage = h2[:, :UNITS]
        q = a = for_advantage @ weights["head.advantage.weight"].T + weights["head.advantage.bias"]
        if self.settings.dueling:
            value = h2[:, UNITS:] @ weights["head.value.weight"].T + weights["head.value.bias"]
            q = value + a - (self.shares(a) * a).sum(axis=1, keepdims=True)
        return q, (obs, z1, h1, z2, h2, a)

    def shares(self, a):
        """Of each advantage [B, A] in the dueling baseline: Wang et al. (2016), eq. 7 (naive), 8 (max), 9 (mean)."""
        same = {"mean": np.full_like(a, 1 / ACTIONS), "max": np.eye(ACTIONS)[a.argmax(axis=1)], "naive": 0 * a}
        return same[self.settings.dueling_baseline]

    def backward(self, kept, grad_q):
        """d loss / d weights from d loss / d Q [B, A]."""
        obs, z1, h1, z2, h2, a = kept
        weights, grads = self.online, {}
        grad_h2 = np.zeros_like(h2)
        grad_a = grad_q
        if self.settings.dueling:
            grad_v = grad_q.sum(axis=1, keepdims=True)
            grads["head.value.weight"], grads["head.value.bias"] = grad_v.T @ h2[:, UNITS:], grad_v.sum(axis=0)
            grad_h2[:, UNITS:] = grad_v @ weights["head.value.weight"]
            grad_a = grad_q - self.shares(a) * grad_v
        grads["head.advantage.weight"], grads["head.advantage.bias"] = grad_a.T @ h2[:, :UNITS], grad_a.sum(axis=0)
        grad_h2[:, :UNITS] = grad_a @ weights["head.advantage.weight"]
        grad_z2 = grad_h2 * (z2 > 0)
        grads["head.hidden.weight"], grads["head.hidden.bias"] = grad_z2.T @ h1, grad_z2.sum(axis=0)
        grad_z1 = (grad_z2 @ weights["head.hidden.weight"]) * (z1 > 0)
        grads["torso.0.weight"], grads["torso.0.bias"] = grad_z1.T @ obs, grad_z1.sum(axis=0)
        return grads

    def learn(self, batch, step):
        """TD errors [B] of one update."""
        settings = self.settings
        if settings.target_tau == 0 and step // settings.target_every > self.copied:
            self.copied, self.target = step // settings.target_every, dict(self.online)
        rows = np.arange(BATCH)
        q, kept = self.forward(self.online, batch["obs"])
        next_q, _ = self.forward(self.target, batch["next_obs"])
        chooser = self.forward(self.online, batch["next_obs"])[0] if settings.double else next_q
        target = batch["reward"] + batch["discount"] * next_q[rows, chooser.argmax(axis=1)]
        error = target - q[rows, batch["action"]]
        if settings.loss == "huber":
            slope = np.clip(error, -settings.huber_delta, settings.huber_delta)
        else:
            slope = 2 * error
        grad_q = np.zeros_like(q)
        grad_q[rows, batch["action"]] = -batch["weights"] * slope / BATCH
        grads = clipped(self.backward(kept, grad_q), settings.max_grad_norm)
        self.online = self.adam.step(self.online, grads, rate(settings, step))
        tau, decay = settings.target_tau, settings.average_decay
        if tau > 0:
            self.target = {name: (1 - tau) * self.target[name] + tau * value for name, value in self.online.items()}
        self.mean = {name: decay * self.mean[name] + (1 - decay) * value for name, value in self.online.items()}
        return error


def batches(count, seed):
    """n-step batches: discounts of one to three steps, zero where the episode terminated, and uneven weights."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield {
            "obs": rng.normal(size=(BATCH, SIZE)).astype(np.float32),
            "next_obs": rng.normal(size=(BATCH, SIZE)).astype(np.float32),
            "action": rng.integers(0, ACTIONS, BATCH),
            "reward": (3 * rng.normal(size=BATCH)).astype(np.float32),
            "discount": (0.9 ** rng.integers(1, 4, BATCH) * (rng.random(BATCH) < 0.8)).astype(np.float32),
            "weights": rng.uniform(0.1, 1.0, BATCH).astype(np.float32),
        }


def weights_of(agent, network):
    tensors = agent.state()["weights"]
    return {name.removeprefix(network): value.numpy() for name, value in tensors.items() if name.startswith(network)}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"double": False},
        {"dueling": True},
        {"dueling": True, "dueling_baseline": "max"},
        {"dueling": True, "dueling_baseline": "naive"},
        {"loss": "mse"},
        {"huber_delta": 0.3},
        {"target_tau": 0.2},
        {"max_grad_norm": 0.05},
        {"max_grad_norm": 0.0},
        {"lr_end": 1e-4, "lr_steps": 150},
        {"dueling": True, "double": False, "loss": "mse", "target_tau": 0.05, "average_decay": 0.9, "adam_eps": 1e-8},
    ],
    ids=str,
)
def test_updates_are_those_of_the_equations(changes):
    torch.manual_seed(1)
    spaces = Spaces(Box(-np.inf, np.inf, (SIZE,), np.float32), Discrete(ACTIONS))
    base = {"network": "mlp", "hidden_units": UNITS, "lr": 5e-3, "target_every": 40, "average_decay": 0.95}
    agent = DQN(spaces, DQN.Settings(**base | changes))
    oracle = Oracle(weights_of(agent, "online."), agent.settings)
    begun = dict(oracle.online)
    for update, batch in enumerate(batches(25, seed=3)):
        step = 8 * update
        tensors = SimpleNamespace(**{name: torch.from_numpy(value) for name, value in batch.items()})
        expected = oracle.learn({name: np.float64(v) if v.dtype.kind == "f" else v for name, v in batch.items()}, step)
        learned = agent.learn(tensors, step)
        assert learned.td_error is not None
        np.testing.assert_allclose(learned.td_error, expected, rtol=0, atol=5e-6)
    for network, weights in (("online.", oracle.online), ("target.", oracle.target), ("average.", oracle.mean)):
        for name, found in weights_of(agent, network).items():
            np.testing.assert_allclose(found, weights[name], rtol=0, atol=1e-6, err_msg=network + name)
    assert all(np.abs(oracle.online[name] - begun[name]).max() > 1e-3 for name in begun)
    assert oracle.copied == (4 if agent.settings.target_tau == 0 else 0)  # 192 steps, periods of 40
