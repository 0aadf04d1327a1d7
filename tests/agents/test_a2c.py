"""Actor-critic agents: whole updates against their equations, windows and stored fields, and policies."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete

import sharpwave as sw
from sharpwave.agents.a2c import A2C, A3C, LOG_PROBABILITY
from sharpwave.agents.action_distributions import RAW, Gaussian, normal_log_density, policy_for
from sharpwave.agents.impala import IMPALA
from sharpwave.agents.ppo import PPO
from sharpwave.agents.protocol import Spaces
from sharpwave.agents.rollouts import MinibatchSettings, RolloutSettings
from tests.agents.optimizers import Adam, clipped, rate
from tests.agents.test_pqn import ACTIONS, SIZE, STEPS, UNITS, WINDOWS, windows
from tests.agents.test_updates import weights_of

SPACES = Spaces(Box(-np.inf, np.inf, (SIZE,), np.float32), Discrete(ACTIONS))


class Oracle:
    """Networks in numpy, float64; gradients by central differences of the loss, what has none held fixed."""

    def __init__(self, agent, weights):
        self.agent, self.settings = agent, agent.settings
        self.weights = {name: np.array(value, np.float64) for name, value in weights.items()}
        self.optimizer = Adam(1e-5)

    def network(self, weights, name, obs):
        x = obs
        for layer in ("0.0", "1"):
            x = np.maximum(x @ weights[f"{name}.{layer}.weight"].T + weights[f"{name}.{layer}.bias"], 0)
        return x @ weights[f"{name}.3.weight"].T + weights[f"{name}.3.bias"]

    def policy(self, weights, batch):
        logits = self.network(weights, "policy", batch["obs"])[:, :-1]
        log_policy = logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))
        taken = np.take_along_axis(log_policy, batch["action"][:, :, None], axis=2)[:, :, 0]
        return taken, -(np.exp(log_policy) * log_policy).sum(axis=2)

    def constants(self, batch):
        """Return the targets and the advantages [B, T]."""
        kind, settings = self.settings.kind, self.settings
        value = self.network(self.weights, "value", batch["obs"])[:, :, 0]
        ratio = np.exp(self.policy(self.weights, batch)[0] - batch[LOG_PROBABILITY])
        if kind != "impala" or not settings.vtrace:
            ratio[:] = 1.0
        trace = 1.0 if kind == "impala" else settings.trace
        clip = settings.max_ratio if kind == "impala" else 1.0
        target, advantage = np.zeros((WINDOWS, STEPS)), np.zeros((WINDOWS, STEPS))
        for window in range(WINDOWS):
            last, moved = int(batch["mask"][window].sum()) - 1, 0.0
            for t in range(last, -1, -1):
                reward, discount = batch["step_reward"][window, t], batch["discount"][window, t]
                now, after = value[window, t], value[window, t + 1]
                rho, cut = min(ratio[window, t], clip), min(ratio[window, t], 1.0)
                advantage[window, t] = rho * (reward + discount * (after + trace * moved) - now)
                moved = rho * (reward + discount * after - now) + discount * cut * trace * moved
                target[window, t] = now + moved
        if kind == "ppo":
            real = advantage[batch["mask"]]
            advantage = (advantage - real.mean()) / (real.std() + 1e-8)
        return target, advantage

    def loss(self, weights, batch, target, advantage):
        settings = self.settings
        log_probability, entropy = self.policy(weights, batch)
        value = self.network(weights, "value", batch["obs"])[:, :-1, 0]
        policy = -advantage * log_probability
        if settings.kind == "ppo":
            ratio = np.exp(log_probability - batch[LOG_PROBABILITY])
            policy = -np.minimum(ratio * advantage, np.clip(ratio, 1 - settings.clip, 1 + settings.clip) * advantage)
        steps = policy + settings.value_cost * 0.5 * (target - value) ** 2 - settings.entropy_cost * entropy
        return steps[batch["mask"]].mean()

    def learn(self, batch, step):
        constants, grads = self.constants(batch), {}
        for name, value in self.weights.items():
            grads[name] = np.zeros_like(value)
            for index in np.ndindex(value.shape):
                ends = []
                for sign in (1, -1):
                    moved = value.copy()
                    moved[index] += sign * 1e-6
                    ends.append(self.loss({**self.weights, name: moved}, batch, *constants))
                grads[name][index] = (ends[0] - ends[1]) / 2e-6
        for part in ("policy.", "value."):
            own = {name: grad for name, grad in grads.items() if name.startswith(part)}
            grads |= clipped(own, self.settings.max_grad_norm)
        self.weights = self.optimizer.step(self.weights, grads, rate(self.settings, step))


class Tensors(SimpleNamespace):
    """A batch of tensors."""

    def __getitem__(self, name):
        return vars(self)[name]


@pytest.mark.parametrize(
    ("agent", "changes"),
    [
        (A2C, {}),
        (A2C, {"trace": 0.8, "lr_end": 2e-3, "lr_steps": 400, "max_grad_norm": 0.0}),
        (IMPALA, {}),
        (IMPALA, {"max_ratio": 1.5}),
        (IMPALA, {"vtrace": False}),
        (PPO, {}),
        (PPO, {"trace": 0.5, "clip": 0.05, "value_cost": 1.0, "entropy_cost": 0.0}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else value.Settings.kind,
)
def test_updates_are_those_of_the_equations(agent, changes):
    torch.manual_seed(0)
    base = {"network": "mlp", "hidden_units": UNITS, "lr": 1e-2, "entropy_cost": 0.1}
    learner = agent(SPACES, agent.Settings(**base | changes))
    begun = {
        f"{part}.{name}": value.copy()
        for part in ("policy", "value") for name, value in weights_of(learner, f"{part}.").items()
    }  # fmt: skip
    oracle, rng = Oracle(learner, begun), np.random.default_rng(2)
    for update, batch in enumerate(windows(4, seed=1)):
        # Of the behaviour policy: neither near the learner's nor so far that no ratio is below a limit.
        batch[LOG_PROBABILITY] = np.log(rng.uniform(0.2, 0.6, (WINDOWS, STEPS))).astype(np.float32) * batch["mask"]
        oracle.learn(batch, 32 * update)
        learner.learn(Tensors(**{name: torch.from_numpy(one) for name, one in batch.items()}), 32 * update)
        for name, expected in oracle.weights.items():
            found = weights_of(learner, f"{name.split('.')[0]}.")[name.partition(".")[2]]
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5, err_msg=f"{update} {name}")
    assert all(np.abs(value - begun[name]).max() > 1e-3 for name, value in oracle.weights.items())


def played(agent, space, length, **ends):
    """Return a batch over one episode of ``length`` steps that the agent played, and its observations, the last too."""
    fields = {"action": sw.Field(space.shape or (), str(space.dtype)), **agent.step_fields()}
    obs = np.random.default_rng(0).normal(size=(length + 2, SIZE)).astype(np.float32)
    with sw.Store(sw.Spec(obs=sw.Field((SIZE,), "float32"), **fields), capacity=100, seed=0) as store:
        view = agent.replay().open(store, None, 0)
        for step in range(length):
            acted = agent.act(obs[step : step + 1], None, step)
            last = step == length - 1
            store.extend(
                obs=obs[step : step + 1], action=acted.action, reward=[1.0],
                terminated=[last and ends.get("terminated", False)], truncated=[last and ends.get("truncated", False)],
                final_obs=obs[step + 1 : step + 2], **acted.fields,
            )  # fmt: skip
        return view.sample(1).copy().torch(), torch.from_numpy(obs)


ONE_WINDOW = RolloutSettings(batch_size=1, length=5, epochs=1, gamma=0.9)


@pytest.mark.parametrize("space", [Discrete(3, start=-4), Box(np.float32(-0.1), np.float32(0.1), (2,))], ids=str)
@pytest.mark.parametrize("agent", [IMPALA, PPO], ids=["impala", "ppo"])
def test_the_ratio_of_an_unchanged_policy_is_one(agent, space):
    """Also of actions that were clipped to the bounds: the density is that of what was drawn."""
    learner = agent(Spaces(SPACES.observation, space), agent.Settings(hidden_units=8, replay=ONE_WINDOW), seed=1)
    batch, _ = played(learner, space, 4, truncated=True)
    assert RAW not in batch.fields or (batch.action.abs().reshape(-1, 2) < batch[RAW].abs().reshape(-1, 2)).any()
    seen = learner.see(batch)
    torch.testing.assert_close(seen.ratio, torch.ones(1, 5), rtol=1e-5, atol=1e-5)  # of padding too
    assert seen.mask.tolist() == [[True] * 4 + [False]]


@pytest.mark.parametrize("how", ["truncated", "terminated"])
def test_a_truncated_episode_bootstraps_from_its_final_observation(how):
    learner = A2C(SPACES, A2C.Settings(hidden_units=8, replay=ONE_WINDOW), seed=1)
    batch, obs = played(learner, SPACES.action, 3, **{how: True})
    seen = learner.see(batch)
    final = learner.value(obs[3:4])[0, 0].item() if how == "truncated" else 0.0
    returns = [1 + 0.9 * (1 + 0.9 * (1 + 0.9 * final)), 1 + 0.9 * (1 + 0.9 * final), 1 + 0.9 * final]
    np.testing.assert_allclose(learner.objectives(batch, seen)[1][0, :3].tolist(), returns, rtol=1e-5)


def test_observations_are_normalized_after_the_update_in_which_they_were_learned_from():
    """Until then the policy is the one that acted, and its ratio is 1."""
    settings = A2C.Settings(hidden_units=8, replay=ONE_WINDOW, normalize_obs=True, normalize_reward=True)
    learner = A2C(SPACES, settings, seed=1)
    batch, obs = played(learner, SPACES.action, 3, truncated=True)
    torch.testing.assert_close(learner.see(batch).ratio, torch.ones(1, 5))
    learner.learn(batch, 0)
    torch.testing.assert_close(learner.inputs.mean, obs[:3].mean(dim=0))  # of real steps, the final one not among them
    returns = np.array([1, 1.9, 2.71])
    deviation = np.sqrt((3 * returns.var() + 1e-4 + 1e-4 * returns.mean() ** 2) / 3.0001)  # begun as 1e-4 of a 1
    np.testing.assert_allclose(learner.rewards(batch)[0, :3], 1 / deviation, rtol=1e-3)
    assert (batch.step_reward[0, :3] == 1).all()


def test_windows_of_several_epochs_are_measured_once_after_the_last():
    """So that all epochs' inputs are those of the policy that acted. A restored agent goes on counting."""
    replay = MinibatchSettings(batch_size=1, length=5, epochs=3, gamma=0.9)
    settings = PPO.Settings(hidden_units=8, replay=replay, normalize_obs=True)
    learner = PPO(SPACES, settings, seed=1)
    batch, obs = played(learner, SPACES.action, 3, truncated=True)
    learner.learn(batch, 0)
    again = PPO(SPACES, settings, seed=2)
    again.load(learner.state())
    again.learn(batch, 0)
    assert not again.inputs.mean.any() and again.inputs.count == 0
    again.learn(batch, 0)
    torch.testing.assert_close(again.inputs.mean, obs[:3].mean(dim=0))
    assert again.inputs.count == 3 and again.state()["uses"] == []


