"""SAC and TD3 with the options of their critics, from the papers they are of: one network after the other, float64.

Gradients are autograd's, of the losses as the papers write them; noise, masks and choices are drawn as the agent draws.
"""

import math
from itertools import count

import torch
from torch.nn.functional import layer_norm

from tests.agents.optimizers import Adam

LOG_STD = (-20.0, 2.0)


class CriticsOracle:
    """Agent by its equations.

    Args:
        weights: of the agent when it begins, by network and name: arrays.
        settings: the agent's.
    Attributes:
        seen: observations that were measured so far, [N, n].
    """

    def __init__(self, weights, settings, updates=0, seen=None):
        self.nets = {
            network: {name: torch.from_numpy(one).double() for name, one in own.items()}
            for network, own in weights.items()
            if network != "inputs"
        }
        self.settings, self.updates, self.adams = settings, updates, {}
        self.seen = torch.zeros(0, 0) if seen is None else seen
        self.masks = []

    # networks

    def normal(self, obs):
        if not self.settings.normalize_obs or not len(self.seen):
            return obs
        off = obs - self.seen.mean(dim=0)
        return (off / (self.seen.var(dim=0, correction=0) + 1e-8).sqrt()).clamp(-10, 10)

    def measure(self, obs):
        self.seen = obs if not len(self.seen) else torch.cat([self.seen, obs])

    def hidden(self, w, x, get, masks=None):
        """Hidden layers of one network, whose parameters ``get`` finds by the layer's name."""
        at = count(1 if get.actor else 0)

        def linear(x, name):
            matrix, bias = get(w, name)
            return x @ matrix + bias

        def norm(x, name):
            scale, shift = get.norm(w, name)
            return layer_norm(x, x.shape[-1:]) * scale + shift

        if self.settings.blocks == "simba":
            x = linear(x, f"hidden.{next(at)}")
            for _ in range(1 if get.actor else 2):
                block = f"hidden.{next(at)}.layers"
                inside = linear(norm(x, f"{block}.0"), f"{block}.1").relu()
                x = x + linear(inside, f"{block}.3")
            return norm(x, f"hidden.{next(at)}")
        for layer in range(2):
            x = linear(x, f"hidden.{next(at)}")
            if self.settings.dropout and not get.actor:
                next(at)
                x = x * masks[layer]
            if self.settings.layer_norm and not get.actor:
                x = norm(x, f"hidden.{next(at)}")
            x = x.relu()
            next(at)
        return x

    def actor(self, w, obs):
        return self.hidden(w, obs, OfActor()) @ w["output.weight"].T + w["output.bias"]

    def critics(self, w, obs, action, chosen=None):
        """Values [K, B, N], N = 1 without quantiles, of all critics or those ``chosen``."""
        masks = [self.masks.pop(0) for _ in range(2)] if self.settings.dropout else None
        x, found = torch.cat([obs, action], dim=1), []
        for place, k in enumerate(range(self.settings.critics) if chosen is None else chosen.tolist()):
            h = self.hidden(w, x, OfCritic(k), masks and [one[place] for one in masks])
            if getattr(self.settings, "quantiles", 0):
                found.append(h @ w["quantiles.weight"][k] + w["quantiles.bias"][k])
            else:
                found.append((h * w["output"][k]).sum(dim=1, keepdim=True) + w["output_bias"][k])
        return torch.stack(found)

    # losses

    def draw(self, output):
        """Actions, and their log-probabilities: of the Gaussian, less log(1 - a^2)."""
        mean, log_std = output.chunk(2, dim=1)
        noise = torch.randn(mean.shape).double()
        u = mean + log_std.clamp(*LOG_STD).exp() * noise
        normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        return u.tanh(), (normal - (1 - u.tanh().square()).log()).sum(dim=1)

    @property
    def temperature(self):
        return (
            self.nets["log_temperature"]["0"].exp() if self.settings.temperature is None else self.settings.temperature
        )

    def chosen(self):
        some, of = self.settings.target_critics, self.settings.critics
        return None if some is None or some == of else torch.randperm(of)[:some]

    def critic_loss(self, values, target, batch):
        """Loss, and the errors [B]."""
        if not getattr(self.settings, "quantiles", 0):
            errors = target - values[:, :, 0]
            return (batch["weights"] * 0.5 * errors.square()).mean(dim=1).sum(), errors.mean(dim=0)
        number, loss = values.shape[2], 0.0
        for one in values:
            for i in range(number):
                u = target - one[:, i : i + 1]
                huber = torch.where(u.abs() <= 1, 0.5 * u.square(), u.abs() - 0.5)
                tilted = ((i + 0.5) / number - (u < 0).double()).abs() * huber
                loss = loss + (batch["weights"] * tilted.mean(dim=1)).mean() / number
        return loss, target.mean(dim=1) - values.mean(dim=(0, 2))

    def mixed(self, values):
        """The values that the targets bootstrap from: [B], or the smaller quantiles of all critics [B, M]."""
        if not getattr(self.settings, "quantiles", 0):
            return values[:, :, 0].amin(dim=0)
        kept = self.settings.critics * (self.settings.quantiles - self.settings.dropped_quantiles)
        pooled = torch.cat(list(values), dim=1)
        return pooled.sort(dim=1).values[:, :kept]

    def step(self, grads):
        """A step of Adam for each network, or of AdamW, which shrinks weights first."""
        for network, own in grads.items():
            adam = self.adams.setdefault(network, Adam(1e-8))
            before = {name: one.numpy() for name, one in self.nets[network].items()}
            if network != "log_temperature":
                before = {
                    name: one * (1 - self.settings.lr * self.settings.weight_decay) for name, one in before.items()
                }
            found = adam.step(before, {name: one.numpy() for name, one in own.items()}, self.settings.lr)
            self.nets[network] = {name: torch.as_tensor(one) for name, one in found.items()}

    def gradients(self, network, loss):
        """d loss / d weights by name; ``loss`` maps weights to a scalar."""
        w = {name: one.clone().requires_grad_() for name, one in self.nets[network].items()}
        return dict(zip(w, torch.autograd.grad(loss(w), list(w.values())), strict=True))

    def follow(self, network, target):
        tau, source = self.settings.target_tau, self.nets[network]
        self.nets[target] = {n: (1 - tau) * v + tau * source[n] for n, v in self.nets[target].items()}

    def begin(self, batch):
        self.updates += 1
        if self.settings.normalize_obs:
            self.measure(batch["obs"])
        return self.updates % self.settings.policy_delay == 0, self.normal(batch["obs"]), self.normal(batch["next_obs"])


