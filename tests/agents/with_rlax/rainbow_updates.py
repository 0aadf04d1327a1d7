"""Whole updates of Rainbow against a derivation of their own: the equations in jax, float64, with rlax's losses, the
noise drawn again from the seed, and Adam included."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from sharpwave.agents.protocol import Spaces
from sharpwave.agents.rainbow import Rainbow
from tests.agents.test_updates import ACTIONS, BATCH, SIZE, UNITS, batches, weights_of

from .quiet import jax, jnp, rlax

pytestmark = pytest.mark.filterwarnings("ignore:Rlax categorical_cross_entropy:PendingDeprecationWarning")

SEED, COSINES, ACTING = 9, 64, 32


class Oracle:
    """The same agent from the papers' equations. Weights are drawn by the agent, all else is made here."""

    def __init__(self, online, target, settings):
        self.online = {name: np.array(value, np.float64) for name, value in online.items()}
        self.target = {name: np.array(value, np.float64) for name, value in target.items()}
        self.settings = settings
        self.rng = np.random.default_rng(SEED)
        self.atoms = np.linspace(settings.lowest_return, settings.highest_return, settings.atoms)
        self.per_action = {"c51": settings.atoms, "qr": settings.quantiles}.get(settings.head, 1)

    def noise(self):
        """Noise of every noisy layer, in the order of a pass: inputs before outputs."""
        found = {}
        for layer in ("hidden", "advantage", "value") if self.settings.noisy else ():
            name = f"head.{layer}.weight"
            if name in self.online:
                outputs, inputs = self.online[name].shape
                drawn = self.rng.standard_normal(inputs + outputs, np.float32).astype(np.float64)
                factors = np.sign(drawn) * np.sqrt(np.abs(drawn))
                found[layer] = factors[:inputs], factors[inputs:]
        return found

    def fractions(self):
        if self.settings.head == "iqn":
            return self.rng.random((BATCH, self.settings.quantiles), np.float32).astype(np.float64)
        return None

    def forward(self, weights, noise, obs, fractions=None):
        """Q [A], logits of atoms [A, K], or quantiles [A, N], of one observation."""

        def linear(layer, x):
            matrix, bias = weights[f"head.{layer}.weight"], weights[f"head.{layer}.bias"]
            if layer in noise:
                into, out = noise[layer]
                matrix = matrix + weights[f"head.{layer}.weight_sigma"] * jnp.outer(out, into)
                bias = bias + weights[f"head.{layer}.bias_sigma"] * out
            return matrix @ x + bias

        def values(features):
            hidden = jax.nn.relu(linear("hidden", features))
            advantage = linear("advantage", hidden[:UNITS]).reshape(ACTIONS, self.per_action)
            if not self.settings.dueling:
                return advantage
            less = {"mean": jnp.mean(advantage, axis=0), "max": jnp.max(advantage, axis=0), "naive": 0.0}
            return linear("value", hidden[UNITS:]) + advantage - less[self.settings.dueling_baseline]

        features = jax.nn.relu(weights["torso.0.weight"] @ obs + weights["torso.0.bias"])
        if self.settings.head != "iqn":
            predicted = values(features)
            return predicted[:, 0] if self.settings.head == "expected" else predicted

        def quantile(fraction):
            cosines = jnp.cos(np.pi * np.arange(COSINES) * fraction)
            embedded = jax.nn.relu(weights["embedding.weight"] @ cosines + weights["embedding.bias"])
            return values(features * embedded)[:, 0]

        fractions = (np.arange(ACTING) + 0.5) / ACTING if fractions is None else fractions
        return jax.vmap(quantile)(fractions).T

    def values(self, predicted):
        if self.settings.head == "c51":
            return jax.nn.softmax(predicted) @ self.atoms
        return predicted if self.settings.head == "expected" else predicted.mean(axis=1)

    def item_loss(self, predicted, fractions, action, reward, discount, next_predicted, selector):
        """Loss of one item, and the error of its mean."""
        settings = self.settings
        if settings.head == "expected":
            error = rlax.double_q_learning(predicted, action, reward, discount, next_predicted, selector)
            return rlax.huber_loss(error, settings.huber_delta), error
        if settings.head == "c51":
            entropy = rlax.categorical_double_q_learning(
                self.atoms, predicted, action, reward, discount, self.atoms, next_predicted, selector
            )
            p = jax.nn.softmax(next_predicted[selector.argmax()])
            target = rlax.categorical_l2_project(reward + discount * self.atoms, p, self.atoms)
            loss = entropy + jnp.sum(jnp.where(target > 0, target * jnp.log(jnp.maximum(target, 1e-300)), 0))
            return loss, loss
        if fractions is None:
            fractions = (np.arange(settings.quantiles) + 0.5) / settings.quantiles
        # The selector as a distribution of one quantile.
        loss = rlax.quantile_q_learning(
            predicted.T, fractions, action, reward, discount, selector[None], next_predicted.T, settings.huber_delta
        )
        best = next_predicted[selector.argmax()].mean()
        return loss / settings.huber_delta, reward + discount * best - predicted[action].mean()

    def munchausen(self, batch, predicted, next_predicted):
        """Rewards with both terms, and the policy's mixture of predictions, given to every action alike."""
        settings, temperature = self.settings, self.settings.munchausen_temperature
        rows = np.arange(BATCH)
        log_now = jax.nn.log_softmax(jax.vmap(self.values)(predicted) / temperature)[rows, batch["action"]]
        log_next = jax.nn.log_softmax(jax.vmap(self.values)(next_predicted) / temperature)
        policy = jnp.exp(log_next)
        bonus = jnp.clip(temperature * log_now, settings.munchausen_lowest, 0)
        soft = -temperature * (policy * log_next).sum(axis=1)
        reward = batch["reward"] + settings.munchausen * bonus + batch["discount"] * soft
        if settings.head == "c51":
            mixed = jnp.log(jnp.einsum("ba,bak->bk", policy, jax.nn.softmax(next_predicted)))
        else:
            mixed = jnp.einsum("ba,ba...->b...", policy, next_predicted)
        return reward, jnp.broadcast_to(mixed[:, None], next_predicted.shape)

    def learn(self, batch):
        """Errors [B] of one update."""
        fractions, next_fractions = self.fractions(), self.fractions()
        online_noise, target_noise = self.noise(), self.noise()
        settings = self.settings
        choosing_noise = self.noise() if settings.double or settings.munchausen else None

        def forward(weights, noise, obs, fractions=None):
            # jax.vmap treats None as no argument to map over.
            mapped = (0, None if fractions is None else 0)
            return jax.vmap(lambda o, f: self.forward(weights, noise, o, f), mapped)(obs, fractions)

        def loss(weights):
            predicted = forward(weights, online_noise, batch["obs"], fractions)
            next_predicted = forward(self.target, target_noise, batch["next_obs"], next_fractions)
            reward, chooser = batch["reward"], next_predicted
            if settings.munchausen:
                predicted_now = forward(self.target, choosing_noise, batch["obs"])
                reward, next_predicted = self.munchausen(batch, predicted_now, next_predicted)
            elif settings.double:
                chooser = jax.lax.stop_gradient(forward(weights, choosing_noise, batch["next_obs"]))
            selector = jax.vmap(self.values)(chooser)
            mapped = (0, None if fractions is None else 0, 0, 0, 0, 0, 0)
            losses, errors = jax.vmap(self.item_loss, mapped)(
                predicted, fractions, batch["action"], reward, batch["discount"], next_predicted, selector
            )
            return (batch["weights"] * losses).mean(), errors

        grads, errors = jax.jit(jax.grad(loss, has_aux=True))(self.online)
        grads = {name: np.asarray(grad) for name, grad in grads.items()}
        norm = np.sqrt(sum((grad**2).sum() for grad in grads.values()))
        factor = min(1.0, self.settings.max_grad_norm / (norm + 1e-6))
        for name, grad in grads.items():  # Adam's first update: its bias corrected, both moments are the gradient's own
            step = self.settings.lr * factor * grad / (np.abs(factor * grad) + self.settings.adam_eps)
            self.online = self.online | {name: self.online[name] - step}
        return np.asarray(errors)