def test_a_window_s_end_bootstraps_from_the_observation_behind_it():
    settings = IMPALA.Settings(hidden_units=8, replay=RolloutSettings(batch_size=1, length=2, epochs=1, gamma=0.9))
    learner = IMPALA(SPACES, settings, seed=1)
    batch, obs = played(learner, SPACES.action, 6, terminated=True)
    behind = learner.value(obs[2:3])[0, 0].item()
    found = learner.objectives(batch, learner.see(batch))[1][0].tolist()
    np.testing.assert_allclose(found, [1 + 0.9 * (1 + 0.9 * behind), 1 + 0.9 * behind], rtol=1e-4)


def test_each_window_is_sampled_as_often_as_epochs_say_and_in_order():
    learner = PPO(SPACES, PPO.Settings(replay=MinibatchSettings(batch_size=2, length=2, epochs=3)))
    spec = sw.Spec(obs=sw.Field((SIZE,), "float32"), action=sw.Field((), "int64"), **learner.step_fields())
    with sw.Store(spec, capacity=100, seed=0) as store:
        view = learner.replay().open(store, None, 0)
        for step in range(9):  # windows of steps 0, 2, 4 and 6, the last one whole with step 8
            acted = learner.act(np.zeros((1, SIZE), np.float32), None, step)
            store.extend(
                obs=np.zeros((1, SIZE)), action=acted.action, reward=[0.0], terminated=[False], truncated=[False],
                **acted.fields,
            )  # fmt: skip
        assert [view.sample(2).step.tolist() for _ in range(6)] == [[0, 2]] * 3 + [[4, 6]] * 3
        with pytest.raises(sw.EmptyError):
            view.sample(2)


