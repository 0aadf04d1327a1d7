"""PQN: whole updates against its equations, RAdam included, and lambda-returns by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from sharpwave.agents.losses import lambda_returns
from sharpwave.agents.pqn import PQN
from sharpwave.agents.protocol import Spaces
from tests.agents.optimizers import RAdam, clipped, rate
from tests.agents.test_updates import weights_of

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
        self.settings, self.optimizer = settings, RAdam(1e-8)

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

    def learn(self, batch, step):
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
        grads = clipped(grads, self.settings.max_grad_norm)
        self.weights = self.optimizer.step(self.weights, grads, rate(self.settings, step))


def windows(count, seed):
    """Batches of windows: some end early, some steps terminate."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        lengths = rng.permutation([STEPS, 1, 4, STEPS])
        yield {
            "obs": rng.normal(size=(WINDOWS, STEPS + 1, SIZE)).astype(np.float32),
            "action": rng.integers(0, ACTIONS, (WINDOWS, STEPS)),
            "step_reward": rng.normal(size=(WINDOWS, STEPS)).astype(np.float32),
            "discount": np.float32(0.9) * (rng.random((WINDOWS, STEPS)) < 0.8).astype(np.float32),
            "mask": np.arange(STEPS) < lengths[:, None],
        }


@pytest.mark.parametrize(
    "changes",
    [{}, {"trace": 0.0, "max_grad_norm": 0.0}, {"trace": 1.0, "lr_end": 2e-3, "lr_steps": 400}],
    ids=["", "one step", "whole windows, and the rate falls"],
)
def test_updates_are_those_of_the_equations(changes):
    """Ten: from the sixth on the second moment is rectified."""
    torch.manual_seed(0)
    spaces = Spaces(Box(-np.inf, np.inf, (SIZE,), np.float32), Discrete(ACTIONS))
    base = {"network": "mlp", "hidden_units": UNITS, "lr": 1e-2, "max_grad_norm": 0.5}
    agent = PQN(spaces, PQN.Settings(**base | changes))
    begun = {name: value.copy() for name, value in weights_of(agent, "online.").items()}
    oracle = Oracle(begun, agent.settings)
    for update, batch in enumerate(windows(10, seed=1)):
        oracle.learn(batch, 32 * update)
        agent.learn(SimpleNamespace(**{name: torch.from_numpy(one) for name, one in batch.items()}), 32 * update)
        for name, found in weights_of(agent, "online.").items():
            np.testing.assert_allclose(found, oracle.weights[name], rtol=0, atol=1e-6, err_msg=f"{update} {name}")
    assert all(np.abs(found - begun[name]).max() > 1e-3 for name, found in weights_of(agent, "online.").items())
