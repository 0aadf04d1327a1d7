"""PQN: one whole update against its equations, and lambda-returns by hand."""

from types import SimpleNamespace

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from sharpwave.agents.losses import lambda_returns
from sharpwave.agents.pqn import PQN
from sharpwave.agents.protocol import Spaces

SIZE, UNITS, ACTIONS, WINDOWS, STEPS = 5, 7, 3, 4, 6


def test_lambda_returns():
    # Backwards: 4 + .5 * 8 = 8; 2 + .5 (.75 * 6 + .25 * 8) = 5.25; the first step ends an episode by itself.
    got = lambda_returns(
        torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[0.0, 0.5, 0.5]]), torch.tensor([[9.0, 6.0, 8.0]]),
        torch.tensor([[True, False, True]]), 0.25,
    )  # fmt: skip
    torch.testing.assert_close(got, torch.tensor([[1.0, 5.25, 8.0]]))


def test_lambda_returns_of_one_step_and_of_all():
    reward, value = torch.ones(1, 4), torch.full((1, 4), 10.0)
    ends = torch.tensor([[False, False, False, True]])
    half = torch.full((1, 4), 0.5)
    torch.testing.assert_close(lambda_returns(reward, half, value, ends, 0.0), torch.full((1, 4), 6.0))
    # 1 + .5 * 10 = 6; 1 + 3 = 4; 3; 2.5
    torch.testing.assert_close(lambda_returns(reward, half, value, ends, 1.0), torch.tensor([[2.5, 3.0, 4.0, 6.0]]))


class Oracle:
    """Forward pass in numpy, float64; gradients by central differences of the loss with targets held fixed."""

    def __init__(self, weights, settings):
        self.weights = {name: np.array(value, np.float64) for name, value in weights.items()}
        self.settings = settings

    def forward(self, weights, obs):
        def normalized(x, name):
            x = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
            return np.maximum(x * weights[f"{name}.weight"] + weights[f"{name}.bias"], 0)

        x = normalized(obs @ weights["0.0.weight"].T + weights["0.0.bias"], "0.1")
        x = normalized(x @ weights["1.weight"].T + weights["1.bias"], "2")
        return x @ weights["4.weight"].T + weights["4.bias"]

    def targets(self, batch):
        value = self.forward(self.weights, batch["obs"]).max(axis=2)
        found = np.zeros((WINDOWS, STEPS))
        for window in range(WINDOWS):
            last = int(batch["mask"][window].sum()) - 1
            for t in range(last, -1, -1):
                after = value[window, t + 1]
                if t < last:
                    after = (1 - self.settings.trace) * after + self.settings.trace * found[window, t + 1]
                found[window, t] = batch["step_reward"][window, t] + batch["discount"][window, t] * after
        return found

    def loss(self, weights, batch, targets):
        q = self.forward(weights, batch["obs"])[:, :-1]
        taken = np.take_along_axis(q, batch["action"][:, :, None], axis=2)[:, :, 0]
        return 0.5 * np.mean((targets - taken)[batch["mask"]] ** 2)

    def learn(self, batch):
        """The first update of RAdam, whose variance is not yet rectified: a step of plain momentum, corrected."""
        targets, grads = self.targets(batch), {}
        for name, value in self.weights.items():
            grads[name] = np.zeros_like(value)
            for index in np.ndindex(value.shape):
                ends = []
                for sign in (1, -1):
                    moved = value.copy()
                    moved[index] += sign * 1e-6
                    ends.append(self.loss({**self.weights, name: moved}, batch, targets))
                grads[name][index] = (ends[0] - ends[1]) / 2e-6
        norm = np.sqrt(sum((grad**2).sum() for grad in grads.values()))
        factor = min(1.0, self.settings.max_grad_norm / (norm + 1e-6))
        for name, grad in grads.items():
            self.weights[name] = self.weights[name] - self.settings.lr * factor * grad


def test_an_update_is_that_of_the_equations():
    torch.manual_seed(0)
    spaces = Spaces(Box(-np.inf, np.inf, (SIZE,), np.float32), Discrete(ACTIONS))
    agent = PQN(spaces, PQN.Settings(network="mlp", hidden_units=UNITS, lr=1e-2, max_grad_norm=0.5))
    weights = {name.removeprefix("online."): one.numpy() for name, one in agent.state()["weights"].items()}
    begun = {name: one.copy() for name, one in weights.items()}
    rng = np.random.default_rng(1)
    lengths = np.array([6, 1, 4, 6])
    batch = {
        "obs": rng.normal(size=(WINDOWS, STEPS + 1, SIZE)).astype(np.float32),
        "action": rng.integers(0, ACTIONS, (WINDOWS, STEPS)),
        "step_reward": rng.normal(size=(WINDOWS, STEPS)).astype(np.float32),
        "discount": np.float32(0.9) * (rng.random((WINDOWS, STEPS)) < 0.8).astype(np.float32),
        "mask": np.arange(STEPS) < lengths[:, None],
    }
    oracle = Oracle(begun, agent.settings)
    oracle.learn(batch)
    agent.learn(SimpleNamespace(**{name: torch.from_numpy(one) for name, one in batch.items()}), 0)
    for name, found in agent.state()["weights"].items():
        name = name.removeprefix("online.")
        np.testing.assert_allclose(found.numpy(), oracle.weights[name], rtol=0, atol=1e-6, err_msg=name)
        assert np.abs(found.numpy() - begun[name]).max() > 1e-5, name