class OfActor:
    """Parameters of ``nn.Linear`` and ``nn.LayerNorm``."""

    actor = True

    def __call__(self, w, name):
        return w[f"{name}.weight"].T, w[f"{name}.bias"]

    def norm(self, w, name):
        return w[f"{name}.weight"], w[f"{name}.bias"]


class OfCritic:
    """Parameters of critic k."""

    actor = False

    def __init__(self, k):
        self.k = k

    def __call__(self, w, name):
        return w[f"{name}.weight"][self.k], w[f"{name}.bias"][self.k]

    def norm(self, w, name):
        return w[f"{name}.scale"][self.k], w[f"{name}.shift"][self.k]


class SACOptionsOracle(CriticsOracle):
    def learn(self, batch):
        """TD errors [B] of one update. Of the policy's and the next actions' noise the policy's is drawn first."""
        moves, obs, next_obs = self.begin(batch)
        nets, settings = self.nets, self.settings
        own_masks = self.masks[:2]
        values = self.critics(nets["critics"], obs, batch["action"])
        state = torch.get_rng_state()
        if moves:
            torch.randn(len(obs), batch["action"].shape[1])
        action, log_prob = self.draw(self.actor(nets["actor"], next_obs))
        next_values = self.mixed(self.critics(nets["target"], next_obs, action, self.chosen()))
        shape = (-1, 1) if next_values.dim() == 2 else (-1,)
        bonus = (-self.temperature * log_prob).reshape(shape)
        target = batch["reward"].reshape(shape) + batch["discount"].reshape(shape) * (next_values + bonus)
        _, errors = self.critic_loss(values, target, batch)
        self.masks[:0] = own_masks
        found = {
            "critics": self.gradients(
                "critics",
                lambda w: self.critic_loss(self.critics(w, obs, batch["action"]), target, batch)[0],
            )
        }
        if moves:
            mean = settings.policy_value == "mean" or (
                settings.policy_value == "auto" and (settings.target_critics or settings.dropout or settings.quantiles)
            )

            def policy_loss(w):
                torch.set_rng_state(state)
                action, log_prob = self.draw(self.actor(w, obs))
                self.entropy = -log_prob.mean().item()
                values = self.critics(nets["critics"], obs, action)
                value = values.mean(dim=(0, 2)) if mean else values[:, :, 0].amin(dim=0)
                return (self.temperature * log_prob - value).mean()

            found["actor"] = self.gradients("actor", policy_loss)
            if settings.temperature is None:
                own = self.entropy + batch["action"].shape[1]
                found["log_temperature"] = {"0": torch.tensor([own], dtype=torch.float64)}
        self.step(found)
        self.follow("critics", "target")
        return errors


class TD3OptionsOracle(CriticsOracle):
    def learn(self, batch):
        moves, obs, next_obs = self.begin(batch)
        nets, settings = self.nets, self.settings
        action = self.actor(nets["target_actor"], next_obs).tanh()
        limit = settings.target_noise_limit
        noise = (settings.target_noise * torch.randn(action.shape).double()).clamp(-limit, limit)
        action = (action + noise).clamp(-1, 1)
        next_values = self.mixed(self.critics(nets["target_critics"], next_obs, action, self.chosen()))
        target = batch["reward"] + batch["discount"] * next_values
        own_masks = self.masks[:2]
        _, errors = self.critic_loss(self.critics(nets["critics"], obs, batch["action"]), target, batch)
        self.masks[:0] = own_masks
        found = {
            "critics": self.gradients(
                "critics",
                lambda w: self.critic_loss(self.critics(w, obs, batch["action"]), target, batch)[0],
            )
        }
        if moves:

            def policy_loss(w):
                return -self.critics(nets["critics"], obs, self.actor(w, obs).tanh(), torch.tensor([0])).mean()

            found["actor"] = self.gradients("actor", policy_loss)
        self.step(found)
        if moves:
            self.follow("critics", "target_critics")
            self.follow("actor", "target_actor")
        return errors
