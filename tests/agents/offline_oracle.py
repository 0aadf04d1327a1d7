"""IQL, TD3+BC and calibrated Q-learning from their papers' equations, as in ``continuous_oracle``."""

import math

import numpy as np

from tests.agents.continuous_oracle import ACTIONS, BATCH, Oracle, TD3Oracle, gradients
from tests.agents.optimizers import Adam


class TD3BCOracle(TD3Oracle):
    """TD3 whose policy minimizes -lambda Q(s, pi(s)) + (pi(s) - a)^2, lambda = alpha / mean |Q(s, pi(s))|, which is no
    part of the gradient."""

    def policy_loss(self, batch):
        nets = self.networks
        action = np.tanh(self.actor(nets["actor"], batch["obs"]))
        size = np.abs(self.critics(nets["critics"], batch["obs"], action)[0]).mean()

        def loss(w):
            action = np.tanh(self.actor(w, batch["obs"]))
            value = self.critics(nets["critics"], batch["obs"], action)[0]
            apart = ((action - batch["action"]) ** 2).mean(axis=1)
            return (-self.settings.value_weight / size * value + apart).mean()

        return loss


class ReBRACOracle(TD3Oracle):
    """TD3 of three hidden layers, the critics' normalized before their ReLU. Its targets are lower by beta 2 times the
    squared distance of the target policy's action from the next one of the data, where that is known, and its policy
    minimizes -min Q / mean |min Q| + beta 1 times its own distance."""

    def actor(self, w, obs):
        for layer in (1, 3, 5):
            obs = np.maximum(obs @ w[f"hidden.{layer}.weight"].T + w[f"hidden.{layer}.bias"], 0)
        return obs @ w["output.weight"].T + w["output.bias"]

    def critics(self, w, obs, action):
        found = []
        for k in range(2):
            x = np.concatenate([obs, action], axis=1)
            for layer in (0, 3, 6):
                x = x @ w[f"hidden.{layer}.weight"][k] + w[f"hidden.{layer}.bias"][k]
                off = x - x.mean(axis=1, keepdims=True)
                x = off / np.sqrt((off**2).mean(axis=1, keepdims=True) + 1e-5)
                x = np.maximum(x * w[f"hidden.{layer + 1}.scale"][k] + w[f"hidden.{layer + 1}.shift"][k], 0)
            found.append((x * w["output"][k]).sum(axis=1) + w["output_bias"][k])
        return np.stack(found)

    def bonus(self, action, batch):
        distance = ((action - batch["next_action"]) ** 2).sum(axis=1)
        return np.where(batch["known"] & ~np.isnan(distance), -self.settings.critic_imitation * distance, 0.0)

    def policy_loss(self, batch):
        nets = self.networks
        action = np.tanh(self.actor(nets["actor"], batch["obs"]))
        size = np.abs(self.critics(nets["critics"], batch["obs"], action).min(axis=0)).mean()

        def loss(w):
            action = np.tanh(self.actor(w, batch["obs"]))
            value = self.critics(nets["critics"], batch["obs"], action).min(axis=0)
            distance = ((action - batch["action"]) ** 2).sum(axis=1)
            return (-value / size + self.settings.actor_imitation * distance).mean()

        return loss