@pytest.mark.parametrize(("name", "value"), [("action_bounds", "squashed"), ("log_std_start", -1.0), ("sde_every", 4)])
def test_settings_of_continuous_actions_are_refused_for_others(name, value):
    option = "--" + name.replace("_", "-")
    with pytest.raises(ValueError, match=rf"{option}: got {value!r}, expected (scaled|0.0|0): actions are not contin"):
        PPO(SPACES, PPO.Settings(**{name: value}))
    PPO(Spaces(SPACES.observation, Box(-1, 1, (1,), np.float32)), PPO.Settings(**{name: value}))


@pytest.mark.parametrize("agent", [A2C, A3C], ids=["a2c", "a3c"])
def test_what_does_not_correct_refuses_reuse(agent):
    with pytest.raises(ValueError, match=f"--epochs: got 2, expected 1: {agent.Settings.kind} does not correct"):
        agent.Settings(replay=RolloutSettings(epochs=2))


def test_actors_get_the_policy_alone():
    learner = IMPALA(SPACES, IMPALA.Settings(hidden_units=8))
    assert {name.partition(".")[0] for name in learner.policy_tensors(explore=True)} == {"policy"}


OBS = Box(-1, 1, (3,), np.float32)


class Fields(dict):
    """A batch with an action and further fields."""

    def __init__(self, action, **fields):
        super().__init__(**fields)
        self.action = action


