"""R2D2's update from the papers' equations: numpy, float64, one window after another, gradients by hand."""

import math
from typing import Any

import numpy as np

from tests.agents.optimizers import Adam, clipped, rate


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


class LSTM:
    """Hochreiter and Schmidhuber (1997) with the forget gate of Gers et al. (2000). The state is the output, then the
    cell; gates are in the order input, forget, cell, output."""

    parts = 2

    def step(self, weights, x, state):
        """The state behind a step, and what the backward pass needs."""
        h, c = np.split(state, 2)
        gates = weights["core.weight_ih_l0"] @ x + weights["core.bias_ih_l0"]
        i, f, g, o = np.split(gates + weights["core.weight_hh_l0"] @ h + weights["core.bias_hh_l0"], 4)
        i, f, o, g = sigmoid(i), sigmoid(f), sigmoid(o), np.tanh(g)
        cell = f * c + i * g
        return np.append(o * np.tanh(cell), cell), (x, h, c, i, f, g, o, cell)

    def backward(self, weights, kept, grad_state, grads):
        """Add a step's gradients to ``grads``; returns those of its input, and of the state before it."""
        x, h, c, i, f, g, o, cell = kept
        grad_out, grad_cell = np.split(grad_state, 2)
        grad_cell = grad_cell + grad_out * o * (1 - np.tanh(cell) ** 2)
        to_input, to_forget = grad_cell * g * i * (1 - i), grad_cell * c * f * (1 - f)
        to_cell, to_output = grad_cell * i * (1 - g**2), grad_out * np.tanh(cell) * o * (1 - o)
        gates = np.concatenate([to_input, to_forget, to_cell, to_output])
        grad_x, grad_h = layers_backward(weights, gates, gates, x, h, grads)
        return grad_x, np.append(grad_h, grad_cell * f)


class GRU:
    """Cho et al. (2014) with the reset gate behind the product, as torch has it: n = tanh(W x + b + r (U h + b')).
    Gates are in the order reset, update, new."""

    parts = 1

    def step(self, weights, x, h):
        by_input = np.split(weights["core.weight_ih_l0"] @ x + weights["core.bias_ih_l0"], 3)
        by_state = np.split(weights["core.weight_hh_l0"] @ h + weights["core.bias_hh_l0"], 3)
        r, z = sigmoid(by_input[0] + by_state[0]), sigmoid(by_input[1] + by_state[1])
        n = np.tanh(by_input[2] + r * by_state[2])
        return (1 - z) * n + z * h, (x, h, r, z, n, by_state[2])

    def backward(self, weights, kept, grad_out, grads):
        x, h, r, z, n, by_state = kept
        to_new = grad_out * (1 - z) * (1 - n**2)
        to_reset, to_update = to_new * by_state * r * (1 - r), grad_out * (h - n) * z * (1 - z)
        to_input, to_state = np.concatenate([to_reset, to_update, to_new]), [to_reset, to_update, to_new * r]
        grad_x, grad_h = layers_backward(weights, to_input, np.concatenate(to_state), x, h, grads)
        return grad_x, grad_h + grad_out * z


def layers_backward(weights, to_input, to_state, x, h, grads):
    """Those of a core's two linear layers, of the input and of the state."""
    grads["core.weight_ih_l0"] += np.outer(to_input, x)
    grads["core.weight_hh_l0"] += np.outer(to_state, h)
    grads["core.bias_ih_l0"] += to_input
    grads["core.bias_hh_l0"] += to_state
    return weights["core.weight_ih_l0"].T @ to_input, weights["core.weight_hh_l0"].T @ to_state