class IQLOracle(Oracle):
    """Networks of two hidden layers; the policy is a Gaussian around tanh of its output, of one deviation.

    Attributes:
        factor: of rewards.
    """

    factor = 1.0

    def hidden(self, w, names, x):
        for name in names:
            x = np.maximum(x @ w[f"{name}.weight"].T + w[f"{name}.bias"], 0)
        return x

    def v(self, w, obs):
        h = self.hidden(w, ("torso.0", "head.0"), obs)
        return (h @ w["head.2.weight"].T + w["head.2.bias"])[:, 0]

    def log_prob(self, w, obs, action):
        h = self.hidden(w, ("0.0", "1"), obs)
        mean = np.tanh(h @ w["3.mean.weight"].T + w["3.mean.bias"])
        std = np.exp(w["3.log_std"])
        return np.log(np.exp(-((action - mean) ** 2) / (2 * std**2)) / (std * math.sqrt(2 * math.pi))).sum(axis=1)

    def learn(self, batch, noise):
        settings, nets, weights = self.settings, self.networks, batch["weights"]
        best = self.critics(nets["targets"], batch["obs"], batch["action"]).min(axis=0)
        targets = batch["reward"] * self.factor + batch["discount"] * self.v(nets["value"], batch["next_obs"])
        advantage = best - self.v(nets["value"], batch["obs"])
        weight = np.minimum(np.exp(settings.inverse_temperature * advantage), settings.max_weight)

        def value_loss(w):
            error = best - self.v(w, batch["obs"])
            share = np.where(error < 0, 1 - settings.expectile, settings.expectile)
            return (weights * share * error**2).mean()

        def critic_loss(w):
            q = self.critics(w, batch["obs"], batch["action"])
            return (weights * ((q - targets) ** 2).sum(axis=0)).mean()

        def policy_loss(w):
            return -(weights * weight * self.log_prob(w, batch["obs"], batch["action"])).mean()

        found = {"value": value_loss, "critics": critic_loss, "policy": policy_loss}
        q = self.critics(nets["critics"], batch["obs"], batch["action"])
        for network, grads in {name: gradients(loss, nets[name]) for name, loss in found.items()}.items():
            self.step(network, grads)
        self.follow("critics", "targets")
        self.networks["average"] = self.networks["policy"]
        return (targets - q).mean(axis=0)


class CalQLOracle(Oracle):
    """SAC without the entropy in its targets, and with the calibrated penalty: the critics learn at ``lr``, the policy
    and the temperature at ``actor_lr``. ``factor``: of rewards."""

    factor = 1.0

    def step(self, network, grads):
        adam = self.adams.setdefault(network, Adam(1e-8, self.decay))
        own, settings = self.networks[network], self.settings
        rate = settings.lr if network == "critics" else settings.actor_lr
        self.networks[network] = own | adam.step({name: own[name] for name in grads}, grads, rate)

    def learn(self, batch, noise):
        """``noise``: of the policy's loss [B, A], of its actions here and at the next state [B, N, A], uniform in 0 ...
        1 [B, N, A], and of the targets [B, A]."""
        nets, settings, count = self.networks, self.settings, self.settings.sampled_actions
        at_loss, at_here, at_there, uniform, at_target = noise
        obs, next_obs = batch["obs"], batch["next_obs"]
        action, _ = self.draw(self.actor(nets["actor"], next_obs), at_target)
        targets = batch["reward"] * self.factor + batch["discount"] * self.critics(
            nets["target"], next_obs, action
        ).min(axis=0)
        sampled = [([2 * uniform[:, j] - 1 for j in range(count)], [np.full(BATCH, 0.5**ACTIONS)] * count)]
        for at, drawn in ((obs, at_here), (next_obs, at_there)):
            pairs = [self.draw(self.actor(nets["actor"], at), drawn[:, j]) for j in range(count)]
            sampled.append(([one for one, _ in pairs], [np.exp(log) for _, log in pairs]))
        reference = np.where(batch["known"], batch["return_to_go"] * self.factor, -np.inf)

        def critic_loss(w):
            q = self.critics(w, obs, batch["action"])
            total = np.zeros_like(q)
            for kind, (actions, densities) in enumerate(sampled):
                for one, density in zip(actions, densities, strict=True):
                    value = self.critics(w, obs, one)
                    if kind and settings.calibrated:
                        value = np.maximum(value, reference)
                    total += np.exp(value) / density
            penalty = np.log(total) - q
            return (batch["weights"] * ((q - targets) ** 2 + settings.conservatism * penalty).sum(axis=0)).mean()

        def policy_loss(w):
            action, log_prob = self.draw(self.actor(w, obs), at_loss)
            return (self.temperature * log_prob - self.critics(nets["critics"], obs, action).min(axis=0)).mean()

        q = self.critics(nets["critics"], obs, batch["action"])
        entropy = -self.draw(self.actor(nets["actor"], obs), at_loss)[1].mean()
        found = {"critics": gradients(critic_loss, nets["critics"]), "actor": gradients(policy_loss, nets["actor"])}
        found["log_temperature"] = {"0": np.array([entropy + ACTIONS])}
        for network, grads in found.items():
            self.step(network, grads)
        self.follow("critics", "target")
        return (targets - q).mean(axis=0)
