"""Recurrent teams: whole updates against the equations, unrolled step by step in numpy, float64; padding; memory."""

from typing import Any

import numpy as np
import pytest
import torch

import sharpwave as sw
from sharpwave.agents.masac import MASAC
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.agents.team_networks import Moments
from sharpwave.agents.vdn import QMIX, VDN, TeamAgent
from tests.agents import test_masac, test_qmix
from tests.agents.optimizers import clipped
from tests.agents.recurrent_oracle import sigmoid
from tests.agents.team_batches import (
    ACTIONS,
    AGENTS,
    COLUMNS,
    LENGTHS,
    SPACES,
    Windows,
    gradients,
    legal,
    n_step_return,
    seen,
    tensors,
    windows,
)
from tests.agents.test_updates import weights_of

UNITS = test_qmix.UNITS
BASE: dict[str, Any] = {
    "recurrent": True, "length": COLUMNS, "hidden_units": UNITS, "lr": 1e-2, "target_tau": 0.2, "max_grad_norm": 1.0,
}  # fmt: skip


def batch_of(arrays: Any) -> Any:
    return Windows(**vars(tensors(arrays)))


def columns(batch, column):
    """Observations [B, ...] in a column."""
    return {name: part[:, column] for name, part in batch["obs"].items()}


def steps_of(batch, b, behind=0):
    """Observations of a window's real steps, or of those ``behind`` them, as rows."""
    return {name: part[b, behind : LENGTHS[b] + behind] for name, part in batch["obs"].items()}


def unrolled(weights, prefix, batch):
    """Outputs of each agent in each window, step by step, [B, columns + 1, N, A]."""
    own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    state, last = np.split(np.asarray(batch["fields"]["core"], np.float64), [UNITS], axis=2)
    found = []
    for t in range(COLUMNS + 1):
        inputs = np.concatenate([seen(columns(batch, t))[0], last], axis=2)
        state = remembered(own, inputs, state)
        found.append(state @ own["head.weight"].T + own["head.bias"])
        last = np.eye(ACTIONS)[batch["action"][:, min(t, COLUMNS - 1)]]
    return np.stack(found, axis=1)


def remembered(weights, inputs, state):
    """A layer, and a GRU's state after a step: Cho et al. (2014), with the reset gate behind the product."""
    hidden = np.maximum(inputs @ weights["torso.0.weight"].T + weights["torso.0.bias"], 0)
    by_input = np.split(hidden @ weights["core.weight_ih_l0"].T + weights["core.bias_ih_l0"], 3, axis=2)
    by_state = np.split(state @ weights["core.weight_hh_l0"].T + weights["core.bias_hh_l0"], 3, axis=2)
    reset, update = sigmoid(by_input[0] + by_state[0]), sigmoid(by_input[1] + by_state[1])
    return (1 - update) * np.tanh(by_input[2] + reset * by_state[2]) + update * state


class Standardized:
    """Rewards of a batch, standardized by all real ones so far."""

    def __init__(self, does):
        self.does, self.so_far = does, np.zeros(0)

    def __call__(self, rewards, mask):
        self.so_far = np.append(self.so_far, rewards[mask])
        return (rewards - self.so_far.mean()) / self.so_far.std() if self.does else rewards