def test_categorical_by_hand():
    policy = policy_for(Spaces(OBS, Discrete(2, start=5)), "test")
    predicted = torch.tensor([[0.0, np.log(3.0)]], dtype=torch.float32)  # probabilities 1/4 and 3/4
    action, log_probability, fields = policy.choose(predicted, None)
    assert action.tolist() == [6] and not fields
    np.testing.assert_allclose(log_probability, np.log([0.75]), rtol=1e-6)
    batch = Fields(torch.tensor([[5, 6]]))
    got = policy.log_probability(predicted.expand(1, 2, 2), batch)
    torch.testing.assert_close(got, torch.tensor([[0.25, 0.75]]).log())
    expected = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    torch.testing.assert_close(policy.entropy(predicted), torch.tensor([expected], dtype=torch.float32))


def test_categorical_draws_by_its_probabilities():
    policy, count = policy_for(Spaces(OBS, MultiDiscrete([2, 2])), "test"), 20_000
    probabilities = np.array([0.1, 0.2, 0.3, 0.4])
    predicted = torch.from_numpy(np.log(probabilities)).float().expand(count, 4)
    action, log_probability, _ = policy.choose(predicted, np.random.default_rng(0))
    number = action[:, 0] * 2 + action[:, 1]
    share = np.bincount(number, minlength=4) / count
    assert np.abs(share - probabilities).max() < 4 * np.sqrt(0.25 / count)  # four deviations
    np.testing.assert_allclose(log_probability, np.log(probabilities)[number], rtol=1e-6)


def test_normal_log_density_by_hand():
    # -(1 - 0)^2 / (2 * 4) - log 2 - log(2 pi) / 2, and -log(2 pi) / 2 at the mean of a unit normal.
    predicted = torch.tensor([[0.0, 3.0, np.log(2.0), 0.0]], dtype=torch.float32)
    expected = -1 / 8 - np.log(2) - np.log(2 * np.pi)
    got = normal_log_density(predicted, torch.tensor([[1.0, 3.0]]))
    torch.testing.assert_close(got, torch.tensor([expected], dtype=torch.float32))


def test_gaussian_is_torch_s():
    policy, rng = Gaussian(Box(-1, 1, (3,), np.float32)), np.random.default_rng(1)
    predicted, raw = torch.from_numpy(rng.normal(size=(4, 5, 6))), torch.from_numpy(rng.normal(size=(4, 5, 3)))
    mean, log_std = predicted.chunk(2, dim=-1)
    other = torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
    torch.testing.assert_close(policy.log_probability(predicted, Fields(None, **{RAW: raw})), other.log_prob(raw))
    torch.testing.assert_close(policy.entropy(predicted), other.entropy())


def test_gaussian_actions_are_scaled_to_the_bounds_and_clipped():
    box = Box(np.array([[-3.0], [0.0], [-np.inf]], np.float32), np.array([[1.0], [np.inf], [np.inf]], np.float32))
    policy = Gaussian(box)
    predicted = torch.tensor([[0.5, -2.0, 5.0, 0, 0, 0], [7.0, 2.0, -5.0, 0, 0, 0]])
    action, _, fields = policy.choose(predicted, None)
    # -1 + 2 * .5 = 0, and 13 is clipped to 1; below 0 there is nothing; the last is unbounded.
    np.testing.assert_array_equal(action, [[[0.0], [0.0], [5.0]], [[1.0], [2.0], [-5.0]]])
    np.testing.assert_array_equal(fields[RAW], predicted[:, :3])  # before clipping: what the density is of