@pytest.mark.parametrize(
    "changes",
    [
        {"head": "expected", "noisy": False},
        {"head": "expected", "dueling_baseline": "max"},
        {"head": "c51", "noisy": False, "dueling": False, "double": False},
        {"head": "c51"},
        {"head": "qr", "noisy": False, "double": False},
        {"head": "qr", "huber_delta": 0.5, "dueling_baseline": "naive"},
        {"head": "iqn", "noisy": False, "dueling": False},
        {"head": "iqn", "max_grad_norm": 0.05},
        {"head": "expected", "munchausen": 0.9, "munchausen_temperature": 0.5},
        {"head": "c51", "munchausen": 0.9},
        {"head": "iqn", "munchausen": 0.5, "munchausen_temperature": 0.2, "noisy": False},
    ],
    ids=lambda changes: "-".join(str(value) for value in changes.values()),
)
def test_an_update_is_that_of_the_equations(changes):
    torch.manual_seed(1)
    spaces = Spaces(Box(-np.inf, np.inf, (SIZE,), np.float32), Discrete(ACTIONS))
    base = {"network": "mlp", "hidden_units": UNITS, "lr": 5e-3, "adam_eps": 1e-2, "atoms": 11, "quantiles": 6}
    base |= {"lowest_return": -5.0, "highest_return": 4.0}
    agent = Rainbow(spaces, Rainbow.Settings(**base | changes), seed=SEED)
    begun = {name: value.copy() for name, value in weights_of(agent, "online.").items()}
    with torch.no_grad():
        for parameter in agent.target.parameters():
            parameter.mul_(1.3)  # both networks choose and value differently
    (batch,) = batches(1, seed=3)
    learned = agent.learn(SimpleNamespace(**{name: torch.from_numpy(value) for name, value in batch.items()}), 0)
    with jax.enable_x64(True):
        oracle = Oracle(begun, weights_of(agent, "target."), agent.settings)
        expected = oracle.learn({name: np.float64(v) if v.dtype.kind == "f" else v for name, v in batch.items()})
    assert learned.td_error is not None
    np.testing.assert_allclose(learned.td_error, expected, rtol=1e-4, atol=2e-6)
    for name, found in weights_of(agent, "online.").items():
        np.testing.assert_allclose(found, oracle.online[name], rtol=0, atol=1e-6, err_msg=name)
        assert np.abs(found - begun[name]).max() > 1e-4, name
