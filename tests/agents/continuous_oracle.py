"""SAC, TD3 and CrossQ from their papers' equations: numpy, float64, gradients by central differences, Adam by hand.

Gradients are of the losses as they are written there: the policy's is the mean of temperature * log pi - min Q.
"""

import math
from typing import Any

import numpy as np

from tests.agents.optimizers import Adam

SIZE, ACTIONS, UNITS, BATCH = 4, 2, 5, 12


def gradients(loss, weights):
    """d loss / d weights, by name, by central differences."""
    grads = {}
    for name, value in weights.items():
        grads[name] = np.zeros_like(value)
        for index in np.ndindex(value.shape):
            ends = []
            for sign in (1, -1):
                moved = value.copy()
                moved[index] += sign * 1e-6
                ends.append(loss({**weights, name: moved}))
            grads[name][index] = (ends[0] - ends[1]) / 2e-6
    return grads


class Oracle:
    """Agent by its equations.

    Args:
        weights: of the agent when it begins, by network and name.
    Attributes:
        noise: standard normal draws [B, ACTIONS] of this update, in the order in which the agent takes them.
    """

    def __init__(self, weights, settings, decay=0.9):
        self.networks = {
            network: {name: np.array(value, np.float64) for name, value in one.items()}
            for network, one in weights.items()
        }
        self.settings, self.adams, self.decay, self.updates = settings, {}, decay, 0

    def step(self, network, grads):
        """One step of Adam; each network counts its own."""
        adam = self.adams.setdefault(network, Adam(1e-8, self.decay))
        own = self.networks[network]
        self.networks[network] = own | adam.step({name: own[name] for name in grads}, grads, self.settings.lr)

    def actor(self, w, obs):
        h = np.maximum(obs @ w["hidden.1.weight"].T + w["hidden.1.bias"], 0)
        h = np.maximum(h @ w["hidden.3.weight"].T + w["hidden.3.bias"], 0)
        return h @ w["output.weight"].T + w["output.bias"]

    def critics(self, w, obs, action):
        """Q [K, B], one critic after the other."""
        x, found = np.concatenate([obs, action], axis=1), []
        for k in range(len(w["output"])):
            h = np.maximum(x @ w["hidden.0.weight"][k] + w["hidden.0.bias"][k], 0)
            h = np.maximum(h @ w["hidden.2.weight"][k] + w["hidden.2.bias"][k], 0)
            found.append((h * w["output"][k]).sum(axis=1) + w["output_bias"][k])
        return np.stack(found)

    def draw(self, output, noise):
        """Actions, and their log-probabilities: of the Gaussian, less log(1 - a^2)."""
        mean, log_std = np.split(output, 2, axis=1)
        u = mean + np.exp(log_std) * noise
        normal = -0.5 * ((u - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
        return np.tanh(u), (normal - np.log(1 - np.tanh(u) ** 2)).sum(axis=1)

    @property
    def temperature(self):
        given = self.settings.temperature
        return np.exp(self.networks["log_temperature"]["0"]) if given is None else given

    def critic_loss(self, q, targets, batch):
        return sum((batch["weights"] * 0.5 * (one - targets) ** 2).mean() for one in q)

    def follow(self, network, target):
        tau, source = self.settings.target_tau, self.networks[network]
        self.networks[target] = {n: (1 - tau) * v + tau * source[n] for n, v in self.networks[target].items()}


class SACOracle(Oracle):
    def learn(self, batch, noise):
        """TD errors [B] of one update."""
        nets, (at_obs, at_next) = self.networks, noise
        action, log_prob = self.draw(self.actor(nets["actor"], batch["next_obs"]), at_next)
        next_q = self.critics(nets["target"], batch["next_obs"], action).min(axis=0)
        targets = batch["reward"] + batch["discount"] * (next_q - self.temperature * log_prob)
        q = self.critics(nets["critics"], batch["obs"], batch["action"])

        def critic_loss(w):
            return self.critic_loss(self.critics(w, batch["obs"], batch["action"]), targets, batch)

        def policy_loss(w):
            action, log_prob = self.draw(self.actor(w, batch["obs"]), at_obs)
            value = self.critics(nets["critics"], batch["obs"], action).min(axis=0)
            return (self.temperature * log_prob - value).mean()

        found = {"critics": gradients(critic_loss, nets["critics"]), "actor": gradients(policy_loss, nets["actor"])}
        if self.settings.temperature is None:
            entropy = -self.draw(self.actor(nets["actor"], batch["obs"]), at_obs)[1].mean()
            target = -ACTIONS if self.settings.target_entropy is None else self.settings.target_entropy
            found["log_temperature"] = {"0": np.array([entropy - target])}
        for network, grads in found.items():
            self.step(network, grads)
        self.follow("critics", "target")
        return (targets - q).mean(axis=0)


class TD3Oracle(Oracle):
    def learn(self, batch, noise):
        settings, nets = self.settings, self.networks
        self.updates += 1
        limit = settings.target_noise_limit
        action = np.tanh(self.actor(nets["target_actor"], batch["next_obs"]))
        action = np.clip(action + np.clip(settings.target_noise * noise[0], -limit, limit), -1, 1)
        next_q = self.critics(nets["target_critics"], batch["next_obs"], action).min(axis=0)
        targets = batch["reward"] + batch["discount"] * (next_q + self.bonus(action, batch))
        q = self.critics(nets["critics"], batch["obs"], batch["action"])

        def critic_loss(w):
            return self.critic_loss(self.critics(w, batch["obs"], batch["action"]), targets, batch)

        found = {"critics": gradients(critic_loss, nets["critics"])}
        if self.updates % settings.policy_delay == 0:
            found["actor"] = gradients(self.policy_loss(batch), nets["actor"])
        for network, grads in found.items():
            self.step(network, grads)
        if "actor" in found:
            self.follow("critics", "target_critics")
            self.follow("actor", "target_actor")
        return (targets - q).mean(axis=0)

    def bonus(self, action, batch):
        """Added to the values of the target policy's actions."""
        return 0.0

    def policy_loss(self, batch):
        """The loss of an actor's weights."""

        def loss(w):
            action = np.tanh(self.actor(w, batch["obs"]))
            return -self.critics(self.networks["critics"], batch["obs"], action)[0].mean()

        return loss


class CrossQOracle(Oracle):
    """Its networks normalize over the batch: by the batch's statistics where ``learning``, else by the running ones."""

    def normalized(self, w, name, x, learning, k=None):
        def of(what):
            return w[f"{name}.{what}"] if k is None else w[f"{name}.{what}"][k, 0]

        mean, variance = (x.mean(axis=0), x.var(axis=0)) if learning else (of("mean"), of("variance"))
        if learning:
            self.seen[name, k] = mean, variance
        return (x - mean) / np.sqrt(variance + 1e-3) * of("scale") + of("shift")

    def actor(self, w, obs, learning=False):
        h = self.normalized(w, "hidden.1", obs, learning)
        h = np.maximum(h @ w["hidden.2.weight"].T + w["hidden.2.bias"], 0)
        h = self.normalized(w, "hidden.4", h, learning)
        h = np.maximum(h @ w["hidden.5.weight"].T + w["hidden.5.bias"], 0)
        h = self.normalized(w, "hidden.7", h, learning)
        return h @ w["output.weight"].T + w["output.bias"]

    def critics(self, w, obs, action, learning=False):
        x, found = self.normalized(w, "joint", np.concatenate([obs, action], axis=1), learning), []
        for k in range(len(w["output"])):
            h = np.maximum(x @ w["hidden.0.weight"][k] + w["hidden.0.bias"][k], 0)
            h = self.normalized(w, "hidden.2", h, learning, k)
            h = np.maximum(h @ w["hidden.3.weight"][k] + w["hidden.3.bias"][k], 0)
            h = self.normalized(w, "hidden.5", h, learning, k)
            found.append((h * w["output"][k]).sum(axis=1) + w["output_bias"][k])
        return np.stack(found)

    def remember(self, network, seen):
        """Move a network's running statistics by a hundredth towards those of the batch."""
        own = self.networks[network]
        for (name, k), statistics in seen.items():
            for what, value in zip(("mean", "variance"), statistics, strict=True):
                place = own[f"{name}.{what}"] if k is None else own[f"{name}.{what}"][k, 0]
                place += 0.01 * (value - place)

    def learned_names(self, network):
        return [n for n in self.networks[network] if not n.endswith((".mean", ".variance", ".batches"))]

    def learn(self, batch, noise):
        nets = self.networks
        self.updates += 1
        next_action, log_prob = self.draw(self.actor(nets["actor"], batch["next_obs"]), noise[0])
        both = np.concatenate([batch["obs"], batch["next_obs"]]), np.concatenate([batch["action"], next_action])
        self.seen: dict[Any, Any] = {}
        q, next_q = np.split(self.critics(nets["critics"], *both, learning=True), 2, axis=1)
        targets = batch["reward"] + batch["discount"] * (next_q.min(axis=0) - self.temperature * log_prob)
        kept = {n: nets["critics"][n].copy() for n in nets["critics"]}

        def critic_loss(w):
            values = self.critics({**kept, **w}, *both, learning=True)[:, :BATCH]
            return self.critic_loss(values, targets, batch)

        found = {"critics": gradients(critic_loss, {n: kept[n] for n in self.learned_names("critics")})}
        self.seen = {}
        self.critics(nets["critics"], *both, learning=True)
        self.remember("critics", self.seen)
        if self.updates % self.settings.policy_delay == 0:
            own = {n: value.copy() for n, value in nets["actor"].items()}

            def policy_loss(w):
                action, log_prob = self.draw(self.actor({**own, **w}, batch["obs"], learning=True), noise[1])
                value = self.critics(nets["critics"], batch["obs"], action).min(axis=0)
                return (self.temperature * log_prob - value).mean()

            found["actor"] = gradients(policy_loss, {n: own[n] for n in self.learned_names("actor")})
            self.seen = {}
            _, log_prob = self.draw(self.actor(own, batch["obs"], learning=True), noise[1])
            self.remember("actor", self.seen)
            found["log_temperature"] = {"0": np.array([-log_prob.mean() + ACTIONS])}
        for network, grads in found.items():
            self.step(network, grads)
        return (targets - q).mean(axis=0)
