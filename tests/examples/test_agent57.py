"""The example of NGU and Agent57: which policy plays, what is rewarded, what the core sees, what is learned from a
window, and that a run of it begins as its README says."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from agent57 import NGU, Agent57
from agent57.agent57 import UNDECIDED, SlidingUCB
from agent57.ngu import EPISODIC, betas, gammas
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

import sharpwave as sw
from sharpwave.agents.bandits import KLUCB
from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.losses import signed_hyperbolic, signed_parabolic
from sharpwave.agents.protocol import Spaces
from sharpwave.agents.r2d2 import CORE, SequencesSettings
from sharpwave.testing.agent import AgentSuite

SPACES = Spaces(Box(-1.0, 1.0, (3,), np.float32), Discrete(4))
LANES, STEPS = 4, 40
EXAMPLES = Path(__file__).parents[2] / "examples"


def make(agent, **settings):
    torch.manual_seed(0)
    replay = SequencesSettings(batch_size=8, length=5, burn_in=2, stride=3, gamma=0.9)
    small = {"hidden_units": 16, "core_units": 8, "embedding_size": 4, "episodic_memory": 6, "neighbours": 2}
    given = small | {"policies": 3, "min_gamma": 0.6, "replay": replay} | settings
    return agent(SPACES, agent.Settings(**given), seed=1)


def played(agent):
    """Play into a store, by an agent that keeps its values; returns the view, and those values [steps, lanes, A]."""
    spec = sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((), "int64"), **agent.step_fields())
    store = sw.Store(spec, capacity=1000, seed=0)
    view = agent.replay().open(store, "learner", 0)
    agent._keeps_values = True
    rng, state, values, policies = np.random.default_rng(0), agent.begin(LANES), [], []
    for _ in range(STEPS):
        obs = rng.normal(size=(2, LANES, 3)).astype(np.float32)
        acted = agent.act(obs[0], state, 0)
        values.append(acted.state.values)
        policies.append(acted.state.policy)
        reward, terminated = rng.normal(size=LANES), rng.random(LANES) < 0.1
        no = np.zeros(LANES, bool)
        store.extend(
            obs=obs[0], action=acted.action, reward=reward, terminated=terminated, truncated=no, final_obs=obs[1],
            **acted.fields,
        )  # fmt: skip
        state = agent.observe(acted.state, reward, terminated)
    return view, np.array(values), np.array(policies)


def test_the_family_of_policies():
    assert betas(2, 0.3).tolist() == pytest.approx([0.0, 0.3])
    assert betas(4, 0.3).tolist() == pytest.approx([0.0, 0.15, 0.3 / (1 + np.exp(-10)), 0.3])
    assert gammas(3, 0.99, 0.9).tolist() == pytest.approx([0.99, 1 - np.sqrt(0.001), 0.9])
    with pytest.raises(ValueError, match=r"--min-gamma: got 0.95, expected at most --gamma 0.9"):
        make(NGU, min_gamma=0.95)
    with pytest.raises(ValueError, match=r"--neighbours: got 9, expected at most --episodic-memory 6"):
        make(NGU, neighbours=9)


@pytest.mark.parametrize("kind", [NGU, Agent57])
def test_windows_give_the_values_that_were_acted_by(kind):
    """The core sees the same again, from an episode's start or a stored state: action, both rewards, the policy."""
    agent = make(kind)
    view, values, policies = played(agent)
    batch = view.sample(64)
    steps, lanes = batch.step, batch.lane
    tensors = batch.torch()
    policy = tensors[CORE][:, agent._policy_at :].argmax(dim=1)
    with torch.no_grad():
        beta = torch.from_numpy(agent.betas)[policy, None, None]
        q = agent.combined(agent._unroll(agent.online, tensors), beta).numpy()
    compared = 0
    for item in range(64):
        for column in range(5):
            if batch.mask[item, 2 + column]:
                at = steps[item] + column, lanes[item]
                np.testing.assert_allclose(q[item, column], values[at], rtol=1e-4, atol=1e-5)
                assert policies[at] == policy[item]
                compared += 1
    assert compared > 200 and len(set(policy.tolist())) == 3


