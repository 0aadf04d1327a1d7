"""NGU and Agent57: which policy plays, what is rewarded, what the core sees, and what is learned from a window."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import sharpwave as sw
from sharpwave.agents.agent57 import UNDECIDED, Agent57
from sharpwave.agents.losses import signed_hyperbolic, signed_parabolic
from sharpwave.agents.ngu import EPISODIC, NGU, betas, gammas
from sharpwave.agents.protocol import Spaces
from sharpwave.agents.r2d2 import CORE, SequencesSettings

SPACES = Spaces(Box(-1.0, 1.0, (3,), np.float32), Discrete(4))
LANES, STEPS = 4, 40


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


def test_the_loss_of_ngu_by_hand():
    """A window of three steps, of which the second was not greedy, and the third ended the episode."""
    agent = make(NGU, rescale=False, trace=0.8)
    q = torch.tensor([[[1.0, 2.0, 0.0, 0.0], [5.0, 4.0, 0.0, 0.0], [0.0, 0.0, 7.0, 0.0], [9.0, 0.0, 0.0, 0.0]]])
    target_q = q * 10
    agent._unroll = lambda network, batch: q if network is agent.online else target_q
    agent._modulators = lambda batch: torch.tensor([[1.0, 2.0, 3.0]])
    core = torch.zeros(1, agent._core_size)
    core[0, agent._policy_at + 2] = 1.0  # beta .3, gamma .6

    class Batch(SimpleNamespace):
        def __getitem__(self, name):
            return fields[name]

    batch = Batch(
        burn_in=0, mask=torch.ones(1, 3, dtype=torch.bool), action=torch.tensor([[1, 1, 2]]),
        step_reward=torch.tensor([[1.0, 2.0, 3.0]]), discount=torch.tensor([[0.9, 0.9, 0.0]]),
        weights=torch.tensor([0.5]),
    )  # fmt: skip
    fields = {CORE: core, EPISODIC: torch.tensor([[10.0, 10.0, 10.0]])}
    loss, errors = agent.loss(batch)
    third = 3 + 0.3 * 30
    second = 2 + 0.3 * 20 + 0.6 * (70 + 0.8 * (third - 70))  # the third action is greedy
    first = 1 + 0.3 * 10 + 0.6 * 50  # the second is not: no trace
    expected = np.array([first - 2, second - 4, third - 7])
    np.testing.assert_allclose(errors[0], expected, rtol=1e-5)
    assert float(loss) == pytest.approx(0.5 * 0.5 * np.square(expected).mean(), rel=1e-5)


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
