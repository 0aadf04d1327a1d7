"""R2D2: what it remembers while acting, stores and learns from. Its whole updates: ``test_recurrent_updates``."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import sharpwave as sw
from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.protocol import Spaces
from sharpwave.agents.r2d2 import CORE, R2D2, SequencesSettings

SIZE, UNITS, CORE_UNITS, ACTIONS, FIRST, LANES = 4, 6, 5, 3, 2, 3
SPACES = Spaces(Box(-np.inf, np.inf, (SIZE,), np.float32), Discrete(ACTIONS, start=FIRST))
WINDOWS = SequencesSettings(batch_size=16, length=6, burn_in=4, stride=2, gamma=0.9)


def make(seed=0, **changes):
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "network": "mlp", "hidden_units": UNITS, "core_units": CORE_UNITS, "replay": WINDOWS, "n_step": 3,
        "target_every": 40, "lr": 2e-3, "exploration": EpsilonGreedy(start=0.5, end=0.5),
    }  # fmt: skip
    return R2D2(SPACES, R2D2.Settings(**settings | changes), seed=seed)


def played(agent, steps=120, seed=0):
    """A view of what the agent did in episodes of 1 to 15 steps, and its states by the step's observation."""
    rng = np.random.default_rng(seed)
    states: dict[bytes, Any] = {}
    spec = sw.Spec(obs=sw.Field((SIZE,), "float32"), action=sw.Field((), "int64"), **agent.step_fields())
    store = sw.Store(spec, capacity=10 * steps * LANES)
    view = agent.replay().open(store, "learner", seed)
    state, obs, left = agent.begin(LANES), rng.normal(size=(LANES, SIZE)), rng.integers(1, 16, LANES)
    for step in range(steps):
        acted = agent.act(obs.astype(np.float32), state, step * LANES)
        states |= {one.tobytes(): core for one, core in zip(obs.astype(np.float32), state.core, strict=True)}
        left -= 1
        ended = left == 0
        terminated, reward = ended & (rng.random(LANES) < 0.5), (2 * rng.normal(size=LANES)).astype(np.float32)
        following = rng.normal(size=(LANES, SIZE))
        store.extend(
            obs=obs.astype(np.float32), action=acted.action, reward=reward, terminated=terminated,
            truncated=ended & ~terminated, final_obs=following.astype(np.float32), **acted.fields,
        )  # fmt: skip
        state = agent.observe(acted.state, reward, ended)
        obs = np.where(ended[:, None], rng.normal(size=(LANES, SIZE)), following)
        left = np.where(ended, rng.integers(1, 16, LANES), left)
    return view, states


def online(agent, network="online."):
    weights = agent.state()["weights"]
    return {name.removeprefix(network): one.numpy() for name, one in weights.items() if name.startswith(network)}


def test_the_state_holds_the_previous_action_and_reward_and_begins_anew_with_an_episode():
    agent = make()
    state, obs = agent.begin(LANES), np.random.default_rng(3).normal(size=(LANES, SIZE)).astype(np.float32)
    assert not state.core.any()
    acted = agent.act(obs, state, 0)
    kept = acted.fields[CORE].copy()
    after = agent.observe(acted.state, np.array([1.5, -2.0, 4.0]), np.array([False, False, True]))
    recurrent = 2 * CORE_UNITS
    one_hot = np.eye(ACTIONS)[acted.action - FIRST]
    np.testing.assert_array_equal(after.core[:2, recurrent:-1], one_hot[:2])
    assert after.core[:, -1].tolist() == [1.5, -2.0, 0.0]
    assert after.core[:2, :recurrent].any(axis=1).all() and not after.core[2].any()
    np.testing.assert_array_equal(acted.fields[CORE], kept)  # what is on its way into the store


def test_an_action_made_in_place_of_the_chosen_one_is_the_previous_action():
    agent = make()
    acted = agent.act(np.ones((LANES, SIZE), np.float32), agent.begin(LANES), 0)
    chosen = acted.state.core.copy()
    other = FIRST + (acted.action - FIRST + 1) % ACTIONS
    state = agent.replaced(acted.state, other)
    recurrent = 2 * CORE_UNITS
    np.testing.assert_array_equal(state.core[:, recurrent:-1], np.eye(ACTIONS)[other - FIRST])
    np.testing.assert_array_equal(state.core[:, :recurrent], chosen[:, :recurrent])
    np.testing.assert_array_equal(acted.state.core, chosen)
    assert state.chosen.tolist() == (other - FIRST).tolist()


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"lr_end": 1e-4}, "learning-rate-steps"), ({"replay": {"beta_end": 1.0}}, "beta-steps")],
)
def test_a_schedule_without_its_steps_is_refused(changes, name):
    """It would be at its end from the first step on, and the setting that it begins with without effect."""
    with pytest.raises(ValueError, match=f"{name}.*expected at least 1 with"):
        replay = dataclasses.replace(WINDOWS, **changes.get("replay", {}))
        make(**changes | {"replay": replay})


def test_what_is_stored_is_the_state_before_the_step():
    agent = make()
    view, states = played(agent)
    batch = view.sample(200)
    begin = batch.mask.argmax(axis=1)
    assert set(begin.tolist()) == {0, 2, 4}
    for row, column in enumerate(begin):
        np.testing.assert_array_equal(batch[CORE][row], states[batch.obs[row, column].tobytes()])
    assert (batch[CORE][batch.first[np.arange(200), begin]] == 0).all()


