"""Multi-agent SAC: whole updates against its equations in numpy, float64, with the same draws; masks; own rewards."""

from typing import Any

import numpy as np
import pytest
import torch

from sharpwave.agents.masac import MASAC
from sharpwave.agents.replay import TransitionsSettings
from tests.agents.optimizers import Adam, clipped
from tests.agents.team_batches import (
    ACTIONS,
    AGENTS,
    BATCH,
    SPACES,
    batches,
    float64,
    gradients,
    layered,
    legal,
    seen,
    tensors,
)
from tests.agents.test_updates import weights_of

UNITS = 4


class Oracle:
    """The same agent from the papers' equations. Draws are those of torch's generator: uniform numbers [B, N, A]."""

    def __init__(self, agent):
        self.settings = agent.settings
        self.weights = {
            name: float64(weights_of(agent, f"{name}.")) for name in ("policy", "critics", "target", "log_temperature")
        }
        self.adam = Adam(self.settings.adam_eps)

    def policy(self, weights, obs):
        """Probabilities and logarithms, by legal action; 0 of others."""
        return self.of_logits(layered(weights, "", seen(obs)[0]), obs)

    def of_logits(self, logits, obs):
        probability, logarithm = np.zeros(logits.shape), np.zeros(logits.shape)
        for b, n in np.ndindex(*logits.shape[:2]):
            allowed = legal(obs["action_mask"])[b, n]
            exponentials = np.exp(logits[b, n, allowed])
            probability[b, n, allowed] = exponentials / exponentials.sum()
            logarithm[b, n, allowed] = np.log(probability[b, n, allowed])
        return probability, logarithm

    def drawn(self, obs, logarithm, uniform):
        noisy = np.where(legal(obs["action_mask"]), logarithm - np.log(-np.log(uniform)), -np.inf)
        return noisy.argmax(axis=2)

    def values(self, weights, obs, action):
        """Of both critics: [2, B, N, A], each agent's beside the others' actions."""
        (each, state), told = seen(obs), self.others(action)
        whole = np.broadcast_to(state[:, None], (*each.shape[:2], state.shape[1]))
        inputs = np.concatenate([whole, each, told], axis=2)
        return np.stack([layered(weights, f"{critic}.", inputs) for critic in (0, 1)])

    def others(self, action):
        """The actions of the others, one-hot, and zeros in the place of an agent's own: [B, N, N * A]."""
        found = np.zeros((len(action), AGENTS, AGENTS, ACTIONS))
        for b, n, m in np.ndindex(len(action), AGENTS, AGENTS):
            if m != n:
                found[b, n, m, action[b, m]] = 1
        return found.reshape(len(action), AGENTS, -1)

    @property
    def temperature(self):
        given = self.settings.temperature
        return np.exp(self.weights["log_temperature"]["0"][0]) if given is None else given

    def learn(self, batch, uniforms):
        settings, temperature = self.settings, self.temperature
        obs, next_obs = batch["obs"], batch["next_obs"]
        probability, logarithm = self.policy(self.weights["policy"], next_obs)
        q = self.values(self.weights["target"], next_obs, self.drawn(next_obs, logarithm, uniforms[0])).min(axis=0)
        value = (probability * (q - temperature * logarithm)).sum(axis=2)
        reward = batch["fields"]["rewards"] if settings.own_rewards else batch["reward"][:, None]
        targets = reward + batch["discount"][:, None] * value

        def errors(weights):
            made = np.stack([batch["action"]] * 2)[..., None]
            return targets - np.take_along_axis(self.values(weights, obs, batch["action"]), made, axis=3)[..., 0]

        def critic_loss(weights):
            return np.mean(batch["weights"][:, None] * 0.5 * (errors(weights) ** 2).sum(axis=0))

        probability, logarithm = self.policy(self.weights["policy"], obs)
        fixed = self.values(self.weights["critics"], obs, self.drawn(obs, logarithm, uniforms[1])).min(axis=0)

        def policy_loss(weights):
            probability, logarithm = self.policy(weights, obs)
            return np.mean((probability * (temperature * logarithm - fixed)).sum(axis=2))

        entropy, choices = -(probability * logarithm).sum(axis=2), legal(obs["action_mask"]).sum(axis=2)
        above = np.mean((entropy - settings.target_entropy * np.log(choices))[choices > 1])
        found = errors(self.weights["critics"]).mean(axis=(0, 2))
        grads = {
            **self.named("critics", clipped(gradients(self.weights["critics"], critic_loss), settings.max_grad_norm)),
            **self.named("policy", clipped(gradients(self.weights["policy"], policy_loss), settings.max_grad_norm)),
        }
        if settings.temperature is None:
            grads["log_temperature", "0"] = np.array([above])
        before = {(part, name): self.weights[part][name] for part, name in grads}
        for (part, name), value in self.adam.step(before, grads, settings.lr).items():
            self.weights[part][name] = value
        tau = settings.target_tau
        self.weights["target"] = {
            name: (1 - tau) * self.weights["target"][name] + tau * value
            for name, value in self.weights["critics"].items()
        }
        return found, np.mean(entropy[choices > 1])

    @staticmethod
    def named(part, grads):
        return {(part, name): grad for name, grad in grads.items()}