class Values(test_qmix.Oracle):
    """VDN and QMIX over windows."""

    def __init__(self, weights, settings):
        super().__init__(weights, settings)
        self.standardized = Standardized(settings.standardize_rewards)

    def targets(self, batch):
        values = unrolled(self.target, "agent.", batch)
        chooser = unrolled(self.online, "agent.", batch) if self.settings.double else values
        rewards = self.settings.reward_scale * self.standardized(batch["step_reward"], batch["mask"])
        found = []
        for b, length in enumerate(LENGTHS):
            obs = steps_of(batch, b, behind=1)
            allowed, best = legal(obs["action_mask"]), np.zeros((length, AGENTS))
            for t, n in np.ndindex(length, AGENTS):
                action = max(np.flatnonzero(allowed[t, n]), key=lambda a: chooser[b, t + 1, n, a])
                best[t, n] = values[b, t + 1, n, action]
            mixed = self.mixed(self.target, best, seen(obs)[1])
            found.append(
                n_step_return(rewards[b, :length], batch["discount"][b][:length], mixed, self.settings.replay.n_step)
            )
        return found

    def errors(self, weights, batch, targets):
        values, found = unrolled(weights, "agent.", batch), np.zeros((len(LENGTHS), COLUMNS))
        for b, length in enumerate(LENGTHS):
            made = np.take_along_axis(values[b, :length], batch["action"][b, :length, :, None], axis=2)[:, :, 0]
            found[b, :length] = targets[b] - self.mixed(weights, made, seen(steps_of(batch, b))[1])
        return found

    def learn(self, batch):
        targets = self.targets(batch)

        def loss(weights):
            return (batch["weights"][:, None] * self.errors(weights, batch, targets) ** 2).sum() / sum(LENGTHS)

        errors = self.errors(self.online, batch, targets)
        grads = clipped(gradients(self.online, loss), self.settings.max_grad_norm)
        self.online = self.adam.step(self.online, grads, self.settings.lr)
        tau = self.settings.target_tau
        self.target = {name: (1 - tau) * self.target[name] + tau * value for name, value in self.online.items()}
        return errors


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        (VDN, {}),
        (VDN, {"double": False, "replay": TransitionsSettings(n_step=2)}),
        (QMIX, {"mixing_units": UNITS, "standardize_rewards": True, "reward_scale": 0.5}),
    ],
    ids=str,
)
def test_updates_of_values_are_those_of_the_equations(algorithm, changes):
    torch.manual_seed(2)
    agent = algorithm(SPACES, algorithm.Settings(**BASE | changes))
    begun = {name: value.copy() for name, value in weights_of(agent, "online.").items()}
    oracle = Values(begun, agent.settings)
    for update, batch in enumerate(windows(3, 4, UNITS)):
        expected = oracle.learn(batch)
        learned = agent.learn(batch_of(batch), update)
        np.testing.assert_allclose(learned.td_error, expected, rtol=1e-4, atol=1e-5)
        for network, weights in (("online.", oracle.online), ("target.", oracle.target)):
            for name, found in weights_of(agent, network).items():
                np.testing.assert_allclose(found, weights[name], rtol=0, atol=2e-5, err_msg=f"{update} {name}")
    assert all(np.abs(found - begun[name]).max() > 1e-4 for name, found in weights_of(agent, "online.").items())


class Actors(test_masac.Oracle):
    """Multi-agent SAC over windows: rows are the real steps of all windows."""

    def __init__(self, agent):
        super().__init__(agent)
        self.standardized = Standardized(self.settings.standardize_rewards)

    def rows(self, of):
        return np.concatenate([of(b, length) for b, length in enumerate(LENGTHS)])

    def values_of(self, weights, batch, later, action):
        """Of both critics, which remember what they saw and what all did: [2, rows, N, A]."""
        found, told = [], self.others(action)
        for critic in ("0.", "1."):
            own = {name.removeprefix(critic): value for name, value in weights.items() if name.startswith(critic)}
            made, states = batch["fields"]["core"][:, :, UNITS:], []
            state: Any = np.zeros((len(LENGTHS), AGENTS, UNITS))
            for t in range(COLUMNS + 1):
                each, whole = seen(columns(batch, t))
                team = np.concatenate([whole, made.reshape(len(made), -1)], axis=1)
                beside = np.broadcast_to(team[:, None], (*each.shape[:2], team.shape[1]))
                inputs = np.concatenate([beside[..., : whole.shape[1]], each, beside[..., whole.shape[1] :]], axis=2)
                state = remembered(own, inputs, state)
                states.append(state)
                made = np.eye(ACTIONS)[batch["action"][:, min(t, COLUMNS - 1)]]
            along = np.stack(states, axis=1)
            rows = self.rows(lambda b, length: along[b, later : length + later])  # noqa: B023
            known = np.concatenate([rows, told], axis=2)
            hidden = np.maximum(known @ own["head.0.weight"].T + own["head.0.bias"], 0)
            found.append(hidden @ own["head.2.weight"].T + own["head.2.bias"])
        return np.stack(found)

    def learn(self, batch, uniforms):
        settings, temperature, real = self.settings, self.temperature, batch["mask"]
        obs, behind = (
            {name: self.rows(lambda b, _: steps_of(batch, b, later)[name]) for name in batch["obs"]}  # noqa: B023
            for later in (0, 1)
        )
        action = batch["action"][real]

        def policy(weights, at, later):
            logits = unrolled(weights, "", batch)
            return self.of_logits(self.rows(lambda b, length: logits[b, later : length + later]), at)

        uniforms = [one.reshape(*real.shape, AGENTS, ACTIONS)[real] for one in uniforms]
        probability, logarithm = policy(self.weights["policy"], behind, 1)
        q = self.values_of(self.weights["target"], batch, 1, self.drawn(behind, logarithm, uniforms[0])).min(axis=0)
        value = (probability * (q - temperature * logarithm)).sum(axis=2)
        own = batch["fields"]["rewards"] if settings.own_rewards else batch["step_reward"][:, :, None]
        rewards = self.standardized(own, real) + np.zeros(AGENTS)
        begins = np.cumsum([0, *LENGTHS])
        targets = self.rows(
            lambda b, length: np.stack(
                [
                    n_step_return(
                        rewards[b, :length, n], batch["discount"][b], value[begins[b] : begins[b + 1], n],
                        settings.replay.n_step,
                    )
                    for n in range(AGENTS)
                ],
                axis=1,
            )
        )  # fmt: skip

        def errors(weights):
            made = np.stack([action] * 2)[..., None]
            return targets - np.take_along_axis(self.values_of(weights, batch, 0, action), made, axis=3)[..., 0]

        def critic_loss(weights):
            each = self.rows(lambda b, length: np.full(length, batch["weights"][b]))
            return np.mean(each[:, None] * 0.5 * (errors(weights) ** 2).sum(axis=0))

        probability, logarithm = policy(self.weights["policy"], obs, 0)
        fixed = self.values_of(self.weights["critics"], batch, 0, self.drawn(obs, logarithm, uniforms[1])).min(axis=0)

        def policy_loss(weights):
            probability, logarithm = policy(weights, obs, 0)
            return np.mean((probability * (temperature * logarithm - fixed)).sum(axis=2))

        entropy, choices = -(probability * logarithm).sum(axis=2), legal(obs["action_mask"]).sum(axis=2)
        above = np.mean((entropy - settings.target_entropy * np.log(choices))[choices > 1])
        found = errors(self.weights["critics"]).mean(axis=(0, 2))
        grads = {
            **self.named("critics", clipped(gradients(self.weights["critics"], critic_loss), settings.max_grad_norm)),
            **self.named("policy", clipped(gradients(self.weights["policy"], policy_loss), settings.max_grad_norm)),
            ("log_temperature", "0"): np.array([above]),
        }
        before = {(part, name): self.weights[part][name] for part, name in grads}
        for (part, name), weight in self.adam.step(before, grads, settings.lr).items():
            self.weights[part][name] = weight
        tau = settings.target_tau
        self.weights["target"] = {
            name: (1 - tau) * self.weights["target"][name] + tau * weight
            for name, weight in self.weights["critics"].items()
        }
        return found