def test_windows_repeat_what_the_agent_computed_while_it_acted():
    """By the same weights: stored states, previous actions and rewards are those of every column."""
    agent = make()
    view, states = played(agent)
    batch = view.sample(100)
    with torch.no_grad():
        q = agent._unroll(agent.online, batch.torch()).numpy()
    seen = 0
    for row in range(100):
        for column in range(batch.burn_in, batch.mask.shape[1]):
            if batch.mask[row, column]:
                core = torch.from_numpy(states[batch.obs[row, column].tobytes()])[None]
                recurrent, previous = core.split([2 * CORE_UNITS, ACTIONS + 1], dim=1)
                obs = torch.from_numpy(batch.obs[row, column].copy())[None]
                with torch.no_grad():
                    expected, _ = agent.online.step(agent.inputs(obs), previous, recurrent)
                np.testing.assert_allclose(q[row, column - batch.burn_in], expected[0], atol=1e-5)
                seen += 1
    assert seen > 300


def test_states_are_stored_as_often_as_windows_need_them():
    assert make().step_fields()[CORE].every == 2
    paper = R2D2(SPACES, R2D2.Settings(network="mlp"))
    assert paper.step_fields()[CORE] == sw.Field((2 * 512 + ACTIONS + 1,), "float32", every=40)


@pytest.mark.parametrize("stored", [True, False])
def test_windows_may_begin_with_zeros_in_place_of_the_stored_state(stored):
    """The previous action and reward are known in any case."""
    agent = make(stored_state=stored)
    batch = played(agent)[0].sample(16).copy().torch()
    recurrent = 2 * CORE_UNITS

    def q(core):
        changed = batch.map(lambda tensor: core if tensor is batch[CORE] else tensor)
        with torch.no_grad():
            return agent._unroll(agent.online, changed)

    zeros, other = batch[CORE].clone(), batch[CORE].clone()
    zeros[:, :recurrent] = 0.0
    other[:, recurrent:] += 1.0
    assert torch.equal(q(zeros), q(batch[CORE])) != stored
    assert not torch.equal(q(other), q(batch[CORE]))


def test_the_learning_rate_falls():
    agent = make(lr=1e-2, lr_end=1e-3, lr_steps=90)
    batch = played(agent)[0].sample(16).copy().torch()
    for step, rate in ((0, 1e-2), (45, 5.5e-3), (90, 1e-3), (500, 1e-3)):
        agent.learn(batch, step)
        assert agent.optimizer.param_groups[0]["lr"] == agent.schedules(step)["learning_rate"] == pytest.approx(rate)


def test_it_needs_discrete_actions():
    with pytest.raises(ValueError, match=r"r2d2 needs discrete actions; the toy has Box\(1,\)"):
        R2D2(Spaces(SPACES.observation, Box(-1, 1, (1,)), "the toy"))


def test_padding_has_no_errors():
    """What lies beyond an episode's end counts for nothing, whatever the network says of it."""
    agent = make()
    view, _ = played(agent)
    batch = view.sample(64).copy()
    _, errors = agent.loss(batch.torch())
    assert not errors.numpy()[~batch.mask[:, batch.burn_in :]].any()
    changed = SimpleNamespace(**vars(batch))
    real = np.concatenate([batch.mask, np.zeros((64, 1), bool)], axis=1)
    real[:, 1:] |= batch.mask  # the observation behind the last step is bootstrapped from
    changed.obs = np.where(real[:, :, None], batch.obs[:, : real.shape[1]], 1e3).astype(np.float32)
    again = type(batch)(**vars(changed))
    _, others = agent.loss(again.torch())
    np.testing.assert_allclose(others, errors, atol=1e-6)


@pytest.mark.parametrize(
    ("baseline", "expected"), [("mean", [8.0, 9.0, 13.0]), ("max", [5.0, 6.0, 10.0]), ("naive", [11.0, 12.0, 16.0])]
)
def test_dueling_baselines(baseline, expected):
    """V = 10 and A = (1, 2, 6), of mean 3 and maximum 6, whatever the observation."""
    agent = make(dueling_baseline=baseline)
    head = agent.online.head
    with torch.no_grad():
        for layer, bias in ((head.value, [10.0]), (head.advantage, [1.0, 2.0, 6.0])):
            layer.weight.zero_()
            layer.bias.copy_(torch.tensor(bias))
    values, _ = agent.infer(np.ones((LANES, SIZE), np.float32), agent.begin(LANES).core)
    np.testing.assert_array_equal(values, [expected] * LANES)


def test_beta_rises():
    """Importance weights are (N P)^-beta, relative to the largest; N cancels."""
    agent = make(replay=dataclasses.replace(WINDOWS, priority_beta=0.2, beta_end=1.0, beta_steps=80))
    view, _ = played(agent)
    batch = view.sample(64)
    view.update_priorities(batch, np.random.default_rng(0).normal(size=(64, WINDOWS.length)))
    for step, beta in ((0, 0.2), (20, 0.4), (80, 1.0), (500, 1.0)):
        assert agent.replay().beta(step) == agent.schedules(step)["beta"] == pytest.approx(beta)
        batch = view.sample(64, beta=agent.replay().beta(step))
        powers = batch.probabilities**-beta
        assert np.ptp(batch.probabilities) > 0
        np.testing.assert_allclose(batch.weights, powers / powers.max(), rtol=1e-5)


def test_beta_is_constant_unless_it_has_an_end():
    agent = make()
    view, _ = played(agent)
    view.update_priorities(batch := view.sample(64), np.random.default_rng(0).normal(size=(64, WINDOWS.length)))
    batch = view.sample(64, beta=agent.replay().beta(500))
    powers = batch.probabilities**-0.6
    np.testing.assert_allclose(batch.weights, powers / powers.max(), rtol=1e-5)
    assert "beta" not in agent.schedules(500)
    uniform = dataclasses.replace(WINDOWS, prioritized=False, beta_end=1.0, beta_steps=80)
    assert make(replay=uniform).replay().beta(500) is None
