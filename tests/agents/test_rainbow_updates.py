"""Whole updates of Rainbow, QR-DQN and IQN, several in a row, against a derivation of their own: the papers' equations
in float64, item by item where they are written so; the noise and the fractions drawn again from the seed; Adam by hand.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from sharpwave.agents.protocol import Spaces
from sharpwave.agents.rainbow import Rainbow
from tests.agents.optimizers import Adam, clipped, rate
from tests.agents.test_updates import ACTIONS, BATCH, SIZE, UNITS, batches, weights_of

SEED, COSINES, ACTING = 9, 64, 32


class Oracle:
    """The same agent from the equations. Gradients are torch's, of float64 expressions that are written here.

    Args:
        weights: by name, of the online network when it begins; the target network is a copy.
    """

    def __init__(self, weights, settings):
        self.online = {name: np.array(value, np.float64) for name, value in weights.items()}
        self.target, self.mean = dict(self.online), dict(self.online)
        self.adam, self.settings, self.copied = Adam(settings.adam_eps), settings, 0
        self.rng = np.random.default_rng(SEED)
        self.atoms = torch.linspace(settings.lowest_return, settings.highest_return, settings.atoms, dtype=torch.double)
        self.outputs = {"c51": settings.atoms, "qr": settings.quantiles}.get(settings.head, 1)

    # what is drawn

    def noise(self):
        """Fortunato et al. (2018), eq. 10 and 11: f(e) of inputs and outputs of each noisy layer, in a pass's order."""
        found = {}
        for layer in ("hidden", "advantage", "value") if self.settings.noisy else ():
            if f"head.{layer}.weight" in self.online:
                outputs, inputs = self.online[f"head.{layer}.weight"].shape
                drawn = torch.from_numpy(self.rng.standard_normal(inputs + outputs, np.float32)).double()
                factors = drawn.sign() * drawn.abs().sqrt()
                found[layer] = factors[:inputs], factors[inputs:]
        return found

    def fractions(self):
        if self.settings.head != "iqn":
            return None
        return torch.from_numpy(self.rng.random((BATCH, self.settings.quantiles), np.float32)).double()

    # network

    def linear(self, weights, noise, layer, x):
        matrix, bias = weights[f"head.{layer}.weight"], weights[f"head.{layer}.bias"]
        if layer in noise:
            inner, outer = noise[layer]
            matrix = matrix + weights[f"head.{layer}.weight_sigma"] * torch.outer(outer, inner)
            bias = bias + weights[f"head.{layer}.bias_sigma"] * outer
        return x @ matrix.T + bias

    def hidden(self, weights, noise, features):
        return torch.relu(self.linear(weights, noise, "hidden", features))

    def streams(self, weights, noise, hidden):
        """[..., A, outputs] of the hidden layer: Wang et al. (2016), eq. 7 (naive), 8 (max) and 9 (mean)."""
        shape = (*hidden.shape[:-1], ACTIONS, self.outputs)
        advantage = self.linear(weights, noise, "advantage", hidden[..., :UNITS]).reshape(shape)
        if not self.settings.dueling:
            return advantage
        value = self.linear(weights, noise, "value", hidden[..., UNITS:]).unsqueeze(-2)
        baselines = {"mean": advantage.mean(-2), "max": advantage.max(-2).values, "naive": torch.zeros(())}
        baseline = baselines[self.settings.dueling_baseline]
        return value + advantage - (baseline.unsqueeze(-2) if baseline.ndim else baseline)

    def features(self, weights, obs):
        return torch.relu(obs @ weights["torso.0.weight"].T + weights["torso.0.bias"])

    def predict(self, weights, noise, obs, fractions=None):
        """Q [B, A], logits of atoms [B, A, K] or quantiles [B, A, N]."""
        features = self.features(weights, obs)
        if self.settings.head != "iqn":
            predicted = self.streams(weights, noise, self.hidden(weights, noise, features))
            return predicted[..., 0] if self.settings.head == "expected" else predicted
        if fractions is None:
            fractions = (torch.arange(ACTING, dtype=torch.double) + 0.5) / ACTING
            fractions = fractions.expand(len(obs), ACTING)
        columns = []
        for tau in fractions.T:  # Dabney et al. (2018), eq. 4
            cosines = torch.cos(math.pi * torch.outer(tau, torch.arange(COSINES, dtype=torch.double)))
            phi = torch.relu(cosines @ weights["embedding.weight"].T + weights["embedding.bias"])
            if self.settings.late_fractions:
                hidden = self.hidden(weights, noise, features) * phi
            else:
                hidden = self.hidden(weights, noise, features * phi)
            columns.append(self.streams(weights, noise, hidden)[..., 0])
        return torch.stack(columns, dim=2)

    def values(self, predicted):
        if self.settings.head == "c51":
            return (torch.softmax(predicted, dim=2) * self.atoms).sum(dim=2)
        return predicted if self.settings.head == "expected" else predicted.mean(dim=2)

    # losses

    def huber(self, error):
        delta = self.settings.huber_delta
        return torch.where(error.abs() <= delta, error**2 / 2, delta * (error.abs() - delta / 2))

    def target_distribution(self, reward, discount, probabilities):
        """Bellemare et al. (2017), eq. 7: of atom i sum_j [1 - |clip(r + g z_j) - z_i| / dz] within 0 and 1, p_j."""
        moved = (reward + discount * self.atoms).clamp(self.atoms[0], self.atoms[-1])
        width = self.atoms[1] - self.atoms[0]
        return ((1 - (moved - self.atoms[:, None]).abs() / width).clamp(0, 1) * probabilities).sum(dim=1)

    def quantile_loss(self, quantiles, fractions, targets):
        """Dabney et al. (2018), eq. 3: sum over i, mean over j of |tau_i - 1(u_ij < 0)| L(u_ij) / kappa."""
        total = torch.zeros((), dtype=torch.double)
        for quantile, fraction in zip(quantiles, fractions, strict=True):
            error = targets - quantile
            total = total + ((fraction - (error < 0).double()).abs() * self.huber(error)).mean()
        return total / self.settings.huber_delta

    def item(self, predicted, fractions, reward, discount, following, policy):
        """Loss and TD error of one item.

        Args:
            predicted: of the taken action.  following: of each next action, weighted by ``policy`` [A].
        """
        settings = self.settings
        if settings.head == "expected":
            error = reward + discount * (policy * following).sum() - predicted
            return self.huber(error), error
        if settings.head == "c51":  # Hessel et al. (2018): the KL divergence is the loss and the priority
            probabilities = (policy[:, None] * torch.softmax(following, dim=1)).sum(dim=0)
            target = self.target_distribution(reward, discount, probabilities)
            some = target > 0
            loss = (target[some] * (target[some].log() - torch.log_softmax(predicted, dim=0)[some])).sum()
            return loss, loss
        if fractions is None:
            fractions = (torch.arange(settings.quantiles, dtype=torch.double) + 0.5) / settings.quantiles
        targets = reward + discount * (policy[:, None] * following).sum(dim=0)
        return self.quantile_loss(predicted, fractions, targets), targets.mean() - predicted.mean()

    def soft(self, q, action):
        """Vieillard et al. (2020), eq. 2: the policy [B, A], its tau log pi [B, A], and alpha's clipped term [B]."""
        temperature = self.settings.munchausen_temperature
        policy = torch.softmax(q / temperature, dim=1)
        logs = q - temperature * torch.logsumexp(q / temperature, dim=1, keepdim=True)
        return policy, logs, logs[torch.arange(BATCH), action].clamp(self.settings.munchausen_lowest, 0)

    # update

    def loss(self, online, batch):
        """The weighted mean of the items' losses, and their TD errors [B]."""
        settings = self.settings
        fractions, next_fractions = self.fractions(), self.fractions()
        predicted = self.predict(online, self.noise(), batch["obs"], fractions)
        with torch.no_grad():
            target = {name: torch.from_numpy(value) for name, value in self.target.items()}
            following = self.predict(target, self.noise(), batch["next_obs"], next_fractions)
            reward, next_q = batch["reward"], self.values(following)
            if settings.munchausen:
                q = self.values(self.predict(target, self.noise(), batch["obs"]))
                bonus = self.soft(q, batch["action"])[2]
                policy, logs, _ = self.soft(next_q, batch["action"])
                entropy = -(policy * logs).sum(dim=1)
                reward = reward + settings.munchausen * bonus + batch["discount"] * entropy
            else:
                if settings.double:  # van Hasselt et al. (2016), eq. 4
                    next_q = self.values(self.predict(online, self.noise(), batch["next_obs"]))
                policy = torch.eye(ACTIONS, dtype=torch.double)[next_q.argmax(dim=1)]
        items = [
            self.item(
                predicted[b, batch["action"][b]],
                None if fractions is None else fractions[b],
                reward[b],
                batch["discount"][b],
                following[b],
                policy[b],
            )
            for b in range(BATCH)
        ]
        losses, errors = (torch.stack(column) for column in zip(*items, strict=True))
        return (batch["weights"] * losses).sum() / BATCH, errors.detach().numpy()

    def learn(self, batch, step):
        """TD errors [B] of one update."""
        settings = self.settings
        if settings.target_tau == 0 and step // settings.target_every > self.copied:
            self.copied, self.target = step // settings.target_every, dict(self.online)
        online = {name: torch.from_numpy(value).requires_grad_() for name, value in self.online.items()}
        loss, errors = self.loss(online, batch)
        found = torch.autograd.grad(loss, list(online.values()))
        grads = dict(zip(online, (grad.numpy() for grad in found), strict=True))
        self.online = self.adam.step(self.online, clipped(grads, settings.max_grad_norm), rate(settings, step))
        tau, decay = settings.target_tau, settings.average_decay
        if tau > 0:
            self.target = {name: (1 - tau) * self.target[name] + tau * value for name, value in self.online.items()}
        self.mean = {name: decay * self.mean[name] + (1 - decay) * value for name, value in self.online.items()}
        return errors