def test_lanes_play_the_policies_in_turn_and_evaluations_the_first():
    agent = make(NGU)
    state = agent.begin(3, first_lane=2, of_lanes=5)
    obs = np.zeros((3, 3), np.float32)
    played_by = agent.act(obs, state, 0).fields[CORE][:, agent._policy_at :]
    assert played_by.argmax(axis=1).tolist() == [2, 0, 1]
    assert agent.act(obs, state, 0, explore=False).fields[CORE][:, agent._policy_at].tolist() == [1.0] * 3
    assert agent.scored_lanes(5).tolist() == [True, False, False, True, False]


def test_what_was_seen_in_the_episode_is_rewarded_less():
    agent = make(NGU, intrinsic_scale=0.5)
    state, rewards = agent.begin(1), []
    for obs in ([1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0]):
        acted = agent.act(np.array([obs], np.float32), state, 0)
        rewards.append(float(acted.fields[EPISODIC][0]))
        state = agent.observe(acted.state, np.zeros(1), np.zeros(1, bool))
    assert rewards[3] < 0.5 < 5 < min(rewards[:3])  # one neighbour just the same: at most .5 / (sqrt(1) + .001)


@pytest.mark.slow
def test_steps_are_rewarded_by_what_is_novel_when_they_are_learned_from():
    """Over all of training: by how many standard deviations the predictor's error of now is above its mean of now."""
    agent = make(Agent57, max_modulator=3.0, novelty_lr=1e-2)
    view, _, _ = played(agent)
    rewarded = []
    streams = agent.streams

    def spied(q, target_q, reward, intrinsic, beta):
        rewarded.append(intrinsic)
        return streams(q, target_q, reward, intrinsic, beta)

    agent.streams = spied
    batch = view.sample(16).torch()
    real = batch.mask[:, batch.burn_in :]
    at = tuple(real.nonzero()[20].tolist())
    batch.obs[:] = torch.tensor([0.5, 0.0, 0.0])

    def modulators():
        agent.loss(batch)
        return rewarded[-1] / batch[EPISODIC][:, batch.burn_in :]

    assert (modulators()[real] == 1.0).all()  # before any error was counted
    for step in range(1, 351):  # errors of the first steps are forgotten slowly
        agent.learn(batch, step)
    batch.obs[at[0], batch.burn_in + at[1]] = torch.tensor([0.0, 0.5, 0.0])
    never_learned_from = modulators()
    assert never_learned_from[at] == 3.0 and (never_learned_from[real] == 3.0).sum() == 1
    for step in range(351, 501):
        agent.learn(batch, step)
    assert modulators()[at] < 2.0


class Batch(SimpleNamespace):
    """A batch of which ``further`` are the fields by name."""

    def __getitem__(self, name):
        return self.further[name]


def test_the_loss_of_ngu_by_hand():
    """A window of three steps, of which the second was not greedy, and the third ended the episode."""
    agent = make(NGU, rescale=False, trace=0.8)
    q = torch.tensor([[[1.0, 2.0, 0.0, 0.0], [5.0, 4.0, 0.0, 0.0], [0.0, 0.0, 7.0, 0.0], [9.0, 0.0, 0.0, 0.0]]])
    target_q = q * 10
    agent._unroll = lambda network, batch: q if network is agent.online else target_q
    agent._modulators = lambda batch: torch.tensor([[1.0, 2.0, 3.0]])
    core = torch.zeros(1, agent._core_size)
    core[0, agent._policy_at + 2] = 1.0  # beta .3, gamma .6
    batch = Batch(
        burn_in=0, mask=torch.ones(1, 3, dtype=torch.bool), action=torch.tensor([[1, 1, 2]]),
        step_reward=torch.tensor([[1.0, 2.0, 3.0]]), discount=torch.tensor([[0.9, 0.9, 0.0]]),
        weights=torch.tensor([0.5]), further={CORE: core, EPISODIC: torch.tensor([[10.0, 10.0, 10.0]])},
    )  # fmt: skip
    loss, errors = agent.loss(batch)
    third = 3 + 0.3 * 30
    second = 2 + 0.3 * 20 + 0.6 * (70 + 0.8 * (third - 70))  # the third action is greedy
    first = 1 + 0.3 * 10 + 0.6 * 50  # the second is not: no trace
    expected = np.array([first - 2, second - 4, third - 7])
    np.testing.assert_allclose(errors[0], expected, rtol=1e-5)
    assert float(loss) == pytest.approx(0.5 * 0.5 * np.square(expected).mean(), rel=1e-5)