@pytest.mark.parametrize(
    "changes",
    [
        {"replay": TransitionsSettings(n_step=2)},
        {"own_rewards": True, "standardize_rewards": True},
        {"own_rewards": True, "replay": TransitionsSettings(n_step=2)},
    ],
    ids=str,
)
@pytest.mark.slow
def test_updates_of_policies_are_those_of_the_equations(changes):
    torch.manual_seed(2)
    agent = MASAC(SPACES, MASAC.Settings(**BASE | {"target_entropy": 0.5} | changes))
    begun = {name: value.copy() for name, value in weights_of(agent, "").items()}
    oracle = Actors(agent)
    for update, batch in enumerate(windows(2, 4, UNITS)):
        torch.manual_seed(update)
        uniforms = [np.float64(torch.rand(batch["mask"].size, AGENTS, ACTIONS)) for _ in range(2)]
        expected = oracle.learn(batch, uniforms)
        torch.manual_seed(update)
        learned = agent.learn(batch_of(batch), update)
        assert learned.td_error is not None
        np.testing.assert_allclose(learned.td_error[torch.from_numpy(batch["mask"])], expected, rtol=1e-4, atol=1e-5)
        assert not learned.td_error[~torch.from_numpy(batch["mask"])].any()
        for part, weights in oracle.weights.items():
            for name, found in weights_of(agent, f"{part}.").items():
                np.testing.assert_allclose(found, weights[name], rtol=0, atol=2e-5, err_msg=f"{update} {part} {name}")
    for name, found in weights_of(agent, "policy.").items():
        assert np.abs(found - begun[f"policy.{name}"]).max() > 1e-4, name