@pytest.mark.parametrize(
    "changes",
    [
        {"head": "c51"},
        {"head": "c51", "noisy": False, "dueling": False, "double": False},
        {"head": "c51", "dueling_baseline": "max", "target_tau": 0.2},
        {"head": "c51", "munchausen": 0.9},
        {"head": "qr"},
        {"head": "qr", "noisy": False, "dueling": False, "double": False, "huber_delta": 0.3},
        {"head": "qr", "dueling_baseline": "naive", "lr_end": 5e-4, "lr_steps": 60},
        {"head": "qr", "noisy": False, "dueling": False, "munchausen": 0.9, "munchausen_temperature": 0.3},
        {"head": "iqn"},
        {"head": "iqn", "noisy": False, "dueling": False, "double": False},
        {"head": "iqn", "late_fractions": True},
        {"head": "iqn", "late_fractions": True, "noisy": False, "dueling": False, "max_grad_norm": 0.05},
        {"head": "iqn", "late_fractions": True, "munchausen": 0.9, "munchausen_temperature": 0.2},
        {"head": "expected"},
        {"head": "expected", "munchausen": 0.9, "munchausen_temperature": 0.5},
    ],
    ids=lambda changes: "-".join(f"{name}={value}" for name, value in changes.items()),
)
def test_updates_are_those_of_the_equations(changes):
    torch.manual_seed(1)
    spaces = Spaces(Box(-np.inf, np.inf, (SIZE,), np.float32), Discrete(ACTIONS))
    # IQN's angles, up to 63 pi, are float32: its cosines are right to 1e-5 only, which a smaller epsilon would show.
    eps = 4e-3 if changes["head"] == "iqn" else 1.5e-4
    base = {
        "network": "mlp", "hidden_units": UNITS, "lr": 2e-3, "adam_eps": eps, "atoms": 11, "quantiles": 6,
        "target_every": 24, "average_decay": 0.8, "lowest_return": -5.0, "highest_return": 4.0,
    }  # fmt: skip
    agent = Rainbow(spaces, Rainbow.Settings(**base | changes), seed=SEED)
    oracle = Oracle(weights_of(agent, "online."), agent.settings)
    begun = dict(oracle.online)
    for update, batch in enumerate(batches(8, seed=3)):
        step, tensors = 8 * update, {name: torch.from_numpy(value) for name, value in batch.items()}
        exact = {name: one.double() if one.is_floating_point() else one for name, one in tensors.items()}
        expected = oracle.learn(exact, step)
        learned = agent.learn(SimpleNamespace(**tensors), step)
        assert learned.td_error is not None
        np.testing.assert_allclose(learned.td_error, expected, rtol=0, atol=5e-6)
    for network, weights in (("online.", oracle.online), ("target.", oracle.target), ("average.", oracle.mean)):
        found = weights_of(agent, network)
        assert found.keys() == weights.keys()
        for name, value in found.items():
            np.testing.assert_allclose(value, weights[name], rtol=0, atol=1e-6, err_msg=network + name)
    assert all(np.abs(oracle.online[name] - begun[name]).max() > 1e-3 for name in begun)
    assert oracle.copied == (2 if agent.settings.target_tau == 0 else 0)  # 56 steps, periods of 24
