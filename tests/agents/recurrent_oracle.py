"""R2D2's update from the papers' equations: numpy, float64, one window after another, gradients by hand."""

import math

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rescaled(x, eps=1e-3):
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + eps * x


def unscaled(y):
    """The inverse of :func:`rescaled`, by bisection of that one."""
    low, high = -1e4, 1e4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rescaled(middle) < y else (low, middle)
    return (low + high) / 2


class Oracle:
    """A layer, an LSTM, a hidden layer, and one or two output layers.

    Args:
        weights: by name, of the online network when it begins; the target network is a copy.
    """

    def __init__(self, weights, settings, actions, first_action):
        self.online = {name: np.array(value, np.float64) for name, value in weights.items()}
        self.target = dict(self.online)
        self.first = {name: np.zeros_like(value) for name, value in self.online.items()}
        self.second = {name: np.zeros_like(value) for name, value in self.online.items()}
        self.settings, self.actions, self.first_action = settings, actions, first_action
        self.updates = self.copied = 0

    # network

    def step(self, weights, obs, beside, state):
        """Q [A] and the state behind a step, and what the backward pass needs."""
        units = self.settings.core_units
        h, c = state
        z = weights["torso.0.weight"] @ obs + weights["torso.0.bias"]
        x = np.concatenate([np.maximum(z, 0), beside])
        gates = weights["core.weight_ih_l0"] @ x + weights["core.bias_ih_l0"]
        gates = gates + weights["core.weight_hh_l0"] @ h + weights["core.bias_hh_l0"]
        i, f, o = (sigmoid(gates[k * units : (k + 1) * units]) for k in (0, 1, 3))
        g = np.tanh(gates[2 * units : 3 * units])
        cell = f * c + i * g
        out = o * np.tanh(cell)
        hidden = np.maximum(weights["head.hidden.weight"] @ out + weights["head.hidden.bias"], 0)
        width = self.settings.hidden_units
        q = weights["head.advantage.weight"] @ hidden[:width] + weights["head.advantage.bias"]
        if self.settings.dueling:
            q = weights["head.value.weight"] @ hidden[width:] + weights["head.value.bias"] + q - q.mean()
        return q, (out, cell), (obs, z, x, h, c, i, f, g, o, cell, out, hidden)

    def backward(self, kept, grad_q, grad_out, grad_cell, grads):
        """Add a step's gradients to ``grads``; returns those of the state before it."""
        weights, width = self.online, self.settings.hidden_units
        obs, z, x, h, c, i, f, g, o, cell, out, hidden = kept
        grad_hidden = np.zeros_like(hidden)
        grad_a = grad_q
        if self.settings.dueling:
            grads["head.value.weight"] += np.outer(grad_q.sum(), hidden[width:])
            grads["head.value.bias"] += grad_q.sum()
            grad_hidden[width:] = grad_q.sum() * weights["head.value.weight"][0]
            grad_a = grad_q - grad_q.mean()
        grads["head.advantage.weight"] += np.outer(grad_a, hidden[:width])
        grads["head.advantage.bias"] += grad_a
        grad_hidden[:width] = weights["head.advantage.weight"].T @ grad_a
        grad_hidden *= hidden > 0
        grads["head.hidden.weight"] += np.outer(grad_hidden, out)
        grads["head.hidden.bias"] += grad_hidden
        grad_out = grad_out + weights["head.hidden.weight"].T @ grad_hidden
        grad_cell = grad_cell + grad_out * o * (1 - np.tanh(cell) ** 2)
        grad_gates = np.concatenate(
            [
                grad_cell * g * i * (1 - i),
                grad_cell * c * f * (1 - f),
                grad_cell * i * (1 - g**2),
                grad_out * np.tanh(cell) * o * (1 - o),
            ]
        )
        grads["core.weight_ih_l0"] += np.outer(grad_gates, x)
        grads["core.weight_hh_l0"] += np.outer(grad_gates, h)
        grads["core.bias_ih_l0"] += grad_gates
        grads["core.bias_hh_l0"] += grad_gates
        grad_z = (weights["core.weight_ih_l0"].T @ grad_gates)[: len(z)] * (z > 0)
        grads["torso.0.weight"] += np.outer(grad_z, obs)
        grads["torso.0.bias"] += grad_z
        return weights["core.weight_hh_l0"].T @ grad_gates, grad_cell * f

    # update

    def learn(self, batch, step):
        """TD errors [B, length] of one update; zeros for padding."""
        settings = self.settings
        if step // settings.target_every > self.copied:
            self.copied, self.target = step // settings.target_every, dict(self.online)
        errors = np.zeros(batch.mask[:, batch.burn_in :].shape)
        grads = {name: np.zeros_like(value) for name, value in self.online.items()}
        for row in range(len(batch.mask)):
            errors[row] = self.window(batch, row, grads)
        norm = np.sqrt(sum((grad**2).sum() for grad in grads.values()))
        factor = min(1.0, settings.max_grad_norm / (norm + 1e-6)) if settings.max_grad_norm > 0 else 1.0
        self.adam({name: grad * factor for name, grad in grads.items()})
        return errors

    def window(self, batch, row, grads):
        """TD errors [length] of a window; its share of the loss's gradients is added to ``grads``."""
        settings, burn_in = self.settings, batch.burn_in
        real = np.flatnonzero(batch.mask[row])
        begin, end = int(real[0]), int(real[-1]) + 1  # the observation of column ``end`` is behind the last step
        assert len(real) == end - begin and begin <= burn_in < end
        stored = batch["core"][row].astype(np.float64)
        units = settings.core_units
        found = {}
        for name, weights in (("online", self.online), ("target", self.target)):
            state, beside = (stored[:units], stored[units : 2 * units]), stored[2 * units :]
            for t in range(begin, end + 1):
                q, state, kept = self.step(weights, batch.obs[row, t].astype(np.float64), beside, state)
                found[name, t] = q, kept
                if t < end:
                    taken = np.eye(self.actions)[batch.action[row, t] - self.first_action]
                    beside = np.append(taken, batch.step_reward[row, t])
        errors, slopes = np.zeros(batch.mask.shape[1] - burn_in), {}
        for t in range(burn_in, end):
            total, factor, at = 0.0, 1.0, t
            while True:
                total += factor * batch.step_reward[row, at]
                factor *= batch.discount[row, at]  # of one step; 0 where the episode terminated
                at += 1
                if at == end or at - t == settings.n_step:
                    break
            chooser = found["online" if settings.double else "target", at][0]
            value = found["target", at][0][chooser.argmax()]
            target = total + factor * (unscaled(value) if settings.rescale else value)
            target = rescaled(target) if settings.rescale else target
            chosen = batch.action[row, t] - self.first_action
            errors[t - burn_in] = target - found["online", t][0][chosen]
            slopes[t] = -np.eye(self.actions)[chosen] * errors[t - burn_in]
        scale = batch.weights[row] / (end - burn_in) / len(batch.mask)
        grad_out, grad_cell = np.zeros(units), np.zeros(units)
        for t in range(end - 1, burn_in - 1, -1):
            grad_out, grad_cell = self.backward(found["online", t][1], scale * slopes[t], grad_out, grad_cell, grads)
        return errors

    def adam(self, grads):
        """Kingma and Ba (2015), algorithm 1."""
        self.updates += 1
        rate, eps = self.settings.lr, self.settings.adam_eps
        updated = {}
        for name, grad in grads.items():
            self.first[name] = 0.9 * self.first[name] + 0.1 * grad
            self.second[name] = 0.999 * self.second[name] + 0.001 * grad**2
            first, second = self.first[name] / (1 - 0.9**self.updates), self.second[name] / (1 - 0.999**self.updates)
            updated[name] = self.online[name] - rate * first / (np.sqrt(second) + eps)
        self.online = updated