class Oracle:
    """A layer, a recurrent core, a hidden layer, and one or two output layers.

    Args:
        weights: by name, of the online network when it begins; the target network is a copy.
    """

    def __init__(self, weights, settings, actions, first_action):
        self.online = {name: np.array(value, np.float64) for name, value in weights.items()}
        self.target, self.mean = dict(self.online), dict(self.online)
        self.core: Any = {"lstm": LSTM, "gru": GRU}[settings.core]()
        self.adam = Adam(settings.adam_eps)
        self.settings, self.actions, self.first_action = settings, actions, first_action
        self.copied = 0

    # network

    def step(self, weights, obs, beside, state):
        """Q [A] and the state behind a step, and what the backward pass needs."""
        width, baseline = self.settings.hidden_units, self.settings.dueling_baseline
        z = weights["torso.0.weight"] @ obs + weights["torso.0.bias"]
        state, kept = self.core.step(weights, np.concatenate([np.maximum(z, 0), beside]), state)
        out = state[: self.settings.core_units]
        hidden = np.maximum(weights["head.hidden.weight"] @ out + weights["head.hidden.bias"], 0)
        q = a = weights["head.advantage.weight"] @ hidden[:width] + weights["head.advantage.bias"]
        if self.settings.dueling:
            value = weights["head.value.weight"] @ hidden[width:] + weights["head.value.bias"]
            q = value + a - {"mean": a.mean(), "max": a.max(), "naive": 0.0}[baseline]
        return q, state, (obs, z, kept, out, hidden, a)

    def backward(self, kept, grad_q, grad_state, grads):
        """Add a step's gradients to ``grads``; returns those of the state before it."""
        weights, width = self.online, self.settings.hidden_units
        obs, z, of_core, out, hidden, a = kept
        grad_hidden, grad_a = np.zeros_like(hidden), grad_q
        if self.settings.dueling:
            total = grad_q.sum()
            grads["head.value.weight"] += np.outer(total, hidden[width:])
            grads["head.value.bias"] += total
            grad_hidden[width:] = total * weights["head.value.weight"][0]
            shares = {"mean": np.ones_like(a) / len(a), "max": np.eye(len(a))[a.argmax()], "naive": np.zeros_like(a)}
            grad_a = grad_q - total * shares[self.settings.dueling_baseline]
        grads["head.advantage.weight"] += np.outer(grad_a, hidden[:width])
        grads["head.advantage.bias"] += grad_a
        grad_hidden[:width] = weights["head.advantage.weight"].T @ grad_a
        grad_hidden *= hidden > 0
        grads["head.hidden.weight"] += np.outer(grad_hidden, out)
        grads["head.hidden.bias"] += grad_hidden
        grad_state = grad_state.copy()
        grad_state[: len(out)] += weights["head.hidden.weight"].T @ grad_hidden
        grad_x, grad_before = self.core.backward(weights, of_core, grad_state, grads)
        grad_z = grad_x[: len(z)] * (z > 0)
        grads["torso.0.weight"] += np.outer(grad_z, obs)
        grads["torso.0.bias"] += grad_z
        return grad_before

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
        self.online = self.adam.step(self.online, clipped(grads, settings.max_grad_norm), rate(settings, step))
        decay = settings.average_decay
        self.mean = {name: decay * self.mean[name] + (1 - decay) * value for name, value in self.online.items()}
        return errors

    def window(self, batch, row, grads):
        """TD errors [length] of a window; its share of the loss's gradients is added to ``grads``."""
        settings, burn_in = self.settings, batch.burn_in
        real = np.flatnonzero(batch.mask[row])
        begin, end = int(real[0]), int(real[-1]) + 1  # the observation of column ``end`` is behind the last step
        assert len(real) == end - begin and begin <= burn_in < end
        stored = batch["core"][row].astype(np.float64)
        size = self.core.parts * settings.core_units
        found = {}
        for name, weights in (("online", self.online), ("target", self.target)):
            state = stored[:size] if settings.stored_state else np.zeros(size)
            beside = stored[size:]
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
                total += factor * float(batch.step_reward[row, at])
                factor *= float(batch.discount[row, at])  # of one step; 0 where the episode terminated
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
        scale, grad_state = float(batch.weights[row]) / (end - burn_in) / len(batch.mask), np.zeros(size)
        for t in range(end - 1, burn_in - 1, -1):
            grad_state = self.backward(found["online", t][1], scale * slopes[t], grad_state, grads)
        return errors