@pytest.mark.parametrize("algorithm", [VDN, QMIX, MASAC])
def test_a_padded_step_changes_nothing(algorithm):
    """Whatever it holds: observations, masks, actions, rewards and discounts of columns behind a window's end."""
    found = []
    for noise in (0, 1):
        torch.manual_seed(2)
        agent = algorithm(SPACES, algorithm.Settings(**BASE, standardize_rewards=True))
        batch = batch_of(next(iter(windows(1, 4, UNITS))))
        padded = ~batch.mask
        behind = torch.cat([torch.zeros(len(LENGTHS), 1, dtype=torch.bool), padded], dim=1)
        if noise:
            batch.obs["agents"][behind] += 5
            batch.obs["action_mask"][behind] = 1
            batch.action[padded] = 2
            batch.step_reward[padded] = 9
            batch.discount[padded] = 0.9
        torch.manual_seed(3)
        learned = agent.learn(batch, 0)
        found.append({"error": learned.td_error, **agent.state()["weights"]})
    for name, one in found[0].items():
        torch.testing.assert_close(one, found[1][name], rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("algorithm", [VDN, QMIX, MASAC])
@pytest.mark.parametrize("own", [False, True])
def test_columns_of_padding_alone_cost_nothing(algorithm, own, monkeypatch):
    """Windows twice as long as their episodes teach the same, and networks go over the episodes' columns only."""
    found, seen, along = [], [], TeamAgent.along

    def watched(self, batch):
        seen.append(batch.mask.shape)
        return along(self, batch)

    monkeypatch.setattr(TeamAgent, "along", watched)
    for more in (0, COLUMNS):
        torch.manual_seed(2)
        changes = {"own_rewards": own} if algorithm is MASAC else {}
        agent = algorithm(SPACES, algorithm.Settings(**BASE, standardize_rewards=True, **changes))
        arrays = next(iter(windows(1, 4, UNITS)))
        longer = {
            name: np.concatenate([one, np.zeros_like(one, shape=(len(one), more, *one.shape[2:]))], axis=1)
            for name, one in (arrays | arrays["obs"] | arrays["fields"]).items()
            if name not in ("obs", "fields", "weights", "core")
        }
        batch = batch_of(
            {name: longer.get(name, one) for name, one in arrays.items()}
            | {"obs": {name: longer[name] for name in arrays["obs"]}}
            | {"fields": {"core": arrays["fields"]["core"], "rewards": longer["rewards"]}}
        )
        torch.manual_seed(3)
        learned = agent.learn(batch, 0)
        assert learned.td_error.shape == batch.mask.shape and not learned.td_error[:, COLUMNS:].any()
        found.append({"error": learned.td_error[:, :COLUMNS], **agent.state()["weights"]})
    for name, one in found[0].items():
        torch.testing.assert_close(one, found[1][name], rtol=0, atol=0, msg=name)
    assert seen == [(len(LENGTHS), COLUMNS)] * 2


@pytest.mark.parametrize("algorithm", [QMIX, MASAC])
def test_what_is_learned_from_is_what_acted(algorithm):
    """A store's windows, longer episodes in parts, unrolled give the values by which the agent acted, as it remembers
    and repeats its last action there as here."""
    torch.manual_seed(1)
    agent = algorithm(SPACES, algorithm.Settings(recurrent=True, length=3, hidden_units=UNITS))
    spec = sw.Spec(
        obs={"agents": sw.Field((AGENTS, 2), "float32"), "action_mask": sw.Field((AGENTS, ACTIONS), "int8")},
        action=sw.Field((AGENTS,), "int64"),
        number=sw.Field((), "int64"),
        **agent.step_fields(),
    )
    rng, state, acted_by = np.random.default_rng(0), agent.begin(2), []
    with sw.Store(spec, capacity=1_000) as store:
        view = agent.replay().open(store, None, 0)
        for step in range(40):
            obs = {
                "agents": rng.normal(size=(2, AGENTS, 2)).astype(np.float32),
                "action_mask": np.ones((2, AGENTS, ACTIONS), np.int8),
            }
            acted_by.append(agent.look(obs, state)[0])
            acted = agent.act(obs, state, 10**6)
            ended = np.array([step % 8 == 7, step % 5 == 4])
            number = np.array([2 * step, 2 * step + 1])
            store.extend(
                obs=obs, action=acted.action, reward=np.ones(2, np.float32), terminated=ended, truncated=ended & False,
                final_obs=obs, number=number, **acted.fields,
            )  # fmt: skip
            state = agent.observe(acted.state, np.ones(2), ended)
        batch = view.sample(200).torch()
    network = agent.policy if algorithm is MASAC else agent.online["agent"]
    with torch.no_grad():
        outputs = agent.unrolled(network, agent.along(batch), batch)[:, :-1][batch.mask].numpy()
    expected = np.stack(acted_by).reshape(-1, AGENTS, ACTIONS)[batch["number"][batch.mask]]
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
    assert len(set(batch["number"][batch.mask].tolist())) > 60 and (batch["core"] != 0).any()


def test_running_moments_are_those_of_all_numbers():
    rng, moments = np.random.default_rng(0), Moments()
    parts = [(3 + 2 * rng.normal(size=size)).astype(np.float32) for size in (1, 7, 300, 2)]
    for part in parts:
        moments.add(torch.from_numpy(part))
    whole = np.concatenate(parts).astype(np.float64)
    np.testing.assert_allclose(
        moments(torch.tensor([3.0, 4.0])), (np.array([3, 4]) - whole.mean()) / whole.std(), rtol=1e-6
    )
    alike = Moments()
    alike.add(torch.full((5,), 0.25))
    assert alike(torch.full((2,), 0.25)).tolist() == [0, 0]