@pytest.mark.parametrize(
    "changes", [{}, {"own_rewards": True, "max_grad_norm": 0.0}, {"temperature": 0.3, "target_tau": 1.0}], ids=str
)
def test_updates_are_those_of_the_equations(changes):
    torch.manual_seed(2)
    base = {"hidden_units": UNITS, "lr": 1e-2, "target_tau": 0.2, "max_grad_norm": 1.0, "target_entropy": 0.5}
    agent = MASAC(SPACES, MASAC.Settings(**base | changes))
    begun = {name: value.copy() for name, value in weights_of(agent, "").items()}
    oracle = Oracle(agent)
    for update, batch in enumerate(batches(5, seed=4)):
        torch.manual_seed(update)
        uniforms = [np.float64(torch.rand(BATCH, AGENTS, ACTIONS)) for _ in range(2)]
        expected, entropy = oracle.learn(batch, uniforms)
        torch.manual_seed(update)
        learned = agent.learn(tensors(batch), update)
        assert learned.td_error is not None
        np.testing.assert_allclose(learned.td_error, expected, rtol=1e-4, atol=1e-5)
        assert float(learned.metrics["entropy"]) == pytest.approx(entropy, rel=1e-4)
        for part, weights in oracle.weights.items():
            for name, found in weights_of(agent, f"{part}.").items():
                np.testing.assert_allclose(found, weights[name], rtol=0, atol=2e-5, err_msg=f"{update} {part} {name}")
    for name, found in weights_of(agent, "").items():
        fixed = name.startswith("inputs") or (name.startswith("log_temperature") and "temperature" in changes)
        assert fixed or np.abs(found - begun[name]).max() > 1e-4, name


def test_an_illegal_action_is_in_no_target_and_in_no_policy():
    """However good its logit and its value are."""
    torch.manual_seed(3)
    agent: Any = MASAC(SPACES, MASAC.Settings(hidden_units=UNITS, max_grad_norm=0.0))
    batch = tensors(next(iter(batches(1, seed=6))))
    for obs in (batch.obs, batch.next_obs):
        obs["action_mask"][:, :, 0] = 0
        obs["action_mask"][:, :, 1] = 1
    batch.action.clamp_(min=1)
    found = []
    for value in (-50.0, 50.0):
        with torch.no_grad():
            for network in (agent.policy, *agent.critics, *agent.target):
                network[4].bias[0] = value
        torch.manual_seed(0)
        seen, logits, known, targets, real = agent.transitions(batch)
        loss, _ = agent.policy_loss(seen, logits, known, real)
        agent.optimizer.zero_grad()
        loss.backward()
        assert not agent.policy[4].bias.grad[0]
        found.append((targets, loss.detach(), agent.policy[4].bias.grad.clone()))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other) and one.isfinite().all()


def test_own_rewards_that_are_not_stored_are_asked_for():
    agent = MASAC(SPACES, MASAC.Settings(hidden_units=UNITS, own_rewards=True))
    batch = tensors(next(iter(batches(1, seed=6))))
    batch.fields = {}
    with pytest.raises(ValueError, match=r"--own-rewards: the steps of .* have no field 'rewards'"):
        agent.learn(batch, 0)
    with pytest.raises(ValueError, match="1 with --own-rewards"):
        MASAC.Settings(own_rewards=True, replay=TransitionsSettings(n_step=2))