def test_gaussian_actions_are_clipped_or_squashed_instead():
    box = Box(np.array([-3.0, 0.0], np.float32), np.array([1.0, np.inf], np.float32))
    predicted = torch.tensor([[0.5, -2.0, 0, 0], [-7.0, 2.0, 0, 0]])
    policy = Gaussian(box, "clipped")
    action, _, fields = policy.choose(predicted, None)
    np.testing.assert_array_equal(action, [[0.5, 0.0], [-3.0, 2.0]])
    np.testing.assert_array_equal(policy.best(predicted), action)
    policy = Gaussian(box, "squashed")
    action, density, fields = policy.choose(predicted, None)
    np.testing.assert_allclose(policy.best(predicted), action, rtol=1e-6)
    np.testing.assert_allclose(action, [[-1 + 2 * np.tanh(0.5), 0.0], [-1 + 2 * np.tanh(-7.0), 2.0]], rtol=1e-6)
    np.testing.assert_array_equal(fields[RAW], predicted[:, :2])
    np.testing.assert_allclose(density, normal_log_density(predicted, predicted[:, :2]))


def test_state_dependent_noise_is_held_and_has_its_density():
    policy, rng, count = Gaussian(Box(-1, 1, (1,), np.float32), sde_every=2), np.random.default_rng(0), 20_000
    head: Any = policy.head(3)
    with torch.no_grad():
        head.log_std.copy_(torch.tensor([[0.0], [-1.0], [-9.0]]))
        predicted = head(torch.tensor([[0.6, 0.5, 2.0]])).expand(count, -1)
    first = policy.held(None, count, rng)
    second = policy.held(first, count, rng)
    third = policy.held(second, count, rng)
    assert first and second and third and second.noise is first.noise is not third.noise
    _, density, fields = policy.choose(predicted, rng, first)
    mean, deviation = predicted[0, 0].item(), np.sqrt(0.36 + 0.25 * np.exp(-2))
    assert abs(fields[RAW].mean() - mean) < 4 * deviation / np.sqrt(count)
    assert abs(fields[RAW].std() - deviation) < 4 * deviation / np.sqrt(2 * count)
    expected = torch.distributions.Normal(mean, deviation).log_prob(torch.from_numpy(fields[RAW][:, 0]))
    np.testing.assert_allclose(density, expected, atol=1e-4)
    np.testing.assert_array_equal(policy.choose(predicted, rng, second)[2][RAW], fields[RAW])  # the same noise
    np.testing.assert_array_equal(policy.best(predicted), policy.choose(predicted, None)[0])


def test_gaussian_draws_by_its_deviations():
    policy, count = Gaussian(Box(-1, 1, (1,), np.float32)), 20_000
    predicted = torch.tensor([[0.3, np.log(0.5)]], dtype=torch.float32).expand(count, 2)
    _, log_probability, fields = policy.choose(predicted, np.random.default_rng(0))
    raw = fields[RAW][:, 0]
    assert abs(raw.mean() - 0.3) < 4 * 0.5 / np.sqrt(count) and abs(raw.std() - 0.5) < 4 * 0.5 / np.sqrt(2 * count)
    expected = torch.distributions.Normal(0.3, 0.5).log_prob(torch.from_numpy(raw))
    np.testing.assert_allclose(log_probability, expected, atol=1e-5)


def test_a_fresh_policy_takes_all_actions_alike():
    head = policy_for(Spaces(OBS, Discrete(4)), "test").head(64)
    probabilities = head(torch.randn(100, 64)).softmax(dim=1)
    assert (probabilities - 0.25).abs().max() < 0.02
    head = Gaussian(Box(-1, 1, (2,), np.float32)).head(64)
    mean, log_std = head(torch.randn(100, 64)).chunk(2, dim=1)
    assert mean.abs().max() < 0.1 and (log_std == 0).all()


def test_other_actions_are_refused():
    with pytest.raises(ValueError, match="ppo needs discrete actions; the environment has Dict"):
        from gymnasium.spaces import Dict

        policy_for(Spaces(OBS, Dict(a=Discrete(2))), "ppo")