def test_the_greedy_policy_is_of_legal_actions(monkeypatch):
    """Retrace with a trace of 1: 1 + .5 * (4 + (1 + .5 * 8 - 4)) - 2 = 1.5, for 4 is greedy among legal actions."""
    spaces = Spaces(Dict(obs=Box(-99, 99, (3,), np.float32), action_mask=MultiBinary(3)), Discrete(3))
    replay = SequencesSettings(length=2, burn_in=0, stride=2, gamma=0.5)
    agent = NGU(spaces, NGU.Settings(rescale=False, trace=1.0, policies=2, min_gamma=0.5, replay=replay))
    monkeypatch.setattr(agent, "_unroll", lambda network, batch: batch.obs["obs"])
    monkeypatch.setattr(agent, "_modulators", lambda batch: torch.zeros(1, 2))
    core = torch.zeros(1, agent._core_size)
    core[0, agent._policy_at] = 1
    q, mask = [[2.0, 0.0, 0.0], [9.0, 4.0, 3.0], [8.0, 9.0, 6.0]], [[1, 1, 1], [0, 1, 1], [1, 0, 0]]
    batch = Batch(
        obs={"obs": torch.tensor([q]), "action_mask": torch.tensor([mask])}, action=torch.tensor([[0, 1]]),
        mask=torch.ones(1, 2, dtype=torch.bool), step_reward=torch.ones(1, 2), discount=torch.full((1, 2), 0.5),
        weights=torch.ones(1), burn_in=0, further={CORE: core, EPISODIC: torch.zeros(1, 2)},
    )  # fmt: skip
    np.testing.assert_allclose(agent.loss(batch)[1], [[1.5, 1.0]], rtol=1e-6)


def test_agent57_learns_rewards_and_novelty_apart():
    agent = make(Agent57)
    q, beta = torch.tensor([[1.0, -2.0, 3.0, 0.5]]).repeat(1, 2) + torch.arange(8.0), torch.tensor([[0.3]])
    expected = signed_hyperbolic(signed_parabolic(q[:, :4]) + 0.3 * signed_parabolic(q[:, 4:]))
    torch.testing.assert_close(agent.combined(q, beta), expected)
    torch.testing.assert_close(make(Agent57, rescale=False).combined(q, beta), q[:, :4] + 0.3 * q[:, 4:])
    reward, intrinsic = torch.ones(1, 1), torch.full((1, 1), 7.0)
    of_reward, of_novelty = agent.streams(q, 2 * q, reward, intrinsic, beta)
    torch.testing.assert_close(of_reward[0], q[:, :4])
    torch.testing.assert_close(of_novelty[1], 2 * q[:, 4:])
    assert of_reward[2] is reward and of_novelty[2] is intrinsic


def test_bandits_choose_policies_by_whole_episodes():
    agent = make(Agent57, bandit_epsilon=0.0, bandit_scale=0.0)
    state, obs, chosen = agent.begin(2), np.zeros((2, 3), np.float32), []
    for _ in range(12):
        for last in (False, False, True):
            acted = agent.act(obs, state, 0)
            policy = acted.state.policy
            assert (policy != UNDECIDED).all()
            # Policy 1 gives most in lane 0, policy 2 in lane 1.
            state = agent.observe(acted.state, (policy == [1, 2]) * 1.0, np.array([last, last]))
        chosen.append(policy.tolist())
    assert chosen[:3] == [[0, 0], [1, 1], [2, 2]] and chosen[3:] == [[1, 2]] * 9
    np.testing.assert_allclose(agent.bandit.means, [[0, 3, 0], [0, 0, 3]])
    before = agent.bandit.state()
    acted = agent.act(obs, agent.begin(2), 0, explore=False)
    agent.observe(acted.state, np.ones(2), np.ones(2, bool))
    assert all((one == before[name]).all() for name, one in agent.bandit.state().items())
    agent.begin(1, first_lane=4, of_lanes=5)
    assert len(agent.bandit.made) == 5 and agent.bandit.made.tolist() == [12, 12, 0, 0, 0]


def test_a_sliding_window_by_hand():
    bandit = SlidingUCB(2, window=3, epsilon=0.0, scale=0.5)
    rng = np.random.default_rng(0)
    for expected, reward in ((0, 10.0), (1, 11.0), (1, 10.0)):
        assert bandit.choose(rng) == [expected]
        bandit.update([expected], [reward])
    assert bandit.counts.tolist() == [[1, 2]] and bandit.means.tolist() == [[10.0, 10.5]]
    # 10 + .5 and 10.5 + .5 / sqrt(2).
    assert bandit.choose(rng) == [1]
    bandit.update([1], [-5.0])  # arm 0 leaves the window
    assert bandit.counts.tolist() == [[0, 3]] and bandit.choose(rng) == [0]


