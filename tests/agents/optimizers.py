"""Optimizers by hand: numpy, float64, one dict of weights by name into the next."""

import numpy as np


def clipped(grads, max_norm):
    """Gradients scaled to a norm, over all of them, of at most ``max_norm``; 0: as they are."""
    norm = np.sqrt(sum((grad**2).sum() for grad in grads.values()))
    factor = min(1.0, max_norm / (norm + 1e-6)) if max_norm > 0 else 1.0
    return {name: grad * factor for name, grad in grads.items()}


class Adam:
    """Kingma and Ba (2015), algorithm 1: both moments' bias corrected, epsilon outside the root."""

    def __init__(self, eps, decay=0.9):
        self.eps, self.decay, self.updates, self.first, self.second = eps, decay, 0, {}, {}

    def moments(self, name, grad):
        """The moments after ``updates`` gradients; the first one's bias is corrected."""
        self.first[name] = self.decay * self.first.get(name, 0.0) + (1 - self.decay) * grad
        self.second[name] = 0.999 * self.second.get(name, 0.0) + 0.001 * grad**2
        return self.first[name] / (1 - self.decay**self.updates), self.second[name]

    def step(self, weights, grads, rate):
        self.updates += 1
        return {name: weights[name] - rate * self.direction(name, grad) for name, grad in grads.items()}

    def direction(self, name, grad):
        first, second = self.moments(name, grad)
        return first / (np.sqrt(second / (1 - 0.999**self.updates)) + self.eps)


class RAdam(Adam):
    """Liu et al. (2020), algorithm 2: momentum alone until the second moment's variance is tractable, then rectified.

    As in the authors' code it is from a length of 5 on, in place of the paper's 4: from the sixth update.
    """

    def direction(self, name, grad):
        first, second = self.moments(name, grad)
        most = 2 / (1 - 0.999) - 1
        length = most - 2 * self.updates * 0.999**self.updates / (1 - 0.999**self.updates)
        if length <= 5:
            return first
        rectified = np.sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length))
        return rectified * np.sqrt(1 - 0.999**self.updates) * first / (np.sqrt(second) + self.eps)


def rate(settings, step):
    """The learning rate, which falls in a straight line if it has an end."""
    if settings.lr_end is None:
        return settings.lr
    return settings.lr + (settings.lr_end - settings.lr) * min(step / settings.lr_steps, 1.0)