def test_it_follows_rewards_that_change_and_a_bandit_that_counts_all_does_not():
    rng, shares = np.random.default_rng(0), {}
    for bandit in (SlidingUCB(3, 50, window=40, epsilon=0.1, scale=0.2), KLUCB(3, 50)):
        chosen = []
        for step in range(1060):
            arm = bandit.choose(rng)
            bandit.update(arm, rng.random(50) < np.where(arm == (0 if step < 1000 else 2), 0.9, 0.1))
            chosen.append(arm)
        shares[type(bandit)] = (np.array(chosen[1040:]) == 2).mean()
    assert shares[KLUCB] < 0.6 < 0.85 < shares[SlidingUCB]
    with pytest.raises(ValueError, match="a window of 2, expected"):
        SlidingUCB(3, window=2)
    with pytest.raises(ValueError, match="got arms from 3 to 3, expected 0 to 2"):
        SlidingUCB(3).update([3], [0.0])


def test_random_arms_of_a_sliding_window():
    bandit, rng = SlidingUCB(4, 2000, epsilon=0.5), np.random.default_rng(0)
    for arm in range(4):
        bandit.update(np.full(2000, arm), np.full(2000, 5.0 * (arm == 2)))
    share = np.bincount(bandit.choose(rng), minlength=4) / 2000
    np.testing.assert_allclose(share, [0.125, 0.125, 0.625, 0.125], atol=0.03)


NOVEL: dict[str, Any] = {
    "hidden_units": 16, "core_units": 8, "exploration": EpsilonGreedy(start=0.5, end=0.5), "policies": 4,
    "episodic_memory": 12, "neighbours": 3, "embedding_size": 4,
    "replay": SequencesSettings(batch_size=8, length=6, burn_in=4, stride=2),
}  # fmt: skip


class TestNGU(AgentSuite):
    """Over images, numbers and categories; actions are counted from 2."""

    spaces = Spaces(
        Dict(picture=Box(0, 255, (12, 10, 3), np.uint8), speed=Box(-1, 1, (2,), np.float32), gear=Discrete(4)),
        Discrete(3, start=2),
    )

    def make_agent(self, spaces, seed):
        return NGU(spaces, NGU.Settings(**NOVEL), seed=seed)


class TestAgent57(AgentSuite):
    def make_agent(self, spaces, seed):
        return Agent57(spaces, Agent57.Settings(**NOVEL), seed=seed)


def test_a_run_from_python_makes_no_illegal_action(tmp_path):
    """The maze fails if one is made."""
    run = sw.train(
        "tests.training.made_up:Maze-v0", Agent57, steps=400, out=tmp_path / "run", progress=False, num_envs=2,
        capacity=1_000, warmup_steps=100, hidden_units=16, core_units=16, batch_size=8, length=8, burn_in=4, stride=4,
        policies=3, evaluate_every=0, device="cpu", threads=1,
    )  # fmt: skip
    assert run.summary["updates"] > 15 and np.isfinite(run.metrics["avg_loss"][-1])
    obs = {"obs": np.array([15]), "action_mask": np.array([[1, 0, 0, 0]], np.int8)}
    assert run.policy.predict(obs)[0].tolist() == [1]  # the maze counts its actions from 1
    with pytest.raises(ValueError, match="export: agent57 has no form for other programs"):
        run.policy.export(tmp_path / "it.pt2")


@pytest.mark.slow
def test_the_deep_sea_is_trained_from_the_command_line_and_measured(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(EXAMPLES.parent / "src"), *sys.path])}

    def command(*words):
        ran = subprocess.run(
            [sys.executable, "-m", "agent57", *map(str, words)],
            cwd=EXAMPLES, env=environment, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    folder = tmp_path / "run"
    short = ["--steps", "400", "--warmup-steps", "200", "--evaluate-every", "400", "--actors", "1", "--out", folder]
    assert "400" in command("train", "--config", "agent57/deep-sea.toml", *short)
    assert "mean" in command("eval", folder, "--episodes", "1")
